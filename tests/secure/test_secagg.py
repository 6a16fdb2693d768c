"""SecAgg and SecAgg+: the sum of the survivors exactly, whoever drops out when, and nothing else to anybody."""

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, combinations
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from fednlp.errors import SecureAbort
from fednlp.secure.keys import KeyPair, SigningKey
from fednlp.secure.masks import add_masks
from fednlp.secure.messages import (
    KEY,
    SEED,
    AdvertiseKeys,
    Confirmation,
    Confirmed,
    DeliveredShares,
    KeyRoster,
    Message,
    Revealed,
    SealedShares,
    Survivors,
    from_bytes,
    size,
    to_bytes,
)
from fednlp.secure.secagg import LARGEST_ID, SecAggClient, SecAggClientSpec, SecAggRoundSpec, SecAggServer
from fednlp.secure.shamir import share

Vector = NDArray[np.uint32]
T = TypeVar("T")
STEPS = ("keys", "shares", "vectors", "check", "reveal")
RUN = bytes(range(16))
LENGTH = 7  # no multiple of a block of AES


def complete(ids: Iterable[int]) -> dict[int, tuple[int, ...]]:
    everybody = sorted(ids)
    return {own: tuple(peer for peer in everybody if peer != own) for own in everybody}


def ring(ids: list[int], k: int) -> dict[int, tuple[int, ...]]:
    """Return the k nearest of everybody on a ring."""
    n = len(ids)
    offsets = [step for step in range(-(k // 2), k // 2 + 1) if step]
    return {own: tuple(sorted(ids[(place + step) % n] for step in offsets)) for place, own in enumerate(ids)}


def whole(
    n: int, threshold: int, protocol: str = "secagg", malicious_server: bool = False, round_number: int = 3
) -> SecAggRoundSpec:
    """Return a round on a complete graph; ids are not consecutive and not sorted."""
    ids = (900, 7, 0, 41, LARGEST_ID, 12)[:n]
    return SecAggRoundSpec(protocol, ids, complete(ids), threshold, round_number, malicious_server, RUN)


def vectors_of(ids: Iterable[int], seed: int = 0) -> dict[int, Vector]:
    rng = np.random.default_rng(seed)
    return {own: rng.integers(0, 2**32, LENGTH, dtype=np.uint32) for own in ids}


def total_of(vectors: Mapping[int, Vector], ids: Iterable[int]) -> Vector:
    return sum((vectors[own] for own in ids), np.zeros(LENGTH, dtype=np.uint32))


def pick(received: Mapping[int, T], ids: Iterable[int]) -> dict[int, T]:
    return {own: received[own] for own in ids}


def make_clients(
    parameters: SecAggRoundSpec, signing: Mapping[int, SigningKey] | None = None
) -> dict[int, SecAggClient]:
    if not parameters.malicious_server:
        return {own: SecAggClient(parameters.client_spec(own)) for own in parameters.ids}
    signing = signing or {own: SigningKey.new() for own in parameters.ids}
    identities = {own: key.public for own, key in signing.items()}
    return {
        own: SecAggClient(parameters.client_spec(own), signing[own], identities) for own in parameters.ids
    }


@dataclass
class Play:
    """A round that goes over the wire, up to a step, with drop-outs; keeps all that was sent.

    ``before`` has, for every method that was called, the party as it was before and the argument: of the server
    and of the first client.

    Args:
        parameters: The round.
        until: The step whose messages to the clients are the last to be made.
        gone: Step -> who is missing from it on.
    """

    parameters: SecAggRoundSpec
    until: str = "reveal"
    gone: Mapping[str, Iterable[int]] = field(default_factory=dict)
    vectors: Mapping[int, Vector] = field(default_factory=dict)
    signing: Mapping[int, SigningKey] | None = None
    tamper: Callable[[str, int, Any], Any] = lambda step, own, message: message
    sent: list[tuple[str, int, Message]] = field(default_factory=list)
    before: dict[str, Any] = field(default_factory=dict)
    result: Vector | None = None

    def __post_init__(self) -> None:
        self.vectors = self.vectors or vectors_of(self.parameters.ids)
        self.server = SecAggServer(self.parameters)
        self.clients = make_clients(self.parameters, self.signing)
        self.here = set(self.parameters.ids)
        for step in STEPS[: STEPS.index(self.until) + 1]:
            self.here -= set(self.gone.get(step, ()))
            if step != "check" or self.parameters.malicious_server:
                getattr(self, f"_{step}")()

    def _ask(self, method: str, arguments: Mapping[int, Any] | None = None) -> dict[int, Any]:
        results = {}
        for own in self.here:
            argument = [arguments[own]] if arguments else []
            if own == self.parameters.ids[0]:
                self.before[method] = clone(self.clients[own]), argument
            results[own] = getattr(self.clients[own], method)(*argument)
        return results

    def _serve(self, method: str, argument: Any) -> Any:
        self.before[method] = clone(self.server), [argument]
        return getattr(self.server, method)(argument)

    def _over(self, step: str, messages: Mapping[int, T]) -> dict[int, T]:
        arrived = {}
        for own, message in messages.items():
            data = to_bytes(sent := self.tamper(step, own, message))
            assert len(data) == size(sent)
            arrived[own] = from_bytes(data, type(sent), len(self.parameters.ids))
            self.sent.append((step, own, arrived[own]))
        return arrived

    def _keys(self) -> None:
        advertised = self._over("keys", self._ask("advertise"))
        self.rosters = self._over("roster", self._serve("roster", advertised))

    def _shares(self) -> None:
        sealed = self._over("shares", self._ask("share", self.rosters))
        self.parcels = self._over("parcels", self._serve("deliver", sealed))

    def _vectors(self) -> None:
        self._ask("receive", self.parcels)
        self.uploads = self._ask("masked", self.vectors)
        self.survivors = frozenset(self.here)
        self.lists: Mapping[int, Any] = self._over("survivors", self._serve("survivors", self.survivors))

    def _check(self) -> None:
        signed = self._over("check", self._ask("confirm", self.lists))
        self.lists = self._over("confirmed", self._serve("confirmed", signed))

    def _reveal(self) -> None:
        revealed = self._over("reveal", self._ask("reveal", self.lists))
        self.result = total_of(self.uploads, self.survivors)
        add_masks(self.result, self._serve("unmask", revealed))


def clone(party: T) -> T:
    """Return a party that goes its own way from here; every attribute but the steps is replaced, not changed."""
    other = copy.copy(party)
    other._steps = copy.copy(party._steps)  # type: ignore[attr-defined]
    return other


def subsets(ids: Iterable[int]) -> Iterator[tuple[int, ...]]:
    everybody = sorted(ids)
    return chain.from_iterable(combinations(everybody, count) for count in range(len(everybody) + 1))


class EverySubset:
    """Plays a round on the complete graph with every possible drop-out at every step."""

    def __init__(self, parameters: SecAggRoundSpec) -> None:
        self.vectors = vectors_of(parameters.ids)
        # In SecAgg+ a client holds no share of its own secrets, so one more must be there.
        self.needed = parameters.threshold + (parameters.protocol == "secagg+")
        self.malicious_server = parameters.malicious_server
        self.sums = self.aborts = 0
        clients = make_clients(parameters)
        advertised = {own: client.advertise() for own, client in clients.items()}
        for here in subsets(parameters.ids):
            server = SecAggServer(parameters)
            if rosters := self.step(here, server.roster, pick(advertised, here)):
                self.share(server, {own: clone(clients[own]) for own in here}, rosters)

    def step(self, here: tuple[int, ...], call: Callable[[Any], T], argument: Any) -> T | None:
        """Make a step of the server: refused exactly if too few are here."""
        if len(here) >= self.needed:
            return call(argument)
        self.aborts += 1
        with pytest.raises(SecureAbort, match=r"needed|no client"):
            call(argument)
        return None

    def share(
        self, server: SecAggServer, clients: dict[int, SecAggClient], rosters: dict[int, KeyRoster]
    ) -> None:
        sealed = {own: client.share(rosters[own]) for own, client in clients.items()}
        for here in subsets(clients):
            branch = clone(server)
            if parcels := self.step(here, branch.deliver, pick(sealed, here)):
                self.mask(branch, {own: clone(clients[own]) for own in here}, parcels)

    def mask(
        self, server: SecAggServer, clients: dict[int, SecAggClient], parcels: dict[int, DeliveredShares]
    ) -> None:
        for own, client in clients.items():
            client.receive(parcels[own])
        uploads = {own: client.masked(self.vectors[own]) for own, client in clients.items()}
        for here in subsets(clients):
            branch = clone(server)
            if lists := self.step(here, branch.survivors, here):
                check = self.confirm if self.malicious_server else self.reveal
                check(branch, {own: clone(clients[own]) for own in here}, lists, total_of(uploads, here))

    def confirm(
        self, server: SecAggServer, clients: dict[int, SecAggClient], lists: Any, total: Vector
    ) -> None:
        signed = {own: client.confirm(lists[own]) for own, client in clients.items()}
        for here in subsets(clients):
            branch = clone(server)
            if replies := self.step(here, branch.confirmed, pick(signed, here)):
                self.reveal(branch, {own: clone(clients[own]) for own in here}, replies, total, clients)

    def reveal(
        self,
        server: SecAggServer,
        clients: dict[int, SecAggClient],
        lists: Any,
        total: Vector,
        survivors: Iterable[int] | None = None,
    ) -> None:
        revealed = {own: client.reveal(lists[own]) for own, client in clients.items()}
        right = total_of(self.vectors, survivors or clients)
        for here in subsets(clients):
            masks = self.step(here, clone(server).unmask, pick(revealed, here))
            if masks is not None:
                unmasked = total.copy()
                add_masks(unmasked, masks)
                assert np.array_equal(unmasked, right)
                self.sums += 1


def count_outcomes(n: int, needed: int, steps: int) -> tuple[int, int]:
    """Return how many ways of dropping out end in a sum, and how many in a refusal by the server."""

    def walk(present: int, left: int) -> tuple[int, int]:
        if present < needed:
            return 0, 1
        if not left:
            return 1, 0
        outcomes = [walk(len(some), left - 1) for some in subsets(range(present))]
        return sum(sums for sums, _ in outcomes), sum(aborts for _, aborts in outcomes)

    return walk(n, steps)


@pytest.mark.parametrize(
    ("n", "threshold", "protocol", "malicious_server"),
    [
        (4, 3, "secagg", False),
        (4, 3, "secagg", True),
        (4, 4, "secagg", False),
        (4, 2, "secagg+", True),
        (5, 3, "secagg", False),
        (5, 2, "secagg+", False),
        (5, 3, "secagg", True),
    ],
)
def test_every_drop_out_at_every_step(n: int, threshold: int, protocol: str, malicious_server: bool) -> None:
    played = EverySubset(whole(n, threshold, protocol, malicious_server))
    assert (played.sums, played.aborts) == count_outcomes(
        n, played.needed, steps=5 if malicious_server else 4
    )


def recoverable(graph: Mapping[int, tuple[int, ...]], stages: list[set[int]], threshold: int) -> bool:
    """Say whether the secrets that SecAgg+ needs have enough holders, by its rule alone.

    Args:
        graph: The neighbours.
        stages: Who advertised, shared, uploaded, (signed,) and revealed.
        threshold: How many holders are needed.
    """
    _, sharers, uploaders, *_ = stages
    for number, stage in enumerate(stages):
        owners = stage
        if number >= 2:
            gone = {own for own in sharers - uploaders if set(graph[own]) & uploaders}
            owners = uploaders | gone
        if not stage or any(len(set(graph[own]) & stage) < threshold for own in owners):
            return False
    return True


@pytest.mark.parametrize("malicious_server", [False, True])
def test_random_drop_outs_on_a_ring(malicious_server: bool) -> None:
    rng = np.random.default_rng(5)
    ids = [int(own) for own in rng.permutation(1000)[:40]]
    parameters = SecAggRoundSpec("secagg+", tuple(ids), ring(ids, 12), 7, 0, malicious_server, RUN)
    outcomes = []
    for rate in (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15):
        steps = [step for step in STEPS if malicious_server or step != "check"]
        gone: dict[str, set[int]] = {}
        left, stages = set(ids), []
        for step in steps:
            gone[step] = {own for own in sorted(left) if rng.random() < rate}
            left = left - gone[step]
            stages.append(left)
        outcomes.append(recoverable(parameters.neighbours, stages, 7))
        if outcomes[-1]:
            play = Play(parameters, gone=gone)
            assert np.array_equal(play.result, total_of(play.vectors, stages[2]))
        else:
            with pytest.raises(SecureAbort, match="are needed"):
                Play(parameters, gone=gone)
    assert set(outcomes) == {False, True}


def test_a_dropped_client_without_surviving_neighbours_is_in_nobodys_way() -> None:
    """Client 0 and all its neighbours go after sharing; nobody could say what its key was, and nobody must."""
    survivors, gone = {5, 6, 7, 8, 9}, {0, 1, 2}
    edges = [(0, 1), (0, 2), (1, 5), (1, 6), (2, 7), (2, 8), *combinations(sorted(survivors), 2)]
    ids = tuple(sorted(survivors | gone))
    graph = {own: tuple(peer for peer in ids if (own, peer) in edges or (peer, own) in edges) for own in ids}
    play = Play(SecAggRoundSpec("secagg+", ids, graph, 2, 0), gone={"vectors": gone})
    assert np.array_equal(play.result, total_of(play.vectors, survivors))


@given(
    st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=LENGTH, max_size=LENGTH), min_size=4, max_size=4)
)
def test_any_vectors_add_up(values: list[list[int]]) -> None:
    parameters = whole(4, 3)
    vectors = dict(zip(parameters.ids, np.array(values, dtype=np.uint32), strict=True))
    play = Play(parameters, vectors=vectors, gone={"reveal": parameters.ids[:1]})
    assert play.result is not None
    assert play.result.tolist() == [sum(column) % 2**32 for column in zip(*values, strict=True)]


def test_masks_can_be_added_in_stretches() -> None:
    """Two workers that add the masks to a half each get what ``masked`` gives."""
    play = Play(whole(4, 3), until="shares")
    own = play.parameters.ids[0]
    play.clients[own].receive(play.parcels[own])
    other = clone(play.clients[own])
    vector = np.arange(19, dtype=np.uint32)
    hidden = play.clients[own].masked(vector)
    assert vector.tolist() == list(range(19))
    masks = other.masks()
    add_masks(vector[:8], masks, 0)
    add_masks(vector[8:], masks, 8)
    assert np.array_equal(vector, hidden)


# What a client refuses.


def changed(message: T, **arrays: Any) -> T:
    """Return a message with other arrays, given as values or as functions of the old ones."""
    new = {
        name: value(getattr(message, name).copy()) if callable(value) else np.array(value, dtype=np.uint32)
        for name, value in arrays.items()
    }
    return replace(message, **new)  # type: ignore[type-var]


def rows(message: T, chosen: Any) -> T:
    """Return some rows of a message."""
    return changed(message, **{column.name: lambda old: old[chosen] for column in message.present})  # type: ignore[attr-defined]


def first_row(value: NDArray[np.uint8]) -> Callable[[NDArray[np.uint8]], NDArray[np.uint8]]:
    def put(old: NDArray[np.uint8]) -> NDArray[np.uint8]:
        old[0] = value
        return old

    return put


@pytest.mark.parametrize("protocol", ["secagg", "secagg+"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda roster, own: changed(roster, ids=[5, *roster.ids[1:]]), "client 5, whom it does not expect"),
        (lambda roster, own: changed(roster, ids=[own.spec.own, *roster.ids[1:]]), "does not expect"),
        (lambda roster, own: rows(roster, [0, 0, 1, 2]), "twice"),
        (lambda roster, own: rows(roster, [0]), "advertised keys; 3 are needed"),
        (lambda roster, own: rows(roster, []), "advertised keys; 3 are needed"),
        (lambda roster, own: changed(roster, seal_keys=lambda old: old[[1, 1, 2]]), "the same"),
        (lambda roster, own: changed(roster, mask_keys=lambda old: old[[0, 1, 1]]), "the same"),
        (lambda roster, own: replace(roster, mask_keys=roster.seal_keys), "the same"),
        (lambda roster, own: changed(roster, mask_keys=first_row(roster.seal_keys[2])), "the same"),
        (lambda roster, own: changed(roster, mask_keys=first_row(_key(own._public[1]))), "the client's own"),
        (lambda roster, own: changed(roster, seal_keys=first_row(_key(own._public[0]))), "the client's own"),
        (lambda roster, own: changed(roster, seal_keys=first_row(_key(own._public[1]))), "the client's own"),
        (lambda roster, own: changed(roster, seal_keys=first_row(_key(bytes(32)))), "low order"),
        (lambda roster, own: replace(roster, signatures=np.zeros((3, 64), np.uint8)), "only there"),
    ],
)
def test_a_client_refuses_a_roster(protocol: str, change: Any, said: str) -> None:
    play = Play(whole(4, 3, protocol), until="keys")
    own = play.parameters.ids[0]
    client = play.clients[own]
    with pytest.raises(SecureAbort, match=said):
        client.share(change(play.rosters[own], client))
    with pytest.raises(SecureAbort, match="aborted"):
        client.share(play.rosters[own])
    assert not client._pairs


