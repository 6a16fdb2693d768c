"""A partition is an index: offsets and example numbers, whatever the number of clients."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fednlp.errors import PartitionError
from fednlp.formatting.units import plural
from fednlp.partition.npz import read_arrays

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_ARRAYS = ("train_offsets", "train_indices", "test_offsets", "test_indices", "client_ids")
_KINDS = dict.fromkeys(_ARRAYS, ("iu", 1)) | {"client_names": ("U", 1), "hidden": ("b", 2)}
_SPLITS: tuple[Literal["train", "test"], ...] = ("train", "test")


@dataclass(frozen=True, eq=False)
class Partition:
    """An index of the examples of each client: two ragged arrays of example numbers, one row a client.

    Args:
        train_offsets: int64 (C+1), rising from 0; client c holds ``train_indices[offsets[c]:offsets[c+1]]``,
            at least one example.
        train_indices: int64, example numbers of the training set, each at most once.
        test_offsets: int64 (C+1), as above; a client's own test set may be empty.
        test_indices: int64, example numbers of the test set, each at most once.
        client_ids: int64 (C), the numbers 0 to C-1.
        client_names: The value of the field that a natural partition was made by, one a client.
        hidden: bool (C, 2), whether a client keeps its number of training and of test examples to itself, so that the
            numbers here are not its own; None where none does.

    Raises:
        PartitionError: The arrays do not fit together.

    >>> part = Partition([0, 2, 3], [4, 0, 1], [0, 0, 1], [7], [0, 1])
    >>> part.num_clients, part.train(0).tolist(), part.test(1).tolist()
    (2, [4, 0], [7])
    """

    train_offsets: IntArray
    train_indices: IntArray
    test_offsets: IntArray
    test_indices: IntArray
    client_ids: IntArray
    client_names: tuple[str, ...] | None = None
    hidden: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            object.__setattr__(self, name, _whole_numbers(name, getattr(self, name)))
        clients = len(self.client_ids)
        if clients == 0 or not np.array_equal(self.client_ids, np.arange(clients)):
            raise PartitionError("client_ids must be the numbers from 0, one a client, and at least one")
        _check_ragged("train", self.train_offsets, self.train_indices, clients, fewest=1)
        _check_ragged("test", self.test_offsets, self.test_indices, clients, fewest=0)
        if self.client_names is not None:
            object.__setattr__(self, "client_names", tuple(self.client_names))
            _check_names(self.client_names, clients)
        if self.hidden is not None and self.hidden.shape != (clients, len(_SPLITS)):
            raise PartitionError(f"hidden must have two columns and {plural(clients, 'row')}")

    def __repr__(self) -> str:
        named = ", named" if self.client_names is not None else ""
        return (
            f"<Partition of {plural(self.num_clients, 'client')}{named}: {len(self.train_indices):,} training and "
            f"{len(self.test_indices):,} test examples>"
        )

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return len(self.client_ids)

    def train(self, client: int) -> IntArray:
        """Return a view of a client's training examples, by number."""
        return self._row(self.train_offsets, self.train_indices, client)

    def test(self, client: int) -> IntArray:
        """Return a view of a client's own test examples, by number; it may be empty."""
        return self._row(self.test_offsets, self.test_indices, client)

    def hidden_of(self, client: int) -> list[Literal["train", "test"]]:
        """Return of which examples a client keeps the number to itself."""
        if self.hidden is None:
            return []
        return [split for split, hidden in zip(_SPLITS, self.hidden[client], strict=True) if hidden]

    def _row(self, offsets: IntArray, indices: IntArray, client: int) -> IntArray:
        if not 0 <= client < self.num_clients:
            raise PartitionError(
                f"there is no client {client}: they are numbered 0 to {self.num_clients - 1}"
            )
        return indices[offsets[client] : offsets[client + 1]]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the partition as an ``.npz`` file, whole or not at all; the same partition, the same bytes.

        Raises:
            RunError: The disk is full, or the folder cannot be written.
        """
        from fednlp.disk import atomic

        arrays: dict[str, Any] = {name: getattr(self, name) for name in _ARRAYS}
        if self.client_names is not None:
            arrays["client_names"] = np.array(self.client_names, dtype=np.str_)
        if self.hidden is not None and self.hidden.any():
            arrays["hidden"] = self.hidden
        with atomic(Path(path), "choose another folder") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a partition that :meth:`save` wrote, or any ``.npz`` with the same five arrays.

        Nothing in the file is trusted: sizes are checked before memory is taken, and no object is unpickled.

        Raises:
            PartitionError: The file is missing, damaged, or no valid partition.
        """
        try:
            arrays = read_arrays(path, _KINDS, frozenset({"client_names", "hidden"}), _check_lengths)
            names = arrays.pop("client_names", None)
            return cls(**arrays, client_names=None if names is None else tuple(names.tolist()))
        except FileNotFoundError:
            raise PartitionError(
                f"there is no partition file {path}: make one with fednlp partition"
            ) from None
        except PartitionError as error:
            raise PartitionError(f"{path}: {error}") from None
        except ValueError as error:
            message = f"{path} is no partition, or is damaged ({error}): make it again with fednlp partition"
            raise PartitionError(message) from None


