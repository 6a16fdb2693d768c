"""LightSecAgg: one mask a client, and the sum of the survivors' masks recovered at once.

Every client adds one mask to its vector and gives every other client a coded piece of the mask. When the
server has the masked vectors of the survivors, each survivor adds up its coded pieces of their masks, and any
U such sums give the sum of the masks, whoever dropped out: nothing is done for each client that did. (So et
al. 2022, "LightSecAgg: a lightweight and versatile design for secure aggregation in federated learning",
Algorithm 1, in the field modulo 2^31 - 1.)

The server and T clients together learn the sum of the survivors' vectors and nothing else of the others, if
they follow the protocol. (Keys are not signed, so this does not hold against a malicious server, which could put its
own keys in their place.)
Two lists of survivors in one round would give the sum over their difference. That takes U answers to each;
only the T colluding ones of N clients answer twice, and 2 U > N + T rules it out.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import SecureAbort
from fednlp.secure.coding import decode, encode, piece_length
from fednlp.secure.field import PRIME, Residues, add
from fednlp.secure.graph import fewest_in_sum
from fednlp.secure.keys import SEALED_EXTRA, KeyPair, agree, canonical, context, seal, unseal
from fednlp.secure.masks import SEED_BYTES, Mask, field_mask
from fednlp.secure.messages import (
    AdvertiseSealKey,
    CodedSum,
    DeliveredPieces,
    SealedPieces,
    SealKeyRoster,
    Survivors,
)
from fednlp.secure.params import SecAggParams
from fednlp.secure.steps import Steps

LIGHTSECAGG = "lightsecagg"
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
        return context(LIGHTSECAGG, self.round_number, purpose, *ids, run=self.run)

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


def lightsecagg_spec(
    params: SecAggParams, clients: Sequence[int], round_number: int, length: int
) -> LightSecAggRoundSpec:
    """Return a round of LightSecAgg.

    Args:
        params: The numbers of the run.
        round_number: The round, never twice in a run.
        length: Elements of a masked vector, the weight included.

    Raises:
        SecureAbort: The cohort does not go with the numbers.
    """
    plan = params.plan
    return LightSecAggRoundSpec(
        ids=tuple(clients),
        threshold=plan.threshold,
        max_colluding=plan.max_colluding,
        max_dropouts=plan.max_dropouts,
        round_number=round_number,
        length=length,
        run=params.run,
    )


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


class LightSecAggServer:
    """The server's side of one round: it passes sealed pieces on, and recovers the sum of the masks.

    Its methods are called once each, in this order: :meth:`roster`, :meth:`deliver`, :meth:`survivors`,
    :meth:`recover`. Every one raises :class:`~fednlp.errors.SecureAbort` when called out of order or after a
    refusal. A client may be missing in any of them, and is then left out of those that follow.

    Args:
        spec: The round.
    """

    def __init__(self, spec: LightSecAggRoundSpec) -> None:
        self.spec = spec
        self._steps = Steps("roster", "deliver", "survivors", "recover")
        self._present: list[int] = []

    def roster(self, advertised: Mapping[int, AdvertiseSealKey]) -> dict[int, SealKeyRoster]:
        """Return what each client that advertised a key is to be shown.

        Raises:
            SecureAbort: They are too few, or one is unknown.
        """
        with self._steps.take("roster"):
            self._present = self.spec.check(advertised, self.spec.ids, "advertised keys")
            ids = np.array(self._present, dtype=np.uint32)
            roster = SealKeyRoster(ids, np.concatenate([message.keys for message in advertised.values()]))
            return dict.fromkeys(self._present, roster)

    def deliver(self, shared: Mapping[int, SealedPieces]) -> dict[int, DeliveredPieces]:
        """Return for each client that shared what the others sealed for it: the very rows, not copies.

        Raises:
            SecureAbort: They are too few, one is unknown, or one did not share with all the roster.
        """
        with self._steps.take("deliver"):
            roster = set(self._present)
            self._present = self.spec.check(shared, roster, "shared pieces")
            rows = {sender: self._by_receiver(sender, roster, message) for sender, message in shared.items()}
            return {
                receiver: DeliveredPieces(
                    np.array([one for one in self._present if one != receiver], dtype=np.uint32),
                    tuple(rows[one][receiver] for one in self._present if one != receiver),
                )
                for receiver in self._present
            }

    def _by_receiver(
        self, sender: int, roster: set[int], message: SealedPieces
    ) -> dict[int, NDArray[np.uint8]]:
        rows = dict(zip(message.ids.tolist(), message.sealed, strict=True))
        if rows.keys() != roster - {sender} or len(rows) < len(message.sealed):
            raise SecureAbort(f"client {sender} did not seal one piece for each of the others")
        if message.width not in (0, self.spec.sealed_bytes):
            raise SecureAbort(
                f"client {sender} sealed pieces of {message.width} bytes instead of {self.spec.sealed_bytes}"
            )
        return rows

    def survivors(self, uploaded: Collection[int]) -> dict[int, Survivors]:
        """Return what each survivor is to be shown, given whose masked vectors arrived.

        Raises:
            SecureAbort: They are too few, or one is unknown or repeated.
        """
        with self._steps.take("survivors"):
            self._present = self.spec.check(uploaded, self._present, "sent a vector")
            return dict.fromkeys(self._present, Survivors(np.array(self._present, dtype=np.uint32)))

    def recover(self, answers: Mapping[int, CodedSum]) -> Residues:
        """Return the sum of the survivors' masks, modulo 2^31 - 1.

        :func:`fednlp.secure.field.subtract` takes it from the sum of the masked vectors. Any U answers do;
        more are held against them.

        Returns:
            uint32 (length,), residues.

        Raises:
            SecureAbort: They are too few, one is unknown, or they do not fit each other.
        """
        with self._steps.take("recover"):
            answered = self.spec.check(answers, self._present, "answered")
            sums = [answers[one].values for one in answered]
            if any(len(values) != self.spec.piece for values in sums):
                raise SecureAbort(f"a coded sum must have {self.spec.piece} elements")
            n, u, t = len(self.spec.ids), self.spec.threshold, self.spec.max_colluding
            return decode(sums, n, self.spec.points(answered), u, t)[: self.spec.length]


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)


def _plain(piece: Residues) -> bytes:
    return piece.astype(WORD, copy=False).tobytes()