def _key(public: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(public, np.uint8)


def test_a_key_that_repeats_another_in_another_way_is_refused() -> None:
    """With bit 255 set a key has other bytes, and is the same key."""

    def other(keys: NDArray[np.uint8]) -> Callable[[NDArray[np.uint8]], NDArray[np.uint8]]:
        return first_row(keys ^ _key(bytes([*[0] * 31, 0x80])))

    play = Play(whole(4, 3), until="keys")
    own = play.parameters.ids[0]
    roster, client = play.rosters[own], play.clients[own]
    for keys in (roster.seal_keys[1], roster.mask_keys[0], _key(client._public[0]), _key(client._public[1])):
        with pytest.raises(SecureAbort, match="the same, or one is the client's own"):
            clone(client).share(changed(roster, seal_keys=other(keys)))


def test_a_mask_key_of_low_order_is_refused() -> None:
    own, peer = whole(4, 3).ids[:2]

    def bad(step: str, sender: int, message: Any) -> Any:
        if (step, sender) == ("roster", own):
            place = message.ids.tolist().index(peer)
            keys = message.mask_keys.copy()
            keys[place] = 0
            return replace(message, mask_keys=keys)
        return message

    with pytest.raises(SecureAbort, match="low order"):
        Play(whole(4, 3), tamper=bad)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda parcel: changed(parcel, ids=[5, *parcel.ids[1:]]), "does not expect"),
        (lambda parcel: rows(parcel, [0, 0, 1]), "twice"),
        (lambda parcel: rows(parcel, [0]), "shared secrets; 3 are needed"),
        (lambda parcel: changed(parcel, sealed=lambda old: old[[1, 0, 2]]), "altered"),
        *(
            (lambda parcel, place=place: changed(parcel, sealed=lambda old: _flipped(old, place)), "altered")
            for place in (0, 11, 12, 50, 83, 84, 99)
        ),
    ],
)
def test_a_client_refuses_a_parcel(change: Any, said: str) -> None:
    play = Play(whole(4, 3), until="shares")
    own = play.parameters.ids[0]
    with pytest.raises(SecureAbort, match=said):
        play.clients[own].receive(change(play.parcels[own]))
    with pytest.raises(SecureAbort, match="aborted"):
        play.clients[own].receive(play.parcels[own])


