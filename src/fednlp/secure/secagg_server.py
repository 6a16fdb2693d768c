"""The server of SecAgg and SecAgg+: it passes messages on, and unmasks the sum of the survivors' vectors."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import SecureAbort
from fednlp.secure.keys import KeyPair, agree
from fednlp.secure.masks import Mask
from fednlp.secure.messages import (
    KEY,
    SEALED_BYTES,
    SEED,
    Advertise,
    Confirmation,
    Confirmed,
    Delivered,
    Revealed,
    Roster,
    SealedShares,
    Survivors,
)
from fednlp.secure.secagg_rules import SECAGG, Parameters, Steps
from fednlp.secure.shamir import combine

Owner = tuple[int, int]
"""A client, and which of its secrets: ``SEED`` or ``KEY``."""


class Server:
    """The server's side of one round.

    Its methods are called once each, in this order: :meth:`roster`, :meth:`deliver`, :meth:`survivors`,
    :meth:`confirmed` in active mode, :meth:`unmask`. Each takes what arrived, by client, and gives what to
    send, by client. A client that is missing once takes no further part. Every method raises
    :class:`~fednlp.errors.SecureAbort` when too few are left, when a message is not what the protocol says,
    and when called out of order or after a refusal.

    Args:
        parameters: The round.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._active = parameters.active
        self._whole = parameters.protocol == SECAGG
        self._parts = parameters.parts
        confirm = ("confirmed",) if self._active else ()
        self._steps = Steps("roster", "deliver", "survivors", *confirm, "unmask")
        self._keys: Mapping[int, Advertise] = {}
        self._rosters: Mapping[int, NDArray[np.uint32]] = {}
        self._present: Set[int] = frozenset(parameters.ids)  # who took part in the last step
        self._sharers: Set[int] = frozenset()
        self._survivors: Set[int] = frozenset()

    def roster(self, received: Mapping[int, Advertise]) -> dict[int, Roster]:
        """Return, for every client that advertised, the keys of its neighbours that did."""
        with self._steps.take("roster"):
            self._enter(received, "advertised keys")
            if any(message.signed is not self._active for message in received.values()):
                raise SecureAbort("keys are signed in active mode, and only there")
            ids = np.array(sorted(received), dtype=np.uint32)
            columns = [
                np.concatenate([getattr(received[own], column.name) for own in ids.tolist()])
                for column in received[int(ids[0])].present
            ]
            self._keys = dict(received)
            rosters = {}
            for own in ids.tolist():
                peers = np.array(sorted(self._parts[own].neighbours & received.keys()), dtype=np.uint32)
                rows = np.searchsorted(ids, peers)
                rosters[own] = Roster(peers, *(column[rows] for column in columns))
            self._rosters = {own: roster.ids for own, roster in rosters.items()}
            return rosters

    def deliver(self, received: Mapping[int, SealedShares]) -> dict[int, Delivered]:
        """Return, for every client that shared, what its neighbours that did sealed for it."""
        with self._steps.take("deliver"):
            self._enter(received, "shared secrets")
            self._sharers = frozenset(received)
            boxes = {own: self._empty_box(own) for own in sorted(received)}
            filled = dict.fromkeys(boxes, 0)
            for own in boxes:
                message = received[own]
                if not np.array_equal(message.ids, self._rosters[own]):
                    raise SecureAbort(f"client {own} sealed shares for others than those of its roster")
                for peer, sealed in zip(message.ids.tolist(), message.sealed, strict=True):
                    if peer in boxes:  # senders come in order, as in the box
                        boxes[peer].sealed[filled[peer]] = sealed
                        filled[peer] += 1
            return boxes

    def _empty_box(self, own: int) -> Delivered:
        peers = np.array(sorted(self._parts[own].neighbours & self._sharers), dtype=np.uint32)
        return Delivered(peers, np.empty((len(peers), SEALED_BYTES), dtype=np.uint8))

    def survivors(self, uploaded: Iterable[int]) -> dict[int, Survivors]:
        """Return, for every client whose masked vector arrived, whose did: its neighbours', or all if active.

        Args:
            uploaded: The clients whose masked vectors are in the sum; these and no others will be unmasked.
        """
        with self._steps.take("survivors"):
            listed = list(uploaded)
            if len(set(listed)) < len(listed):
                raise SecureAbort("a client is listed twice among those whose vectors arrived")
            self._survivors = frozenset(listed)
            self._enter(self._survivors, "sent a vector")
            if self._active:
                self._parts[listed[0]].check_few_lost(len(listed))
            everybody = np.array(sorted(listed), dtype=np.uint32)
            return {
                own: Survivors(everybody if self._active or self._whole else self._near(own))
                for own in everybody.tolist()
            }

    def _near(self, own: int) -> NDArray[np.uint32]:
        near = self._parts[own].neighbours & self._survivors | {own}
        return np.array(sorted(near), dtype=np.uint32)

    def confirmed(self, received: Mapping[int, Confirmation]) -> dict[int, Confirmed]:
        """Return, for every client that signed the survivors, the signatures of its neighbours (active mode)."""
        with self._steps.take("confirmed"):
            self._enter(received, "signed the survivors")
            ids = np.array(sorted(received), dtype=np.uint32)
            signatures = np.concatenate([received[own].signatures for own in ids.tolist()])
            replies = {}
            for own in ids.tolist():
                peers = np.array(sorted(self._parts[own].neighbours & received.keys()), dtype=np.uint32)
                replies[own] = Confirmed(peers, signatures[np.searchsorted(ids, peers)])
            return replies

    def unmask(self, received: Mapping[int, Revealed]) -> list[Mask]:
        """Return the masks to add to the sum of the survivors' masked vectors, to get the sum of their vectors.

        Those are the survivors' own masks, and the masks that survivors have with neighbours that dropped out.

        Raises:
            SecureAbort: Also when the shares of a secret contradict each other, or a private key made of them
                does not belong to the public key that was advertised.
        """
        with self._steps.take("unmask"):
            self._enter(received, "revealed shares")
            for own, message in received.items():
                self._check_revealed(own, message)
            secrets = self._combined(received)
            masks = [Mask(secrets[own, SEED], -1) for own in sorted(self._survivors)]
            for own in sorted(self._dropped()):
                masks += self._pair_masks(own, secrets[own, KEY])
            return masks

    def _enter(self, present: Iterable[int], what: str) -> None:
        """Take note of who is present, and check that the secrets that will be needed can be given back."""
        now = frozenset(present)
        strangers = now - self._present
        if strangers:
            raise SecureAbort(f"client {min(strangers)} {what}, but is not in this round, or not any more")
        if not now:
            raise SecureAbort(f"no client {what}")
        self._present = now
        owners = self._survivors | self._dropped() if self._survivors else now
        for own in sorted(owners):
            self._parts[own].check_enough(now, what)

    def _dropped(self) -> set[int]:
        """Return who shared secrets and sent no vector, but has masks in the vectors of survivors."""
        gone = self._sharers - self._survivors
        return {own for own in gone if not self._parts[own].neighbours.isdisjoint(self._survivors)}

    def _check_revealed(self, own: int, message: Revealed) -> None:
        peers = self._parts[own].neighbours & self._sharers
        ids = sorted(peers | {own} if self._whole else peers)
        kinds = [SEED if peer in self._survivors else KEY for peer in ids]
        if message.ids.tolist() != ids or message.kinds.tolist() != kinds:
            raise SecureAbort(
                f"client {own} revealed other shares than one of each peer, of the kind asked for"
            )

    def _combined(self, received: Mapping[int, Revealed]) -> dict[Owner, bytes]:
        """Return the secrets that are needed; those held by the same clients are combined at once."""
        groups: dict[tuple[int, ...], list[Owner]] = defaultdict(list)
        for own in sorted(self._survivors | self._dropped()):
            holders = tuple(sorted(self._parts[own].holders & received.keys()))
            groups[holders].append((own, SEED if own in self._survivors else KEY))
        secrets: dict[Owner, bytes] = {}
        for holders, owners in groups.items():
            wanted = np.array([own for own, _ in owners], dtype=np.uint32)
            shares = np.stack(
                [received[holder].shares[np.searchsorted(received[holder].ids, wanted)] for holder in holders]
            )
            points = [holder + 1 for holder in holders]
            combined = combine(shares, points, self._parts[owners[0][0]].threshold)
            secrets.update(zip(owners, (secret.tobytes() for secret in combined), strict=True))
        return secrets

    def _pair_masks(self, own: int, private: bytes) -> list[Mask]:
        """Return what takes a dropped client's masks with survivors out of the sum."""
        part, pair = self._parts[own], KeyPair.from_private(private)
        if pair.public != self._keys[own].mask_keys.tobytes():
            raise SecureAbort(f"the shares of client {own}'s mask key give another key than it advertised")
        return [
            Mask(
                agree(pair, self._keys[peer].mask_keys.tobytes(), part.pair_context("mask", peer)),
                part.sign_towards(peer),
            )
            for peer in sorted(part.neighbours & self._survivors)
        ]
