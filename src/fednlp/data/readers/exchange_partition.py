"""The original FedNLP's ``*_partition.h5``: clients under keys that are numbers, which HDF5 sorts as strings.

Nothing here goes by position in a file: clients and examples are matched by the value of their index.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fednlp.data.readers import h5
from fednlp.errors import DataError, PartitionError
from fednlp.formatting.names import did_you_mean
from fednlp.partition.index import IntArray, Partition

_MOST_CLIENTS = 10_000_000
_NUMBER = re.compile(r"(?<==)\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def partition_methods(path: Path) -> tuple[str, ...]:
    """Return the names of the partitions in a partition file.

    Raises:
        DataError: It is no such file.
        MissingDependency: ``h5py`` is not installed.
    """
    with h5.opened(path) as file:
        return tuple(file)


def read_partition(path: Path, method: str, train: ArrayLike, test: ArrayLike) -> Partition:
    """Read one partition of a partition file.

    Args:
        path: The file.
        method: Its name there, e.g. ``"niid_label_clients=100_alpha=1"``; ``alpha=1.0`` is the same.
        train: The data file's index of each training example, int64: ``read_data(...).train``.
        test: The same of the test examples; the training examples' where the data file is not split.

    Raises:
        DataError: It is no such file, or there is no such partition in it; or it has an example twice, or one
            that is not in the data.
        PartitionError: A client has no training example.
        MissingDependency: ``h5py`` is not installed.
    """
    with h5.opened(path) as file:
        name = _matching(method, tuple(file), path)
        group = h5.child(file, name, "group", str(path))
        clients = h5.number(h5.child(group, "n_clients", "dataset", str(path)))
        parts = h5.child(group, "partition_data", "group", str(path))
        if clients != len(parts) or not 1 <= clients <= _MOST_CLIENTS:
            raise DataError(
                f"{path}:/{name}: n_clients is {clients:g}, and partition_data has {len(parts)} clients"
            )
        ragged = [
            _read_split(parts, split, indices, path) for split, indices in (("train", train), ("test", test))
        ]
        names = _read_names(group, path, len(parts))
    try:
        return Partition(*ragged[0], *ragged[1], np.arange(len(ragged[0][0]) - 1), names)
    except PartitionError as error:
        raise PartitionError(f"{path}:/{name}: {error}") from None


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


def _read_split(parts: Any, split: str, indices: ArrayLike, path: Path) -> tuple[IntArray, IntArray]:
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
