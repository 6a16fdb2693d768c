"""What both sides of SecAgg and SecAgg+ know of a round: neighbours, the threshold, and the order of steps."""

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from fednlp.errors import SecureAbort
from fednlp.secure.field import PRIME
from fednlp.secure.graph import FEWEST_NEIGHBOURS, fewest_in_sum
from fednlp.secure.keys import context

SECAGG, SECAGG_PLUS = "secagg", "secagg+"
LARGEST_ID = PRIME - 2
"""The largest client number: a client's shares are taken at its number plus one, which is not zero."""


@dataclass(frozen=True)
class SecAggClientSpec:
    """What one client knows of a round before it begins.

    In SecAgg every client keeps a share of its own secrets (Bonawitz et al. 2017, figure 4), so it counts
    among its holders; in SecAgg+ only its neighbours hold shares (Bell et al. 2020, algorithm 2).

    Args:
        protocol: "secagg" or "secagg+".
        own: The client's number, 0 to 2^31 - 3.
        neighbours: The clients it shares secrets and masks with, without itself.
        threshold: How many of the holders of a secret give it back. A sum is over as many clients at least, in
            SecAgg+ over one more: it must be over 3 or more.
        round_number: The round, from 0; never twice in a run.
        malicious_server: Whether the server may be dishonest: keys and survivors are then signed.
        run: The run's nonce, which keys, sealed texts and signatures are bound to; required in malicious-server mode.
            No other run may have had it.
        max_colluding: How many of the cohort may collude with the server; in SecAgg a sum must be over 2 more.
        min_survivors: In malicious-server mode, how many of the cohort must have sent a vector: a server that lists
            many honest clients as dropped out could split the sum.

    Raises:
        SecureAbort: A number is out of range, or the threshold cannot be met or protects nothing.
    """

    protocol: str
    own: int
    neighbours: frozenset[int]
    threshold: int
    round_number: int
    malicious_server: bool = False
    run: bytes = b""
    max_colluding: int = 0
    min_survivors: int = 0

    def __post_init__(self) -> None:
        if self.protocol not in (SECAGG, SECAGG_PLUS):
            raise SecureAbort(f"there is no protocol {self.protocol!r} here, only secagg and secagg+")
        if self.round_number < 0:
            raise SecureAbort(f"rounds are numbered from 0; there is no round {self.round_number}")
        if not all(0 <= peer <= LARGEST_ID for peer in self.neighbours | {self.own}):
            raise SecureAbort(f"clients are numbered from 0 to {LARGEST_ID}")
        if self.own in self.neighbours:
            raise SecureAbort(f"client {self.own} is listed as a neighbour of itself")
        least = fewest_in_sum(self.max_colluding) if self.protocol == SECAGG else FEWEST_NEIGHBOURS
        if not least <= self.threshold <= len(self.holders):
            raise SecureAbort(
                f"a threshold of {self.threshold} does not go with the {len(self.holders)} holders of shares "
                f"of client {self.own}: it must be from {least} to that many"
            )
        if self.malicious_server and not self.run:
            raise SecureAbort("malicious-server mode needs the run's nonce: signatures are good for one run")
        if self.malicious_server and 2 * self.threshold <= len(self.holders):
            raise SecureAbort(
                f"in malicious-server mode a threshold of {self.threshold} must be more than half of the "
                f"{len(self.holders)} holders of a client's shares"
            )

    @cached_property
    def holders(self) -> frozenset[int]:
        """Who holds a share of this client's secrets."""
        return self.neighbours | {self.own} if self.protocol == SECAGG else self.neighbours

    def check_enough(self, present: Set[int], what: str) -> None:
        """Check that enough holders are among the clients that are present.

        Raises:
            SecureAbort: They are fewer than the threshold.
        """
        left = len(self.holders & present)
        if left < self.threshold:
            raise SecureAbort(
                f"only {left} of the {len(self.holders)} holders of client {self.own}'s shares {what}; "
                f"{self.threshold} are needed"
            )

    def check_few_dropouts(self, survivors: int) -> None:
        """Check that the server lists no more clients of the cohort as dropped out than may be.

        Raises:
            SecureAbort: Fewer than ``min_survivors`` survived.
        """
        if survivors < self.min_survivors:
            raise SecureAbort(
                f"only {survivors} clients are said to have sent a vector; {self.min_survivors} must have in "
                "malicious-server mode: a server that chooses who dropped out could split the sum"
            )

    def context(self, purpose: str, *ids: int) -> bytes:
        """Return what a key or a sealed text of this round is for."""
        return context(self.protocol, self.round_number, purpose, *ids, run=self.run)

    def pair_context(self, purpose: str, peer: int) -> bytes:
        """Return what a key that this client shares with a peer is for; the same on both sides."""
        return self.context(purpose, min(self.own, peer), max(self.own, peer))

    def sign_towards(self, peer: int) -> int:
        """Return +1 where this client adds the mask that it has with a peer, -1 where it takes it away."""
        return 1 if self.own < peer else -1

    def advertised(self, signer: int, seal_key: bytes, mask_key: bytes) -> bytes:
        """Return what a client signs when it advertises its keys."""
        return self.context("advertise", signer, self.threshold) + seal_key + mask_key

    def confirmed(self, survivors: Set[int]) -> bytes:
        """Return what clients sign when they confirm survivors.

        Each signs its two public keys behind it: they are fresh, so the signature is good for one session.
        """
        return self.context("survivors", *sorted(survivors))


