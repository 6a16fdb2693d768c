"""Splits found in the names of files: which are trained on, tested on, left out or refused."""

import csv
import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data import load_data
from fednlp.data.split_names import split_name
from fednlp.data.store import SILO
from fednlp.errors import DataError

WORDS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "eval", "evaluation", "heldout", "held_out", "held-out", "holdout"),
    "validation": ("dev", "val", "valid", "validation"),
}


def make(folder: Path, *places: str) -> None:
    """Write a table of four examples, whose texts name the file, at each place."""
    for place in places:
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [("text", "label"), *((f"{place} {n}", "ab"[n % 2]) for n in range(4))]
        if place.endswith(".txt"):
            path.write_text(f"{place}\n")
        elif place.endswith(".jsonl"):
            path.write_text(
                "\n".join(f'{{"text": "{text}", "label": "{label}"}}' for text, label in rows[1:])
            )
        else:
            text = io.StringIO(newline="")
            csv.writer(text).writerows(rows)
            content = text.getvalue().encode()
            path.write_bytes(gzip.compress(content) if place.endswith(".gz") else content)


@given(
    kind=st.sampled_from(sorted(WORDS)),
    number=st.integers(0, 7),
    before=st.sampled_from(["", "nord", "my_data", "Süd"]),
    after=st.sampled_from(["", "v2", "de"]),
    between=st.sampled_from("-_."),
    case=st.sampled_from([str.lower, str.upper, str.title]),
)
def test_a_split_is_known_wherever_it_stands_in_a_name(kind, number, before, after, between, case) -> None:  # type: ignore[no-untyped-def]
    word = case(WORDS[kind][number % len(WORDS[kind])])
    name = between.join(part for part in (before, word, after) if part)
    found = split_name(name)
    assert (found.splits, found.shard) == ((kind,), None)
    assert found.key == split_name(between.join(part for part in (before, after) if part)).key
    assert split_name(f"{name}-00001-of-00003").shard == (1, 3)


@pytest.mark.parametrize(
    "name", ["contest", "latest", "devices", "value", "trainers", "attestation", "Nord", "2024"]
)
def test_a_word_that_only_holds_a_split_is_none(name: str) -> None:
    assert split_name(name).splits == ()


# The files; those trained on, tested on; the silos, where there are any.
READ = {
    "two files": (("x_train.csv", "x_test.csv"), {"x_train.csv"}, {"x_test.csv"}, None),
    "case, order and endings": (
        ("Test-X.jsonl", "X.TRAIN.csv.gz"),
        {"X.TRAIN.csv.gz"},
        {"Test-X.jsonl"},
        None,
    ),
    "parts": (
        ("train-00000-of-00002.csv", "train-00001-of-00002.csv", "test-00000-of-00001.csv"),
        {"train-00000-of-00002.csv", "train-00001-of-00002.csv"},
        {"test-00000-of-00001.csv"},
        None,
    ),
    "a repository": (
        ("README.md", "data/train.csv", "data/test.csv"),
        {"data/train.csv"},
        {"data/test.csv"},
        None,
    ),
    "folders": (("Training/a.csv", "held_out/b.csv"), {"Training/a.csv"}, {"held_out/b.csv"}, None),
    "class folders": (
        ("train/a/1.txt", "train/b/2.txt", "testing/a/3.txt", "testing/b/4.txt"),
        {"train/a/1.txt", "train/b/2.txt"},
        {"testing/a/3.txt", "testing/b/4.txt"},
        None,
    ),
    "silos in one folder": (
        ("nord_train.csv", "nord_test.csv", "train.süd.csv", "test.süd.csv"),
        {"nord_train.csv", "train.süd.csv"},
        {"nord_test.csv", "test.süd.csv"},
        ("nord", "süd"),
    ),
    "silos in folders": (
        ("nord/notes_train.csv", "nord/notes_test.csv", "ost/train.csv", "ost/test.csv"),
        {"nord/notes_train.csv", "ost/train.csv"},
        {"nord/notes_test.csv", "ost/test.csv"},
        ("nord", "ost"),
    ),
    "folders of silos": (
        ("nord-train/a.csv", "nord-test/b.csv", "ost-train/a.csv", "ost-test/b.csv"),
        {"nord-train/a.csv", "ost-train/a.csv"},
        {"nord-test/b.csv", "ost-test/b.csv"},
        ("nord", "ost"),
    ),
    "a readme": (("x_train.csv", "x_test.csv", "README.txt"), {"x_train.csv"}, {"x_test.csv"}, None),
}


def origins(data, split: str) -> set[str]:  # type: ignore[no-untyped-def]
    return {
        text.strip().rpartition(" ")[0] or text.strip()
        for text in data.input_texts(split, getattr(data, f"{split}_numbers"))
    }


