"""Silos: several files or folders, each the examples of one client, as they come."""

import csv
import glob
import json
import os
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data import TextData, load_data
from fednlp.data.files import SUFFIXES
from fednlp.data.silos.paths import matching_paths
from fednlp.data.silos.pooling import PART, split_silos
from fednlp.data.store import SILO
from fednlp.errors import DataError

HOSPITALS = ("Mitte", "Nord", "Ost", "Süd", "West")
Row = Sequence[str]


def table(path: Path, rows: Sequence[Row], header: Row = ("text", "label"), delimiter: str = ",") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def notes(count: int, of: str) -> list[Row]:
    return [(f"{of} {number}", "ab"[number % 2]) for number in range(count)]


def own(data: TextData, split: str) -> dict[str, list[str]]:
    """Return the texts of a split by silo."""
    numbers = data.train_numbers if split == "train" else data.test_numbers
    rows = data.train.take(numbers).select(["text", SILO]).to_pylist()
    return {name: [row["text"] for row in rows if row[SILO] == name] for name in {row[SILO] for row in rows}}


def names(data: TextData) -> tuple[str, ...]:
    return data.groups("train", SILO)[1]


@pytest.fixture
def silos(tmp_path: Path) -> Path:
    """A folder apart from the cache."""
    return tmp_path / "silos"


def files(folder: Path) -> Path:
    for name in HOSPITALS:
        table(folder / f"{name}.csv", notes(10, name))
    return folder


@pytest.mark.parametrize("how", ["folder", "pattern", "list", "folders", "pattern of folders", "packed"])
def test_each_file_or_folder_is_a_silo(how: str, tmp_path: Path) -> None:
    folder = tmp_path / "silos"
    given: Any = folder
    for name in HOSPITALS:
        path = folder / name / "notes.csv" if "folders" in how else folder / f"{name}.csv"
        table(path, notes(10, name))
        if how == "packed":
            import gzip

            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    if "pattern" in how:
        given = f"{folder}/*.csv" if how == "pattern" else f"{folder}/*"
    if how == "list":
        given = [folder / f"{name}.csv" for name in HOSPITALS[::-1]]
    data = load_data(path=given)
    assert (data.name, data.silo, names(data)) == ("silos", SILO, HOSPITALS)
    assert data.notes == ("5 silos (Mitte, Nord, Ost, Süd, West), a test set is held out of each",)
    train, test = own(data, "train"), own(data, "test")
    for name in HOSPITALS:
        assert len(train[name]) == 8
        assert sorted(train[name] + test[name]) == sorted(text for text, _ in notes(10, name))


def test_a_silo_has_its_own_test_file(tmp_path: Path) -> None:
    """Where one has none, a test set is held out of it alone."""
    for name in HOSPITALS:
        table(tmp_path / name / "train.csv", notes(10, name))
        if name != "Ost":
            table(tmp_path / name / "test.csv", notes(3, f"test {name}"))
    data = load_data(path=tmp_path)
    assert "4 with their own test sets" in data.notes[0]
    train, test = own(data, "train"), own(data, "test")
    for name in set(HOSPITALS) - {"Ost"}:
        assert train[name] == [text for text, _ in notes(10, name)]
        assert test[name] == [text for text, _ in notes(3, f"test {name}")]
    assert (len(train["Ost"]), len(test["Ost"])) == (8, 2)


def test_test_files_may_lie_apart(tmp_path: Path) -> None:
    for name in HOSPITALS:
        table(tmp_path / "train" / f"{name}.csv", notes(5, name))
        table(tmp_path / "test" / f"{name}.csv", notes(2, f"test {name}"))
    data = load_data(path=tmp_path / "train", test_path=tmp_path / "test")
    assert (len(data.train_numbers), own(data, "test")["Süd"]) == (25, ["test Süd 0", "test Süd 1"])
    table(tmp_path / "test" / "Suden.csv", notes(2, "x"))
    with pytest.raises(DataError, match=r"Suden.csv: there is no silo 'Suden': they are Mitte, Nord"):
        load_data(path=tmp_path / "train", test_path=tmp_path / "test")
    with pytest.raises(
        DataError, match="give a folder or pattern of test files that have the names of the silos"
    ):
        load_data(path=tmp_path / "train", test_path=tmp_path / "test" / "Nord.csv")


