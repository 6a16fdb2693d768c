"""The known data sets of every task: their published formats in small, and the published files where they are."""

import bz2
import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fednlp.data import TextData, describe, info, load_data
from fednlp.data.store import Fault
from fednlp.errors import DataError
from fednlp.formulations import TASKS

PUBLISHED = os.environ.get("FEDNLP_TEST_DATA")


def put(folder: Path, **files: str | bytes) -> Path:
    """Write files; in their names ``__`` stands for a dot, ``_of_`` for a slash and ``_to_`` for a hyphen."""
    for name, content in files.items():
        path = folder / name.replace("__", ".").replace("_of_", "/").replace("_to_", "-")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def rows(data: TextData, split: str, *columns: str) -> list[tuple[str | None, ...]]:
    table = data.train if split == "train" else data.test
    return [tuple(row[column] for column in columns) for row in table.to_pylist()]


def squad(*questions: tuple[str, str, str, int], title: str = "t") -> str:
    paragraphs = [
        {
            "context": context,
            "qas": [
                {"question": question, "id": f"q{n}", "answers": [{"text": text, "answer_start": start}]}
            ],
        }
        for n, (context, question, text, start) in enumerate(questions)
    ]
    return json.dumps({"data": [{"title": title, "paragraphs": paragraphs}], "version": "1.1"})


def mrqa(name: str, *questions: tuple[str, str, int, int]) -> bytes:
    lines: list[dict[str, Any]] = [{"header": {"dataset": name}}]
    for context, question, first, last in questions:
        answer = {"text": context[first : last + 1], "char_spans": [[first, last]]}
        lines.append(
            {"context": context, "qas": [{"question": question, "qid": "x", "detected_answers": [answer]}]}
        )
    return gzip.compress("\n".join(map(json.dumps, lines)).encode())


def test_sentences_of_glue_come_as_pairs_and_scores(tmp_path: Path) -> None:
    header = "index\tsentence1\tsentence2\tlabel\n"
    put(
        tmp_path / "rte",
        train__tsv=f"{header}0\ta\tb\tentailment\n",
        dev__tsv=f"{header}0\tc\td\tnot_entailment\n",
    )
    data = load_data("rte", tmp_path / "rte")
    assert data.columns == {"text": "text", "label": "label", "text_pair": "text_pair"}
    assert rows(data, "train", "text", "text_pair", "label") == [("a", "b", "entailment")]
    assert data.labels("test").tolist() == [1]
    put(
        tmp_path / "stsb",
        stsb_to_en_to_train__csv="a,b,5.0\nc,d,0.25\n",
        stsb_to_en_to_test__csv='"e, f",g,1\n',
    )
    data = load_data("stsb", tmp_path / "stsb")
    assert (data.task, data.label_names) == ("text-regression", ())
    assert data.scores("train").tolist() == [5.0, 0.25]
    assert data.scores("test").dtype == np.float64
    assert data.labels("train").tolist() == [0, 0]


def test_mnli_is_tested_on_either_development_file(tmp_path: Path) -> None:
    header = "index\tgenre\tsentence1\tsentence2\tgold_label\n"
    files = {
        "train__tsv": f"{header}0\tfiction\ta\tb\tneutral\n",
        "dev_matched__tsv": f"{header}0\tfiction\tc\td\tneutral\n",
        "dev_mismatched__tsv": f"{header}0\tverbatim\te\tf\tcontradiction\n",
    }
    put(tmp_path, **files)
    assert rows(load_data("mnli", tmp_path), "test", "text", "genre") == [("c", "fiction")]
    assert rows(load_data("mnli-mm", tmp_path), "test", "text", "genre") == [("e", "verbatim")]


