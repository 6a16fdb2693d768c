"""SecAgg and SecAgg+: the server learns the sum of the survivors' vectors modulo 2^32, and no single vector.

Bonawitz et al. 2017, *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, figure 4, and
Bell et al. 2020, *Secure Single-Server Aggregation with (Poly)Logarithmic Overhead*, section 3. Both are one
machine on a graph of neighbours, complete in SecAgg. Client u adds to its vector its own mask PRG(b[u]) and,
for every neighbour v, the pair's mask PRG(s[u, v]), with opposite signs on the two sides, so that they cancel
in the sum. Neighbours hold shares of b[u] and of the key that the s[u, v] come of. For a client whose vector
arrived they reveal b[u]; for one that dropped out, the key; never both.

    =====================  ==================================  ====================================
    step                   client to server                    server to client
    =====================  ==================================  ====================================
    keys                   :class:`~.messages.AdvertiseKeys`   :class:`~.messages.KeyRoster`
    shares                 :class:`~.messages.SealedShares`    :class:`~.messages.DeliveredShares`
    vectors                the masked vector                   :class:`~.messages.Survivors`
    consistency check (*)  :class:`~.messages.Confirmation`    :class:`~.messages.Confirmed`
    unmasking              :class:`~.messages.Revealed`
    =====================  ==================================  ====================================

(*) In malicious-server mode only: the paper's "active adversary".

A client may drop out at any step and takes no further part. The parties have no connections and no clocks: they
take messages and return messages, and a driver (:mod:`fednlp.secure.session`) carries them.

>>> import numpy as np
>>> from fednlp.secure.masks import add_masks
>>> ids = (1, 2, 3, 4)
>>> everybody = {own: tuple({*ids} - {own}) for own in ids}
>>> spec = SecAggRoundSpec("secagg", ids, everybody, threshold=3, round_number=0)
>>> server, clients = SecAggServer(spec), {own: SecAggClient(spec.client_spec(own)) for own in ids}
>>> rosters = server.roster({own: client.advertise() for own, client in clients.items()})
>>> parcels = server.deliver({own: client.share(rosters[own]) for own, client in clients.items()})
>>> for own, client in clients.items():
...     client.receive(parcels[own])
>>> vectors = {own: np.array([own, 10 * own], dtype=np.uint32) for own in ids}
>>> total = sum(clients[own].masked(vectors[own]) for own in (1, 3, 4))  # client 2 dropped out
>>> survivors = server.survivors([1, 3, 4])
>>> add_masks(total, server.unmask({own: clients[own].reveal(survivors[own]) for own in (1, 3, 4)}))
>>> total.tolist()
[8, 80]
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import SecureAbort
from fednlp.secure.field import PRIME
from fednlp.secure.graph import FEWEST_NEIGHBOURS, fewest_in_sum, neighbours
from fednlp.secure.keys import KeyPair, SigningKey, agree, canonical, context, seal, unseal, verify
from fednlp.secure.masks import SEED_BYTES, Mask, add_masks
from fednlp.secure.messages import (
    KEY,
    SEALED_BYTES,
    SECRETS,
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
from fednlp.secure.params import SecAggParams
from fednlp.secure.shamir import LIMBS, combine, share
from fednlp.secure.steps import Steps
from fednlp.seeds import generator

SECAGG, SECAGG_PLUS = "secagg", "secagg+"
LARGEST_ID = PRIME - 2
"""The largest client number: a client's shares are taken at its number plus one, which is not zero."""
_Owner = tuple[int, int]
"""A client, and which of its secrets: ``SEED`` or ``KEY``."""


