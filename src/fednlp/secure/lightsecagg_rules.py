"""What both sides of LightSecAgg know of a round: the cohort, its numbers, and who may be listed."""

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
class LightSecAggRoundSpec:
    """A round of LightSecAgg. The paper's names are N, U, T, D and d.

    Args:
        ids: The cohort, N different numbers from 0 to 2^32 - 1; the same order on both sides.
        threshold: U, how many clients must answer at the end.
        max_colluding: T, how many clients may collude with the server.
        max_dropouts: D, how many clients may drop out.
        round_number: The round, from 0; never twice in a run.
        length: d, elements of a vector.
        run: The run's nonce, that keys and sealed texts are good for. No other run may have had it.

    Raises:
        SecureAbort: Not N >= N - D >= U >= T + 2, U >= 3 and 2 U > N + T, or another number is out of range.

    >>> cohort = (3, 5, 8, 9)
    >>> LightSecAggRoundSpec(cohort, threshold=3, max_colluding=1, max_dropouts=1, round_number=0, length=101).piece
    51
    """

    ids: tuple[int, ...]
    threshold: int
    max_colluding: int
    max_dropouts: int
    round_number: int
    length: int
    run: bytes = b""

    def __post_init__(self) -> None:
        n, u, t, d = len(self.ids), self.threshold, self.max_colluding, self.max_dropouts
        if len(set(self.ids)) < n or any(not 0 <= one < 1 << 32 for one in self.ids):
            raise SecureAbort("a cohort's clients must have different numbers from 0 to 2^32 - 1")
        if t < 0 or not (n >= n - d >= u >= fewest_in_sum(t) and 2 * u > n + t):
            raise SecureAbort(
                f"lightsecagg cannot run with N={n} clients, D={d} dropouts, U={u} answers and T={t} colluding: "
                "it needs N - D >= U >= T + 2, U >= 3 and 2 U > N + T"
            )
        if self.length < 1 or self.round_number < 0:
            raise SecureAbort("a vector needs at least one element, and rounds are numbered from 0")
        if self.piece * WORD.itemsize > _LONGEST_TEXT:
            raise SecureAbort(f"pieces of {self.piece} elements are too long to seal: U - T must be larger")

    @property
    def piece(self) -> int:
        """Elements of a coded piece: d / (U - T), rounded up."""
        return piece_length(self.length, self.threshold, self.max_colluding)

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
        if len(ids) < self.threshold:
            raise SecureAbort(f"only {len(ids)} clients {what}; {self.threshold} are needed")
        return ids