def test_tags_have_ids_with_the_outside_first(tmp_path: Path) -> None:
    train = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP I-ORG\nsaid VBD B-VP O\n\nBonn NNP B-NP I-LOC\n"
    put(tmp_path, eng__train=train, eng__testb="Peter NNP B-NP I-PER\n")
    data = load_data("conll2003", tmp_path)
    assert rows(data, "train", "words", "tags") == [
        ('["EU", "said"]', '["B-ORG", "O"]'),
        ('["Bonn"]', '["B-LOC"]'),
    ]
    assert data.label_names == ("O", "B-LOC", "B-ORG", "B-PER")
    assert data.input_texts("train", [1, 0]) == ["Bonn", "EU said"]


def test_sub_data_sets_become_a_field(tmp_path: Path) -> None:
    for name in ("news", "tweets"):
        put(tmp_path / "ploner" / name, train__txt=f"{name} B-ORG\n", test__txt="he O\n")
    data = load_data("ploner", tmp_path / "ploner")
    assert data.groups("train", "domain")[1] == ("news", "tweets")
    assert data.input_texts("train", [0, 1]) == ["news", "tweets"]
    put(
        tmp_path / "mrqa",
        train_of_SQuAD__jsonl__gz=mrqa("SQuAD", ("built in 1912", "when?", 9, 12)),
        train_of_NewsQA__jsonl__gz=mrqa("NewsQA", ("in Rome", "where?", 3, 6)),
        dev_of_SQuAD__jsonl__gz=mrqa("SQuAD", ("in 1913", "when?", 3, 6)),
    )
    data = load_data("mrqa", tmp_path / "mrqa")
    assert rows(data, "train", "dataset", "answers") == [
        ("NewsQA", '[{"text": "Rome", "start": 3}]'),
        ("SQuAD", '[{"text": "1912", "start": 9}]'),
    ]
    assert (len(data.test_numbers), data.held_out) == (1, False)
    put(
        tmp_path / "shifts",
        nyt_v1__0__json__gz=gzip.compress(squad(("in Rome", "where?", "Rome", 3)).encode()),
        new_wiki_v1__0__json=squad(("in 1912", "when?", "1912", 3)),
    )
    data = load_data("squadshifts", tmp_path / "shifts", test_fraction=0.5)
    assert rows(data, "train", "domain", "question") == [("wikipedia", "when?"), ("nyt", "where?")]
    put(
        tmp_path / "x",
        xquad__de__json=squad(("in Rom", "wo?", "Rom", 3)),
        xquad__en__json=squad(("in", "?", "in", 0)),
    )
    data = load_data("xquad", tmp_path / "x", test_fraction=0.5)
    assert data.groups("train", "language")[1] == ("de", "en")


def test_two_languages_are_read_german_first_and_can_be_turned_round(tmp_path: Path) -> None:
    put(tmp_path, train__de="eins\nzwei\n", train__en="one\ntwo\n")
    put(tmp_path, test_2016_flickr__de__gz=gzip.compress(b"drei\n"), test_2016_flickr__en="three\n")
    data = load_data("multi30k", tmp_path)
    assert rows(data, "train", "source", "target") == [("eins", "one"), ("zwei", "two")]
    assert rows(data, "test", "source", "target") == [("drei", "three")]
    turned = load_data("multi30k", tmp_path, columns={"source": "target", "target": "source"})
    assert turned.columns == {"source": "target", "target": "source"}
    assert turned.input_texts("train", [1]) == ["two"]


def test_opus_corpora_are_found_by_their_names_and_blank_lines_are_counted(tmp_path: Path) -> None:
    for name in ("PHP", "TED2013"):
        put(tmp_path, **{f"{name}__de_to_en__de": f"{name}\n\nb\n", f"{name}__de_to_en__en": "x\ny\nz\n"})
    with pytest.raises(
        DataError, match=r"PHP.de-en.de: row 2: the text in 'source' is empty: .*data.on_invalid_row"
    ):
        load_data("php", tmp_path)
    data = load_data("php", tmp_path, on_invalid_row="drop")
    assert (rows(data, "train", "source"), data.dropped) == ([("PHP",), ("b",)], 1)
    data = load_data("domains", tmp_path, on_invalid_row="drop")
    assert data.groups("train", "domain")[1] == ("PHP", "TED2013")
    assert (data.train.num_rows, data.dropped) == (4, 2)
    assert data.dropped_why.count("row 2: the text in 'source' is empty") == 2