@dataclass(frozen=True)
class SecAggRoundSpec:
    """A round of SecAgg or SecAgg+.

    Args:
        protocol: "secagg", for which everybody is everybody's neighbour, or "secagg+".
        ids: The cohort, different numbers from 0 to 2^31 - 3.
        neighbours: Of every client, who shares secrets and masks with it; mutual.
        threshold: How many of the holders of a client's secret give it back. A sum is over as many clients at least,
            in SecAgg+ over one more: it must be over 3 or more.
        round_number: The round, from 0; never twice in a run.
        malicious_server: Whether the server may be dishonest: keys and survivors are then signed.
        run: The run's nonce, which keys, sealed texts and signatures are bound to; required in malicious-server mode.
            No other run may have had it.
        max_colluding: How many of the cohort may collude with the server; in SecAgg a sum must be over 2 more.
        min_survivors: In malicious-server mode, how many of the cohort must have sent a vector: a server that lists
            many honest clients as dropped out could split the sum.

    Raises:
        SecureAbort: A number is out of range, the graph is not mutual, or not complete where it must be, or the
            threshold cannot be met or protects nothing.

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
        if self.protocol not in (SECAGG, SECAGG_PLUS):
            raise SecureAbort(f"there is no protocol {self.protocol!r} here, only secagg and secagg+")
        if self.round_number < 0:
            raise SecureAbort(f"rounds are numbered from 0; there is no round {self.round_number}")
        specs = self.client_specs
        if self.malicious_server and not self.run:
            raise SecureAbort("malicious-server mode needs the run's nonce: signatures are good for one run")
        for own, spec in specs.items():
            if len(spec.neighbours) < len(self.neighbours[own]):
                raise SecureAbort(f"a neighbour of client {own} is listed twice")
            if not all(peer in specs and own in specs[peer].neighbours for peer in spec.neighbours):
                raise SecureAbort(f"client {own} has a neighbour that does not have it as one")
            if self.protocol == SECAGG and len(spec.neighbours) < len(cohort) - 1:
                raise SecureAbort(f"in secagg all clients are neighbours; client {own} lacks some")

    @cached_property
    def client_specs(self) -> Mapping[int, "SecAggClientSpec"]:
        """What every client knows of the round."""
        return {own: self.client_spec(own) for own in self.ids}

    def client_spec(self, own: int) -> "SecAggClientSpec":
        """Return what one client knows of the round."""
        if own not in self.neighbours:
            raise SecureAbort(f"client {own} is not in this round's cohort")
        return SecAggClientSpec(self, own, frozenset(self.neighbours[own]))

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

    def advertised(self, signer: int, seal_key: bytes, mask_key: bytes) -> bytes:
        """Return what a client signs when it advertises its keys."""
        return self.context("advertise", signer, self.threshold) + seal_key + mask_key

    def confirmed(self, survivors: Set[int]) -> bytes:
        """Return what clients sign when they confirm survivors.

        Each signs its two public keys behind it: they are fresh, so the signature is good for one session.
        """
        return self.context("survivors", *sorted(survivors))


@dataclass(frozen=True)
class SecAggClientSpec:
    """What one client of a round must know of itself: its neighbours, and who holds shares of its secrets.

    In SecAgg every client keeps a share of its own secrets (Bonawitz et al. 2017, figure 4), so it counts
    among its holders; in SecAgg+ only its neighbours hold shares (Bell et al. 2020, algorithm 2).

    Args:
        own: The client's number.
        neighbours: The clients it shares secrets and masks with, without itself.

    Raises:
        SecureAbort: A number is out of range, or the threshold cannot be met or protects nothing.
    """

    round: SecAggRoundSpec
    own: int
    neighbours: frozenset[int]

    def __post_init__(self) -> None:
        if not all(0 <= peer <= LARGEST_ID for peer in self.neighbours | {self.own}):
            raise SecureAbort(f"clients are numbered from 0 to {LARGEST_ID}")
        if self.own in self.neighbours:
            raise SecureAbort(f"client {self.own} is listed as a neighbour of itself")
        threshold, holders = self.round.threshold, len(self.holders)
        secagg = self.round.protocol == SECAGG
        least = fewest_in_sum(self.round.max_colluding) if secagg else FEWEST_NEIGHBOURS
        if not least <= threshold <= holders:
            raise SecureAbort(
                f"a threshold of {threshold} does not go with the {holders} holders of shares "
                f"of client {self.own}: it must be from {least} to that many"
            )
        if self.round.malicious_server and 2 * threshold <= holders:
            raise SecureAbort(
                f"in malicious-server mode a threshold of {threshold} must be more than half of the "
                f"{holders} holders of a client's shares"
            )

    @cached_property
    def holders(self) -> frozenset[int]:
        """Who holds a share of this client's secrets."""
        return self.neighbours | {self.own} if self.round.protocol == SECAGG else self.neighbours

    def check_enough(self, present: Set[int], what: str) -> None:
        """Check that enough holders are among the clients that are present.

        Raises:
            SecureAbort: They are fewer than the threshold.
        """
        left = len(self.holders & present)
        if left < self.round.threshold:
            raise SecureAbort(
                f"only {left} of the {len(self.holders)} holders of client {self.own}'s shares {what}; "
                f"{self.round.threshold} are needed"
            )

    def pair_context(self, purpose: str, peer: int) -> bytes:
        """Return what a key that this client shares with a peer is for; the same on both sides."""
        return self.round.context(purpose, min(self.own, peer), max(self.own, peer))

    def sign_towards(self, peer: int) -> int:
        """Return +1 where this client adds the mask that it has with a peer, -1 where it takes it away."""
        return 1 if self.own < peer else -1


