"""One value for any data: the same content is the same data, and what is wrong is said in one line."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data import TextData, load, load_data
from fednlp.data.catalogue.news import punctuated
from fednlp.data.profiling import label_issues
from fednlp.data.readers.language import play_text
from fednlp.data.store import Rows
from fednlp.errors import DataError
from fednlp.formatting.sorting import sort_labels

CSV = "text,label,author\n" + "".join(f"text {n},{'yes' if n % 3 else 'no'},a{n % 2}\n" for n in range(30))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small CSV file with a column more."""
    path = tmp_path / "mine.csv"
    path.write_text(CSV)
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_examples_may_lack_a_label_where_that_is_asked_for(kind: str, tmp_path: Path) -> None:
    labels = ["x", "", "y", None, "x", " "]
    rows = [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]
    path, tests = tmp_path / f"few.{kind}", tmp_path / "test.csv"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        path.write_text("text,label\n" + "".join(f"{row['text']},{row['label'] or ''}\n" for row in rows))
    tests.write_text("text,label\na,x\nb,\n")
    data = load_data(path=path, unlabelled=True, test_fraction=0.4)
    assert data.label_names == ("x", "y")
    assert data.labels("train").tolist() == [0, -1, 1, -1, 0, -1]
    assert len(data.test_numbers) == 1
    assert data.labels("test")[data.test_numbers].min() >= 0
    with pytest.raises(DataError, match=r"(row 2|:3|:2): the label is missing"):
        load_data(path=path)
    with pytest.raises(DataError, match=r"test\.csv:3: the label is missing"):
        load_data(path=path, test_path=tests, unlabelled=True)


def test_a_file_is_loaded_with_a_held_out_test_set(path: Path) -> None:
    data = load_data(path=path)
    assert (data.name, data.source, data.held_out) == ("mine", str(path), True)
    assert data.test is data.train
    assert data.train.column_names == ["text", "label", "author"]
    assert data.label_names == ("no", "yes")
    assert data.train_numbers.dtype == data.test_numbers.dtype == np.int64
    assert sorted([*data.train_numbers, *data.test_numbers]) == list(range(30))
    assert np.bincount(data.labels("test")[data.test_numbers]).tolist() == [2, 4]
    expected = [["no", "yes"].index("yes" if n % 3 else "no") for n in range(30)]
    assert data.labels("train").tolist() == data.labels("test").tolist() == expected
    assert data.labels("train").dtype == np.int64


def test_a_test_file_is_used_whole(path: Path, tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"label": "maybe", "text": "a"}\n{"label": "no", "text": "b"}\n')
    data = load_data(path=path, test_path=tmp_path / "other.jsonl")
    assert not data.held_out
    assert data.label_names == ("maybe", "no", "yes")
    assert data.labels("test").tolist() == [0, 1]
    assert data.test_numbers.tolist() == [0, 1]
    assert data.train_numbers.tolist() == list(range(30))
    assert data.source == f"{path} and {tmp_path / 'other.jsonl'}"


def test_a_label_that_is_not_known_is_minus_one(path: Path) -> None:
    data = load_data(path=path)
    fewer = TextData(**{**vars(data), "label_names": ("yes",)})
    assert set(fewer.labels("train").tolist()) == {-1, 0}


def test_a_folder_with_train_and_test_files(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("text\tlabel\na\tx\nb\ty\n")
    assert load_data(path=tmp_path).held_out
    (tmp_path / "test.jsonl").write_text('{"text": "c", "label": "y"}\n')
    data = load_data(path=tmp_path)
    assert (data.name, data.held_out, data.test.num_rows) == (tmp_path.name, False, 1)
    (tmp_path / "train.csv").write_text("text,label\na,x\n")
    with pytest.raises(DataError, match=r"holds train.csv and train.tsv: give the one to use as path$"):
        load_data(path=tmp_path)


def test_a_folder_with_classes_and_one_with_train_and_test_of_classes(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for label in ("x", "y"):
            (tmp_path / split / label).mkdir(parents=True)
            (tmp_path / split / label / "1.txt").write_text(f"{split} {label}")
    data = load_data(path=tmp_path)
    assert (data.held_out, data.label_names) == (False, ("x", "y"))
    assert data.column("test", "text").to_pylist() == ["test x", "test y"]
    assert load_data(path=tmp_path / "train").held_out


def test_a_folder_of_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [0, 10, 9]}).save_to_disk(
        tmp_path / "saved"
    )
    assert load_data(path=tmp_path / "saved").label_names == ("0", "9", "10")