@dataclass(frozen=True)
class SecAggRoundSpec:
    """A round of SecAgg or SecAgg+.

    Args:
        protocol: "secagg", for which everybody is everybody's neighbour, or "secagg+".
        neighbours: Of every client, who shares secrets and masks with it; mutual.
        threshold: How many holders of a client's shares give its secrets back.
        round_number: The round, from 0; never twice in a run.
        malicious_server: Whether the server may be dishonest.
        max_colluding: How many of the cohort may collude with the server.
        min_survivors: In malicious-server mode, how many of the cohort must have sent a vector.

    Raises:
        SecureAbort: The graph is not mutual, not complete where it must be, or :class:`SecAggClientSpec` refuses.

    >>> everybody = {one: tuple({1, 2, 3} - {one}) for one in (1, 2, 3)}
    >>> sorted(SecAggRoundSpec("secagg", (1, 2, 3), everybody, threshold=3, round_number=0).client_spec(1).neighbours)
    [2, 3]
    """

    protocol: str
    ids: tuple[int, ...]
    neighbours: Mapping[int, tuple[int, ...]]
    threshold: int
    round_number: int
    malicious_server: bool = False
    run: bytes = b""
    max_colluding: int = 0
    min_survivors: int = 0

    def __post_init__(self) -> None:
        cohort = set(self.ids)
        if len(cohort) < len(self.ids) or self.neighbours.keys() != cohort:
            raise SecureAbort("every client of the cohort must be listed once, with its neighbours")
        specs = self.client_specs
        for own, spec in specs.items():
            if len(spec.neighbours) < len(self.neighbours[own]):
                raise SecureAbort(f"a neighbour of client {own} is listed twice")
            if not all(peer in specs and own in specs[peer].neighbours for peer in spec.neighbours):
                raise SecureAbort(f"client {own} has a neighbour that does not have it as one")
            if self.protocol == SECAGG and len(spec.neighbours) < len(cohort) - 1:
                raise SecureAbort(f"in secagg all clients are neighbours; client {own} lacks some")

    @cached_property
    def client_specs(self) -> Mapping[int, SecAggClientSpec]:
        """What every client knows of the round."""
        return {own: self.client_spec(own) for own in self.ids}

    def client_spec(self, own: int) -> SecAggClientSpec:
        """Return what one client knows of the round."""
        if own not in self.neighbours:
            raise SecureAbort(f"client {own} is not in this round's cohort")
        peers = frozenset(self.neighbours[own])
        return SecAggClientSpec(
            self.protocol,
            own,
            peers,
            self.threshold,
            self.round_number,
            self.malicious_server,
            self.run,
            self.max_colluding,
            self.min_survivors,
        )


class Steps:
    """Steps that can be taken in one order only, each once; after one that fails, none."""

    def __init__(self, *order: str) -> None:
        self._order = order
        self.taken = 0
        self._aborted = False

    @contextmanager
    def take(self, name: str, forget: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Take a step.

        Args:
            name: Which.
            forget: Called when the step fails, and after the last one; by default nothing is to be forgotten.

        Raises:
            SecureAbort: Another one is due, or one failed before.
        """
        try:
            if self._aborted:
                raise SecureAbort(f"{name!r} was asked for after the round was aborted")
            self._aborted = True  # until the step has gone through
            due = self._order[self.taken] if self.taken < len(self._order) else "nothing"
            if name != due:
                raise SecureAbort(f"{name!r} was asked for where {due!r} is due")
            yield
            self.taken += 1
            self._aborted = False
        finally:
            if self._aborted or self.taken == len(self._order):
                forget()