def test_silos_of_class_folders(tmp_path: Path) -> None:
    for name in HOSPITALS:
        for label in ("cardiology", "surgery"):
            folder = tmp_path / name / label
            folder.mkdir(parents=True)
            for number in range(4):
                (folder / f"{number}.txt").write_text(f"{name} {number}")
    data = load_data(path=tmp_path)
    assert (names(data), data.label_names) == (HOSPITALS, ("cardiology", "surgery"))
    assert len(own(data, "train")["Süd"]) + len(own(data, "test")["Süd"]) == 8


def test_labels_are_united_and_columns_may_be_in_any_order(tmp_path: Path) -> None:
    table(tmp_path / "a.csv", [("x", "red"), ("y", "blue")])
    table(tmp_path / "b.csv", [("green", "z"), ("red", "w")], ("label", "text"))
    data = load_data(path=tmp_path)
    assert data.label_names == ("blue", "green", "red")
    assert set(data.train.column("text").to_pylist()) == {"x", "y", "z", "w"}


def test_any_kind_of_file_is_a_silo(tmp_path: Path) -> None:
    rows = notes(5, "x")
    table(tmp_path / "a.csv", rows, delimiter=";")
    objects = [{"text": text, "label": label} for text, label in rows]
    (tmp_path / "b.json").write_text(json.dumps(objects))
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, objects)))
    data = load_data(path=tmp_path)
    assert names(data) == ("a", "b", "c")
    assert data.notes[0].endswith("; in 1 of 3 files a semicolon separates the cells")


