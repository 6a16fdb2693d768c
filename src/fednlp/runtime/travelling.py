"""A worker that shares no memory with the server: its total of updates is sent in pieces, and merged on arrival.

Engines over several machines (:mod:`fednlp.runtime.mpi`, :mod:`fednlp.runtime.ray`) have this in common.
"""

import importlib
import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fednlp.runtime.engine import Vectors, Worker, answered, vectors_in
from fednlp.runtime.messages import from_json, to_json
from fednlp.runtime.shared import PrivateRoom

_BLOCK = 128
"""Elements that are sent together: where all are zero, none is."""
_PIECE = 1 << 25
"""Bytes of a piece at most, about."""


@dataclass(frozen=True)
class Piece:
    """A part of what lies in a room.

    Attributes:
        name: Of the tensor or the file.
        blocks: int64, the numbers of the tensor's blocks of 128 elements; for a file, where its bytes begin.
        values: These elements, or bytes.
    """

    name: str
    blocks: NDArray[np.int64]
    values: NDArray[Any]


class TravellingRoom:
    """Room in the memory of one process, whose contents can be sent to a room of another process."""

    def __init__(self) -> None:
        self._private = PrivateRoom()
        self._tensors: dict[str, NDArray[Any]] = {}
        self._files: dict[str, FileIO] = {}

    def tensor(self, name: str, numel: int, dtype: torch.dtype) -> Tensor:
        """Return a new tensor of zeros."""
        made = self._private.tensor(name, numel, dtype)
        self._tensors[name] = made.numpy()
        return made

    def file(self, name: str) -> FileIO:
        """Return a new empty file without a name, in the temporary folder."""
        made = self._private.file(name)
        own = FileIO(os.dup(made.fileno()), "r+")  # whose total it is closes the other
        weakref.finalize(self, own.close)
        self._files[name] = own
        return made

    def pieces(self) -> Iterator[Piece]:
        """Yield all that is not zero, in pieces of bounded size."""
        for name, values in self._tensors.items():
            yield from _tensor_pieces(name, values)
        for name, file in self._files.items():
            place = file.seek(0)
            while part := file.read(_PIECE):
                yield Piece(name, np.array([place]), np.frombuffer(part, dtype=np.uint8))
                place += len(part)

    def put(self, piece: Piece) -> None:
        """Write a piece where it belongs."""
        if piece.name in self._files:
            file = self._files[piece.name]
            file.seek(int(piece.blocks[0]))
            rest = memoryview(piece.values.data).cast("B")
            while rest:
                rest = rest[file.write(rest) :]
            return
        values = self._tensors[piece.name]
        body, tail = _blocks(values)
        whole = piece.blocks[piece.blocks < len(body)]
        body[whole] = piece.values[: len(whole) * _BLOCK].reshape(-1, _BLOCK)
        if len(whole) < len(piece.blocks):
            tail[:] = piece.values[len(whole) * _BLOCK :]


class RemoteWorker:
    """A worker in a process of its own, or on another machine.

    Args:
        factory: ``"module:function"`` that builds the worker.
        arguments: JSON values for it.
    """

    def __init__(self, factory: str, arguments: dict[str, Any], threads: int) -> None:
        torch.set_num_threads(threads)
        module, _, name = factory.partition(":")
        self.worker: Worker = getattr(importlib.import_module(module), name)(**arguments)
        self.vectors: Vectors = vectors_in(self.worker, PrivateRoom())
        self.room = TravellingRoom()
        self.total = self.worker.new_total(self.room)

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Answer one request, both as JSON; an update is added to the total."""
        wanted = from_json(request)
        return to_json(answered(self.worker, wanted, self.vectors, self.total))

    def hand_over(self) -> Iterator[Piece]:
        """Yield the total in pieces, and empty it."""
        yield from self.room.pieces()
        self.worker.clear(self.total)


class Arriving:
    """The totals of remote workers as they arrive, one after the other."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.room = TravellingRoom()
        self.total = worker.new_total(self.room)

    def merge_into(self, total: Any) -> None:
        """Add what has arrived to a total, and be empty again."""
        self.worker.merge(total, self.total)


def import_all(modules: Sequence[str]) -> None:
    """Import modules that a worker will need, while the server still prepares."""
    for module in modules:
        importlib.import_module(module)


def _blocks(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a flat array as rows of whole blocks, and what is left of it."""
    end = len(values) // _BLOCK * _BLOCK
    return values[:end].reshape(-1, _BLOCK), values[end:]


def _tensor_pieces(name: str, values: NDArray[Any]) -> Iterator[Piece]:
    body, tail = _blocks(values)
    used = np.flatnonzero(body.any(axis=1))
    step = max(1, _PIECE // (_BLOCK * values.itemsize))
    for start in range(0, len(used), step):
        some = used[start : start + step]
        yield Piece(name, some, body[some].reshape(-1))
    if tail.any():
        yield Piece(name, np.array([len(body)]), tail.copy())
