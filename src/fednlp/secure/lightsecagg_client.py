"""A client of LightSecAgg: what it sends, and what it refuses."""

import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import SecureAbort
from fednlp.secure.coding import encode
from fednlp.secure.field import PRIME, Residues, add
from fednlp.secure.keys import KeyPair, agree, canonical, seal, unseal
from fednlp.secure.lightsecagg_messages import (
    AdvertiseSealKey,
    CodedSum,
    DeliveredPieces,
    SealedPieces,
    SealKeyRoster,
)
from fednlp.secure.lightsecagg_rules import WORD, LightSecAggRoundSpec
from fednlp.secure.masks import SEED_BYTES, Mask, field_mask
from fednlp.secure.messages import Survivors
from fednlp.secure.secagg_rules import Steps


class LightSecAggClient:
    """One client's side of one round.

    Its methods are called once each, in this order: :meth:`advertise`, :meth:`share`, :meth:`receive`,
    :meth:`masked`, :meth:`answer`. Every one raises :class:`~fednlp.errors.SecureAbort` when called out of
    order or after a refusal. A refusal and the last step make the client forget its secrets.

    Args:
        spec: The round.
        own: The client's number.

    Raises:
        SecureAbort: The client is not in the cohort.
    """

    def __init__(self, spec: LightSecAggRoundSpec, own: int) -> None:
        if own not in spec.ids:
            raise SecureAbort(f"client {own} is not in this round's cohort")
        self.spec = spec
        self.own = own
        self._steps = Steps("advertise", "share", "receive", "masked", "answer")
        self._forget()

    def saved(self) -> dict[str, Any]:
        """Return the state between two steps as JSON values, the client's secrets among them.

        A state is good for the next step and no other: whoever took a step forgets the states before it. What is as
        large as a piece is not in it: :attr:`piece`, and the pieces that :meth:`receive` was given.
        """
        return {
            "taken": self._steps.taken,
            "pair": None if self._pair is None else self._pair.private_bytes().hex(),
            "seed": self._seed.hex(),
            "sealing": [[peer, key.hex()] for peer, key in self._sealing.items()],
        }

    @property
    def piece(self) -> Residues:
        """The client's own coded piece of its own mask; empty before it shares, and once it has answered."""
        return self._piece

    @classmethod
    def restored(
        cls,
        spec: LightSecAggRoundSpec,
        own: int,
        state: Mapping[str, Any],
        piece: Residues,
        delivered: DeliveredPieces | None,
    ) -> Self:
        """Return the client of a saved state.

        Args:
            state: From :meth:`saved`.
            piece: The own one at that time; the client may overwrite it.
            delivered: What :meth:`receive` was given; None if it was not called yet.
        """
        client = cls(spec, own)
        client._steps.taken = state["taken"]
        client._pair = None if state["pair"] is None else KeyPair.from_private(bytes.fromhex(state["pair"]))
        client._seed = bytes.fromhex(state["seed"])
        client._sealing = {peer: bytes.fromhex(key) for peer, key in state["sealing"]}
        client._piece = piece
        if delivered is not None:
            client._sealed = dict(zip(delivered.ids.tolist(), delivered.sealed, strict=True))
        return client

    def _forget(self) -> None:
        self._pair: KeyPair | None = None
        self._seed = b""
        self._sealing: dict[int, bytes] = {}  # peer -> the key that texts between the two are sealed with
        self._piece: Residues = np.empty(0, dtype=np.uint32)  # the own one of the own mask
        self._sealed: dict[int, NDArray[np.uint8]] = {}  # peer -> the piece of its mask

    def advertise(self) -> AdvertiseSealKey:
        """Return a fresh public key."""
        with self._steps.take("advertise", self._forget):
            self._pair = KeyPair.new()
            return AdvertiseSealKey(_bytes(self._pair.public).reshape(1, -1))

    def share(self, roster: SealKeyRoster) -> SealedPieces:
        """Draw a mask, code it, and seal a piece for each peer of the roster.

        Raises:
            SecureAbort: The roster has too few clients, a stranger or a repeated one, lacks the client itself,
                or has two equal keys.
        """
        with self._steps.take("share", self._forget):
            ids = self.spec.check(roster.ids.tolist(), self.spec.ids, "advertised keys")
            self._agree(dict(zip(ids, (key.tobytes() for key in roster.keys), strict=True)))
            self._seed = os.urandom(SEED_BYTES)
            u = self.spec.threshold
            drawn = field_mask(self._seed, u * self.spec.piece).reshape(u, -1)
            coded = encode(drawn, len(self.spec.ids), self.spec.points(ids))
            self._piece = coded[ids.index(self.own)].copy()
            sealed = {
                peer: _bytes(seal(key, _plain(coded[ids.index(peer)]), self._associated(self.own, peer)))
                for peer, key in self._sealing.items()
            }
            return SealedPieces(np.array([*sealed], dtype=np.uint32), tuple(sealed.values()))

    def _agree(self, keys: Mapping[int, bytes]) -> None:
        """Check the roster's keys and agree on one with each peer."""
        if self._pair is None or keys.get(self.own) != self._pair.public:
            raise SecureAbort(f"the roster lacks client {self.own} or has another key for it")
        if len({canonical(key) for key in keys.values()}) < len(keys):
            raise SecureAbort("two public keys of the roster are the same")
        for peer in keys.keys() - {self.own}:
            info = self.spec.context("seal", *sorted((self.own, peer)))
            self._sealing[peer] = agree(self._pair, keys[peer], info)

    def _associated(self, sender: int, receiver: int) -> bytes:
        return self.spec.context("piece", sender, receiver)

    def receive(self, delivered: DeliveredPieces) -> None:
        """Keep the pieces that the peers sealed, where they lie; the others have dropped out.

        They are opened in :meth:`answer`, one at a time: together they are twice as large as the model or more.

        Raises:
            SecureAbort: A sender is unknown or repeated, there are too few, or a piece has another length.
        """
        with self._steps.take("receive", self._forget):
            senders = delivered.ids.tolist()
            self.spec.check([*senders, self.own], [*self._sealing, self.own], "shared pieces")
            if delivered.width not in (0, self.spec.sealed_bytes):
                raise SecureAbort(
                    f"a sealed piece has {delivered.width} bytes instead of {self.spec.sealed_bytes}"
                )
            self._sealed = dict(zip(senders, delivered.sealed, strict=True))

    def masked(self, vector: Residues) -> Residues:
        """Return a vector plus the client's mask, modulo 2^31 - 1.

        Args:
            vector: uint32 (length,), residues; left as it is.

        Raises:
            SecureAbort: The vector has another length, or a value that is no residue.
        """
        with self._steps.take("masked", self._forget):
            if vector.dtype != np.uint32 or vector.shape != (self.spec.length,):
                raise SecureAbort(f"a vector to mask must be uint32 of {self.spec.length} elements")
            if vector.max() >= PRIME:
                raise SecureAbort(f"a vector to mask has a value of {PRIME} or more")
            mask = field_mask(self._seed, self.spec.length)  # the beginning of what share() has coded
            self._seed = b""
            add(mask, vector)
            return mask

    def masks(self) -> list[Mask]:
        """Return, in place of :meth:`masked`, the client's one mask: for a driver that masks elsewhere.

        The mask is ``field_mask(seed, length)``.
        """
        with self._steps.take("masked", self._forget):
            seed, self._seed = self._seed, b""
            return [Mask(seed, +1)]

    def answer(self, survivors: Survivors) -> CodedSum:
        """Return the sum of the coded pieces of the survivors' masks.

        Raises:
            SecureAbort: The client itself is missing, a survivor is unknown or repeated, there are too few, or
                a piece does not open or is none.
        """
        with self._steps.take("answer", self._forget):
            ids = self.spec.check(survivors.ids.tolist(), [*self._sealed, self.own], "sent a vector")
            if self.own not in ids:
                raise SecureAbort(f"client {self.own} is listed as dropped out though it is still here")
            total = self._piece
            for peer in ids:
                if peer != self.own:
                    add(total, self._open(peer))
            return CodedSum(total)

    def _open(self, peer: int) -> Residues:
        plain = unseal(self._sealing[peer], self._sealed[peer].tobytes(), self._associated(peer, self.own))
        piece = np.frombuffer(plain, dtype=WORD)
        if piece.max() >= PRIME:
            raise SecureAbort(f"the piece of client {peer} has a value of {PRIME} or more")
        return piece


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)


def _plain(piece: Residues) -> bytes:
    return piece.astype(WORD, copy=False).tobytes()