@pytest.mark.parametrize("case", READ)
def test_a_test_file_is_tested_on(case: str, tmp_path: Path) -> None:
    places, train, test, silos = READ[case]
    folder = tmp_path / "given"
    make(folder, *(place for place in places if not place.endswith(".md")))
    if "README.md" in places:
        (folder / "README.md").write_text("about")
    data = load_data(path=folder)
    assert (origins(data, "train"), origins(data, "test")) == (train, test)
    assert (data.groups("train", SILO)[1] if data.silo else None) == silos


# The files; what is said.
REFUSED = {
    "no training set": (
        ("notes_test.csv",),
        "notes_test.csv is called a test set, and no training set goes with it",
    ),
    "one test set for all": (
        ("nord_train.csv", "ost_train.csv", "test.csv"),
        r'say path = \[".*nord_train.csv", ".*ost_train.csv"\], the files',
    ),
    "names that do not pair": (
        ("train_2019.csv", "test_2020.csv"),
        'path = ".*2019.csv" and test_path = ".*2020.csv"',
    ),
    "two splits in a name": (("train_test.csv", "nord.csv"), "train_test.csv says training and test"),
    "one split twice": (
        ("train.csv", "train.jsonl"),
        "holds train.csv and train.jsonl: give the one to use as path",
    ),
    "a part is missing": (("train-00000-of-00002.csv",), "number 1 is missing"),
    "the whole beside its parts": (("x.csv", "x_train.csv", "x_test.csv"), "may both be the training set"),
    "one pair beside a file": (
        ("x_train.csv", "x_test.csv", "y.csv"),
        'say path = ".*x_train.csv" and test_path = ',
    ),
    "texts without classes": (
        ("train/1.txt", "train/2.txt", "test/1.txt", "test/2.txt"),
        "no folder for each class",
    ),
    "texts of BRAT": (("a/1.txt", "a/1.ann", "b/2.txt"), "a: holds BRAT's annotations"),
    "splits of BRAT": (("train/1.txt", "train/1.ann", "test/2.txt"), "train: holds BRAT's annotations"),
    "several files a split": (
        ("train/a.csv", "train/b.csv", "test/c.csv"),
        'path = ".*train" and test_path = ".*test"',
    ),
    "numbers of parts or of silos": (("train_0.csv", "train_1.csv", "test_0.csv"), "have other numbers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_names_leave_open_is_refused(case: str, tmp_path: Path) -> None:
    places, said = REFUSED[case]
    make(tmp_path / "given", *places)
    with pytest.raises(DataError, match=said) as caught:
        load_data(path=tmp_path / "given")
    assert "\n" not in str(caught.value)


def test_a_file_that_the_user_names_is_trained_on_and_this_is_said(tmp_path: Path) -> None:
    make(tmp_path, "dev.csv", "ops.csv")
    with pytest.raises(DataError, match=r'say path = ".*ops.csv" and test_path = ".*dev.csv"'):
        load_data(path=tmp_path)
    data = load_data(path=[tmp_path / "dev.csv", tmp_path / "ops.csv"])
    assert data.groups("train", SILO)[1] == ("dev", "ops")
    assert "the name of dev.csv says that it is no training set" in data.notes[1]
    assert "the name of dev.csv" in load_data(path=tmp_path / "dev.csv").notes[0]
    assert load_data(path=tmp_path / "dev.csv", test_fraction=None).notes == ()


@pytest.mark.parametrize("silos", [False, True])
def test_a_validation_set_is_left_out_or_used_and_this_is_said(silos: bool, tmp_path: Path) -> None:
    names = ("a_", "b_") if silos else ("",)
    for number, name in enumerate(names):
        make(
            tmp_path / "given", f"{name}train.csv", f"{name}dev.csv", *([f"{name}test.csv"] if number else [])
        )
    sizes, notes = {}, {}
    for used in (None, "train", "test"):
        if silos and used == "test":
            with pytest.raises(DataError, match=r"b_test.csv is the test set"):
                load_data(path=tmp_path / "given", validation=used)
            continue
        data = load_data(path=tmp_path / "given", validation=used)  # type: ignore[arg-type]
        sizes[used] = len(data.train_numbers) + len(data.test_numbers)
        notes[used] = data.notes[-1]
    assert notes[None].startswith("not read: ")
    assert 'data.validation = "train" joins' in notes[None]
    assert sizes["train"] == sizes[None] + 4 * len(names)
    assert "joined to training" in notes["train"]
    with pytest.raises(DataError, match=r"no file of .* is called a validation set"):
        load_data(path=tmp_path / "given" / f"{names[0]}train.csv", validation="train")


def test_train_and_test_files_that_lie_apart_go_together_without_their_splits(tmp_path: Path) -> None:
    make(tmp_path, "train/all_0_train_9.csv", "test/all_0_test_9.csv")
    data = load_data(path=tmp_path / "train", test_path=tmp_path / "test")
    assert (data.groups("train", SILO)[1], len(data.test_numbers)) == (("all_0_9",), 4)