def test_a_hub_name_is_given_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def hub(name: str, targets: Sequence[str]) -> tuple[Rows, None]:
        assert "label" in targets
        rows = [("1", ("a", "x")), ("2", ("b", "y"))]
        names = ("body", "label")
        return Rows((name,), "", "the hub", lambda: names, lambda roles: (names, iter(rows))), None

    monkeypatch.setattr(load, "hub_rows", hub)
    data = load_data("owner/name", text="body")
    assert (data.name, data.source, data.columns["text"]) == ("owner/name", "the hub", "body")


def test_the_fingerprint_follows_the_content_and_the_split_and_nothing_else(
    path: Path, tmp_path: Path
) -> None:
    prints = [load_data(path=path).fingerprint]
    copy = tmp_path / "copy.jsonl"
    lines = [
        dict(zip(("text", "label", "author"), line.split(","), strict=True)) for line in CSV.splitlines()[1:]
    ]
    copy.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert load_data(path=copy).fingerprint == prints[0]
    prints.append(load_data(path=path, seed=1).fingerprint)
    prints.append(load_data(path=path, test_fraction=0.5).fingerprint)
    prints.append(load_data(path=path, label="author").fingerprint)
    prints.append(load_data(path=path, test_path=copy).fingerprint)
    path.write_text(CSV.replace("text 7", "text seven"))
    prints.append(load_data(path=path).fingerprint)
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("text,label\na,-1\nb,-1\n", "every test example has the label '-1'"),
        ("text,label\na,?\nb,?\n", "every test example has the label '?'"),
        ("text,label\na,\nb,\n", "test.csv:2: the label is missing"),
        ("id,text\n1,a\n", "no column 'label'"),
    ],
)
def test_a_test_set_without_labels_is_refused(path: Path, test: str, said: str) -> None:
    (path.parent / "test.csv").write_text(test)
    with pytest.raises(DataError, match="a test set without labels cannot be scored: leave it out") as caught:
        load_data(path=path, test_path=path.parent / "test.csv")
    assert said in str(caught.value)
    assert "in data.test_path, with the training file as data.path" in str(caught.value)