def test_silos_of_tagged_words_and_of_two_languages(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = tmp_path / "tagged" / name
        folder.mkdir(parents=True)
        (folder / "train.txt").write_text("Anna B-PER\nruns O\n\nBonn B-LOC\n")
        (folder / "test.txt").write_text("Otto B-PER\n")
        other = tmp_path / "pairs" / name
        other.mkdir(parents=True)
        (other / "train.de").write_text("ein Satz\nnoch einer\n")
        (other / "train.en").write_text("a sentence\nanother\n")
    tagged = load_data(path=tmp_path / "tagged")
    assert (tagged.task, names(tagged), len(tagged.test_numbers)) == ("token-classification", ("a", "b"), 2)
    pairs = load_data(path=tmp_path / "pairs", columns={"source": "de", "target": "en"})
    assert (pairs.task, names(pairs)) == ("sequence-to-sequence", ("a", "b"))


def test_a_name_is_the_same_however_it_is_encoded(tmp_path: Path) -> None:
    table(tmp_path / f"{unicodedata.normalize('NFD', 'Süd')}.csv", notes(5, "x"))
    table(tmp_path / "Nord.csv", notes(5, "x"))
    assert names(load_data(path=tmp_path)) == ("Nord", "Süd")


def test_what_one_silo_holds_out_does_not_depend_on_the_others(silos: Path) -> None:
    files(silos)
    before = own(load_data(path=silos), "test")
    (silos / "Mitte.csv").unlink()
    table(silos / "Ost.csv", notes(40, "Ost"))
    after = own(load_data(path=silos), "test")
    assert all(after[name] == before[name] for name in ("Nord", "Süd", "West"))


def test_the_fingerprint_follows_every_silo(silos: Path) -> None:
    before = load_data(path=files(silos)).fingerprint
    assert load_data(path=f"{silos}/*.csv").fingerprint == before
    (silos / "Süd.csv").rename(silos / "South.csv")
    renamed = load_data(path=silos).fingerprint
    table(silos / "Ost.csv", [*notes(9, "Ost"), ("changed", "b")])
    assert len({before, renamed, load_data(path=silos).fingerprint}) == 3


sizes = st.dictionaries(
    st.text("abcdefghij", min_size=1, max_size=3),
    st.tuples(st.integers(1, 9), st.none() | st.integers(1, 4)),
    min_size=1,
    max_size=5,
).filter(lambda silos: any(count > 1 or tests for count, tests in silos.values()))


@given(silos=sizes, fraction=st.floats(0.05, 0.95), seed=st.integers())
def test_every_example_is_for_one_thing_in_its_own_silo(
    silos: Mapping[str, tuple[int, int | None]], fraction: float, seed: int
) -> None:
    marks = [
        (name, part)
        for name, (count, tests) in silos.items()
        for part, times in (("all" if tests is None else "train", count), ("test", tests or 0))
        for _ in range(times)
    ]
    rows = pa.table({SILO: [name for name, _ in marks], PART: [part for _, part in marks]})
    classes = np.arange(len(marks)) % 2
    train, test = split_silos(rows, classes, 2, fraction, seed)
    assert sorted([*train, *test]) == list(range(len(marks)))
    for name, (count, tests) in silos.items():
        trained, tested = (sum(marks[number][0] == name for number in numbers) for numbers in (train, test))
        if tests is None:
            assert (trained + tested, tested > 0) == (count, count > 1)
            assert trained > 0
        else:
            assert (trained, tested) == (count, tests)


@pytest.mark.whole
def test_a_thousand_silos(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number}.csv").write_text("text,label\na,x\nb,y\n")
    data = load_data(path=tmp_path)
    assert (len(names(data)), names(data)[:3], data.train.num_rows) == (1000, ("0", "1", "2"), 2000)
    assert data.notes[0].startswith("1,000 silos (0, 1, 10, 100, 101, and 995 more)")


def test_one_file_and_class_folders_are_no_silos(tmp_path: Path) -> None:
    table(tmp_path / "one" / "train.csv", notes(5, "x"))
    table(tmp_path / "one" / "dev.csv", notes(5, "x"))
    for split in ("train", "test"):
        for label in "ab":
            folder = tmp_path / "classes" / split / label
            folder.mkdir(parents=True)
            (folder / "1.txt").write_text("x")
    for path in ("one", "one/train.csv", "classes", "classes/train"):
        data = load_data(path=tmp_path / path)
        assert data.silo is None
        assert [note.split(",")[0] for note in data.notes] == (["not read: dev.csv"] if path == "one" else [])


def make(folder: Path, *places: str) -> None:
    for place in places:
        path = folder / place
        if path.suffix == ".txt":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("a text")
        else:
            table(path, notes(4, place))


FAULTS = {
    "a folder beside a file": (
        ("Nord/notes.csv", "Süd.csv"),
        r"silos: holds folders and Süd.csv: put it into a folder of its own; silos are a folder for each client",
    ),
    "a table among class folders": (
        ("spam/1.txt", "ham/2.txt", "ham/notes.csv"),
        r"silos: ham is a data set, and spam a folder of texts: silos are a folder for each client \(or a file",
    ),
    "two tables in one": (
        ("Nord/a.csv", "Nord/b.csv", "Ost/a.csv"),
        r"Nord: holds a.csv and b.csv: keep one file, or call them train and test",
    ),
    "train and test above": (
        ("train/Nord.csv", "train/Ost.csv", "test/Nord.csv"),
        r'silos: holds the folders train and test: say path = ".*train" and test_path = ".*test"',
    ),
    "silos in silos": (
        ("a/x/notes.csv", "a/y/notes.csv", "b/z/notes.csv"),
        r"a holds silos itself, from x on",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_neither_silos_nor_one_data_set_is_refused(fault: str, tmp_path: Path) -> None:
    places, said = FAULTS[fault]
    make(tmp_path / "silos", *places)
    with pytest.raises(DataError, match=said) as caught:
        load_data(path=tmp_path / "silos")
    assert len(str(caught.value).splitlines()) == 1


def test_faults_of_the_columns_name_the_file(silos: Path) -> None:
    table(silos / "a.csv", notes(3, "x"))
    table(silos / "b.csv", notes(3, "x"), ("text", "Label"))
    with pytest.raises(
        DataError, match=r"b.csv:1 .*: no column 'label', which .*a.csv has: did you mean 'Label'"
    ):
        load_data(path=silos)
    table(silos / "b.csv", [("x", "a", "1")], ("text", "label", "silo"))
    with pytest.raises(
        DataError, match=r"b.csv:1 .*: the column 'silo' has the name of one that fednlp adds"
    ):
        load_data(path=silos)


def test_columns_that_are_nowhere_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "classes/spam/1.txt", "classes/ham/1.txt", "silos/Nord/notes.csv", "silos/Ost/notes.csv")
    for folder in ("classes", "silos"):
        with pytest.raises(DataError, match="no column 'dept'"):
            load_data(path=tmp_path / folder, label="dept")


def test_two_silos_of_one_name_and_patterns_that_fit_nothing(tmp_path: Path) -> None:
    make(tmp_path, "Nord/notes.csv", "Ost/notes.csv")
    with pytest.raises(
        DataError, match=r"two silos are called 'notes': .* give the folders that they lie in"
    ):
        load_data(path=f"{tmp_path}/*/notes.csv")
    with pytest.raises(DataError, match=r"no file or folder fits .*\*.tsv"):
        load_data(path=f"{tmp_path}/*.tsv")
    with pytest.raises(DataError, match="path is an empty list"):
        load_data(path=[])
    with pytest.raises(DataError, match="agnews is read from one folder of its published files"):
        load_data("agnews", [tmp_path, tmp_path])


def test_patterns_fit_what_glob_says(tmp_path: Path) -> None:
    make(
        tmp_path,
        "a/train.csv",
        "a/b/c/notes.csv",
        ".hidden/notes.csv",
        "a/[x].csv",
        "b/.notes.csv",
        "b/d/notes.tsv",
    )
    for pattern in (
        "*",
        "**",
        "**/*.csv",
        "a/**/*",
        "a/**/**",
        "?/*.csv",
        "*/../a/t*",
        "**/[[]x].csv",
        "*/.*",
        ".*/*",
    ):
        expected = sorted({Path(text) for text in glob.glob(f"{tmp_path}/{pattern}", recursive=True)})
        assert sorted(matching_paths(tmp_path / pattern)) == expected, pattern


def test_a_pattern_that_goes_through_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / name).symlink_to(tmp_path)
    assert sorted(matching_paths(tmp_path / "**")) == [tmp_path, *(tmp_path / name for name in "abc")]
    monkeypatch.setattr("fednlp.data.silos.paths.MOST_ENTRIES", 1000)
    for pattern in ("*/" * 40, "**/a/" * 40 + "**/x"):
        with pytest.raises(DataError, match="more than 1,000 files and folders to look at") as caught:
            load_data(path=f"{tmp_path}/{pattern}")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".h5"])
