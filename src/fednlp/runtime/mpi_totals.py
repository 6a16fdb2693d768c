"""Totals of updates between ranks: they are merged along a binary tree, whose root is rank 0.

A total travels in pieces of numbers. It is an exact sum, so the shape of the tree leaves no trace in it.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.runtime.mpi_messages import SHORT_NAP, TOTAL, wait_for
from fednlp.runtime.travelling import Arriving, Piece, TravellingRoom

_ENTRY = 3
"""Numbers in the head of a piece: how many blocks it has, how many values, and the length of its name and type."""


def send_up(comm: Any, pieces: Iterable[Piece]) -> None:
    """Send this rank's total, in pieces, to the rank above it."""
    rank = _parent(comm.Get_rank())
    for piece in pieces:
        _send_piece(comm, rank, piece)
    _send_piece(comm, rank, None)


def merge_below(comm: Any, arriving: Arriving, total: Any) -> None:
    """Receive the totals of the ranks below this one, and merge them into its own.

    Args:
        comm: The communicator of all ranks.
        arriving: Where totals arrive.
    """
    for rank in _children(comm.Get_rank(), comm.Get_size()):
        _receive(comm, rank, arriving.room)
        arriving.merge_into(total)


def _receive(comm: Any, rank: int, room: TravellingRoom) -> None:
    """Put a rank's total where totals arrive."""
    while True:
        head = np.empty(_ENTRY, dtype=np.int64)
        wait_for(comm, rank, TOTAL, SHORT_NAP)
        comm.Recv(head, rank, TOTAL)
        blocks, values, label = head.tolist()
        if not label:
            return
        text = bytearray(label)
        comm.Recv(text, rank, TOTAL)
        kind, _, name = text.decode().partition(" ")
        piece = Piece(name, np.empty(blocks, dtype=np.int64), np.empty(values, dtype=np.dtype(kind)))
        comm.Recv(piece.blocks, rank, TOTAL)
        comm.Recv(_as_bytes(piece.values), rank, TOTAL)
        room.put(piece)


def _send_piece(comm: Any, rank: int, piece: Piece | None) -> None:
    """Send a piece of a total; None is the end of it."""
    if piece is None:
        comm.Send(np.zeros(_ENTRY, dtype=np.int64), rank, TOTAL)
        return
    label = bytearray(f"{piece.values.dtype.str} {piece.name}".encode())
    comm.Send(np.array([len(piece.blocks), len(piece.values), len(label)]), rank, TOTAL)
    comm.Send(label, rank, TOTAL)
    comm.Send(piece.blocks, rank, TOTAL)
    comm.Send(_as_bytes(piece.values), rank, TOTAL)


def _as_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return values.view(np.uint8)


def _children(rank: int, size: int) -> list[int]:
    """Return the ranks whose totals a rank merges into its own, in a binary tree.

    >>> [_children(rank, 6) for rank in range(6)]
    [[1, 2, 4], [], [3], [], [5], []]
    """
    lowest = rank & -rank or size
    steps = [1 << bit for bit in range(size.bit_length()) if 1 << bit < lowest]
    return [rank + step for step in steps if rank + step < size]


def _parent(rank: int) -> int:
    """Return the rank that a rank's total goes to.

    >>> [_parent(rank) for rank in range(1, 6)]
    [0, 0, 2, 0, 4]
    """
    return rank & (rank - 1)
