"""A site's own data: numbered as the experiment numbers labels, or refused with names here and none for the server."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data import TextData, load_data
from fednlp.data.labels import rename_labels, unknown_labels, with_labels
from fednlp.deployment.site.data import (
    LACKS_COLUMNS,
    UNKNOWN_LABELS,
    UNREADABLE,
    UnfitSiteData,
    open_site_data,
)
from fednlp.deployment.site.policy import SitePolicy, parse_policy
from fednlp.errors import DataError

NAMES = ("arts", "economy", "science", "sports")
ROWS = [(f"text {number} of mine", NAMES[number % 4]) for number in range(40)]


def table(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def site(path: Path, labels: dict[str, str] | None = None, **data: Any) -> SitePolicy:
    return parse_policy({"data": {"path": str(path), **data}, "labels": labels or {}})


def in_memory(labels: Sequence[str], tags: bool = False) -> TextData:
    """Return examples with these labels, or sentences of one word each with these tags; a quarter is the test set."""
    task, columns = "text-classification", {"text": "text", "label": "label"}
    content = {"text": [f"text {n}" for n in range(len(labels))], "label": list(labels)}
    if tags:
        task, columns = "token-classification", {"words": "words", "tags": "tags"}
        content = {
            "words": [json.dumps(["word", "word"]) for _ in labels],
            "tags": [json.dumps([label, "O"]) for label in labels],
        }
    rows = pa.table(content)
    cut, numbers = len(labels) // 4, np.arange(len(labels))
    known = sorted({"O", *labels} if tags else set(labels))
    return TextData(
        "mine",
        "",
        task,
        rows,
        rows,
        numbers[cut:],
        numbers[:cut],
        True,
        columns,
        tuple(known),
        0,
        "",
        "0" * 64,
    )


LABELS = st.lists(st.sampled_from([*NAMES, "O"]), min_size=1, max_size=30)


@given(LABELS, st.permutations([*NAMES, "O"]), st.booleans())
def test_labels_are_numbered_by_the_list(labels: list[str], names: list[str], tags: bool) -> None:
    """Whichever of them a site has: its numbers are those of the data set that all sites make together."""
    numbered = with_labels(in_memory(labels, tags), names)
    assert numbered.label_names == tuple(names)
    if not tags:
        assert numbered.labels("train").tolist() == [names.index(label) for label in labels]


@given(LABELS, st.dictionaries(st.sampled_from([*NAMES, "O"]), st.sampled_from("xyz")), st.booleans())
def test_renaming_is_renaming_each(labels: list[str], names: dict[str, str], tags: bool) -> None:
    data = in_memory(labels, tags)
    renamed = rename_labels(data, names)
    wanted = in_memory([names.get(label, label) for label in labels], tags)
    if tags and "O" in names:
        column = [json.dumps([names.get(label, label), names["O"]]) for label in labels]
        assert renamed.train.column("tags").to_pylist() == column
    else:
        assert renamed.train.equals(wanted.train)
        assert set(renamed.label_names) == set(wanted.label_names)
    assert renamed.test is renamed.train
    assert (renamed.fingerprint == data.fingerprint) == (renamed is data)
    assert rename_labels(renamed, names) is renamed or set(names.values()) & names.keys()


@given(LABELS, st.sets(st.sampled_from(NAMES), min_size=1), st.booleans())
@pytest.mark.whole
def test_unknown_labels_are_counted(labels: list[str], known: set[str], tags: bool) -> None:
    found = unknown_labels(in_memory(labels, tags), sorted(known))
    whole = labels + (["O"] * len(labels) if tags else [])
    assert found == {label: whole.count(label) for label in {*whole} - known}


def test_labels_of_a_task_without_any() -> None:
    data = in_memory(["a", "b"])
    scored = TextData(**{**vars(data), "task": "causal-lm", "label_names": ()})
    assert with_labels(scored, ()) is not None
    for refused in (lambda: with_labels(scored, ["a"]), lambda: rename_labels(scored, {"a": "b"})):
        with pytest.raises(DataError, match="causal-lm has no labels"):
            refused()
    with pytest.raises(DataError, match="not distinct, or one is blank"):
        with_labels(data, ["a", "a", "b"])
    with pytest.raises(DataError, match=r"mine: the label 'b' \(1\) is none of a"):
        with_labels(data, ["a"])


def test_a_shard_has_the_numbers_of_the_whole(tmp_path: Path) -> None:
    """A site that lacks some labels numbers the others as the pooled data do."""
    whole = load_data(path=table(tmp_path / "all.csv", ("text", "label"), ROWS))
    mine = [row for row in ROWS if row[1] in ("science", "sports")]
    data = open_site_data(
        site(table(tmp_path / "mine.csv", ("text", "label"), mine)), whole.task, whole.label_names
    )
    numbers = dict(zip(whole.train.column("text").to_pylist(), whole.labels("train").tolist(), strict=True))
    texts = data.train.column("text").to_pylist()
    assert data.labels("train").tolist() == [numbers[text] for text in texts]
    assert len(data.train_numbers) + len(data.test_numbers) == len(mine)


def test_own_names_of_labels_and_columns(tmp_path: Path) -> None:
    path = table(tmp_path / "mine.csv", ("note", "ward"), [(text, label.upper()) for text, label in ROWS])
    policy = site(path, {name.upper(): name for name in NAMES}, text="note", label="ward")
    data = open_site_data(policy, "text-classification", NAMES[::-1])
    wanted = [NAMES[::-1].index(label) for _, label in ROWS]
    assert (data.labels("train").tolist(), data.text) == (wanted, "note")


def test_labels_are_the_sites_own_where_it_is_asked(tmp_path: Path) -> None:
    path = table(tmp_path / "mine.csv", ("text", "label"), ROWS)
    data = open_site_data(site(path, {"sports": "games"}), "text-classification", None)
    assert data.label_names == ("arts", "economy", "games", "science")


KINDS: dict[str, tuple[tuple[str, ...], list[tuple[str, ...]], tuple[str, ...]]] = {
    "text-classification": (("text", "label"), ROWS, NAMES),  # type: ignore[dict-item]
    "prompt-classification": (("text", "label"), ROWS, NAMES),  # type: ignore[dict-item]
    "text-regression": (("text", "score"), [(text, "0.5") for text, _ in ROWS], ()),
    "token-classification": (
        ("words", "tags"),
        [('["EU", "won"]', '["B-ORG", "O"]')] * 9,
        ("O", "B-ORG", "B-PER"),
    ),
    "question-answering": (
        ("context", "question", "answers"),
        [("built in 1912", "when?", '[{"text": "1912", "start": 9}]')] * 9,
        (),
    ),
    "sequence-to-sequence": (("source", "target"), ROWS, ()),  # type: ignore[dict-item]
    "text-generation": (("source", "target"), ROWS, ()),  # type: ignore[dict-item]
    "causal-lm": (("text",), [(text,) for text, _ in ROWS], ()),
    "masked-lm": (("text",), [(text,) for text, _ in ROWS], ()),
}


@pytest.mark.parametrize("task", KINDS)
def test_every_task(tmp_path: Path, task: str) -> None:
    """Data that fit are opened; without a column they are refused, with its name here alone."""
    header, rows, labels = KINDS[task]
    data = open_site_data(site(table(tmp_path / "mine.csv", header, rows)), task, labels)
    assert (data.task, data.label_names) == (task, labels)
    other = table(tmp_path / "other.csv", [f"my_{name}" for name in header], rows)
    with pytest.raises(UnfitSiteData) as caught:
        open_site_data(site(other), task, labels)
    assert caught.value.for_server == LACKS_COLUMNS
    for name in header:
        plain = name in ("text", "label")
        key = f"data.{name}" if plain else f"data.columns.{name}"
        option = f"--{name} YOURS" if plain else f"--column {name}=YOURS"
        assert f"'{name}' ({key})" in str(caught.value)
        assert option in str(caught.value)
        assert f"'my_{name}'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_column_that_is_misspelt_in_the_policy(tmp_path: Path) -> None:
    path = table(tmp_path / "mine.csv", ("note", "label"), ROWS)
    with pytest.raises(
        UnfitSiteData, match=r"no column 'nte' \(data.text\): did you mean 'note'\? the columns are"
    ):
        open_site_data(site(path, text="nte"), "text-classification", NAMES)


def test_unknown_labels_are_named_here_with_their_counts(tmp_path: Path) -> None:
    path = table(tmp_path / "mine.csv", ("text", "label"), ROWS)
    with pytest.raises(UnfitSiteData) as caught:
        open_site_data(site(path, {"arts": "sport"}), "text-classification", ["economy", "sports"])
    assert str(caught.value) == (
        "mine has 2 labels that the experiment does not know: 'science' (10 examples) and 'sport' (10 examples); write "
        "in [labels] of the site's file which of 'economy', 'sports' each is, or \"\" to leave its examples out"
    )
    assert caught.value.for_server == UNKNOWN_LABELS


def test_unknown_tags_are_counted_in_words(tmp_path: Path) -> None:
    header, rows, _ = KINDS["token-classification"]
    with pytest.raises(UnfitSiteData, match=r"1 label .*: 'B-ORG' \(9 words\); did you mean 'B-ORGS'"):
        open_site_data(
            site(table(tmp_path / "mine.csv", header, rows)), "token-classification", ["O", "B-ORGS"]
        )


def test_many_unknown_labels_are_a_line_still(tmp_path: Path) -> None:
    rows = [(f"text {number}", f"ward {number % 50}") for number in range(100)]
    with pytest.raises(UnfitSiteData, match=r"has 50 labels .* and 40 more; "):
        open_site_data(
            site(table(tmp_path / "mine.csv", ("text", "label"), rows)), "text-classification", NAMES
        )


@pytest.mark.parametrize("planted", ["Zweig-17", "secret column", "zzz"])
def test_the_server_learns_nothing_of_the_data(tmp_path: Path, planted: str) -> None:
    """Not of a column, a label, a row, a file or its folder: what it is told is one of three sentences."""
    folder = tmp_path / planted
    folder.mkdir()
    bad = [
        site(table(folder / "a.csv", (planted, "label"), ROWS)),
        site(table(folder / "b.csv", ("text", "label"), [*ROWS, (planted, planted)])),
        site(table(folder / "c.csv", ("text", "label"), [*ROWS, (planted, "")])),
        site(folder / "missing.csv"),
        SitePolicy(),
    ]
    for policy in bad:
        with pytest.raises(UnfitSiteData) as caught:
            open_site_data(policy, "text-classification", NAMES)
        assert caught.value.for_server in (LACKS_COLUMNS, UNKNOWN_LABELS, UNREADABLE)
        assert planted not in caught.value.for_server


@given(st.sets(st.sampled_from(NAMES), max_size=3))
@pytest.mark.whole
def test_examples_of_a_label_with_an_empty_name_are_left_out(
    tmp_path_factory: pytest.TempPathFactory, dropped: set[str]
) -> None:
    """What is left is numbered as by an experiment that never had the others, in the order of before."""
    path = table(tmp_path_factory.mktemp("site") / "notes.csv", ("text", "label"), ROWS)
    known = [name for name in NAMES if name not in dropped]
    policy = site(path, dict.fromkeys(dropped, ""), test_fraction=0.25)
    data = open_site_data(policy, "text-classification", known)
    whole = open_site_data(site(path, test_fraction=0.25), "text-classification", NAMES)
    for split in ("train", "test"):
        there, before = getattr(data, f"{split}_numbers"), getattr(whole, f"{split}_numbers")
        names = [NAMES[label] for label in whole.labels(split)[before]]
        kept = [(number, name) for number, name in zip(before, names, strict=True) if name in known]
        assert list(zip(there, (known[one] for one in data.labels(split)[there]), strict=True)) == kept


def test_not_all_examples_can_be_left_out(tmp_path: Path) -> None:
    path = table(tmp_path / "notes.csv", ("text", "label"), ROWS)
    with pytest.raises(UnfitSiteData, match="no training example has another label"):
        open_site_data(site(path, dict.fromkeys(NAMES, "")), "text-classification", NAMES)
