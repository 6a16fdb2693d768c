"""Masks cut in pieces and coded, so that any U coded pieces give the mask back and any T say nothing of it.

A mask is cut in U - T pieces, and T random pieces are put behind them. Element by element they are the values
of a polynomial of degree below U at U source points; the coded pieces are its values at N other points, one
a client. The sum of several masks' coded pieces is the coded piece of the masks' sum. (So et al. 2022,
"LightSecAgg", section 4.1 and Algorithm 1; the matrix is a Lagrange one, of which every T rows of the last T
columns can be inverted, as its T-privacy asks.)
"""

from collections.abc import Sequence

import numpy as np

from fednlp.errors import SecureAbort
from fednlp.secure.field import PRIME, Residues, combine_rows, lagrange


def _source_points(clients: int, pieces: int) -> range:
    """Return the points that the pieces lie at: behind those of the clients.

    >>> _source_points(clients=4, pieces=3)
    range(5, 8)
    """
    return range(clients + 1, clients + pieces + 1)


def piece_length(length: int, pieces: int, privacy: int) -> int:
    """Return how many elements a piece has: those of the mask over ``pieces - privacy``, rounded up.

    >>> piece_length(length=22, pieces=8, privacy=3)
    5
    """
    return -(-length // (pieces - privacy))


def encode(drawn: Residues, clients: int, points: Sequence[int], p: int = PRIME) -> Residues:
    """Return the coded pieces of a mask.

    The points count from 1 to ``clients``, so the matrix holds small whole numbers while there are few clients,
    which :func:`~fednlp.secure.field.combine_rows` is twice as fast with.

    Args:
        drawn: uint32 (pieces, length), uniform residues: the mask's pieces, then the random ones.
        clients: How many points belong to clients, N; ``N + pieces <= p``.
        points: Of the clients that get a piece, each in [1, N].
        p: A prime of at most 31 bits.

    Returns:
        uint32 (points, length), residues.

    Raises:
        SecureAbort: A point is none of a client's, or there are more points than residues.
    """
    return combine_rows(lagrange(_sources(clients, len(drawn), p), _checked(points, clients), p), drawn, p)


def decode(
    coded: Residues | Sequence[Residues],
    clients: int,
    points: Sequence[int],
    pieces: int,
    privacy: int,
    p: int = PRIME,
) -> Residues:
    """Return the mask of coded pieces, or the sum of the masks of their sums.

    The first U coded pieces give the mask. Those beyond must lie on the same polynomial.

    Args:
        coded: uint32 (points, length), residues: one array, or an array a point.
        clients: How many points belong to clients, N.
        points: Where the coded pieces lie, at least ``pieces`` different ones in [1, N].
        pieces: How many were coded, U.
        privacy: How many of them were random, T.
        p: A prime of at most 31 bits.

    Returns:
        uint32 ``(pieces - privacy) * length``, the mask and what it was filled up with.

    Raises:
        SecureAbort: Fewer pieces than U, a repeated or unknown point, or pieces that do not fit each other.
    """
    if len(points) < pieces:
        raise SecureAbort(f"{len(points)} coded pieces are too few: {pieces} are needed")
    wanted = [*_sources(clients, pieces, p)[: pieces - privacy], *points[pieces:]]
    matrix = lagrange(_checked(points, clients)[:pieces], wanted, p)
    decoded = combine_rows(matrix, coded[:pieces], p)
    fitting = decoded[pieces - privacy :]
    if any(not np.array_equal(ours, theirs) for ours, theirs in zip(fitting, coded[pieces:], strict=True)):
        raise SecureAbort("the coded pieces do not fit each other: one of them is wrong")
    return decoded[: pieces - privacy].reshape(-1)


def _sources(clients: int, pieces: int, p: int) -> range:
    if clients + pieces > p:
        raise SecureAbort(
            f"{clients} clients and {pieces} pieces need a modulus of {clients + pieces} or more"
        )
    return _source_points(clients, pieces)


def _checked(points: Sequence[int], clients: int) -> Sequence[int]:
    if len(set(points)) < len(points) or any(not 1 <= point <= clients for point in points):
        raise SecureAbort(f"the points of coded pieces must be different ones from 1 to {clients}")
    return points
