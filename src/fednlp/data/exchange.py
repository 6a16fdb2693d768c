"""The exchange files of the original FedNLP, ``*_data.h5`` and ``*_partition.h5``, read and written."""

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fednlp.data.readers import h5
from fednlp.data.readers.checks import answers_fault, tags_fault
from fednlp.data.readers.exchange import COLUMNS, OWN_ATTRIBUTES, TASKS, ExchangeData, read_data
from fednlp.data.readers.exchange_partition import partition_methods, read_partition
from fednlp.data.store import Row
from fednlp.disk import writing
from fednlp.errors import DataError, MissingDependency
from fednlp.formatting.names import did_you_mean, sort_labels
from fednlp.partition.index import IntArray, Partition

__all__ = [
    "COLUMNS",
    "METHODS",
    "TASKS",
    "ExchangeData",
    "method_name",
    "partition_methods",
    "read_data",
    "read_partition",
    "write_data",
    "write_partition",
]

METHODS: Mapping[str, str] = {"label": "niid_label", "quantity": "niid_quantity", "cluster": "niid_cluster"}
"""What a partition file calls a method of :data:`fednlp.partition.METHODS`, where it has another name."""

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

    Where training and test examples lie in two tables, give one after the other, and count the test numbers on
    from the length of the first. A question with several answers has the first in ``Y``, where the original looks,
    and all of them in the attributes. Columns beside those of the task go to the attributes.

    Args:
        path: Where to write; mostly ``<name>_data.h5``.
        task: A value of :data:`TASKS`.
        columns: The names of a row's values; those that the task needs must be there.
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
            f"there are no exchange files for {task!r}: {did_you_mean(task, kinds)}known are {', '.join(kinds)}"
        )
    needed = [name for name in COLUMNS[task] if name not in _OPTIONAL]
    missing = [name for name in needed if name not in columns]
    if missing:
        raise DataError(f"{path}: the rows have no column {', '.join(missing)}, which {task} needs")
    taken = [name for name in columns if name in OWN_ATTRIBUTES and name not in COLUMNS[task]]
    if taken:
        raise DataError(f"{path}: the file has its own {taken[0]!r}: give that column another name")
    with _replaced(path, keep=False) as file:
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
    """Puts examples into a file, and remembers what goes to its attributes."""

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


@contextmanager
def _replaced(path: Path, keep: bool) -> Iterator[Any]:
    """Open an HDF5 file that takes its name once it is whole; ``keep`` begins with what is there under it."""
    try:
        import h5py
    except ImportError:
        raise MissingDependency(
            f"{path} is an HDF5 file, which needs an optional library: run pip install 'fednlp[h5]'"
        ) from None
    with writing(path.parent, "choose another folder"):
        work = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            if keep and path.exists():
                with h5.opened(path):
                    shutil.copyfile(path, work)
            with h5py.File(work, "a") as file:
                yield file
            os.replace(work, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(work)


def method_name(method: str, clients: int, alpha: float | None = None, beta: float | None = None) -> str:
    """Return what the original FedNLP calls a partition.

    >>> method_name("label", 100, alpha=1.0), method_name("quantity", 100, beta=5), method_name("natural", 6)
    ('niid_label_clients=100_alpha=1', 'niid_quantity_clients=100_beta=5.0', 'natural_clients=6')
    """
    if method == "uniform":
        return method
    name = f"{METHODS.get(method, method)}_clients={clients}"
    if alpha is not None:
        name += f"_alpha={alpha:g}"
    return name if beta is None else f"{name}_beta={float(beta)}"


def write_partition(
    path: Path,
    partition: Partition,
    method: str,
    *,
    alpha: float | None = None,
    beta: float | None = None,
    train: ArrayLike | None = None,
    test: ArrayLike | None = None,
) -> str:
    """Write a partition as the original FedNLP reads it, beside the others that the file may hold.

    Args:
        path: Where to write; mostly ``<name>_partition.h5``. A partition of the same name is replaced.
        partition: Who holds what, by row numbers.
        method: A key of :data:`fednlp.partition.METHODS`, from which the name is made.
        alpha: Its concentration, if it has one.
        beta: Its concentration of sizes, if it has one.
        train: The data file's index of each row of the training set; the row numbers if left out.
        test: The same of the test set.

    Returns:
        The name of the partition in the file.

    Raises:
        DataError: There is a file that is no HDF5 file, or a row has no index.
        RunError: The disk is full, or the folder cannot be written.
        MissingDependency: ``h5py`` is not installed.
    """
    name = method_name(method, partition.num_clients, alpha, beta)
    with _replaced(path, keep=True) as file:
        import h5py

        if name in file:
            del file[name]
        group = file.create_group(name)
        group["n_clients"] = partition.num_clients
        for key, value in (("alpha", alpha), ("beta", beta)):
            if value is not None:
                group[key] = float(value)
        if partition.client_names is not None:
            group["natural_factors"] = np.array(partition.client_names, h5py.string_dtype("utf-8"))
        for client in range(partition.num_clients):
            for split, rows, indices in (
                ("train", partition.train(client), train),
                ("test", partition.test(client), test),
            ):
                group[f"partition_data/{client}/{split}"] = _indices_of(rows, indices, split)
    return name


def _indices_of(rows: IntArray, indices: ArrayLike | None, split: str) -> IntArray:
    if indices is None:
        return rows
    known = np.asarray(indices, np.int64)
    if len(rows) and rows.max() >= len(known):
        raise DataError(
            f"the partition has the {split} row {rows.max()}, and there are indices for {len(known)} rows"
        )
    return known[rows]
