"""What both sides of LightSecAgg go by: the cohort, its numbers, and who may be listed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from fednlp.errors import SecureAbort
from fednlp.secure.coding import piece_length
from fednlp.secure.graph import fewest_in_sum
from fednlp.secure.keys import SEALED_EXTRA, context

WORD = np.dtype("<u4")
"""An element of a piece before it is sealed."""
_LONGEST_TEXT = (1 << 31) - 1  # bytes that are sealed at once


@dataclass(frozen=True)
class Parameters:
    """A round of LightSecAgg. The paper's names are N, U, T, D and d.

    Args:
        ids: The cohort, N different numbers from 0 to 2^32 - 1; the same order on both sides.
        pieces: U, how many clients must answer.
        privacy: T, how many clients may work together with the server.
        dropped: D, how many clients may drop out.
        round_number: The round, from 0; never twice in a run.
        length: d, elements of a vector.
        run: The run's nonce, that keys and sealed texts are good for. No other run may have had it.

    Raises:
        SecureAbort: Not N >= N - D >= U >= T + 2, U >= 3 and 2 U > N + T, or another number is out of range.

    >>> Parameters(ids=(3, 5, 8, 9), pieces=3, privacy=1, dropped=1, round_number=0, length=101).piece
    51
    """

    ids: tuple[int, ...]
    pieces: int
    privacy: int
    dropped: int
    round_number: int
    length: int
    run: bytes = b""

    def __post_init__(self) -> None:
        n, u, t, d = len(self.ids), self.pieces, self.privacy, self.dropped
        if len(set(self.ids)) < n or any(not 0 <= one < 1 << 32 for one in self.ids):
            raise SecureAbort("a cohort's clients must have different numbers from 0 to 2^32 - 1")
        if t < 0 or not (n >= n - d >= u >= fewest_in_sum(t) and 2 * u > n + t):
            raise SecureAbort(
                f"lightsecagg cannot run with N={n} clients, D={d} dropped, U={u} answers and T={t} corrupt: "
                "it needs N - D >= U >= T + 2, U >= 3 and 2 U > N + T"
            )
        if self.length < 1 or self.round_number < 0:
            raise SecureAbort("a vector needs at least one element, and rounds are numbered from 0")
        if self.piece * WORD.itemsize > _LONGEST_TEXT:
            raise SecureAbort(f"pieces of {self.piece} elements are too long to seal: U - T must be larger")

    @property
    def piece(self) -> int:
        """Elements of a coded piece: d / (U - T), rounded up."""
        return piece_length(self.length, self.pieces, self.privacy)

    @property
    def sealed_bytes(self) -> int:
        """Bytes of a sealed piece."""
        return self.piece * WORD.itemsize + SEALED_EXTRA

    def context(self, purpose: str, *ids: int) -> bytes:
        """Return what a key or a sealed piece of this round is for."""
        return context("lightsecagg", self.round_number, purpose, *ids, run=self.run)

    def points(self, ids: Sequence[int]) -> list[int]:
        """Return the points that clients' coded pieces lie at: 1 for the first of the cohort."""
        point_of = {one: point for point, one in enumerate(self.ids, 1)}
        return [point_of[one] for one in ids]

    def check(self, listed: Collection[int], known: Collection[int], what: str) -> list[int]:
        """Return the clients listed, having checked that they are at least U different ones of the known.

        Raises:
            SecureAbort: They are not; ``what`` says what they did.
        """
        ids = [int(one) for one in listed]
        strangers = set(ids).difference(known)
        if strangers:
            raise SecureAbort(
                f"client {min(strangers)} is not one of those expected among the clients that {what}"
            )
        if len(set(ids)) < len(ids):
            raise SecureAbort(f"a client is listed twice among those that {what}")
        if len(ids) < self.pieces:
            raise SecureAbort(f"only {len(ids)} clients {what}; {self.pieces} are needed")
        return ids
