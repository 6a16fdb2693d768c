"""The original FedNLP's partition files, ``*_partition.h5``, read and written as plain arrays.

The keys are numbers, which HDF5 sorts as strings: clients and examples are found by the value of their index, never
by position.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fednlp.data.readers import h5
from fednlp.data.split import Numbers
from fednlp.errors import DataError
from fednlp.formatting.suggestions import did_you_mean
from fednlp.formatting.units import plural

METHODS: Mapping[str, str] = {"label": "niid_label", "quantity": "niid_quantity", "cluster": "niid_cluster"}
"""What a partition file calls a method of :data:`fednlp.partition.METHODS`, where it has another name."""

_MOST_CLIENTS = 10_000_000
_NUMBER = re.compile(r"(?<==)\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True, eq=False)
class PartitionArrays:
    """The examples of every client, as the ragged arrays of a :class:`fednlp.partition.Partition`.

    Attributes:
        train_offsets: int64 (clients + 1); client c has the rows ``train_indices[offsets[c]:offsets[c + 1]]``.
        train_indices: Row numbers of the training set, int64.
        test_offsets: As ``train_offsets``, for the test set.
        test_indices: As ``train_indices``, for the test set.
        client_names: The names of the clients; None where they have none.
        location: Where they were read, for messages; empty for arrays made in memory.
    """

    train_offsets: Numbers
    train_indices: Numbers
    test_offsets: Numbers
    test_indices: Numbers
    client_names: tuple[str, ...] | None = None
    location: str = ""


def partition_methods(path: Path) -> tuple[str, ...]:
    """Return the names of the partitions in a partition file.

    Raises:
        DataError: It is no such file.
        MissingDependency: ``h5py`` is not installed.
    """
    with h5.opened(path) as file:
        return tuple(file)


def read_partition(path: Path, method: str, train: ArrayLike, test: ArrayLike) -> PartitionArrays:
    """Read one partition of a partition file.

    Args:
        path: The file.
        method: Its name there, e.g. ``"niid_label_clients=100_alpha=1"``; ``alpha=1.0`` is the same.
        train: The data file's index of each training example, int64: ``read_data(...).train``.
        test: The same of the test examples; the training examples' where the data file is not split.

    Raises:
        DataError: It is no such file, or has no such partition; or a client has an example that is not in the
            data.
        MissingDependency: ``h5py`` is not installed.
    """
    with h5.opened(path) as file:
        name = _matching(method, tuple(file), path)
        group = h5.child(file, name, "group", str(path))
        clients = h5.number(h5.child(group, "n_clients", "dataset", str(path)))
        parts = h5.child(group, "partition_data", "group", str(path))
        if clients != len(parts) or not 1 <= clients <= _MOST_CLIENTS:
            raise DataError(
                f"{path}:/{name}: n_clients is {clients:g}, and partition_data has {plural(len(parts), 'client')}"
            )
        ragged = [
            _read_split(parts, split, indices, path) for split, indices in (("train", train), ("test", test))
        ]
        names = _read_names(group, path, len(parts))
    return PartitionArrays(*ragged[0], *ragged[1], names, f"{path}:/{name}")


def _matching(method: str, names: Sequence[str], path: Path) -> str:
    if method in names:
        return method
    same = [name for name in names if _canonical(name) == _canonical(method)]
    if len(same) == 1:
        return same[0]
    raise DataError(
        f"{path}: no partition {method!r}: {did_you_mean(method, names)}there are {', '.join(names[:20]) or 'none'}"
    )


def _canonical(name: str) -> str:
    return _NUMBER.sub(lambda match: f"{float(match[0]):g}", name)


def _read_split(parts: Any, split: str, indices: ArrayLike, path: Path) -> tuple[Numbers, Numbers]:
    """Return the offsets and row numbers of all clients' training or test examples."""
    known = np.asarray(indices, np.int64)
    order = np.argsort(known, kind="stable")
    offsets, found = [0], []
    for client in range(len(parts)):
        group = h5.child(parts, str(client), "group", str(path))
        dataset = h5.child(group, split, "dataset", str(path))
        offsets.append(offsets[-1] + dataset.size)
        if offsets[-1] > len(known):
            raise DataError(f"{path}:{parts.name}: more {split} examples than the {len(known):,} of the data")
        found.append(h5.whole_numbers(dataset))
    values = np.concatenate(found)
    places = np.minimum(np.searchsorted(known, values, sorter=order), max(len(known) - 1, 0))
    strange = np.flatnonzero(known[order[places]] != values) if len(values) else values
    if len(strange):
        raise DataError(
            f"{path}:{parts.name}: the {split} example {values[strange[0]]} is not in the data: "
            f"this partition was made for other data"
        )
    return np.array(offsets, np.int64), order[places]


def _read_names(group: Any, path: Path, clients: int) -> tuple[str, ...] | None:
    """Return the clients' names, where ``natural_factors`` is a list of them."""
    if "natural_factors" not in group:
        return None
    factors = h5.child(group, "natural_factors", "dataset", str(path))
    if factors.shape != (clients,) or factors.dtype.kind not in "OS":
        return None
    names = tuple(h5.texts(factors))
    return names if len(set(names)) == clients and all(names) else None


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
    arrays: PartitionArrays,
    method: str,
    *,
    alpha: float | None = None,
    beta: float | None = None,
    train: ArrayLike | None = None,
    test: ArrayLike | None = None,
) -> str:
    """Write a partition as the original FedNLP reads it; other partitions in the file are kept.

    Args:
        path: The file to write; usually ``<name>_partition.h5``. A partition of the same name is replaced.
        arrays: The examples of the clients, by row numbers.
        method: A key of :data:`fednlp.partition.METHODS`, from which the name is made.
        alpha: Its concentration, if it has one.
        beta: Its concentration of sizes, if it has one.
        train: The data file's index of each row of the training set; the row numbers if left out.
        test: The same of the test set.

    Returns:
        The name of the partition in the file.

    Raises:
        DataError: The file exists and is no HDF5 file, or a row has no index.
        RunError: The disk is full, or the folder cannot be written.
        MissingDependency: ``h5py`` is not installed.
    """
    clients = len(arrays.train_offsets) - 1
    name = method_name(method, clients, alpha, beta)
    with h5.replaced(path, keep=True) as file:
        import h5py

        if name in file:
            del file[name]
        group = file.create_group(name)
        group["n_clients"] = clients
        for key, value in (("alpha", alpha), ("beta", beta)):
            if value is not None:
                group[key] = float(value)
        if arrays.client_names is not None:
            group["natural_factors"] = np.array(arrays.client_names, h5py.string_dtype("utf-8"))
        for client in range(clients):
            for split, offsets, rows, indices in (
                ("train", arrays.train_offsets, arrays.train_indices, train),
                ("test", arrays.test_offsets, arrays.test_indices, test),
            ):
                own = rows[offsets[client] : offsets[client + 1]]
                group[f"partition_data/{client}/{split}"] = _indices_of(own, indices, split)
    return name


def _indices_of(rows: Numbers, indices: ArrayLike | None, split: str) -> Numbers:
    if indices is None:
        return rows
    known = np.asarray(indices, np.int64)
    if len(rows) and rows.max() >= len(known):
        raise DataError(
            f"the partition has the {split} row {rows.max()}, and there are indices for {len(known)} rows"
        )
    return known[rows]