def test_a_device_is_no_silo(suffix: str, tmp_path: Path) -> None:
    """A link to a pipe or to ``/dev/zero`` would be read for ever."""
    path = tmp_path / f"Nord{suffix}"
    path.symlink_to(os.devnull)
    for paths in (path, [path]):
        with pytest.raises(DataError, match="a pipe or a device"):
            load_data(path=paths)


def test_a_silo_without_training_examples_and_tests_that_are_there_twice(tmp_path: Path) -> None:
    table(tmp_path / "a" / "train.csv", [("x", "")])
    table(tmp_path / "a" / "test.csv", notes(2, "x"))
    table(tmp_path / "b" / "train.csv", notes(2, "x"))
    with pytest.raises(DataError, match="the silo 'a' has no training example"):
        load_data(path=tmp_path, on_invalid_row="drop")
    with pytest.raises(DataError, match=r"holds a test set, and .* is one: keep one of them"):
        load_data(path=tmp_path, test_path=f"{tmp_path}/*")


def test_the_parts_are_said_in_a_column(tmp_path: Path) -> None:
    make(tmp_path, "a/train.csv", "a/test.csv", "b/notes.csv")
    assert load_data(path=tmp_path).groups("train", PART)[1] == ("all", "test", "train")


def test_an_empty_folder_among_silos_is_refused(silos: Path) -> None:
    """A hospital whose file is missing would otherwise be left out without a word."""
    table(silos / "Nord" / "notes.csv", notes(10, "Nord"))
    (silos / "Ost").mkdir()
    with pytest.raises(DataError, match="the folder Ost is empty"):
        load_data(path=silos)
    (silos / "Ost").rmdir()
    assert load_data(path=silos).notes[0].startswith("1 silo (Nord)")