def test_each_of_opus_domains_has_the_test_pairs_of_its_own_name(tmp_path: Path) -> None:
    for name in ("PHP", "TED"):
        put(tmp_path, **{f"{name}__de_to_en__de": "a\nb\n", f"{name}__de_to_en__en": "x\ny\n"})
    put(tmp_path / "test", PHP__de_to_en__de="c\n", PHP__de_to_en__en="z\n")
    data = load_data("domains", tmp_path)
    assert (data.train.num_rows, data.held_out) == (4, False)
    assert rows(data, "test", "source", "target", "domain") == [("c", "z", "PHP")]


def test_summaries_and_replies(tmp_path: Path) -> None:
    put(tmp_path / "xsum", train__source="a\nb\n", train__target="x\ny\n")
    assert rows(load_data("xsum", tmp_path / "xsum"), "train", "source", "target") == [("a", "x"), ("b", "y")]
    put(
        tmp_path / "giga",
        train__src__txt="a\n",
        train__tgt__txt="x\n",
        input__txt="b\n",
        task1_ref0__txt="y\n",
    )
    assert rows(load_data("gigaword", tmp_path / "giga"), "test", "source", "target") == [("b", "y")]
    stories = {
        "stories_of_a__story": "one\n\n@highlight\n\nx\n",
        "stories_of_b__story": "two\n\n@highlight\n\ny\n",
    }
    put(tmp_path / "cnn", **stories)
    assert rows(load_data("cnn-dailymail", tmp_path / "cnn"), "train", "target") == [("x",), ("y",)]
    items = {"train": {"summary": "s"}, "test": {f"summary{n}": f"s{n}" for n in (1, 2, 3)}}
    for split, item in items.items():
        put(
            tmp_path / "ds",
            **{f"dialogsum__{split}__jsonl": json.dumps({"fname": "f", "dialogue": "d", **item})},
        )
    data = load_data("dialogsum", tmp_path / "ds")
    assert rows(data, "test", "target", "references") == [("s1", '["s1", "s2", "s3"]')]
    assert data.columns_in("test")["references"] == "references"
    said = (
        "L1 +++$+++ u0 +++$+++ m0 +++$+++ ANN +++$+++ Hi.\nL2 +++$+++ u1 +++$+++ m0 +++$+++ BOB +++$+++ Ho.\n"
    )
    talk = "u0 +++$+++ u1 +++$+++ m0 +++$+++ ['L1', 'L2']\n" * 2
    put(tmp_path / "cornell", movie_lines__txt=said, movie_conversations__txt=talk)
    data = load_data("cornell", tmp_path / "cornell")
    assert rows(data, "train", "source", "target", "movie") == [("Hi.", "Ho.", "m0")] * 2
    (tmp_path / "cornell" / "movie_lines.txt").write_text(said.replace("Ho.", "Hum."))
    assert rows(load_data("cornell", tmp_path / "cornell"), "train", "target") == [("Hum.",)] * 2


def test_plays_in_four_formats(tmp_path: Path) -> None:
    put(tmp_path / "tiny", tinyshakespeare__txt="First Citizen:\nSpeak.\n\nAll:\nSpeak,\nspeak.\n")
    data = load_data("shakespeare", tmp_path / "tiny")
    assert (data.task, data.text) == ("causal-lm", "text")
    assert rows(data, "train", "text", "speaker") == [("Speak.", "First Citizen"), ("Speak,\nspeak.", "All")]
    play = "ACT I.\n\nSCENE I.\n\nHam.\nA word.\n\nHor.\nTwo words.\n"
    put(
        tmp_path / "plays", hamlet_gut__txt=play, lear_gut__txt=play, lear_gut_f__txt="old", metadata__txt="x"
    )
    data = load_data("shakespeare", tmp_path / "plays")
    assert data.groups("train", "speaker")[1] == ("Ham (hamlet)", "Ham (lear)", "Hor (hamlet)", "Hor (lear)")
    leaf = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": ["to b"], "y": ["e"]}}}
    put(tmp_path / "leaf", train_of_1__json=json.dumps(leaf), test_of_1__json=json.dumps(leaf))
    data = load_data("shakespeare", tmp_path / "leaf")
    assert rows(data, "test", "text", "next", "speaker") == [("to b", "e", "a")]


