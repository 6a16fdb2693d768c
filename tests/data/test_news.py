"""The tasks made of BBC News: no text is lost or invented, and the labels say what was done."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data import load_data
from fednlp.data.catalogue.news import matched, punctuated
from fednlp.errors import DataError

words = st.text(st.sampled_from("abcXYZ019"), min_size=1, max_size=8)
marks = st.sampled_from(["", ",", ".", "?", "!", ";", ":", '."', "'", ")"])
paragraphs = st.lists(st.tuples(words, marks), min_size=1, max_size=12)
MARK = {"": "O", "'": "O", ")": "O", ",": "B-COMMA", ";": "B-COMMA", ":": "B-COMMA", "?": "B-QUESTION"}


@given(st.lists(paragraphs, min_size=1, max_size=4))
def test_every_word_and_every_mark_comes_back(article: list[list[tuple[str, str]]]) -> None:
    body = "\n\n".join(" ".join(word + mark for word, mark in paragraph) for paragraph in article)
    rows = [
        row for _, row in punctuated([("here", (f"A headline, of course\n\n{body}\n", "tech", "tech/1.txt"))])
    ]
    assert len(rows) == len(article)
    for row, paragraph in zip(rows, article, strict=True):
        assert isinstance(row, tuple)
        assert json.loads(str(row[0])) == [word.lower() for word, _ in paragraph]
        assert json.loads(str(row[1])) == [MARK.get(mark, "B-PERIOD") for _, mark in paragraph]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_every_headline_and_every_article_is_there_once(topics: list[int]) -> None:
    articles = [
        (f"{n}", (f"head {n}\n\nfirst {n}\n\nsecond {n}\n\nthird {n}\n", f"topic{topic}", f"{n}.txt"))
        for n, topic in enumerate(topics)
    ]
    rows = [row for _, row in matched(articles)]
    heads, leads = (sorted(str(row[i]) for row in rows) for i in range(2))
    assert heads == sorted(f"head {n}" for n in range(len(topics)))
    assert leads == sorted(f"first {n} second {n}" for n in range(len(topics)))
    for row in rows:
        assert isinstance(row, tuple)
        own = re.findall(r"\d+", str(row[0]))[0] == re.findall(r"\d+", str(row[1]))[0]
        assert row[2] == ("same" if own else "other")
    for topic in set(topics):
        if (count := topics.count(topic)) > 3:
            others = [row for row in rows if row[2] == "other" and row[3] == f"topic{topic}"]
            assert len(others) == count // 2


def test_from_files(tmp_path: Path) -> None:
    for topic in ("sport", "tech"):
        (tmp_path / topic).mkdir()
        for number in range(6):
            text = f"Headline {topic} {number}\n\nOne, two and three. Four?\n\nFive!\n"
            (tmp_path / topic / f"{number:03}.txt").write_text(text)
    tagged = load_data("bbc-punctuation", tmp_path)
    assert (tagged.task, tagged.train.num_rows) == ("token-classification", 24)
    assert tagged.label_names == ("O", "B-COMMA", "B-PERIOD", "B-QUESTION")
    assert tagged.groups("train", "topic")[1] == ("sport", "tech")
    pairs = load_data("bbc-headlines", tmp_path)
    assert (pairs.task, pairs.label_names) == ("text-classification", ("other", "same"))
    assert pairs.columns["text_pair"] == "text_pair"
    assert pairs.train["label"].to_pylist().count("other") == 6


def test_an_article_becomes_a_conversation(tmp_path: Path) -> None:
    (tmp_path / "tech").mkdir()
    (tmp_path / "tech" / "001.txt").write_text("A headline\n\nOne, two. Three.\n\nFour.\n")
    (tmp_path / "tech" / "002.txt").write_text("Another\n\nFour.\n")
    data = load_data("bbc-chats", tmp_path)
    assert data.task == "chat"
    assert data.groups("train", "topic")[1] == ("tech",)
    rows = [json.loads(row) for row in data.train["messages"].to_pylist()]
    first = next(row for row in rows if row[1]["content"] == "A headline")
    assert first[0] == {"role": "user", "content": "Write the headline of this report.\n\nOne, two."}
    assert first[1]["role"] == "assistant"


def test_t0_is_conversations_by_template(tmp_path: Path) -> None:
    lines = [
        {"template": f"t{number % 2}", "prompt": f"Ask {number}", "completion": f"Say {number}"}
        for number in range(6)
    ]
    (tmp_path / "t0_294_templates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = load_data("t0", tmp_path)
    assert data.task == "chat"
    assert sorted(data.groups("train", "template")[1]) == ["t0", "t1"]
    said = {json.loads(row)[1]["content"] for row in data.train["messages"].to_pylist()}
    assert said <= {line["completion"] for line in lines}
    (tmp_path / "t0_294_templates.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(DataError, match="template"):
        load_data("t0", tmp_path)


def test_pairs_of_hh_rlhf(tmp_path: Path) -> None:
    """A pair that is none is said with its row, or left out."""
    path, asked = tmp_path / "test.jsonl", "\n\nHuman: Hi\n\nAssistant:"
    pairs = [(f"{asked} Hello {number}", f"{asked} Go {number}") for number in range(6)]
    pairs.append((f"{asked} Same", f"{asked} Same"))
    lines = [json.dumps({"chosen": one, "rejected": other}) + "\n" for one, other in pairs]
    path.write_text("".join(lines))
    with pytest.raises(DataError, match=r"row 7: 'chosen' and 'rejected' are equal"):
        load_data("hh-harmless", tmp_path)
    data = load_data("hh-harmless", tmp_path, on_invalid_row="drop")
    assert data.task == "preference"
    assert len(data.train) == 6
    assert data.train["chosen"].to_pylist()[0].startswith("Hello")


def test_an_empty_article_is_named(tmp_path: Path) -> None:
    (tmp_path / "tech").mkdir()
    (tmp_path / "tech" / "001.txt").write_text("  \n")
    with pytest.raises(Exception, match=r"001\.txt.*empty"):
        load_data("bbc-punctuation", tmp_path)