@dataclass(frozen=True, eq=False)
class OneClient:
    """The examples of one client of many; those of the others are elsewhere.

    Attributes:
        client: Its number.
        num_clients: How many clients there are.
        train_numbers: int64, its training examples.
        test_numbers: int64, its own test examples; they may be none.
    """

    client: int
    num_clients: int
    train_numbers: IntArray
    test_numbers: IntArray

    def train(self, client: int) -> IntArray:
        """Return the client's training examples, by number.

        Raises:
            PartitionError: Another client is asked for.
        """
        return self._own(client, self.train_numbers)

    def test(self, client: int) -> IntArray:
        """Return the client's own test examples, by number.

        Raises:
            PartitionError: Another client is asked for.
        """
        return self._own(client, self.test_numbers)

    def _own(self, client: int, numbers: IntArray) -> IntArray:
        if client != self.client:
            raise PartitionError(f"the examples of client {client} are not here, those of {self.client} are")
        return numbers


def from_owners(
    train_owners: NDArray[np.integer[Any]],
    test_owners: NDArray[np.integer[Any]],
    num_clients: int,
    train_numbers: ArrayLike | None = None,
    test_numbers: ArrayLike | None = None,
    client_names: tuple[str, ...] | None = None,
) -> Partition:
    """Return the partition in which each example has the given owner.

    Args:
        train_owners: The client of each training example, 0 to C-1; -1 leaves an example out.
        test_owners: The client of each test example, in the same form.
        train_numbers: The example numbers of the rows of `train_owners`; their positions if left out.
        test_numbers: The example numbers of the rows of `test_owners`; their positions if left out.
        client_names: See :class:`Partition`.

    >>> from_owners(np.array([1, 0, 1]), np.array([0]), 2).train(1).tolist()
    [0, 2]
    """
    train = _ragged(train_owners, num_clients, train_numbers)
    test = _ragged(test_owners, num_clients, test_numbers)
    return Partition(*train, *test, np.arange(num_clients, dtype=np.int64), client_names)


def client_runs(owners: NDArray[np.integer[Any]], num_clients: int) -> tuple[IntArray, IntArray]:
    """Return offsets (C+1) and positions, so that a client's examples lie together and in order."""
    positions = np.argsort(owners, kind="stable")
    left_out = int(np.count_nonzero(owners < 0))
    offsets = np.zeros(num_clients + 1, dtype=np.int64)
    np.cumsum(
        np.bincount(owners[owners >= 0] if left_out else owners, minlength=num_clients), out=offsets[1:]
    )
    return offsets, positions[left_out:]


def _ragged(
    owners: NDArray[np.integer[Any]], num_clients: int, numbers: ArrayLike | None
) -> tuple[IntArray, IntArray]:
    offsets, positions = client_runs(owners, num_clients)
    return offsets, positions if numbers is None else np.asarray(numbers, dtype=np.int64)[positions]


def _whole_numbers(name: str, values: ArrayLike) -> IntArray:
    """Return a read-only int64 view of a flat array of whole numbers."""
    array = np.asarray(values)
    if array.ndim != 1 or not (array.dtype.kind in "iu" or array.size == 0):
        raise PartitionError(f"{name} must be a flat array of whole numbers, not {array.dtype} {array.shape}")
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise PartitionError(f"{name} holds numbers beyond int64")
    view = np.ascontiguousarray(array, dtype=np.int64).view()
    view.flags.writeable = False
    return view


def _check_lengths(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that the lengths of a file's arrays are those of one number of clients.

    Raises:
        PartitionError: They are not.
    """
    lengths = {name: shape[0] for name, shape in shapes.items()}
    clients = lengths["client_ids"]
    for split in ("train", "test"):
        _check_offsets(split, lengths[f"{split}_offsets"], clients)
    if lengths["train_indices"] < clients:
        raise PartitionError(f"train_indices must hold an example of each of {plural(clients, 'client')}")
    if (names := lengths.get("client_names", clients)) != clients:
        raise PartitionError(f"client_names holds {plural(names, 'name')} for {plural(clients, 'client')}")
    if lengths.get("hidden", clients) != clients:
        raise PartitionError(f"hidden must have two columns and {plural(clients, 'row')}")


def _check_offsets(split: str, length: int, clients: int) -> None:
    if length != clients + 1:
        raise PartitionError(
            f"{split}_offsets must hold {clients + 1} numbers for {plural(clients, 'client')}"
        )


def _check_ragged(split: str, offsets: IntArray, indices: IntArray, clients: int, fewest: int) -> None:
    _check_offsets(split, len(offsets), clients)
    if offsets[0] != 0 or offsets[-1] != len(indices):
        raise PartitionError(
            f"{split}_offsets must run from 0 to {len(indices)}, the length of {split}_indices"
        )
    # Compared, not subtracted: a difference of hostile numbers could overflow.
    short = offsets[1:] <= offsets[:-1] if fewest else offsets[1:] < offsets[:-1]
    if short.any():
        client = int(np.argmax(short))
        what = (
            "holds no training example" if offsets[client + 1] == offsets[client] else "has falling offsets"
        )
        raise PartitionError(f"client {client} {what} in {split}_offsets")
    ordered = np.sort(indices)
    if len(ordered) and ordered[0] < 0:
        raise PartitionError(f"{split}_indices must be 0 or more, not {ordered[0]}")
    twice = ordered[1:] == ordered[:-1]
    if twice.any():
        raise PartitionError(f"example {ordered[int(np.argmax(twice))]} stands twice in {split}_indices")


def _check_names(names: tuple[str, ...], clients: int) -> None:
    if len(names) != clients:
        raise PartitionError(
            f"client_names holds {plural(len(names), 'name')} for {plural(clients, 'client')}"
        )
    if len(set(names)) != clients or not all(names):
        raise PartitionError("client_names must differ from each other and not be empty")
