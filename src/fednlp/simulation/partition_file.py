"""Partitions kept in files: ``.npz`` as every run writes it, and the original FedNLP's ``*_partition.h5``."""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from fednlp.config.sections import Partition as PartitionOptions
from fednlp.data import TextData
from fednlp.disk import expanded
from fednlp.errors import PartitionError
from fednlp.partition import Partition
from fednlp.partition.index import IntArray

_H5 = (".h5", ".hdf5")


def check_partition_name(path: Path) -> None:
    """Check that the name of a partition's file says how it is written.

    Raises:
        PartitionError: It says something else.
    """
    if path.suffix.lower() not in (".npz", *_H5):
        raise PartitionError(f"--out {path}: name it .npz, or .h5 as the original FedNLP has it")


def read_partition_file(
    options: PartitionOptions, data: TextData, path_of_data: str | list[str] | None = None
) -> Partition:
    """Read the partition that ``[partition] file`` names.

    Args:
        options: ``[partition]`` with ``file``, and ``part`` where an HDF5 file holds several partitions.
        data: The data set; its examples are matched by their numbers.
        path_of_data: ``data.path``; a data file of the original FedNLP has its own numbers of examples.

    Raises:
        PartitionError: There is no such file, it holds several partitions and none is named, or it was made for other
            data.
        DataError: The file cannot be read.
        MissingDependency: ``h5py`` is not installed.
    """
    given = options.given()
    path, part = expanded(given["file"]), given.get("part")
    if not path.is_file():
        raise PartitionError(
            f"there is no partition file {path}: give a .npz or a _partition.h5 as partition.file"
        )
    if path.suffix.lower() in _H5:
        partition = _from_h5(path, part, data, path_of_data)
    elif part is not None:
        raise PartitionError(f"{path} holds one partition: leave partition.part out")
    else:
        partition = Partition.load(path)
    for split, there in (("train", data.train_numbers), ("test", data.test_numbers)):
        strange = np.setdiff1d(getattr(partition, f"{split}_indices"), there)
        if len(strange):
            raise PartitionError(
                f"{path}: the {split} example {strange[0]} is not in {data.name}: "
                "this partition was made for other data"
            )
    return partition


def _from_h5(path: Path, part: str | None, data: TextData, path_of_data: str | list[str] | None) -> Partition:
    from fednlp.data.fednlp_h5 import partition_methods, read_data

    parts = partition_methods(path)
    if part is None and len(parts) != 1:
        raise PartitionError(
            f"{path} holds {len(parts)} partitions: say partition.part, of {', '.join(parts[:20])}"
        )
    train, test = _indices(data)
    if isinstance(path_of_data, str) and Path(path_of_data).suffix.lower() in _H5:
        known = read_data(expanded(path_of_data))
        train, test = known.train, known.train if known.test is None else known.test
    return read_h5_partition(path, part or parts[0], train, test)


def read_h5_partition(path: Path, method: str, train: ArrayLike, test: ArrayLike) -> Partition:
    """Read one partition of a partition file of the original FedNLP.

    Args:
        path: The file, ``<name>_partition.h5``.
        method: Name of the partition in the file, e.g. ``"niid_label_clients=100_alpha=1"``; ``alpha=1.0`` is the same.
        train: The data file's index of each training example, int64: ``read_data(...).train``.
        test: The data file's index of each test example; the same as ``train`` where the data file is not split.

    Raises:
        DataError: The file has another format, or no such partition; or a client has an example that is not in
            the data.
        PartitionError: A client has no training example, or two clients have the same example.
        MissingDependency: ``h5py`` is not installed.
    """
    from fednlp.data.fednlp_h5 import read_partition

    found = read_partition(path, method, train, test)
    clients = np.arange(len(found.train_offsets) - 1)
    try:
        return Partition(
            found.train_offsets,
            found.train_indices,
            found.test_offsets,
            found.test_indices,
            clients,
            found.client_names,
        )
    except PartitionError as error:
        raise PartitionError(f"{found.location}: {error}") from None


def write_h5_partition(
    path: Path,
    partition: Partition,
    method: str,
    *,
    alpha: float | None = None,
    beta: float | None = None,
    train: ArrayLike | None = None,
    test: ArrayLike | None = None,
) -> str:
    """Write a partition as the original FedNLP reads it; other partitions in the file are kept.

    Args:
        path: The file to write, ``<name>_partition.h5``. A partition of the same name is replaced.
        partition: The examples of the clients, by row numbers.
        method: A key of :data:`fednlp.partition.METHODS`, from which the name is made.
        alpha: Concentration of the method's Dirichlet distribution, if it has one.
        beta: Concentration of the sizes, if the method has one.
        train: The data file's index of each row of the training set; the row numbers if left out.
        test: The data file's index of each row of the test set; the row numbers if left out.

    Returns:
        The name of the partition in the file.

    Raises:
        DataError: The file exists and is no HDF5 file, or a row has no index.
        RunError: The disk is full, or the folder cannot be written.
        MissingDependency: ``h5py`` is not installed.
    """
    from fednlp.data.fednlp_h5 import PartitionArrays, write_partition

    arrays = PartitionArrays(
        partition.train_offsets,
        partition.train_indices,
        partition.test_offsets,
        partition.test_indices,
        partition.client_names,
    )
    return write_partition(path, arrays, method, alpha=alpha, beta=beta, train=train, test=test)


def _indices(data: TextData) -> tuple[IntArray, IntArray]:
    """Return the index of every row of both tables as in the original FedNLP, with test rows after training rows."""
    train = np.arange(data.train.num_rows, dtype=np.int64)
    if data.held_out:
        return train, train
    return train, len(train) + np.arange(data.test.num_rows, dtype=np.int64)


def write_partition_file(path: Path, partition: Partition, options: PartitionOptions, data: TextData) -> str:
    """Write a partition as ``.npz``, or, with the suffix ``.h5``, in the format of the original FedNLP.

    Args:
        path: The file.
        partition: The examples of the clients, by row numbers.
        options: ``[partition]``, whose method names the partition in a ``.h5`` file.

    Returns:
        The path, with the partition's name in a ``.h5`` file, for display.

    Raises:
        RunError: The file cannot be written.
        MissingDependency: ``h5py`` is not installed.
    """
    if path.suffix.lower() not in _H5:
        partition.save(path)
        return str(path)
    train, test = _indices(data)
    alpha, beta = (options.given().get(name) for name in ("alpha", "beta"))
    name = write_h5_partition(path, partition, options.method, alpha=alpha, beta=beta, train=train, test=test)
    return f"{path}, as {name}"
