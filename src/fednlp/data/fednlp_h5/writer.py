"""Writer of the original FedNLP's data files, ``*_data.h5``."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fednlp.data.checks import answers_fault, tags_fault
from fednlp.data.features import row_batches
from fednlp.data.fednlp_h5.reader import COLUMNS, OWN_ATTRIBUTES, TASKS
from fednlp.data.readers import h5
from fednlp.data.store import Row
from fednlp.data.textdata import TextData
from fednlp.errors import DataError
from fednlp.formatting.sorting import sort_labels
from fednlp.formatting.suggestions import did_you_mean

_OPTIONAL = ("history", "id")


def write_data(
    path: Path,
    task: str,
    columns: Sequence[str],
    rows: Iterable[Row],
    train_numbers: ArrayLike,
    test_numbers: ArrayLike,
    label_names: Sequence[str] | None = None,
) -> None:
    """Write a data file as the original FedNLP reads it, whole or not at all; row n gets the index n.

    Where training and test examples lie in two tables, give one after the other; the test numbers then start at the
    length of the first. A question with several answers has the first in ``Y``, where the original looks,
    and all of them in the attributes. Columns other than those of the task go to the attributes.

    Args:
        path: The file to write; usually ``<name>_data.h5``.
        columns: The names of a row's values; all that the task needs must be among them.
        rows: The examples.
        train_numbers: Which rows are training examples.
        test_numbers: Which are test examples.
        label_names: Labels or tags; those that the rows have if left out.

    Raises:
        DataError: The task has no such file, or a row cannot be stored.
        RunError: The disk is full, or the folder cannot be written.
        MissingDependency: ``h5py`` is not installed.
    """
    kinds = {ours: theirs for theirs, ours in TASKS.items()}
    if task not in kinds:
        raise DataError(
            f"the original FedNLP has no data files for {task!r}: {did_you_mean(task, kinds)}"
            f"known are {', '.join(kinds)}"
        )
    needed = [name for name in COLUMNS[task] if name not in _OPTIONAL]
    missing = [name for name in needed if name not in columns]
    if missing:
        raise DataError(f"{path}: the rows have no column {', '.join(missing)}, which {task} needs")
    taken = [name for name in columns if name in OWN_ATTRIBUTES and name not in COLUMNS[task]]
    if taken:
        raise DataError(f"{path}: the file has its own {taken[0]!r}: give that column another name")
    with h5.replaced(path, keep=False) as file:
        writer = _Writer(file, task, columns, path)
        count = 0
        for row in rows:
            writer.add(count, dict(zip(columns, row, strict=True)))
            count += 1
        splits = [_checked_numbers(numbers, count, path) for numbers in (train_numbers, test_numbers)]
        attributes: dict[str, Any] = {"index_list": list(range(count)), "task_type": kinds[task]}
        attributes |= {"train_index_list": splits[0], "test_index_list": splits[1]}
        if task in {"text-classification", "token-classification"}:
            names = sort_labels(writer.labels) if label_names is None else tuple(label_names)
            attributes |= {"label_vocab": {name: i for i, name in enumerate(names)}, "num_labels": len(names)}
        file["attributes"] = json.dumps({**attributes, **writer.attributes})


class _Writer:
    """Writes examples into a file and collects the values of its attributes."""

    def __init__(self, file: Any, task: str, columns: Sequence[str], path: Path) -> None:
        import h5py

        self.file, self.task, self.path = file, task, path
        self.strings = h5py.string_dtype("utf-8")
        self.labels: set[str] = set()
        own = COLUMNS[task]
        self.attributes: dict[str, dict[int, Any]] = {name: {} for name in columns if name not in own}

    def add(self, index: int, row: Mapping[str, str | None]) -> None:
        try:
            self._questions(index, row) if self.task == "question-answering" else self._plain(index, row)
        except (ValueError, TypeError) as error:
            raise DataError(f"{self.path}: row {index} cannot be stored: {error}") from None
        for name, values in self.attributes.items():
            if name != "answers":
                values[index] = row[name]

    def _plain(self, index: int, row: Mapping[str, str | None]) -> None:
        first, *rest = COLUMNS[self.task]
        if "tags" in rest:
            words, tags = str(row["words"]), str(row["tags"])
            fault = tags_fault(words, tags)
            if fault:
                raise DataError(f"{self.path}: row {index}: {fault}")
            self.file[f"X/{index}"] = np.array(json.loads(words), self.strings)
            self.file[f"Y/{index}"] = np.array(json.loads(tags), self.strings)
            self.labels.update(json.loads(tags))
            return
        self.file[f"X/{index}"] = self._text(row[first], index)
        if rest:
            self.file[f"Y/{index}"] = self._text(row[rest[0]], index)
        if "label" in rest:
            self.labels.add(str(row["label"]))
        if row.get("history") is not None and "history" in rest:
            self.file[f"history/{index}"] = np.array(json.loads(str(row["history"])), self.strings)

    def _questions(self, index: int, row: Mapping[str, str | None]) -> None:
        context, answers = self._text(row["context"], index), str(row["answers"])
        fault = answers_fault(context, answers)
        if fault:
            raise DataError(f"{self.path}: row {index}: {fault}")
        spans = [[one["start"], one["start"] + len(one["text"])] for one in json.loads(answers)]
        self.file[f"context_X/{index}"] = context
        self.file[f"question_X/{index}"] = self._text(row["question"], index)
        self.file[f"Y/{index}"] = np.array(spans[0], np.int64)
        self.file[f"Y_answer/{index}"] = context[slice(*spans[0])]
        self.file[f"question_ids/{index}"] = row.get("id") or str(index)
        if len(spans) > 1:
            self.attributes.setdefault("answers", {})[index] = spans

    def _text(self, value: str | None, index: int) -> str:
        if value is None:
            raise DataError(f"{self.path}: row {index} has a gap: fill it or leave the row out")
        return value


def _checked_numbers(numbers: ArrayLike, count: int, path: Path) -> list[int]:
    found = np.asarray(numbers, np.int64)
    if found.size and not 0 <= found.min() <= found.max() < count:
        raise DataError(
            f"{path}: the training and test numbers must be from 0 to {count - 1}, the rows that were given"
        )
    return [int(number) for number in found]


def export_data(data: TextData, path: Path) -> int:
    """Write a data set as a data file of the original FedNLP.

    The indices of the test table's rows follow those of the training table.

    Returns:
        How many examples were written.

    Raises:
        DataError: FedNLP has no file for the task, or an example cannot be stored.
        RunError: The disk is full, or the folder cannot be written.
        MissingDependency: ``h5py`` is not installed.
    """
    tasks = tuple(TASKS.values())
    if data.task not in tasks:
        raise DataError(
            f"{data.name} is for {data.task}, which FedNLP's files do not have: "
            f"{did_you_mean(data.task, tasks)}they have {', '.join(tasks)}"
        )
    names = [name for name in COLUMNS[data.task] if name in data.columns]
    tables = [data.train] if data.held_out else [data.train, data.test]
    first = 0 if data.held_out else data.train.num_rows

    def rows() -> Iterator[Row]:
        for table in tables:
            own = {name: data.columns[name] for name in names if data.columns[name] in table.column_names}
            for batch in row_batches(table, own):
                yield from (tuple(row.get(name) for name in names) for row in batch)

    write_data(
        path,
        data.task,
        names,
        rows(),
        data.train_numbers,
        data.test_numbers + first,
        data.label_names or None,
    )
    return sum(table.num_rows for table in tables)
