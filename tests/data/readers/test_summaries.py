"""Summaries: stories with highlights, BIG-bench, DialogSum with several references."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fednlp.data.readers.summaries import DIALOGSUM_COLUMNS, bigbench, dialogsum, stories
from fednlp.errors import DataError

Write = Callable[[str, str | bytes], Path]

STORY = "LONDON (CNN) -- It rained.\n\nA lot.\n\n\n@highlight\n\nRain in London\n\n@highlight\n\nNo end in sight\n"


def name(url: str) -> str:
    return hashlib.sha1(url.encode()).hexdigest()


def test_stories_by_name_and_by_a_list_of_urls(write: Write) -> None:
    urls = [f"http://web.archive.org/web/{number}/a.html" for number in range(12)]
    for number, url in enumerate(urls):
        write(f"stories/{name(url)}.story", STORY.replace("lot", f"lot {number}"))
    folder = write("stories/readme.txt", "no story").parent
    rows = list(stories(folder))
    assert [row[3] for row in rows] == sorted(map(name, urls))
    chosen = write("all_test.txt", "\n".join([urls[11], "http://elsewhere/", urls[2]]) + "\n")
    assert list(stories(folder, chosen)) == [
        (
            f"LONDON (CNN) -- It rained.\nA lot {number}.",
            "Rain in London\nNo end in sight",
            None,
            name(urls[number]),
        )
        for number in (11, 2)
    ]


def test_stories_that_are_none(write: Write, tmp_path: Path) -> None:
    path = write("stories/a.story", "only text\n")
    with pytest.raises(DataError, match=r"a\.story: no text, or no @highlight"):
        list(stories(path.parent))
    with pytest.raises(DataError, match=r"no file \*\.story"):
        list(stories(write("empty/x.txt", "").parent))
    with pytest.raises(DataError, match=r"no file \*\.story that .*urls\.txt names"):
        list(stories(path.parent, write("urls.txt", "http://a/\n")))
    with pytest.raises(DataError, match="cannot read"):
        list(stories(tmp_path / "nowhere"))


def test_bigbench_with_one_target_or_several(write: Write) -> None:
    examples = [{"input": "a", "target": "b"}, {"input": "c", "target": ["d", "ä"]}]
    assert list(bigbench(write("a.json", json.dumps({"examples": examples})))) == [
        ("a", "b", None),
        ("c", "d", '["d", "ä"]'),
    ]


@pytest.mark.parametrize("target", [None, [], ["a", 1], " ", {"a": 1}])
def test_bigbench_without_a_target(write: Write, target: Any) -> None:
    path = write(
        "a.json", json.dumps({"examples": [{"input": "a", "target": "b"}, {"input": "c", "target": target}]})
    )
    with pytest.raises(DataError, match=r"a\.json: examples\[1\]: the text or a summary is missing"):
        list(bigbench(path))


def test_dialogsum_keeps_all_references(write: Write) -> None:
    items = [
        {
            "fname": "train_0",
            "dialogue": "#Person1#: Hi\n#Person2#: Hi",
            "summary": "They greet.",
            "topic": "greeting",
        },
        {
            "fname": "test_0",
            "dialogue": "a",
            "summary1": "x",
            "topic1": "t",
            "summary2": "y",
            "summary3": "z",
        },
    ]
    rows = list(dialogsum(write("a.jsonl", "\n".join(map(json.dumps, items)))))
    assert rows == [
        ("#Person1#: Hi\n#Person2#: Hi", "They greet.", None, "train_0", "greeting"),
        ("a", "x", '["x", "y", "z"]', "test_0", "t"),
    ]
    with pytest.raises(DataError, match=r"b\.jsonl:1: the text or a summary is missing"):
        list(dialogsum(write("b.jsonl", '{"fname": "a", "dialogue": "b"}')))


@pytest.mark.parametrize(("split", "references"), [("dev", 0), ("test", 3)])
def test_dialogsum_as_published(real: Path, split: str, references: int) -> None:
    rows = list(dialogsum(real / "dialogsum" / f"dialogsum.{split}.jsonl"))
    found = [dict(zip(DIALOGSUM_COLUMNS, row, strict=True)) for row in rows]
    assert len(found) == 500
    assert len({row["id"] for row in found}) == 500
    assert all(row["source"] and row["target"] and row["topic"] for row in found)
    for row in found:
        listed = json.loads(row["references"] or "[]")
        assert len(listed) == references
        assert not listed or row["target"] == listed[0]


def test_xsum_as_published(real: Path) -> None:
    rows = list(bigbench(real / "xsum" / "xsum_1k.json"))
    assert len(rows) == 1001
    assert all(references is None for _, _, references in rows)
    assert str(rows[0][1]).startswith("Skiing on Scotland's snow slopes")