def test_reviews_by_film_leave_plots_out_and_may_be_packed(tmp_path: Path) -> None:
    table = (
        "category,text,movie_name,has_plot_and_reviews\n"
        'plot,"A man, a plan.",x,True\nfresh,"Good\nfun.",x,True\nrotten,Bad.,y,False\n'
    )
    expected = [("Good\nfun.", "fresh", "x"), ("Bad.", "rotten", "y")]
    put(tmp_path / "a", rotten_tomatoes_corpus_full__csv=table)
    put(tmp_path / "b", rotten_tomatoes_corpus_full__csv__bz2=bz2.compress(table.encode()))
    for folder in ("a", "b"):
        assert (
            rows(load_data("rotten-tomatoes", tmp_path / folder), "train", "text", "label", "film")
            == expected
        )
    put(tmp_path / "b", rotten_tomatoes_corpus_full__csv__bz2=bz2.compress(table.encode())[:-20])
    with pytest.raises(DataError, match=r"^cannot read .*csv.bz2: .*: get it again$"):
        load_data("rotten-tomatoes", tmp_path / "b")


def test_a_task_of_ones_own_may_be_asked_of_a_known_data_set(tmp_path: Path) -> None:
    put(tmp_path, train__csv='"1","C","c"\n"2","D","d"\n')
    data = load_data("agnews", tmp_path, task="masked-lm")
    assert (data.task, data.columns, data.label_names) == ("masked-lm", {"text": "text"}, ())
    with pytest.raises(DataError, match=r"train.csv: no column 'words': the columns are 'text', 'label', "):
        load_data("agnews", tmp_path, task="token-classification")


def test_what_is_known_of_a_data_set_is_a_dictionary_that_json_holds(cache: Path) -> None:
    for entry in describe():
        known = info(entry.name)
        assert json.loads(json.dumps(known)) == known
        assert known["name"] == entry.name
        assert known["cached"] is (False if entry.archives else None)
        assert known["counts"] is None
    assert not cache.exists()
    with pytest.raises(DataError, match=r"^unknown data set 'squat': did you mean 'squad'"):
        info("squat")


INDEXED = {"reuters-r8": 2, "reuters-r52": 2, "rotten-tomatoes": 1, "interfaces": 1, "shakespeare": 1}


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", INDEXED)
def test_data_sets_of_the_package_index_have_their_published_sizes(name: str) -> None:
    if not info(name)["cached"]:
        pytest.skip(f"load {name} once, so that it lies in the cache")
    data = load_data(name)
    (entry,) = (entry for entry in describe() if entry.name == name)
    assert data.train.num_rows == entry.train
    assert len(data.label_names) == (entry.labels or 0)
    assert data.held_out == (entry.test is None)
    counts = {"train": entry.train} if entry.test is None else {"train": entry.train, "test": entry.test}
    assert (info(name)["cached"], info(name)["counts"]) == (True, counts)
    if entry.natural:
        ids, names = data.groups("train", entry.natural)
        assert ids.min() == 0
        assert len(names) == {"rotten-tomatoes": 508, "interfaces": 5, "shakespeare": 1_339}[name]