@pytest.mark.parametrize("role", ["other", "label"])
def test_a_column_that_one_silo_lacks_is_left_out_unless_the_task_reads_it(role: str, silos: Path) -> None:
    table(silos / "a.csv", notes(4, "a"))
    columns = ("text", "label", "ward") if role == "other" else ("text", "ward", "id")
    table(silos / "b.csv", [(f"b {n}", "xy"[n % 2], "3") for n in range(4)], columns)
    if role == "other":
        data = load_data(path=silos)
        assert "ward" not in data.train.column_names
        assert "b.csv alone is left out unless the task reads it: 'ward'" in data.notes[0]
    else:
        with pytest.raises(DataError, match=r"b.csv:1 .*: no column 'label', which .*a.csv has"):
            load_data(path=silos)


@pytest.mark.parametrize("how", ["by name", "by pattern", "all", "utf-16", "utf-32", "json"])
def test_a_silo_may_have_another_encoding(how: str, silos: Path) -> None:
    table(silos / "Nord.csv", notes(4, "ascii"))
    text = "text,label\n" + "".join(f"Süß {n} “,{'ab'[n % 2]}\n" for n in range(4))
    name, encoding = "Süd.csv", "cp1252" if how in ("by name", "by pattern", "all", "json") else how
    if how == "json":
        name, text = (
            "Süd.json",
            json.dumps([{"text": f"Süß {n} “", "label": "a"} for n in range(4)], ensure_ascii=False),
        )
    (silos / name).write_bytes(text.encode(encoding))
    options: Any = {"by pattern": {"S*.csv": "cp1252"}, "all": "cp1252"}.get(how, {name: "cp1252"})
    if encoding == "cp1252":
        with pytest.raises(DataError, match=f'say data.encoding = {{ "{name}" = "cp1252" }}'):
            load_data(path=silos)
    data = load_data(path=silos, encoding=options if encoding == "cp1252" else None)
    assert {"Süß 0 “", "Süß 3 “"} <= {*own(data, "train")["Süd"], *own(data, "test")["Süd"]}


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("cp12", "there is no such encoding"),
        ("hex", "there is no such encoding"),
        ({"a.csv": "latin-1", "Sud.csv": "cp1252"}, "no file of .* is called 'Sud.csv'"),
        ("utf-16-le", "is not utf-16-le throughout"),
    ],
)
def test_encodings_that_do_not_fit_are_refused(encoding: Any, said: str, silos: Path) -> None:
    silos.mkdir()
    (silos / "a.csv").write_bytes("text,label\nSüß,a\nx,b\n\n".encode("cp1252") + b"\xff\xd8\xd8")
    with pytest.raises(DataError, match=said):
        load_data(path=silos, encoding=encoding)
