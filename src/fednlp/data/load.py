"""Any data set as one value: opened, its task found, its rows checked and stored, its test set held out."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fednlp.data.catalogue import CATALOGUE, Opened, entry
from fednlp.data.checks import row_check
from fednlp.data.columns import TARGETS, check_columns, columns_of, infer_task, wanted_columns
from fednlp.data.files import SUFFIXES, exchange_rows, file_rows, parallel_files, parallel_rows
from fednlp.data.folders import folder_rows
from fednlp.data.hub import hub_rows, is_saved, saved_rows
from fednlp.data.misread import refuse_misread
from fednlp.data.names import did_you_mean
from fednlp.data.schema import SCHEMAS
from fednlp.data.split import hold_out
from fednlp.data.store import Rows, Stored, View, stored
from fednlp.data.textdata import TextData, class_ids, class_names
from fednlp.disk import expanded
from fednlp.errors import DataError

Invalid = Literal["refuse", "drop"]


def load_data(
    name: str | None = None,
    path: str | Path | None = None,
    *,
    task: str | None = None,
    columns: Mapping[str, str] | None = None,
    text: str = "text",
    label: str = "label",
    test_path: str | Path | None = None,
    test_fraction: float = 0.2,
    invalid: Invalid = "refuse",
    seed: int = 0,
) -> TextData:
    """Load a data set by name, from the user's own files, or a known data set from its files in a folder.

    Args:
        name: A data set of the catalogue (see :func:`fednlp.data.data_names`), or ``owner/name`` at the hub.
        path: A file (CSV, TSV, JSON lines, CoNLL columns, SQuAD JSON); a folder with train and test files; a
            folder of text files a class; a folder of Hugging Face ``datasets``; for a text in two languages
            what comes before them in the names of its files. With a name of the catalogue: where its
            published files are.
        task: A formulation (:data:`fednlp.data.schema.SCHEMAS`); by default that of the catalogue, or the one
            that the columns fit.
        columns: The file's own names of columns, by the canonical ones: ``{"source": "dialogue"}``.
        text: Short for ``columns["text"]``.
        label: Short for ``columns["label"]``.
        test_path: The test file or folder that goes with ``path``.
        test_fraction: Share of the examples that is held out where there is no test set, by label where there
            are labels, above 0 and below 1.
        invalid: What to do with a row that cannot be an example: ``"refuse"`` the file, with the row's place;
            or ``"drop"`` the row, and count it.
        seed: Of the draw of what is held out.

    Raises:
        DataError: Unknown name, unfit file, column or row; the message says where and what to do.
        FetchError: The package index does not give the files, and they are not cached.
        RunError: The disk is full, or the cache cannot be written.
        MissingDependency: The data set needs ``datasets``.
    """
    if not 0 < test_fraction < 1:
        raise DataError(f"test_fraction is {test_fraction}: give a number above 0 and below 1, such as 0.2")
    if invalid not in ("refuse", "drop"):
        raise DataError(f"invalid is {invalid!r}: say 'refuse' or 'drop'")
    if task is not None and task not in SCHEMAS:
        raise DataError(f"unknown task {task!r}: {did_you_mean(task, SCHEMAS)}known are {', '.join(SCHEMAS)}")
    wanted = wanted_columns(columns or {}, text, label)
    shown, opened = _open(name, _path(path), _path(test_path), wanted)
    guessed = not (task or opened.task)
    task = task or opened.task or infer_task(*_named(opened.train), wanted)
    train, test = (
        stored(rows, view_of(rows, task, wanted, invalid)) if rows else None
        for rows in (opened.train, opened.test)
    )
    assert train is not None
    data = _assemble(shown, opened.source, task, train, test, wanted, invalid, test_fraction, seed)
    if guessed:
        refuse_misread(data)
    return data


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else expanded(given)


def _open(
    name: str | None, path: Path | None, test_path: Path | None, wanted: Mapping[str, str]
) -> tuple[str, Opened]:
    if test_path is not None and (path is None or name is not None):
        raise DataError("test_path goes with path alone: a data set known by name brings its own test set")
    if name is not None and (name in CATALOGUE or path is not None or "/" not in name):
        return name, entry(name).open(path)
    if name is not None:
        train, test = hub_rows(name, _targets(wanted))
        return name, Opened(train, test, train.shown)
    if path is None:
        raise DataError("no data: give a name that fednlp data list shows, or path, your own file")
    train, test, task = _open_path(path, wanted)
    if test_path is not None:
        if test_path.resolve() == path.resolve():
            raise DataError(
                f"test_path is the training file {path}: leave it out to hold a test set out of it"
            )
        test, _, _ = _open_path(test_path, wanted)
    place = path.resolve()
    shown = place.name if place.is_dir() else Path(place.name.removesuffix(".gz")).stem
    return shown, Opened(train, test, f"{train.shown} and {test.shown}" if test else train.shown, task)


def _targets(wanted: Mapping[str, str]) -> Sequence[str]:
    return [wanted.get(target, target) for target in TARGETS]


def _open_path(path: Path, wanted: Mapping[str, str]) -> tuple[Rows, Rows | None, str | None]:
    """Return the rows of a user's own files: training, test if it lies there too, and the task if they say it."""
    languages = [wanted[side] for side in ("source", "target") if side in wanted]
    if len(languages) == 2 and (pair := parallel_files(path, languages)) is not None:
        test = parallel_files(path / "test", languages) if path.is_dir() else None
        return parallel_rows(pair, languages), parallel_rows(test, languages) if test else None, None
    if not path.exists():
        beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(
            f"there is no {path}: {did_you_mean(path.name, beside)}give a file or a folder that exists"
        )
    if path.is_dir():
        return (*_open_folder(path, wanted), None)
    if path.suffix.lower() in (".h5", ".hdf5"):
        return exchange_rows(path)
    return file_rows(path), None, None