# Folder, training and test examples, labels, rows left out.
SIZES: dict[str, tuple[str, int, int | None, int, int]] = {
    "cola": ("glue/CoLA", 8_551, 527, 2, 0),
    "rte": ("glue/RTE", 2_490, 277, 2, 0),
    "mrpc": ("glue/MRPC", 3_576, 1_725, 2, 0),
    "stsb": ("glue/STS-B", 5_749, 1_379, 0, 0),
    "wnli": ("glue/WNLI", 565, 70, 2, 0),
    "wnut17": ("wnut17", 3_394, 1_287, 13, 0),
    "wikiann": ("wikiann_en", 20_000, 10_000, 7, 0),
    "xquad": ("xquad", 2_380, None, 0, 0),
    "squadshifts": ("squadshifts", 47_751, None, 0, 450),
    "multi30k": ("multi30k", 29_000, 1_000, 0, 0),
    "wmt": ("opennmt_en_de", 9_999, None, 0, 1),
    "dialogsum": ("dialogsum", 500, 500, 0, 0),
    "xsum": ("xsum", 1_001, None, 0, 0),
    "shakespeare": ("shakespeare", 7_097, None, 0, 0),
}


@pytest.mark.parametrize("name", SIZES)
def test_published_files_of_every_task_have_their_published_sizes(name: str) -> None:
    if PUBLISHED is None:
        pytest.skip("set FEDNLP_TEST_DATA to a folder of published data sets")
    folder, train, test, labels, dropped = SIZES[name]
    data = load_data(name, Path(PUBLISHED) / folder, on_invalid_row="drop")
    assert (data.train.num_rows, None if data.held_out else data.test.num_rows) == (train, test)
    assert (len(data.label_names), data.dropped) == (labels, dropped)


def leaf(*samples: tuple[str, list[Any]]) -> str:
    users = {user: {"x": texts, "y": [None] * len(texts)} for user, texts in samples}
    counts = [len(texts) for _, texts in samples]
    return json.dumps({"users": list(users), "num_samples": counts, "user_data": users})


def article(domain: str, split: str) -> str:
    """Return a line of RealNews as published, with all of its keys."""
    keys = {
        "title": "Rain",
        "text": "By A.\nIt rained.\n",
        "summary": None,
        "authors": ["A"],
        "publish_date": "06-13-2014",
        "status": "success",
        "url": f"http://{domain}/rain.html",
        "domain": domain,
        "warc_date": "2016-12-11T13:48:31Z",
        "split": split,
    }
    return json.dumps(keys) + "\n"


def test_realnews_has_its_splits_in_one_file_and_its_sites_as_clients(tmp_path: Path) -> None:
    lines = [article(site, "train") for site in ("a.com", "b.org", "a.com")] + [article("c.net", "val")]
    whole = load_data("realnews", put(tmp_path / "whole", realnews__jsonl="".join(lines)))
    assert rows(whole, "train", "domain") == [("a.com",), ("b.org",), ("a.com",)]
    assert (rows(whole, "test", "domain"), whole.held_out) == ([("c.net",)], False)
    tiny = load_data("realnews", put(tmp_path / "tiny", realnews_tiny__jsonl="".join(lines[:3])))
    assert (tiny.train.num_rows, tiny.held_out) == (3, True)
    with pytest.raises(DataError, match=r"realnews\.jsonl:1: no string 'text'"):
        load_data("realnews", put(tmp_path / "no", realnews__jsonl='{"split": "train", "domain": "a"}\n'))