def test_the_seed_draws_the_test_set(path: Path) -> None:
    first, again, other = (load_data(path=path, seed=seed).test_numbers.tolist() for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, r"^no data: give a name that fednlp data list shows, or path, your own file$"),
        (
            {"name": "20New"},
            r"^unknown data set '20New': did you mean '20news'\? fednlp data list shows those ",
        ),
        (
            {"name": "zzz"},
            r"^unknown data set 'zzz': fednlp data list shows .*; a data set of the hub is named \"owner/",
        ),
        ({"name": "zzz", "path": "."}, r"^unknown data set 'zzz': fednlp data list shows "),
        ({"name": "bbc", "test_path": "."}, r"^data.test_path goes with data.path alone: "),
        (
            {"path": "PATH", "test_path": "PATH"},
            r"^data.test_path is the training file .*mine.csv: leave it out",
        ),
        (
            {"path": "PATH", "text": "label"},
            r"^text and label are both the column 'label': name two columns$",
        ),
        (
            {"path": "PATH", "label": "lable"},
            r"mine.csv:1 \(taken for the column names\): no column 'lable': did you mean 'label'\? the columns are",
        ),
        (
            {"path": "PATHx"},
            r"^there is no .*mine.csvx: did you mean 'mine.csv'\? give a file or a folder that exist",
        ),
        ({"path": "PATH", "test_path": "PATHx"}, r"^there is no .*mine.csvx: did you mean 'mine.csv'\?"),
        (
            {"path": "PATH", "test_fraction": 0},
            r"^test_fraction is 0: give a number above 0 and below 1, such as 0.2$",
        ),
        ({"path": "PATH", "test_fraction": float("nan")}, r"^test_fraction is nan: give a number above 0"),
    ],
)
def test_bad_input_is_one_line(path: Path, options: dict[str, object], expected: str) -> None:
    given_ = {
        key: value.replace("PATH", str(path)) if isinstance(value, str) else value
        for key, value in options.items()
    }
    with pytest.raises(DataError, match=expected) as caught:
        load_data(**given_)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_an_unknown_column_or_split_names_what_there_is(path: Path) -> None:
    data = load_data(path=path)
    assert data.column("train", "author").to_pylist() == [f"a{n % 2}" for n in range(30)]
    with pytest.raises(
        DataError, match=r"^mine \(train\): no column 'autor': did you mean 'author'\? the columns are"
    ):
        data.column("train", "autor")
    with pytest.raises(DataError, match=r"^unknown split 'dev': it is 'train' or 'test'$"):
        data.labels("dev")  # type: ignore[arg-type]


@pytest.mark.whole
def test_loading_needs_no_deep_learning_library(path: Path) -> None:
    script = (
        "import sys\nfrom fednlp.data import load_data\n"
        "assert 'pyarrow' not in sys.modules\n"
        "load_data(path=sys.argv[1])\n"
        "print({'torch', 'transformers', 'datasets', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


@given(st.lists(st.integers(-50, 50)))
def test_labels_that_are_numbers_are_in_the_order_of_numbers(numbers: list[int]) -> None:
    assert sort_labels(map(str, numbers)) == tuple(map(str, sorted(set(numbers))))


@given(st.lists(st.text()), st.randoms())
def test_the_order_of_labels_does_not_depend_on_the_order_of_the_examples(
    labels: list[str], random: object
) -> None:
    shuffled = list(labels)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sort_labels(labels) == sort_labels(shuffled)
    assert set(sort_labels(labels)) == set(labels)


LONG = 1_000_000
ONE_PASS: dict[str, Callable[[Path], Any]] = {
    "the order of labels": lambda _: sort_labels(["1" * LONG + "x", "2"]),
    "labels of a scale": lambda _: label_issues._are_a_scale(["1" * LONG + "x"] * 10, 10),
    "marks in a word": lambda _: list(
        punctuated([("here", (f"head\n\na{'.' * LONG}a\n", "tech", "tech/1.txt"))])
    ),
    "brackets that are not closed": lambda path: list(play_text(path)),
}


@pytest.mark.parametrize("case", ONE_PASS)
def test_a_long_text_is_read_in_one_pass(case: str, tmp_path: Path) -> None:
    """Without it, each of these would take hours: a pattern that fails would begin again at each character."""
    path = tmp_path / "play.txt"
    path.write_text(f"ACT I.\n\nBer.\na [b\nc] [d [e] f]\n{'[' * LONG}\n")
    found = ONE_PASS[case](path)
    if "brackets" in case:
        assert found == [(f"a   f]\n{'[' * LONG}", "Ber", "play")]


def test_nothing_may_be_held_out(tmp_path: Path) -> None:
    """So that a file of one example can be evaluated."""
    (tmp_path / "a.csv").write_text("text,label\na,x\n")
    data = load_data(path=tmp_path / "a.csv", test_fraction=None)
    assert (data.train_numbers.tolist(), data.test_numbers.tolist()) == ([0], [])
    with pytest.raises(DataError, match="cannot be held out of one example"):
        load_data(path=tmp_path / "a.csv")