def _flipped(sealed: NDArray[np.uint8], place: int) -> NDArray[np.uint8]:
    sealed[1, place] ^= 0x10
    return sealed


def test_a_sealed_text_opens_in_one_place_only() -> None:
    """Not for another receiver, not sent back to its sender, not in another round."""
    play, later = Play(whole(4, 3), until="shares"), Play(whole(4, 3, round_number=4), until="shares")
    own, peer, third = play.parameters.ids[:3]
    texts = {
        (sender, int(receiver)): row
        for step, sender, message in play.sent
        if isinstance(message, SealedShares)
        for receiver, row in zip(message.ids, message.sealed, strict=True)
    }

    def put(parcel: DeliveredShares, row: NDArray[np.uint8]) -> DeliveredShares:
        sealed = parcel.sealed.copy()
        sealed[parcel.ids.tolist().index(peer)] = row
        return replace(parcel, sealed=sealed)

    for wrong in (texts[peer, third], texts[own, peer], texts[third, own]):
        with pytest.raises(SecureAbort, match="altered"):
            clone(play.clients[own]).receive(put(play.parcels[own], wrong))
    with pytest.raises(SecureAbort, match="altered"):
        later.clients[own].receive(put(later.parcels[own], texts[peer, own]))
    play.clients[own].receive(put(play.parcels[own], texts[peer, own]))