TESTED = "testdata__manual__2009__06__14__csv"
# Files of a known data set, and what the first training example must be, by column.
SMALL: dict[str, tuple[dict[str, str | bytes], dict[str, str]]] = {
    "sentiment140": (
        {
            "training__1600000__processed__noemoticon__csv": '"4","1","day","NO_QUERY","ann","caf\xe9 !"\n'.encode(
                "latin-1"
            ),
            TESTED: '"2","2","day","q","bob","hm"\n',
        },
        {"text": "café !", "label": "positive", "user": "ann"},
    ),
    "yahoo": (
        {"train__csv": '"5","why","","so"\n', "test__csv": '"1","a","b","c"\n'},
        {"text": "why so", "label": "Computers & Internet"},
    ),
    "yelp-full": (
        {"train__csv": '"5","good"\n', "test__csv": '"1","bad"\n'},
        {"text": "good", "label": "5"},
    ),
    "reuters-r8": (
        {"reuters_to_r8_to_train__tab": "Category\tText\nd\tstring\nclass\t\nearn\tprofit up\n"},
        {"text": "profit up", "label": "earn"},
    ),
    "cola": (
        {"train__tsv": "gj04\t0\t*\tHim goes.\n", "dev__tsv": "gj04\t1\t\tHe goes.\n"},
        {"text": "Him goes.", "label": "unacceptable"},
    ),
    "glue-sst2": ({"train__tsv": "sentence\tlabel\nfine\t1\n"}, {"text": "fine", "label": "positive"}),
    "mrpc": (
        {"msr_paraphrase_train__txt": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\ta\tb\n"},
        {"text": "a", "text_pair": "b", "label": "equivalent"},
    ),
    "qqp": (
        {"train__tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta?\tb?\t0\n"},
        {"text": "a?", "text_pair": "b?", "label": "not_duplicate"},
    ),
    "qnli": (
        {"train__tsv": "index\tquestion\tsentence\tlabel\n1\ta?\tb\tentailment\n"},
        {"text": "a?", "text_pair": "b", "label": "entailment"},
    ),
    "wnli": (
        {"train__tsv": "index\tsentence1\tsentence2\tlabel\n1\ta\tb\t1\n"},
        {"text": "a", "text_pair": "b", "label": "entailment"},
    ),
    "ontonotes": ({"onto__train__ner": "Rome NNP B-GPE\n"}, {"words": '["Rome"]', "tags": '["B-GPE"]'}),
    "wnut17": ({"wnut17train__conll": "Rome\tB-location\n"}, {"words": '["Rome"]', "tags": '["B-location"]'}),
    "wikiner": ({"aij_to_wikiner_to_en_to_wp3": "In|IN|O Rome|NNP|I-LOC\n"}, {"tags": '["O", "B-LOC"]'}),
    "wikiann": ({"train": "en:Rome\tB-LOC\n"}, {"words": '["Rome"]', "tags": '["B-LOC"]'}),
    "squad": (
        {"train_to_v1__1__json": squad(("in Rome", "where?", "Rome", 3), title="Italy")},
        {"question": "where?", "answers": '[{"text": "Rome", "start": 3}]', "title": "Italy"},
    ),
    "wmt": ({"train__de": "eins\n", "train__en": "one\n"}, {"source": "eins", "target": "one"}),
    "opensubtitles": (
        {"OpenSubtitles__de_to_en__de": "eins\n", "OpenSubtitles__de_to_en__en": "one\n"},
        {"source": "eins", "target": "one"},
    ),
    "ted": ({"TED2013__de_to_en__de": "eins\n", "TED2013__de_to_en__en": "one\n"}, {"source": "eins"}),
    "ubuntu": (
        {
            "Ubuntu__de_to_en__de__gz": gzip.compress(b"eins\n"),
            "Ubuntu__de_to_en__en__gz": gzip.compress(b"one\n"),
        },
        {"target": "one"},
    ),
    "realnews": (
        {"realnews__jsonl": article("a.com", "train") + article("b.org", "val")},
        {"text": "By A.\nIt rained.", "title": "Rain", "domain": "a.com", "publish_date": "06-13-2014"},
    ),
    "reddit": (
        {"train_of_1__json": leaf(("ann", [["<BOS>", "oh", "no", "<EOS>"]]))},
        {"text": "oh no", "user": "ann"},
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_published_format_gives_the_first_example(tmp_path: Path, name: str) -> None:
    files, expected = SMALL[name]
    (entry,) = (entry for entry in describe() if entry.name == name)
    opened = entry.open(put(tmp_path, **files))
    names, found = opened.train.read({})
    _, row = next(found)
    assert not isinstance(row, Fault)
    first = dict(zip(names, row, strict=True))
    assert {column: first[column] for column in expected} == expected
    assert set(TASKS[entry.task].schema.needed) <= set(names)
    assert (opened.task, opened.test is None) == (
        entry.task,
        not {"test__csv", "dev__tsv", "realnews__jsonl", TESTED} & set(files),
    )