def secagg_spec(params: SecAggParams, clients: Sequence[int], round_number: int) -> SecAggRoundSpec:
    """Return a round of SecAgg or SecAgg+.

    Args:
        params: The numbers of the run.
        round_number: The round, never twice in a run.

    Raises:
        SecureAbort: The cohort does not go with the numbers.
    """
    plan = params.plan
    # From the experiment's seed, so that every run of it has the same neighbours.
    order = generator(params.seed, "neighbours", round_number).permutation(len(clients)).tolist()
    return SecAggRoundSpec(
        protocol=plan.protocol,
        ids=tuple(clients),
        neighbours=neighbours(clients, plan.neighbours, order),
        threshold=plan.threshold,
        round_number=round_number,
        malicious_server=plan.malicious_server,
        run=params.run,
        max_colluding=plan.max_colluding,
        # In SecAgg any threshold of all clients is enough; in SecAgg+ the dropouts decide what is connected.
        min_survivors=plan.clients - plan.max_dropouts if plan.protocol == SECAGG_PLUS else 0,
    )


class SecAggClient:
    """One client's side of one round.

    Its methods are called once each, in this order: :meth:`advertise`, :meth:`share`, :meth:`receive`,
    :meth:`masked` (or :meth:`masks`), :meth:`confirm` in malicious-server mode, :meth:`reveal`. Every one raises
    :class:`~fednlp.errors.SecureAbort` when called out of order or after a refusal. A refusal and the last
    step make the client forget its secrets.

    Args:
        spec: What the client knows of the round.
        signing: Its identity key, in malicious-server mode.
        identities: In malicious-server mode: client -> public key of its identity, known before the round. It has the
            cohort and no other client, because survivors are counted among them.

    Raises:
        SecureAbort: Malicious-server mode without a signing key or without the identity of a neighbour.
    """

    def __init__(
        self,
        spec: SecAggClientSpec,
        signing: SigningKey | None = None,
        identities: Mapping[int, bytes] | None = None,
    ) -> None:
        self.spec = spec
        self._signing = signing
        self._identities = dict(identities or {})
        if spec.round.malicious_server and (
            signing is None or not spec.neighbours <= self._identities.keys()
        ):
            raise SecureAbort("malicious-server mode needs a signing key and the identity of every neighbour")
        confirm = ("confirm",) if spec.round.malicious_server else ()
        self._steps = Steps("advertise", "share", "receive", "mask", *confirm, "reveal")
        self._public = b"", b""  # the own public keys, to seal and to mask
        self._keys: dict[int, tuple[bytes, bytes]] = {}  # peer -> its public keys
        self._survivors: Set[int] = frozenset()
        self._forget()

    def saved(self) -> dict[str, Any]:
        """Return the state between two steps as JSON values, the client's secrets among them.

        A state is good for the next step and no other: whoever took a step forgets the states before it.
        """
        return {
            "taken": self._steps.taken,
            "public": [key.hex() for key in self._public],
            "pairs": [pair.private_bytes().hex() for pair in self._pairs],
            "seed": self._seed.hex(),
            "keys": [[peer, *(key.hex() for key in pair)] for peer, pair in self._keys.items()],
            "sealing": [[peer, key.hex()] for peer, key in self._sealing.items()],
            "shares": [[peer, rows.tolist()] for peer, rows in self._shares.items()],
            "survivors": sorted(self._survivors),
        }

    @classmethod
    def restored(
        cls,
        spec: SecAggClientSpec,
        state: Mapping[str, Any],
        signing: SigningKey | None = None,
        identities: Mapping[int, bytes] | None = None,
    ) -> Self:
        """Return the client of a saved state.

        Args:
            state: From :meth:`saved`.
        """
        client = cls(spec, signing, identities)
        client._steps.taken = state["taken"]
        seal_key, mask_key = state["public"]
        client._public = bytes.fromhex(seal_key), bytes.fromhex(mask_key)
        client._pairs = tuple(KeyPair.from_private(bytes.fromhex(key)) for key in state["pairs"])
        client._seed = bytes.fromhex(state["seed"])
        client._keys = {peer: (bytes.fromhex(one), bytes.fromhex(two)) for peer, one, two in state["keys"]}
        client._sealing = {peer: bytes.fromhex(key) for peer, key in state["sealing"]}
        client._shares = {peer: np.array(rows, dtype=np.uint32) for peer, rows in state["shares"]}
        client._survivors = frozenset(state["survivors"])
        return client

    def _forget(self) -> None:
        self._pairs: tuple[KeyPair, ...] = ()  # to seal and to mask
        self._seed = b""
        self._sealing: dict[int, bytes] = {}  # peer -> the key that texts between the two are sealed with
        self._shares: dict[int, NDArray[np.uint32]] = {}  # whose secrets -> (2, 9), share of its seed and key

    def advertise(self) -> AdvertiseKeys:
        """Return two fresh public keys, signed in malicious-server mode."""
        with self._steps.take("advertise", self._forget):
            self._pairs = KeyPair.new(), KeyPair.new()
            seal_key, mask_key = self._public = self._pairs[0].public, self._pairs[1].public
            statement = self.spec.round.advertised(self.spec.own, *self._public)
            signatures = self._sign(statement) if self.spec.round.malicious_server else None
            return AdvertiseKeys(_rows([seal_key]), _rows([mask_key]), signatures)

    def _sign(self, statement: bytes) -> NDArray[np.uint8]:
        if self._signing is None:
            raise SecureAbort("there is no key to sign with")
        return _rows([self._signing.sign(statement)])

    def share(self, roster: KeyRoster) -> SealedShares:
        """Share the own secrets among the peers of the roster.

        Raises:
            SecureAbort: The roster has a stranger, too few peers, keys that repeat, or a bad signature.
        """
        with self._steps.take("share", self._forget):
            peers = self._known(roster.ids, self.spec.neighbours)
            self.spec.check_enough(peers | {self.spec.own}, "advertised keys")
            self._read_keys(roster)
            self._seed = os.urandom(SEED_BYTES)
            ids = roster.ids.tolist()
            own = [self.spec.own] if self.spec.round.protocol == SECAGG else []
            secrets = _rows([self._seed, self._pairs[1].private_bytes()])
            shares = share(secrets, self.spec.round.threshold, [peer + 1 for peer in ids + own])
            self._shares = {self.spec.own: shares[-1]} if own else {}
            sealed = [self._seal(peer, row) for peer, row in zip(ids, shares[: len(ids)], strict=True)]
            return SealedShares(roster.ids, _rows(sealed))

    def _read_keys(self, roster: KeyRoster) -> None:
        """Check the roster's keys and keep them, and the sealing keys that come of them."""
        keys = {
            peer: (roster.seal_keys[index].tobytes(), roster.mask_keys[index].tobytes())
            for index, peer in enumerate(roster.ids.tolist())
        }
        public = [canonical(key) for pair in (*keys.values(), self._public) for key in pair]
        if len(set(public)) < len(public):
            raise SecureAbort("two public keys of the roster are the same, or one is the client's own")
        if roster.signed is not self.spec.round.malicious_server:
            raise SecureAbort("a roster is signed in malicious-server mode, and only there")
        if roster.signatures is not None:
            for (peer, pair), signature in zip(keys.items(), roster.signatures, strict=True):
                verify(self._identities[peer], signature.tobytes(), self.spec.round.advertised(peer, *pair))
        self._keys = keys
        self._sealing = {
            peer: agree(self._pairs[0], seal_key, self.spec.pair_context("seal", peer))
            for peer, (seal_key, _) in keys.items()
        }

    def _seal(self, peer: int, shares: NDArray[np.uint32]) -> bytes:
        plain = shares.astype("<u4", copy=False).tobytes()
        return seal(self._sealing[peer], plain, self.spec.round.context("shares", self.spec.own, peer))

    def receive(self, delivered: DeliveredShares) -> None:
        """Open the shares of the peers that shared; peers without a message have dropped out.

        Raises:
            SecureAbort: A sender was not on the roster, there are too few, or a text does not open.
        """
        with self._steps.take("receive", self._forget):
            peers = self._known(delivered.ids, self._keys.keys())
            self.spec.check_enough(peers | {self.spec.own}, "shared secrets")
            opened = {
                peer: self._unseal(peer, sealed.tobytes())
                for peer, sealed in zip(delivered.ids.tolist(), delivered.sealed, strict=True)
            }
            self._shares = self._shares | opened
            self._sealing = {}

    def _unseal(self, peer: int, sealed: bytes) -> NDArray[np.uint32]:
        plain = unseal(self._sealing[peer], sealed, self.spec.round.context("shares", peer, self.spec.own))
        return np.frombuffer(plain, "<u4").reshape(SECRETS, LIMBS)

    def masks(self) -> list[Mask]:
        """Return the masks to add to the vector: one's own, and one for each peer that shared.

        They may be used for one vector only: a second one under the same masks would reveal the difference.
        """
        with self._steps.take("mask", self._forget):
            peers = sorted(self._shares.keys() - {self.spec.own})
            masks = [Mask(self._seed, +1)]
            for peer in peers:
                seed = agree(self._pairs[1], self._keys[peer][1], self.spec.pair_context("mask", peer))
                masks.append(Mask(seed, self.spec.sign_towards(peer)))
            self._pairs, self._seed = (), b""
            return masks

    def masked(self, vector: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return a vector plus the client's masks, modulo 2^32.

        Args:
            vector: uint32 (length,), what to add to the sum; left as it is.
        """
        masks = self.masks()
        masked = np.array(vector)
        add_masks(masked, masks)
        return masked

    def confirm(self, survivors: Survivors) -> Confirmation:
        """Sign the survivors, in malicious-server mode.

        Raises:
            SecureAbort: They are not what :meth:`reveal` would accept, or too many are listed as dropped out.
        """
        with self._steps.take("confirm", self._forget):
            self._read_survivors(survivors)
            return Confirmation(
                self._sign(self.spec.round.confirmed(self._survivors) + b"".join(self._public))
            )

    def reveal(self, message: Survivors | Confirmed) -> Revealed:
        """Return one share of every peer: of its seed if it survived, of its mask key if it dropped out.

        Args:
            message: The survivors; in malicious-server mode, the other clients' signatures of the survivors that
                :meth:`confirm` was shown.

        Raises:
            SecureAbort: The client itself is missing, a survivor is unknown or repeated, too few holders of
                its shares are alive (or signed), or a signature is of other survivors.
        """
        with self._steps.take("reveal", self._forget):
            if self.spec.round.malicious_server and isinstance(message, Confirmed):
                self._check_signatures(message)
            elif not self.spec.round.malicious_server and isinstance(message, Survivors):
                self._read_survivors(message)
            else:
                raise SecureAbort(
                    "shares are revealed for signatures in malicious-server mode, for survivors otherwise"
                )
            ids = sorted(self._shares)
            kinds = [SEED if peer in self._survivors else KEY for peer in ids]
            shares = [self._shares[peer][kind] for peer, kind in zip(ids, kinds, strict=True)]
            return Revealed(
                np.array(ids, np.uint32), np.array(kinds, np.uint8), np.array(shares).astype(np.uint32)
            )

    def _read_survivors(self, message: Survivors) -> None:
        shared = self._shares.keys() | {self.spec.own}
        strangers = (
            self._identities.keys() - self.spec.neighbours if self.spec.round.malicious_server else set()
        )
        survivors = self._known(message.ids, shared | strangers)
        if self.spec.own not in survivors:
            raise SecureAbort(f"client {self.spec.own} is listed as dropped out though it is still here")
        self.spec.check_enough(survivors, "sent a vector")
        if self.spec.round.malicious_server:
            self.spec.round.check_few_dropouts(len(survivors))
        self._survivors = survivors

    def _check_signatures(self, message: Confirmed) -> None:
        peers = (self._survivors & self.spec.neighbours) - {self.spec.own}
        signers = self._known(message.ids, peers)
        self.spec.check_enough(signers | {self.spec.own}, "signed the survivors")
        confirmed = self.spec.round.confirmed(self._survivors)
        for peer, signature in zip(message.ids.tolist(), message.signatures, strict=True):
            statement = confirmed + b"".join(self._keys[peer])
            verify(self._identities[peer], signature.tobytes(), statement)

    def _known(self, listed: NDArray[np.uint32], known: Set[int]) -> set[int]:
        ids: list[int] = listed.tolist()
        if len(set(ids)) < len(ids):
            raise SecureAbort(f"client {self.spec.own} was shown a list with a client in it twice")
        strangers = set(ids) - known
        if strangers:
            raise SecureAbort(
                f"client {self.spec.own} was shown client {min(strangers)}, whom it does not expect"
            )
        return set(ids)


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
        self.spec = spec
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
                self.spec.check_few_dropouts(len(listed))
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

    def _combined(self, received: Mapping[int, Revealed]) -> dict[_Owner, bytes]:
        """Return the secrets that are needed; those held by the same clients are combined at once."""
        groups: dict[tuple[int, ...], list[_Owner]] = defaultdict(list)
        for own in sorted(self._survivors | self._dropped_out()):
            holders = tuple(sorted(self._specs[own].holders & received.keys()))
            groups[holders].append((own, SEED if own in self._survivors else KEY))
        secrets: dict[_Owner, bytes] = {}
        for holders, owners in groups.items():
            owner_ids = np.array([own for own, _ in owners], dtype=np.uint32)
            shares = np.stack(
                [
                    received[holder].shares[np.searchsorted(received[holder].ids, owner_ids)]
                    for holder in holders
                ]
            )
            points = [holder + 1 for holder in holders]
            combined = combine(shares, points, self.spec.threshold)
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


def _rows(texts: Sequence[bytes]) -> NDArray[np.uint8]:
    """Return byte strings of one length as the rows of an array."""
    return np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), -1)
