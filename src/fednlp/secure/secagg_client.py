"""A client of SecAgg and SecAgg+: what it sends, and what it refuses."""

import os
from collections.abc import Mapping, Sequence, Set
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import SecureAbort
from fednlp.secure.keys import KeyPair, SigningKey, agree, canonical, seal, unseal, verify
from fednlp.secure.masks import SEED_BYTES, Mask, add_masks
from fednlp.secure.messages import (
    KEY,
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
from fednlp.secure.secagg_rules import SECAGG, SecAggClientSpec, Steps
from fednlp.secure.shamir import LIMBS, share


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
        if spec.malicious_server and (signing is None or not spec.neighbours <= self._identities.keys()):
            raise SecureAbort("malicious-server mode needs a signing key and the identity of every neighbour")
        confirm = ("confirm",) if spec.malicious_server else ()
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
            statement = self.spec.advertised(self.spec.own, *self._public)
            signatures = self._sign(statement) if self.spec.malicious_server else None
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
            own = [self.spec.own] if self.spec.protocol == SECAGG else []
            secrets = _rows([self._seed, self._pairs[1].private_bytes()])
            shares = share(secrets, self.spec.threshold, [peer + 1 for peer in ids + own])
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
        if roster.signed is not self.spec.malicious_server:
            raise SecureAbort("a roster is signed in malicious-server mode, and only there")
        if roster.signatures is not None:
            for (peer, pair), signature in zip(keys.items(), roster.signatures, strict=True):
                verify(self._identities[peer], signature.tobytes(), self.spec.advertised(peer, *pair))
        self._keys = keys
        self._sealing = {
            peer: agree(self._pairs[0], seal_key, self.spec.pair_context("seal", peer))
            for peer, (seal_key, _) in keys.items()
        }

    def _seal(self, peer: int, shares: NDArray[np.uint32]) -> bytes:
        plain = shares.astype("<u4", copy=False).tobytes()
        return seal(self._sealing[peer], plain, self.spec.context("shares", self.spec.own, peer))

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
        plain = unseal(self._sealing[peer], sealed, self.spec.context("shares", peer, self.spec.own))
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
            return Confirmation(self._sign(self.spec.confirmed(self._survivors) + b"".join(self._public)))

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
            if self.spec.malicious_server and isinstance(message, Confirmed):
                self._check_signatures(message)
            elif not self.spec.malicious_server and isinstance(message, Survivors):
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
        strangers = self._identities.keys() - self.spec.neighbours if self.spec.malicious_server else set()
        survivors = self._known(message.ids, shared | strangers)
        if self.spec.own not in survivors:
            raise SecureAbort(f"client {self.spec.own} is listed as dropped out though it is still here")
        self.spec.check_enough(survivors, "sent a vector")
        if self.spec.malicious_server:
            self.spec.check_few_dropouts(len(survivors))
        self._survivors = survivors

    def _check_signatures(self, message: Confirmed) -> None:
        peers = (self._survivors & self.spec.neighbours) - {self.spec.own}
        signers = self._known(message.ids, peers)
        self.spec.check_enough(signers | {self.spec.own}, "signed the survivors")
        confirmed = self.spec.confirmed(self._survivors)
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


def _rows(texts: Sequence[bytes]) -> NDArray[np.uint8]:
    """Return byte strings of one length as the rows of an array."""
    return np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), -1)
