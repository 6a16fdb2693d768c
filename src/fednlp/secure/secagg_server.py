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
    AdvertiseKeys,
    Confirmation,
    Confirmed,
    DeliveredShares,
    KeyRoster,
    Revealed,
    SealedShares,
    Survivors,
)
from fednlp.secure.secagg_rules import SECAGG, SecAggRoundSpec, Steps
from fednlp.secure.shamir import combine

Owner = tuple[int, int]
"""A client, and which of its secrets: ``SEED`` or ``KEY``."""


class SecAggServer:
    """The server's side of one round.

    Its methods are called once each, in this order: :meth:`roster`, :meth:`deliver`, :meth:`survivors`,
    :meth:`confirmed` in malicious-server mode, :meth:`unmask`. Each takes what arrived, by client, and gives what to
    send, by client. A client that is missing once has dropped out of the round. Every method raises
    :class:`~fednlp.errors.SecureAbort` when too few are left, when a message is not what the protocol says,
    and when called out of order or after a refusal.

    Args:
        spec: The round.
    """

    def __init__(self, spec: SecAggRoundSpec) -> None:
        self._malicious_server = spec.malicious_server
        self._whole = spec.protocol == SECAGG
        self._specs = spec.client_specs
        confirm = ("confirmed",) if self._malicious_server else ()
        self._steps = Steps("roster", "deliver", "survivors", *confirm, "unmask")
        self._keys: Mapping[int, AdvertiseKeys] = {}
        self._rosters: Mapping[int, NDArray[np.uint32]] = {}
        self._present: Set[int] = frozenset(spec.ids)  # who took part in the last step
        self._sharers: Set[int] = frozenset()
        self._survivors: Set[int] = frozenset()

    def roster(self, received: Mapping[int, AdvertiseKeys]) -> dict[int, KeyRoster]:
        """Return, for every client that advertised, the keys of its neighbours that did."""
        with self._steps.take("roster"):
            self._enter(received, "advertised keys")
            if any(message.signed is not self._malicious_server for message in received.values()):
                raise SecureAbort("keys are signed in malicious-server mode, and only there")
            ids = np.array(sorted(received), dtype=np.uint32)
            columns = [
                np.concatenate([getattr(received[own], column.name) for own in ids.tolist()])
                for column in received[int(ids[0])].present
            ]
            self._keys = dict(received)
            rosters = {}
            for own in ids.tolist():
                peers = np.array(sorted(self._specs[own].neighbours & received.keys()), dtype=np.uint32)
                rows = np.searchsorted(ids, peers)
                rosters[own] = KeyRoster(peers, *(column[rows] for column in columns))
            self._rosters = {own: roster.ids for own, roster in rosters.items()}
            return rosters

    def deliver(self, received: Mapping[int, SealedShares]) -> dict[int, DeliveredShares]:
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

    def _empty_box(self, own: int) -> DeliveredShares:
        peers = np.array(sorted(self._specs[own].neighbours & self._sharers), dtype=np.uint32)
        return DeliveredShares(peers, np.empty((len(peers), SEALED_BYTES), dtype=np.uint8))

    def survivors(self, uploaded: Iterable[int]) -> dict[int, Survivors]:
        """Return, for every client whose masked vector arrived, whose did: its neighbours', or all if malicious_server.

        Args:
            uploaded: The clients whose masked vectors are in the sum; these and no others will be unmasked.
        """
        with self._steps.take("survivors"):
            listed = list(uploaded)
            if len(set(listed)) < len(listed):
                raise SecureAbort("a client is listed twice among those whose vectors arrived")
            self._survivors = frozenset(listed)
            self._enter(self._survivors, "sent a vector")
            if self._malicious_server:
                self._specs[listed[0]].check_few_dropouts(len(listed))
            everybody = np.array(sorted(listed), dtype=np.uint32)
            return {
                own: Survivors(everybody if self._malicious_server or self._whole else self._near(own))
                for own in everybody.tolist()
            }

    def _near(self, own: int) -> NDArray[np.uint32]:
        near = self._specs[own].neighbours & self._survivors | {own}
        return np.array(sorted(near), dtype=np.uint32)

    def confirmed(self, received: Mapping[int, Confirmation]) -> dict[int, Confirmed]:
        """Return, for every client that signed the survivors, the signatures of its neighbours.

        In malicious-server mode only.
        """
        with self._steps.take("confirmed"):
            self._enter(received, "signed the survivors")
            ids = np.array(sorted(received), dtype=np.uint32)
            signatures = np.concatenate([received[own].signatures for own in ids.tolist()])
            replies = {}
            for own in ids.tolist():
                peers = np.array(sorted(self._specs[own].neighbours & received.keys()), dtype=np.uint32)
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
            for own in sorted(self._dropped_out()):
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
        owners = self._survivors | self._dropped_out() if self._survivors else now
        for own in sorted(owners):
            self._specs[own].check_enough(now, what)

    def _dropped_out(self) -> set[int]:
        """Return who shared secrets and sent no vector, but has masks in the vectors of survivors."""
        missing = self._sharers - self._survivors
        return {own for own in missing if not self._specs[own].neighbours.isdisjoint(self._survivors)}

    def _check_revealed(self, own: int, message: Revealed) -> None:
        peers = self._specs[own].neighbours & self._sharers
        ids = sorted(peers | {own} if self._whole else peers)
        kinds = [SEED if peer in self._survivors else KEY for peer in ids]
        if message.ids.tolist() != ids or message.kinds.tolist() != kinds:
            raise SecureAbort(
                f"client {own} revealed other shares than one of each peer, of the kind asked for"
            )

    def _combined(self, received: Mapping[int, Revealed]) -> dict[Owner, bytes]:
        """Return the secrets that are needed; those held by the same clients are combined at once."""
        groups: dict[tuple[int, ...], list[Owner]] = defaultdict(list)
        for own in sorted(self._survivors | self._dropped_out()):
            holders = tuple(sorted(self._specs[own].holders & received.keys()))
            groups[holders].append((own, SEED if own in self._survivors else KEY))
        secrets: dict[Owner, bytes] = {}
        for holders, owners in groups.items():
            owner_ids = np.array([own for own, _ in owners], dtype=np.uint32)
            shares = np.stack(
                [
                    received[holder].shares[np.searchsorted(received[holder].ids, owner_ids)]
                    for holder in holders
                ]
            )
            points = [holder + 1 for holder in holders]
            combined = combine(shares, points, self._specs[owners[0][0]].threshold)
            secrets.update(zip(owners, (secret.tobytes() for secret in combined), strict=True))
        return secrets

    def _pair_masks(self, own: int, private: bytes) -> list[Mask]:
        """Return what takes the masks of a client that dropped out, shared with survivors, out of the sum."""
        spec, pair = self._specs[own], KeyPair.from_private(private)
        if pair.public != self._keys[own].mask_keys.tobytes():
            raise SecureAbort(f"the shares of client {own}'s mask key give another key than it advertised")
        return [
            Mask(
                agree(pair, self._keys[peer].mask_keys.tobytes(), spec.pair_context("mask", peer)),
                spec.sign_towards(peer),
            )
            for peer in sorted(spec.neighbours & self._survivors)
        ]