def _open_folder(path: Path, wanted: Mapping[str, str]) -> tuple[Rows, Rows | None]:
    if is_saved(path):
        return saved_rows(path, _targets(wanted))
    train, held = (_split_file(path, split) for split in ("train", "test"))
    if train is not None:
        return file_rows(train), file_rows(held) if held is not None else None
    named = wanted.get("text", "text"), wanted.get("label", "label")
    if all((path / split).is_dir() and _has_folders(path / split) for split in ("train", "test")):
        return folder_rows(path / "train", *named), folder_rows(path / "test", *named)
    return folder_rows(path, *named), None


def _split_file(folder: Path, split: str) -> Path | None:
    names = [split + suffix + packed for suffix in SUFFIXES for packed in ("", ".gz")]
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) > 1:
        raise DataError(
            f"{folder} holds {' and '.join(path.name for path in found)}: give the one to use as path"
        )
    return found[0] if found else None


def _has_folders(folder: Path) -> bool:
    return any(one.is_dir() for one in folder.iterdir())


def _named(rows: Rows) -> tuple[str, Sequence[str]]:
    """Return where the column names stand, and what they are; none stands there twice."""
    where, names = rows.names_at or rows.shown, rows.names()
    check_columns(where, names)
    return where, names


def view_of(rows: Rows, task: str, wanted: Mapping[str, str], invalid: Invalid) -> View:
    """Return how rows are read for a task.

    Args:
        rows: Of the data set.
        task: Its formulation.
        wanted: What the user says about columns.
        invalid: As for :func:`load_data`.

    Raises:
        DataError: A column is missing.
    """
    where, names = _named(rows)
    optional = SCHEMAS[task].optional
    # One that is not needed may be in one of the files only.
    wanted = {name: own for name, own in wanted.items() if name not in optional or own in names}
    found = columns_of(where, names, task, wanted)
    return View(
        task,
        {own: canonical for canonical, own in found.items()},
        lambda columns: row_check(task, found, columns),
        invalid == "drop",
    )


def _assemble(
    name: str,
    source: str,
    task: str,
    train: Stored,
    test: Stored | None,
    wanted: Mapping[str, str],
    invalid: Invalid,
    fraction: float,
    seed: int,
) -> TextData:
    parts = [train] if test is None else [train, test]
    there = list(dict.fromkeys(column for part in parts for column in part.table.column_names))
    columns = columns_of(name, there, task, wanted)
    pair = columns.get("text_pair")
    if pair is not None and any(pair not in part.table.column_names for part in parts):
        raise DataError(
            f"{name}: only one of the training and test sets has the column {pair!r}: remove or add it"
        )
    names = class_names(task, columns, [part.table for part in parts])
    split: Sequence[object] = ["held out", fraction, seed] if test is None else ["published", test.content]
    said = [train.content, task, sorted(columns.items()), invalid, *split]
    if test is None:
        ids = class_ids(train.table, task, columns, names)
        train_numbers, test_numbers = hold_out(ids, max(len(names), 1), fraction, seed)
    else:
        train_numbers, test_numbers = (np.arange(part.table.num_rows, dtype=np.int64) for part in parts)
    return TextData(
        name=name,
        source=source,
        task=task,
        train=train.table,
        test=train.table if test is None else test.table,
        train_numbers=train_numbers,
        test_numbers=test_numbers,
        held_out=test is None,
        columns=columns,
        label_names=names,
        dropped=sum(part.dropped for part in parts),
        dropped_why=_why(parts),
        fingerprint=hashlib.sha256(json.dumps(said).encode()).hexdigest(),
    )


def _why(parts: Sequence[Stored]) -> str:
    reasons = [reason for part in parts for reason in part.reasons]
    more = sum(part.dropped for part in parts) - len(reasons)
    return "; ".join(reasons + ([f"and {more:,} more"] if more else []))