def test_the_round_is_part_of_what_is_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with the same keys, a text of one round does not open in another."""
    pairs = [KeyPair.new() for _ in range(8)]
    sealed = {}
    for round_number in (3, 4):
        ready = iter(pairs)
        with monkeypatch.context() as patched:
            patched.setattr(KeyPair, "new", lambda ready=ready: next(ready))
            sealed[round_number] = Play(whole(4, 3, round_number=round_number), until="shares")
    own = sealed[3].parameters.ids[0]
    assert np.array_equal(sealed[3].rosters[own].seal_keys, sealed[4].rosters[own].seal_keys)
    with pytest.raises(SecureAbort, match="altered"):
        sealed[4].clients[own].receive(sealed[3].parcels[own])


@pytest.mark.parametrize("protocol", ["secagg", "secagg+"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda ids, own: [*ids, 5], "client 5, whom it does not expect"),
        (lambda ids, own: [peer for peer in ids if peer != own], "listed as dropped"),
        (lambda ids, own: [*ids, own], "twice"),
        (lambda ids, own: [*ids, ids[0]], "twice"),
        (lambda ids, own: [own], "sent a vector; 3 are needed"),
        (lambda ids, own: [], "listed as dropped"),
    ],
)
def test_a_client_refuses_survivors(protocol: str, change: Any, said: str) -> None:
    play = Play(whole(4, 3, protocol), until="vectors")
    own = play.parameters.ids[0]
    ids = play.lists[own].ids.tolist()
    with pytest.raises(SecureAbort, match=said):
        play.clients[own].reveal(Survivors(np.array(change(ids, own), dtype=np.uint32)))
    assert not play.clients[own]._shares
    with pytest.raises(SecureAbort, match="aborted"):
        play.clients[own].reveal(play.lists[own])


def test_a_survivor_that_never_shared_is_unknown() -> None:
    late = whole(4, 3).ids[3]
    play = Play(whole(4, 3), until="vectors", gone={"shares": [late]})
    own = play.parameters.ids[0]
    listed = np.append(play.lists[own].ids, np.uint32(late))
    with pytest.raises(SecureAbort, match=f"client {late}, whom it does not expect"):
        play.clients[own].reveal(Survivors(listed))


@pytest.mark.parametrize("malicious_server", [False, True])
def test_nobody_is_asked_twice(malicious_server: bool) -> None:
    """With another list a second answer would be the other kind of share."""
    play = Play(whole(4, 3, malicious_server=malicious_server), until="vectors")
    own, gone = play.parameters.ids[0], play.parameters.ids[3]
    other = Survivors(play.lists[own].ids[play.lists[own].ids != gone])
    client = play.clients[own]
    if malicious_server:
        client.confirm(play.lists[own])
        with pytest.raises(SecureAbort, match="'confirm' was asked for where 'reveal' is due"):
            clone(client).confirm(other)
        return
    first = client.reveal(play.lists[own])
    for again in (other, play.lists[own]):
        with pytest.raises(SecureAbort):
            clone(client).reveal(again)
    assert len(set(first.ids.tolist())) == first.rows == 4
    assert not client._shares


@cache
def vectors_sent(protocol: str) -> Play:
    return Play(whole(5, 3, protocol), until="vectors")


@given(st.lists(st.sampled_from([*whole(5, 3).ids, 5]), max_size=7), st.sampled_from(["secagg", "secagg+"]))
def test_whatever_survivors_are_shown_one_share_a_peer_is_revealed(listed: list[int], protocol: str) -> None:
    play = vectors_sent(protocol)
    own = play.parameters.ids[0]
    held = play.clients[own]._shares
    try:
        message = clone(play.clients[own]).reveal(Survivors(np.array(listed, dtype=np.uint32)))
    except SecureAbort:
        enough = len(set(listed)) >= (3 if protocol == "secagg" else 4)
        assert not enough or own not in listed or 5 in listed or len(set(listed)) < len(listed)
        return
    assert own in listed
    assert message.ids.tolist() == sorted(held)
    for peer, kind, revealed in zip(message.ids.tolist(), message.kinds, message.shares, strict=True):
        assert kind == (SEED if peer in listed else KEY)
        assert np.array_equal(revealed, held[peer][kind])


@pytest.mark.parametrize("malicious_server", [False, True])
def test_steps_come_in_order_and_once(malicious_server: bool) -> None:
    play = Play(whole(4, 3, malicious_server=malicious_server))
    sides = (
        ("advertise", "share", "receive", "masked", *(["confirm"] if malicious_server else []), "reveal"),
        ("roster", "deliver", "survivors", *(["confirmed"] if malicious_server else []), "unmask"),
    )
    for methods, finished in zip(sides, (play.clients[play.parameters.ids[0]], play.server), strict=True):
        for due in (*methods, "nothing"):
            for wrong in set(methods) - {due}:
                party = clone(finished if due == "nothing" else play.before[due][0])
                with pytest.raises(SecureAbort, match="was asked for where"):
                    getattr(party, wrong)(*play.before[wrong][1])
                for method in methods:
                    with pytest.raises(SecureAbort, match="after the round was aborted"):
                        getattr(party, method)(*play.before[method][1])


def test_masks_hide_one_vector_only() -> None:
    client, given = play_before("masked")
    for first, second in (("masks", "masks"), ("masks", "masked"), ("masked", "masks"), ("masked", "masked")):
        party = clone(client)
        for method, refused in ((first, False), (second, True)):
            argument = given if method == "masked" else []
            if refused:
                with pytest.raises(SecureAbort, match="'mask' was asked for where 'reveal' is due"):
                    getattr(party, method)(*argument)
            else:
                getattr(party, method)(*argument)


def play_before(method: str, **options: Any) -> Any:
    return Play(whole(4, 3, **options)).before[method]


@pytest.mark.parametrize("vector", [np.zeros(4), np.zeros(4, np.int64), np.zeros((2, 2), np.uint32)])
def test_only_one_row_of_uint32_is_masked(vector: Any) -> None:
    with pytest.raises(SecureAbort, match="uint32"):
        play_before("masked")[0].masked(vector)


# Malicious-server mode: what the server cannot make up.


def tampered(step: str, change: Callable[[Any], Any], threshold: int = 3, **options: Any) -> None:
    """Play a round in which the server (or a client) sends the first client something else."""
    parameters = whole(4, threshold, malicious_server=True, **options)
    own = parameters.ids[0]
    Play(parameters, tamper=lambda at, to, sent: change(sent) if (at, to) == (step, own) else sent)


@pytest.mark.parametrize("protocol", ["secagg", "secagg+"])
def test_signed_rounds_work(protocol: str) -> None:
    parameters = whole(5, 3, protocol, malicious_server=True)
    first, second = parameters.ids[:2]
    play = Play(parameters, gone={"vectors": [second]})
    assert np.array_equal(play.result, total_of(play.vectors, set(parameters.ids) - {second}))
    play = Play(parameters, gone={"check": [first]})  # its vector is in the sum
    assert np.array_equal(play.result, total_of(play.vectors, parameters.ids))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda roster: replace(roster, signatures=None), "signed in malicious-server mode"),
        (lambda roster: changed(roster, signatures=lambda old: old[[1, 0, 2]]), "signature does not match"),
        (lambda roster: changed(roster, seal_keys=first_row(_key(KeyPair.new().public))), "does not match"),
        (lambda roster: changed(roster, mask_keys=first_row(_key(KeyPair.new().public))), "does not match"),
        (
            lambda roster: replace(roster, seal_keys=roster.mask_keys, mask_keys=roster.seal_keys),
            "does not match",
        ),
    ],
)
def test_keys_of_another_are_refused(change: Any, said: str) -> None:
    with pytest.raises(SecureAbort, match=said):
        tampered("roster", change)


@pytest.mark.parametrize(
    "changes", [{"round_number": 4}, {"protocol": "secagg"}, {"threshold": 2}, {"run": bytes(16)}]
)
def test_signed_keys_are_of_one_round_of_one_run(changes: Any) -> None:
    """The same identities in another round, run, protocol or threshold: signatures of one are void in the other."""
    parameters = whole(4, 3, "secagg+", malicious_server=True)
    other = replace(parameters, **({"threshold": 3} | changes))
    signing = {own: SigningKey.new() for own in parameters.ids}
    old = Play(parameters, until="keys", signing=signing)
    new = Play(other, until="keys", signing=signing)
    with pytest.raises(SecureAbort, match="signature does not match"):
        new.clients[other.ids[0]].share(old.rosters[other.ids[0]])
    new.clients[other.ids[1]].share(new.rosters[other.ids[1]])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda signed: changed(signed, signatures=lambda old: old[[1, 0, 2]]), "signature does not match"),
        (lambda signed: changed(signed, signatures=first_row(np.zeros(64, np.uint8))), "does not match"),
        (lambda signed: rows(signed, [0]), "signed the survivors; 3 are needed"),
        (lambda signed: rows(signed, [0, 0, 1]), "twice"),
        (lambda signed: changed(signed, ids=[5, *signed.ids[1:]]), "does not expect"),
        (lambda signed: Survivors(signed.ids), "for signatures in malicious-server mode"),
    ],
)
def test_signatures_of_survivors_are_checked(change: Any, said: str) -> None:
    with pytest.raises(SecureAbort, match=said):
        tampered("confirmed", change)


def test_survivors_are_checked_before_they_are_signed() -> None:
    own = whole(4, 3).ids[0]
    with pytest.raises(SecureAbort, match="listed as dropped"):
        tampered("survivors", lambda survivors: Survivors(survivors.ids[survivors.ids != own]))


def test_two_lists_of_survivors_get_nowhere() -> None:
    """One client is told that a peer dropped out, the others that it did not: it would reveal the other kind."""
    gone = whole(4, 3).ids[3]
    with pytest.raises(SecureAbort, match="signature does not match"):
        tampered("survivors", lambda survivors: Survivors(survivors.ids[survivors.ids != gone]))


def test_a_confirmation_is_of_one_session() -> None:
    """A round that was aborted and is played again with the same number: its signatures are void."""
    parameters = whole(4, 3, malicious_server=True)
    signing = {own: SigningKey.new() for own in parameters.ids}
    own = parameters.ids[0]
    old, new = (Play(parameters, until="check", signing=signing) for _ in range(2))
    with pytest.raises(SecureAbort, match="signature does not match"):
        new.clients[own].reveal(old.lists[own])


FEW = 60
DROPOUTS, COLLUDING = (*range(3, 8), *range(33, 38)), (0, 1, 2, 30, 31, 32)
"""Of two runs of eight places, those that the server lists as dropped out, and those that collude with it."""


@cache
def split(min_survivors: int) -> Play:
    """Play a round of 60 clients on a ring of 16 neighbours, up to the list of survivors."""
    ids = list(range(FEW))
    graph = ring(ids, 16)
    return Play(
        SecAggRoundSpec("secagg+", tuple(ids), graph, 11, 0, True, RUN, 6, min_survivors), until="shares"
    )


def confirm(play: Play, dropouts: Iterable[int]) -> dict[int, Confirmation]:
    """Have the clients that are not listed as dropped out sign the list of the others."""
    listed = Survivors(np.array(sorted(set(play.parameters.ids) - set(dropouts)), dtype=np.uint32))
    signed = {}
    for own in listed.ids.tolist():
        client = clone(play.clients[own])
        client.receive(play.parcels[own])
        client.masked(play.vectors[own])
        signed[own] = client.confirm(listed)
        play.clients[own] = client
    return signed


def test_a_server_that_chooses_who_drops_out_could_split_the_sum() -> None:
    """Clients that do not count the dropouts all answer, though no honest client of one part is near the other."""
    play = split(0)
    signed = confirm(play, DROPOUTS)
    for own in set(signed) - set(COLLUDING):
        near = sorted(play.parameters.client_spec(own).neighbours & signed.keys())
        rows_ = np.concatenate([signed[peer].signatures for peer in near])
        play.clients[own].reveal(Confirmed(np.array(near, dtype=np.uint32), rows_))
        assert {peer in range(8, 30) for peer in {own, *near} - set(COLLUDING)} == {own in range(8, 30)}


def test_more_dropouts_than_agreed_are_refused() -> None:
    """At dropout 0.1 of 60 clients six may drop out, and the split takes ten."""
    play, few = split(54), (5, 15, 25, 35, 40, 50)
    with pytest.raises(SecureAbort, match="only 50 clients are said to have sent a vector; 54 must have"):
        confirm(play, DROPOUTS)
    with pytest.raises(SecureAbort, match="only 53"):
        confirm(play, (*few, 45))
    with pytest.raises(SecureAbort, match="only 50"):
        clone(play.server).survivors(set(play.parameters.ids) - set(DROPOUTS))
    assert len(confirm(play, few)) == 54
    assert len(clone(play.server).survivors(set(play.parameters.ids) - set(few))) == 54


def test_malicious_server_mode_needs_identities() -> None:
    part = whole(4, 3, malicious_server=True).client_spec(7)
    signing = SigningKey.new()
    everybody = dict.fromkeys(whole(4, 3).ids, signing.public)
    SecAggClient(part, signing, everybody)
    for key, identities in (
        (None, everybody),
        (signing, {}),
        (signing, {7: signing.public}),
        (signing, None),
    ):
        with pytest.raises(SecureAbort, match="malicious-server mode needs"):
            SecAggClient(part, key, identities)


# What the server refuses.


def test_the_server_refuses_strangers_and_who_was_missing_before() -> None:
    play = Play(whole(4, 3), gone={"shares": whole(4, 3).ids[3:]})
    late = play.parameters.ids[3]
    for method in ("roster", "deliver", "unmask"):
        server, (received,) = play.before[method]
        message = next(iter(received.values()))
        stranger = late if method == "unmask" else 5
        with pytest.raises(SecureAbort, match=f"client {stranger} .* not in this round"):
            getattr(clone(server), method)(received | {stranger: message})
    with pytest.raises(SecureAbort, match=f"client {late} sent a vector, but is not in this round"):
        clone(play.before["survivors"][0]).survivors([*play.survivors, late])
    with pytest.raises(SecureAbort, match="listed twice"):
        clone(play.before["survivors"][0]).survivors([*play.survivors, play.parameters.ids[0]])


def test_the_server_refuses_shares_for_others() -> None:
    server, (received,) = Play(whole(4, 3)).before["deliver"]
    own, message = next(iter(received.items()))
    for wrong in (
        rows(message, [0, 1]),
        rows(message, [1, 0, 2]),
        changed(message, ids=[5, *message.ids[1:]]),
    ):
        with pytest.raises(SecureAbort, match=f"client {own} sealed shares for others"):
            clone(server).deliver(received | {own: wrong})


def test_the_server_refuses_keys_signed_or_not() -> None:
    for malicious_server in (False, True):
        server, (received,) = Play(whole(4, 3, malicious_server=malicious_server), until="keys").before[
            "roster"
        ]
        own, message = next(iter(received.items()))
        signatures = None if malicious_server else np.zeros((1, 64), np.uint8)
        with pytest.raises(SecureAbort, match="signed in malicious-server mode, and only there"):
            server.roster(received | {own: replace(message, signatures=signatures)})


@pytest.mark.parametrize("protocol", ["secagg", "secagg+"])
def test_the_server_refuses_other_shares_than_asked_for(protocol: str) -> None:
    parameters = whole(5, 2 + (protocol == "secagg"), protocol)
    server, (received,) = Play(parameters, gone={"vectors": parameters.ids[4:]}).before["unmask"]
    own, message = next(iter(received.items()))
    every = list(range(message.rows))
    for wrong in (
        changed(message, kinds=lambda old: 1 - old),
        changed(message, kinds=first_row(np.uint8(2))),
        rows(message, every[1:]),
        rows(message, [0, *every]),  # both kinds of one peer
        rows(message, every[::-1]),
        changed(message, ids=[5, *message.ids[1:]]),
    ):
        with pytest.raises(SecureAbort, match=f"client {own} revealed other shares than one of each peer"):
            clone(server).unmask(received | {own: wrong})
    for place in every:
        with pytest.raises(SecureAbort, match=r"shares (contradict|give)|a share holds"):
            clone(server).unmask(received | {own: changed(message, shares=_added(place))})


def _added(place: int) -> Callable[[Vector], Vector]:
    def add(shares: Vector) -> Vector:
        shares[place, 3] += 1
        return shares

    return add


def test_a_private_key_must_belong_to_the_public_one() -> None:
    """Shares that fit each other but are of another key: the sum would be noise."""
    parameters = whole(4, 3)
    gone = parameters.ids[3]
    server, (received,) = Play(parameters, gone={"vectors": [gone]}).before["unmask"]
    other = np.frombuffer(KeyPair.new().private_bytes(), np.uint8).reshape(1, -1)
    forged = share(other, 3, [own + 1 for own in received])

    def forge(own: int, message: Revealed) -> Revealed:
        shares = message.shares.copy()
        shares[message.ids.tolist().index(gone)] = forged[list(received).index(own), 0]
        return replace(message, shares=shares)

    clone(server).unmask(received)
    with pytest.raises(SecureAbort, match=f"client {gone}'s mask key give another key than it advertised"):
        clone(server).unmask({own: forge(own, message) for own, message in received.items()})


# What a round may be.


SIX = tuple(range(6))
PLUS = {"protocol": "secagg+", "threshold": 2}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"protocol": "lightsecagg"}, "no protocol 'lightsecagg'"),
        ({"ids": (0, 1, 2, 2)}, "listed once"),
        ({"ids": (0, 1, 2)}, "listed once"),
        ({"neighbours": complete(range(4)) | {0: (1, 2)}, **PLUS}, "does not have it as one"),
        ({"neighbours": complete(range(4)) | {0: (1, 2, 3, 9)}}, "does not have it as one"),
        ({"neighbours": complete(range(4)) | {0: (1, 2, 3, 3)}}, "listed twice"),
        ({"neighbours": complete(range(4)) | {0: (0, 1, 2, 3)}}, "neighbour of itself"),
        ({"neighbours": ring([0, 1, 2, 3], 2)}, "all clients are neighbours"),
        ({"threshold": 2}, "from 3 to that many"),
        ({"threshold": 5}, "from 3 to that many"),
        ({"max_colluding": 2}, "from 4 to that many"),
        ({"protocol": "secagg+", "threshold": 4}, "from 2 to that many"),
        ({"protocol": "secagg+", "threshold": 1}, "from 2 to that many"),
        ({"ids": SIX, "neighbours": complete(SIX), "malicious_server": True, "run": RUN}, "more than half"),
        ({"malicious_server": True}, "needs the run's nonce"),
        ({"round_number": -1}, "no round -1"),
        ({"ids": (0, 1, 2**31 - 2), "neighbours": complete((0, 1, 2**31 - 2))}, "numbered from 0"),
        ({"ids": (0, 1, -1), "neighbours": complete((0, 1, -1))}, "numbered from 0"),
        ({"ids": (), "neighbours": {}, "threshold": 0}, None),
    ],
)
def test_rounds_that_cannot_be_are_refused(changes: Any, said: str | None) -> None:
    parameters = SecAggRoundSpec("secagg", (0, 1, 2, 3), complete(range(4)), threshold=3, round_number=0)
    if said is None:
        with pytest.raises(SecureAbort, match="no client"):
            SecAggServer(replace(parameters, **changes)).roster({})
        return
    with pytest.raises(SecureAbort, match=re.escape(said)):
        replace(parameters, **changes)


def test_a_client_outside_the_cohort_has_no_part() -> None:
    with pytest.raises(SecureAbort, match="client 5 is not in"):
        whole(4, 3).client_spec(5)
    with pytest.raises(SecureAbort, match="from 3 to that many"):
        SecAggClientSpec(whole(4, 3), 1, frozenset())


# What anybody gets to see.

MANY = 1 << 18
FALSE_ALARM = 1e-12


@pytest.mark.parametrize("vector", [np.zeros(MANY), np.full(MANY, 2**32 - 1), np.arange(MANY) % 256])
def test_an_upload_is_uniform_and_says_nothing_of_the_vector(vector: Vector) -> None:
    """Each bound is missed once in 10^12 by honest chance."""
    vector = vector.astype(np.uint32)
    parameters = whole(4, 3)
    play = Play(parameters, vectors=dict.fromkeys(parameters.ids, vector), until="shares")
    uploads = []
    for own in parameters.ids:
        play.clients[own].receive(play.parcels[own])
        uploads.append(play.clients[own].masked(vector))
    parts = [*uploads, uploads[0] + uploads[1]]  # the sum of some is as blind
    for upload in parts:
        assert (upload.dtype, upload.shape) == (np.uint32, vector.shape)
        for shift in (0, 8, 16, 24):
            counts = np.bincount((upload >> shift) & 0xFF, minlength=256)
            assert stats.chisquare(counts).pvalue > FALSE_ALARM
            assert stats.chisquare(counts).pvalue < 1 - FALSE_ALARM  # nor more even than chance
        assert uncorrelated(upload[1:], upload[:-1])
        if vector.std():
            assert uncorrelated(upload, vector)
    for one, other in combinations(uploads, 2):
        assert uncorrelated(one, other)
        assert uncorrelated(one - other, one)


def uncorrelated(one: Vector, other: Vector) -> bool:
    r = np.corrcoef(one.astype(np.float64), other.astype(np.float64))[0, 1]
    return bool(abs(r) < stats.norm.isf(FALSE_ALARM / 2) / np.sqrt(len(one)))


def test_the_statistics_notice_a_missing_mask() -> None:
    vector = (np.arange(MANY) % 256).astype(np.uint32)
    assert not uncorrelated(vector, vector + np.uint32(5))
    assert stats.chisquare(np.bincount(vector >> 8, minlength=256)).pvalue < FALSE_ALARM


def test_messages_have_the_same_lengths_whatever_is_in_them() -> None:
    lengths = []
    for values in (np.zeros(LENGTH, np.uint32), np.full(LENGTH, 2**32 - 1, np.uint32)):
        parameters = whole(4, 3)
        play = Play(
            parameters, vectors=dict.fromkeys(parameters.ids, values), gone={"vectors": parameters.ids[:1]}
        )
        lengths.append(sorted((step, own, len(to_bytes(message))) for step, own, message in play.sent))
        lengths[-1] += [("vector", own, vector.nbytes) for own, vector in sorted(play.uploads.items())]
    assert lengths[0] == lengths[1]


def secrets_of(play: Play) -> dict[str, bytes]:
    """Return everything that nobody else may see, of a round whose shares were sent and not yet opened."""
    secrets: dict[str, bytes] = {}
    for own, client in play.clients.items():
        client = clone(client)
        secrets[f"{own} seal key"], secrets[f"{own} mask key"] = (
            pair.private_bytes() for pair in client._pairs
        )
        secrets |= {f"{own} sealing for {peer}": key for peer, key in client._sealing.items()}
        client.receive(play.parcels[own])
        for peer, shares in client._shares.items():
            secrets[f"{own} share of the seed of {peer}"] = shares[SEED].tobytes()
            secrets[f"{own} share of the key of {peer}"] = shares[KEY].tobytes()
        secrets |= {f"{own} mask {place}": mask.seed for place, mask in enumerate(client.masks())}
        secrets[f"{own} vector"] = play.vectors[own].tobytes()
    return secrets


@pytest.mark.parametrize("malicious_server", [False, True])
def test_the_server_sees_no_secret(malicious_server: bool) -> None:
    """All messages of a round, both ways: no key, seed or vector; of shares only the kind that was asked for."""
    parameters = whole(5, 3, malicious_server=malicious_server)
    gone = parameters.ids[4]
    play = Play(parameters, until="shares")
    secrets = secrets_of(play)
    # Of each client two keys, two shares of each, its own mask and its vector; of each pair a seal and a mask.
    assert len(set(secrets.values())) == 5 * (2 + 2 * 5 + 1 + 1) + 10 * 2
    play.here -= {gone}
    for step in STEPS[2:]:
        if step != "check" or malicious_server:
            getattr(play, f"_{step}")()
    seen = [to_bytes(message) for _, _, message in play.sent]
    seen += [upload.tobytes() for upload in play.uploads.values()]
    kept = {own: f"share of the {'key' if own == gone else 'seed'} of {own}" for own in parameters.ids}
    for name, secret in secrets.items():
        asked = any(name.endswith(allowed) for allowed in kept.values()) and not name.startswith(f"{gone} ")
        assert any(secret in data for data in seen) == asked, name
    assert np.array_equal(play.result, total_of(play.vectors, play.survivors))


def test_each_peer_gives_away_one_kind() -> None:
    parameters = whole(6, 3)
    gone = set(parameters.ids[:2])
    play = Play(parameters, gone={"vectors": gone})
    revealed = [message for _, _, message in play.sent if isinstance(message, Revealed)]
    assert len(revealed) == 4
    for message in revealed:
        assert sorted(message.ids.tolist()) == sorted(parameters.ids)
        assert [kind == KEY for kind in message.kinds] == [peer in gone for peer in message.ids.tolist()]


def test_every_round_has_fresh_secrets() -> None:
    parameters = whole(4, 3)
    secrets = [secrets_of(Play(parameters, until="shares")) for _ in range(2)]
    fresh = {name for name in secrets[0] if "vector" not in name}
    assert all(secrets[0][name] != secrets[1][name] for name in fresh)


def test_reprs_show_no_secret() -> None:
    play = Play(whole(4, 3), until="shares")
    secrets = secrets_of(play)
    party = clone(play.clients[7])
    party.receive(play.parcels[7])
    shown = [repr(party), repr(play.server), repr(play.clients[7]), repr(party.spec)]
    shown += [repr(mask) for mask in party.masks()] + [repr(message) for *_, message in play.sent]
    text = " ".join(shown)
    for secret in secrets.values():
        numbers = [str(number) for number in np.frombuffer(secret, "<u4") if number > 10**6]
        assert not any(form in text for form in (secret.hex(), str(secret)[2:-1], *numbers))


def test_a_client_forgets() -> None:
    play = Play(whole(4, 3))
    for client in play.clients.values():
        assert not any((client._pairs, client._seed, client._sealing, client._shares))


# What strangers may send.

ids_of_strangers = st.lists(st.sampled_from([0, 7, 900, 5]), max_size=4)


@given(
    ids_of_strangers,
    st.integers(0, 2**32 - 1),
    st.sampled_from([KeyRoster, DeliveredShares, Survivors]),
    st.booleans(),
)
def test_a_client_takes_a_strangers_message_or_refuses(
    ids: list[int], seed: int, kind: Any, signed: bool
) -> None:
    play, method = at_receipt(kind)
    rng = np.random.default_rng(seed)
    arrays = {"ids": np.array(ids, dtype=np.uint32)}
    for column in kind.columns[1:]:
        arrays[column.name] = rng.integers(0, 256, (len(ids), *column.shape), dtype=np.uint8)
    if kind.optional and not signed:
        del arrays["signatures"]
    try:
        getattr(clone(play.before[method][0]), method)(kind(**arrays))
    except SecureAbort:
        return
    assert kind is not DeliveredShares  # nobody guesses a sealed text


@cache
def at_receipt(kind: type[Message]) -> tuple[Play, str]:
    return Play(whole(4, 3)), {KeyRoster: "share", DeliveredShares: "receive", Survivors: "reveal"}[kind]


@given(st.integers(0, 2**32 - 1), st.sampled_from([AdvertiseKeys, SealedShares, Revealed, Confirmation]))
def test_the_server_takes_a_strangers_message_or_refuses(seed: int, kind: Any) -> None:
    play, method = at_the_server(kind)
    server, (received,) = play.before[method]
    rng = np.random.default_rng(seed)
    own = play.parameters.ids[rng.integers(4)]
    data = bytearray(to_bytes(received[own]))
    for _ in range(rng.integers(1, 4)):
        data[rng.integers(5, len(data))] = rng.integers(256)
    message = from_bytes(bytes(data), kind, 4)
    with suppress(SecureAbort):
        getattr(clone(server), method)(received | {own: message})


@cache
def at_the_server(kind: type[Message]) -> tuple[Play, str]:
    methods = {
        AdvertiseKeys: "roster",
        SealedShares: "deliver",
        Revealed: "unmask",
        Confirmation: "confirmed",
    }
    return Play(whole(4, 3, malicious_server=kind is Confirmation)), methods[kind]


@pytest.mark.parametrize("malicious_server", [False, True])
def test_a_client_goes_on_from_its_saved_state(malicious_server: bool) -> None:
    """Each is made anew, from JSON, before each of its steps; one drops out with its vector."""
    spec = whole(5, 4, malicious_server=malicious_server)
    signing = {own: SigningKey.new() for own in spec.ids} if malicious_server else {}
    identities = {own: key.public for own, key in signing.items()}
    saved = {own: client.saved() for own, client in make_clients(spec, signing).items()}

    def each(method: str, arguments: Mapping[int, Any]) -> dict[int, Any]:
        made = {}
        for own, said in arguments.items():
            state = json.loads(json.dumps(saved[own]))
            client = SecAggClient.restored(spec.client_spec(own), state, signing.get(own), identities)
            made[own] = getattr(client, method)(*said)
            saved[own] = client.saved()
        return made

    def shown(messages: Mapping[int, Any]) -> dict[int, tuple[Any]]:
        return {own: (message,) for own, message in messages.items()}

    server, vectors = SecAggServer(spec), vectors_of(spec.ids)
    rosters = server.roster(each("advertise", dict.fromkeys(spec.ids, ())))
    each("receive", shown(server.deliver(each("share", shown(rosters)))))
    total = total_of(each("masked", shown(pick(vectors, spec.ids[1:]))), spec.ids[1:])
    asked: Mapping[int, Any] = server.survivors(spec.ids[1:])
    if malicious_server:
        asked = server.confirmed(each("confirm", shown(asked)))
    add_masks(total, server.unmask(each("reveal", shown(asked))))
    assert np.array_equal(total, total_of(vectors, spec.ids[1:]))
    with pytest.raises(SecureAbort, match="where 'nothing' is due"):
        each("reveal", shown(asked))
    for own in spec.ids[1:]:
        assert not any(saved[own][name] for name in ("pairs", "seed", "sealing", "shares"))
