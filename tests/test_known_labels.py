"""Labels of a file beside those of a model: counted as far as they are unknown, and refused if none is known."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data import load_data
from fednlp.errors import DataError
from fednlp.inference.score import unknown_labels

TAGS = ("O", "B-PER", "B-LOC", "B-ORG")


@given(
    st.lists(st.lists(st.sampled_from(TAGS), min_size=1, max_size=4), min_size=1, max_size=5),
    st.sets(st.sampled_from(TAGS)),
)
def test_tags_are_counted_or_refused(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[str]], known: set[str]
) -> None:
    """Refused are those of which no span is known; words without any span are no spans."""
    path = tmp_path_factory.mktemp("tags") / "tags.jsonl"
    rows = [{"words": ["word"] * len(tags), "tags": tags} for tags in sentences]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = load_data(path=path, task="token-classification", test_fraction=None)
    counts = Counter(tag for tags in sentences for tag in tags)
    unknown = {tag: count for tag, count in counts.items() if tag not in known}
    if unknown and not (counts.keys() & known) - {"O"}:
        with pytest.raises(DataError, match=r"knows none of the labels .* with --column tags=COLUMN"):
            unknown_labels(data, "train", known)
    else:
        assert unknown_labels(data, "train", known) == unknown


def test_labels_of_one_part_count(tmp_path: Path) -> None:
    """The class O is a label as any other."""
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,O\n")
    (tmp_path / "test.csv").write_text("text,label\na,O\n")
    data = load_data(path=tmp_path)
    assert unknown_labels(data, "test", ["O"]) == {}
    assert unknown_labels(data, "train", ["O"]) == {"x": 1}
    with pytest.raises(DataError, match=r"the labels there \('O'\), .*it knows 'x'"):
        unknown_labels(data, "test", ["x"])
