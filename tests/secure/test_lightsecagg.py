"""LightSecAgg gives the survivors' exact sum or nothing, whoever drops out when."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2_contingency, chisquare

from fednlp.errors import SecureAbort
from fednlp.secure import lightsecagg
from fednlp.secure.coding import decode, encode, piece_length
from fednlp.secure.field import PRIME, combine_rows, lagrange, subtract
from fednlp.secure.keys import SEALED_EXTRA, KeyPair
from fednlp.secure.lightsecagg import LightSecAggClient, LightSecAggRoundSpec, LightSecAggServer
from fednlp.secure.messages import (
    AdvertiseSealKey,
    CodedSum,
    DeliveredPieces,
    Message,
    PieceMessage,
    SealedPieces,
    SealKeyRoster,
    Survivors,
    from_bytes,
    pieces_from_bytes,
    size,
    to_bytes,
)

pytestmark = pytest.mark.whole

FOUR = LightSecAggRoundSpec(
    ids=(7, 3, 20, 11), threshold=3, max_colluding=1, max_dropouts=1, round_number=5, length=7
)
FIVE = LightSecAggRoundSpec(
    ids=(1, 2, 3, 4, 5), threshold=4, max_colluding=2, max_dropouts=1, round_number=0, length=5
)
TWENTY = LightSecAggRoundSpec(
    ids=tuple(range(100, 120)), threshold=14, max_colluding=5, max_dropouts=6, round_number=1, length=31
)
STAGES = ("advertise", "share", "upload", "answer", "never")


def numbers(ids: Collection[int]) -> NDArray[np.uint32]:
    return np.array([*ids], dtype=np.uint32)


def residues(parameters: LightSecAggRoundSpec, seed: int = 0) -> dict[int, NDArray[np.uint32]]:
    """A vector a client: the largest residue, 0, 1 and anything."""
    rng = np.random.default_rng(seed)
    vectors = {}
    for one in parameters.ids:
        vectors[one] = rng.integers(0, PRIME, parameters.length, dtype=np.uint32)
        vectors[one][:3] = PRIME - 1, rng.integers(0, 2), PRIME - 1
    return vectors


def total(vectors: Mapping[int, NDArray[np.uint32]], ids: Collection[int]) -> NDArray[np.uint32]:
    return (sum(vectors[one].astype(np.uint64) for one in ids) % PRIME).astype(np.uint32)


class Round:
    """A round step by step; each step is taken by the clients named (all that are left, by default)."""

    def __init__(self, parameters: LightSecAggRoundSpec) -> None:
        self.parameters = parameters
        self.server = LightSecAggServer(parameters)
        self.clients = {one: LightSecAggClient(parameters, one) for one in parameters.ids}
        self.log: list[Message | PieceMessage] = []

    def keep(self, sent: dict[int, Message | PieceMessage]) -> dict[int, Message | PieceMessage]:
        self.log.extend(sent.values())
        return sent

    def roster(self, who: Collection[int] | None = None) -> dict[int, SealKeyRoster]:
        who = self.parameters.ids if who is None else who
        return self.keep(self.server.roster(self.keep({one: self.clients[one].advertise() for one in who})))

    def shared(
        self, shown: Mapping[int, SealKeyRoster], who: Collection[int] | None = None
    ) -> dict[int, SealedPieces]:
        who = shown if who is None else who
        return self.keep({one: self.clients[one].share(shown[one]) for one in who})

    def delivered(self, who: Collection[int] | None = None) -> dict[int, DeliveredPieces]:
        return self.keep(self.server.deliver(self.shared(self.roster(), who)))

    def uploads(
        self,
        delivered: Mapping[int, DeliveredPieces],
        vectors: Mapping[int, NDArray[np.uint32]],
        who: Collection[int] | None = None,
    ) -> dict[int, NDArray[np.uint32]]:
        who = delivered if who is None else who
        for one in who:
            self.clients[one].receive(delivered[one])
        return {one: self.clients[one].masked(vectors[one]) for one in who}

    def ready(self) -> dict[int, Survivors]:
        """Go on until all have uploaded, and return what they are to be shown."""
        return self.server.survivors(self.uploads(self.delivered(), residues(self.parameters)))


def run(parameters: LightSecAggRoundSpec, last: Mapping[int, str]) -> tuple[NDArray[np.uint32], list[int]]:
    """Run a round in which a client is gone from the stage named; return the sum and the survivors."""
    vectors = residues(parameters)

    def here(stage: str) -> list[int]:
        return [one for one in parameters.ids if STAGES.index(last.get(one, "never")) > STAGES.index(stage)]

    game = Round(parameters)
    delivered = game.server.deliver(game.shared(game.roster(here("advertise")), here("share")))
    uploads = game.uploads(delivered, vectors, here("upload"))
    shown = game.server.survivors(uploads)
    masks = game.server.recover({one: game.clients[one].answer(shown[one]) for one in here("answer")})
    summed = total(uploads, uploads)
    subtract(summed, masks)
    assert np.array_equal(summed, total(vectors, uploads))
    return summed, sorted(uploads)


def check(parameters: LightSecAggRoundSpec, last: Mapping[int, str]) -> None:
    """The round gives the right sum if U clients answer, else it aborts."""
    gone = [one for one in last if last[one] != "never"]
    if len(parameters.ids) - len(gone) >= parameters.threshold:
        expected = [one for one in parameters.ids if last.get(one, "never") in ("answer", "never")]
        assert run(parameters, last)[1] == sorted(expected)
    else:
        with pytest.raises(SecureAbort, match="are needed"):
            run(parameters, last)


# --- coded pieces


def test_the_published_matrices_code_and_decode() -> None:
    p, rows = 32749, np.eye(3, dtype=np.uint32)
    matrix = np.array([[15, -24, 10], [10, -15, 6], [6, -8, 3], [3, -3, 1]])
    assert np.array_equal(encode(rows, clients=4, points=[1, 2, 3, 4], p=p), matrix % p)
    decoded = decode(rows, clients=4, points=[1, 2, 4], pieces=3, privacy=0, p=p).reshape(3, 3)
    assert np.array_equal(decoded, np.array([[1, -2, 2], [10919, -5, 21836], [5, -9, 5]]) % p)


@pytest.mark.parametrize("p", [11, 32749, PRIME])
def test_any_u_pieces_of_a_sum_give_the_sum_of_the_masks(p: int) -> None:
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, p, (3, 4, 6), dtype=np.uint32)
    drawn[:, :, 0] = p - 1
    coded = sum(encode(one, 5, range(1, 6), p).astype(np.uint64) for one in drawn) % p
    masks = drawn[:, :2].astype(np.uint64).sum(axis=0) % p
    for points in chain(*(combinations(range(1, 6), count) for count in (4, 5))):
        rows = coded[[point - 1 for point in points]].astype(np.uint32)
        assert np.array_equal(decode(rows, 5, points, pieces=4, privacy=2, p=p), masks.ravel())
        assert np.array_equal(decode(rows[::-1], 5, points[::-1], pieces=4, privacy=2, p=p), masks.ravel())


def joint_counts(drawn: NDArray[np.uint32], pieces: NDArray[np.uint32], p: int) -> NDArray[np.int64]:
    """How often each mask comes with each value of the pieces: (masks, values)."""
    seen = np.vstack([drawn, pieces]).astype(np.int64)
    index = np.ravel_multi_index(tuple(seen), (p,) * len(seen))
    return np.bincount(index, minlength=p ** len(seen)).reshape(p ** len(drawn), -1)


@pytest.mark.parametrize(("n", "u", "t", "p"), [(4, 3, 1, 7), (5, 4, 2, 11), (3, 3, 2, 7)])
def test_any_t_pieces_are_independent_of_the_mask(n: int, u: int, t: int, p: int) -> None:
    """Counted over every mask and every choice of the random pieces, in a field so small that one can."""
    drawn = np.indices((p,) * u, dtype=np.uint32).reshape(u, -1)
    coded, mask = encode(drawn, n, range(1, n + 1), p), drawn[: u - t]
    for some in combinations(range(n), t):
        counts = joint_counts(mask, coded[list(some)], p)
        assert (counts == 1).all(), "every value of T pieces must come with every mask equally often"
    for some in combinations(range(n), t + 1):
        counts = joint_counts(mask, coded[list(some)], p)
        assert (counts == 0).any(), "T + 1 pieces do say something of the mask"


@given(st.integers(1, 100), st.integers(2, 12), st.integers(0, 5))
def test_pieces_hold_the_mask_and_no_more_than_they_must(length: int, u: int, t: int) -> None:
    t = min(t, u - 1)
    assert length <= (u - t) * piece_length(length, u, t) < length + (u - t)


def test_coding_refuses_what_gives_no_mask() -> None:
    coded = encode(np.arange(12, dtype=np.uint32).reshape(3, 4), 4, [1, 2, 3, 4])
    good = {"clients": 4, "pieces": 3, "privacy": 1}
    with pytest.raises(SecureAbort, match="too few"):
        decode(coded[:2], points=[1, 2], **good)
    for points in ([1, 2, 2], [0, 1, 2], [1, 2, 5], [1, 2, 3, 3]):
        with pytest.raises(SecureAbort, match="different"):
            decode(coded[: len(points)], points=points, **good)
    wrong = coded.copy()
    wrong[3, 2] ^= 1
    with pytest.raises(SecureAbort, match="do not fit"):
        decode(wrong, points=[1, 2, 3, 4], **good)
    with pytest.raises(SecureAbort, match="modulus"):
        encode(np.ones((3, 4), dtype=np.uint32), 4, [1, 2], p=5)


# --- rounds


def test_four_clients_may_drop_out_at_any_stage_in_any_combination() -> None:
    for stages in product(STAGES, repeat=4):
        check(FOUR, dict(zip(FOUR.ids, stages, strict=True)))


@pytest.mark.slow
def test_five_clients_may_drop_out_at_any_stage_in_any_combination() -> None:
    for stages in product(STAGES, repeat=5):
        check(FIVE, dict(zip(FIVE.ids, stages, strict=True)))


@settings(max_examples=12)
@given(st.data())
def test_twenty_clients_may_drop_out_at_any_stage(data: st.DataObject) -> None:
    gone = data.draw(st.lists(st.sampled_from(TWENTY.ids), max_size=8, unique=True))
    check(TWENTY, {one: data.draw(st.sampled_from(STAGES)) for one in gone})


@st.composite
def any_parameters(draw: st.DrawFn) -> LightSecAggRoundSpec:
    n = draw(st.integers(3, 9))
    t = draw(st.integers(0, n - 2))
    u = draw(st.integers(max(3, t + 2, (n + t) // 2 + 1), n))
    ids = draw(st.lists(st.integers(0, 2**32 - 1), min_size=n, max_size=n, unique=True))
    return LightSecAggRoundSpec(
        tuple(ids), u, t, draw(st.integers(0, n - u)), draw(st.integers(0, 9)), draw(st.integers(3, 40))
    )


@settings(max_examples=40)
@given(any_parameters(), st.data())
def test_any_round_that_is_allowed_works(parameters: LightSecAggRoundSpec, data: st.DataObject) -> None:
    check(
        parameters, {one: data.draw(st.sampled_from((*STAGES, "never", "never"))) for one in parameters.ids}
    )


def test_below_u_survivors_no_client_answers() -> None:
    for size_ in range(FIVE.threshold):
        for few in combinations(FIVE.ids, size_):
            game = Round(FIVE)
            game.ready()
            for client in game.clients.values():
                with pytest.raises(SecureAbort):
                    client.answer(Survivors(numbers(few)))


# --- what is seen


def bins(upload: NDArray[np.uint32], of: int = 61) -> list[NDArray[np.int64]]:
    """How often values fall in each of equal ranges, and have each remainder."""
    return [
        np.bincount((upload.astype(np.int64) * of) // PRIME, minlength=of),
        np.bincount(upload % of, minlength=of),
    ]


def test_a_masked_upload_is_uniform_whatever_is_in_it() -> None:
    """With fresh masks, so the bound is one that chance passes once in a billion runs."""
    length = 200_000
    parameters = LightSecAggRoundSpec(
        (1, 2, 3), threshold=3, max_colluding=1, max_dropouts=0, round_number=0, length=length
    )
    ramp = (np.arange(length, dtype=np.int64) * PRIME // length).astype(np.uint32)
    plain = {1: np.zeros(length, np.uint32), 2: np.full(length, PRIME - 1, np.uint32), 3: ramp}
    game = Round(parameters)
    uploads = game.uploads(game.delivered(), plain)
    for upload in uploads.values():
        assert all(chisquare(counts).pvalue > 1e-9 for counts in bins(upload))
    assert all(chisquare(counts).pvalue < 1e-9 for counts in bins(plain[2]))
    crossed = np.histogram2d(plain[3], uploads[3], bins=20)[0]
    assert chi2_contingency(crossed).pvalue > 1e-9
    assert abs(np.corrcoef(uploads[1], uploads[2])[0, 1]) < 0.02
    bits = np.unpackbits(uploads[1].view(np.uint8)).reshape(-1, 32).mean(axis=0)
    assert np.count_nonzero(np.abs(bits - 0.5) > 0.02) == 1, "all 31 bits are even, the 32nd is never set"


def test_masks_are_fresh_in_every_round() -> None:
    same = dict.fromkeys(FOUR.ids, np.zeros(FOUR.length, dtype=np.uint32))
    games = [Round(FOUR) for _ in range(3)]
    uploads = [upload.tobytes() for game in games for upload in game.uploads(game.delivered(), same).values()]
    assert len(set(uploads)) == 12


def test_nothing_but_sums_passes_the_server_in_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    secret: list[bytes] = []

    def spied(*args: object) -> NDArray[np.uint32]:
        coded = encode(*args)
        secret.extend(row.tobytes() for row in coded)
        return coded

    monkeypatch.setattr(lightsecagg, "encode", spied)
    game = Round(FOUR)
    shown = game.ready()
    drawn = [client._seed for client in game.clients.values()]
    answers = [to_bytes(game.clients[one].answer(shown[one])) for one in FOUR.ids]
    seen = b"".join([*map(to_bytes, game.log), *answers])
    assert len(secret) == 16
    assert not any(text in seen for text in secret)
    assert drawn == [b""] * 4, "the seed is forgotten when the mask has been used"


def test_reprs_show_no_secret() -> None:
    game = Round(FOUR)
    delivered = game.delivered()
    client = game.clients[7]
    assert client._seed.hex() not in repr(vars(client)["_pair"]) + repr(client)
    assert repr(delivered[7]) == "DeliveredPieces(rows=3)"


# --- what is refused


def test_parameters_that_do_not_protect_or_cannot_recover_are_refused() -> None:
    ids = tuple(range(10))
    good = {
        "ids": ids,
        "threshold": 8,
        "max_colluding": 3,
        "max_dropouts": 2,
        "round_number": 0,
        "length": 22,
    }
    assert LightSecAggRoundSpec(**good).piece == 5
    bad: list[dict[str, object]] = [
        {"max_dropouts": 3},
        {"max_dropouts": -1},
        {"threshold": 11, "max_dropouts": 0},
        {"max_colluding": 8},
        {"max_colluding": 7},
        {"max_colluding": 6},
        {"max_colluding": -1},
        {"threshold": 6},
        {"length": 0},
        {"round_number": -1},
        {"ids": (*ids[:-1], 0)},
        {"ids": (*ids[:-1], -1)},
        {"ids": (*ids[:-1], 2**32)},
        {"ids": ()},
        {"length": 2**31 * 5 // 4},
    ]
    for change in bad:
        with pytest.raises(SecureAbort):
            LightSecAggRoundSpec(**(good | change))
    with pytest.raises(SecureAbort, match="not in this round"):
        LightSecAggClient(FOUR, 4)


@pytest.mark.parametrize(("n", "u", "t"), [(3, 2, 0), (2, 2, 0), (4, 4, 3), (5, 4, 3)])
def test_sums_of_two_clients_or_of_one_honest_one_are_refused(n: int, u: int, t: int) -> None:
    with pytest.raises(SecureAbort, match="U >= T"):
        LightSecAggRoundSpec(tuple(range(n)), u, t, 0, 0, 5)
    LightSecAggRoundSpec(tuple(range(n + 1)), max(u + 1, 3), t, 0, 0, 5)


def test_a_piece_of_another_run_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even with the same keys."""
    pairs = [KeyPair.new() for _ in FOUR.ids]
    sealed = {}
    for run_ in (bytes(16), bytes(range(16))):
        ready = iter(pairs)
        with monkeypatch.context() as patched:
            patched.setattr(KeyPair, "new", lambda ready=ready: next(ready))
            game = Round(replace(FOUR, run=run_))
            sealed[run_] = game, game.delivered()
    (_, old), (new, _) = sealed[bytes(16)], sealed[bytes(range(16))]
    new.clients[7].receive(old[7])
    new.clients[7].masks()
    with pytest.raises(SecureAbort, match="altered"):
        new.clients[7].answer(Survivors(numbers(FOUR.ids)))


def spoilt_rosters(roster: SealKeyRoster) -> Iterator[tuple[SealKeyRoster, str]]:
    """Rosters that client 7 must refuse."""
    ids, keys = roster.ids, roster.keys
    own = np.flatnonzero(ids == 7)[0]
    other = (own + 1) % 4
    swapped, doubled = keys.copy(), keys.copy()
    swapped[[own, other]] = keys[[other, own]]
    doubled[(own + 2) % 4] = keys[other]
    rest = np.delete(np.arange(4), own)
    yield SealKeyRoster(numbers([*ids[:3], ids[0]]), keys), "twice"
    yield SealKeyRoster(numbers([*ids[:3], 4]), keys), "not one of those"
    yield SealKeyRoster(ids[[own, other]], keys[[own, other]]), "only 2"
    yield SealKeyRoster(ids[rest], keys[rest]), "lacks client 7"
    yield SealKeyRoster(ids, swapped), "another key"
    yield SealKeyRoster(ids, doubled), "are the same"
    doubled[:, 31] ^= np.where(np.arange(4) == (own + 2) % 4, 0x80, 0).astype(np.uint8)
    yield SealKeyRoster(ids, doubled), "are the same"
    yield SealKeyRoster(ids, np.where(np.arange(4)[:, None] == other, np.uint8(0), keys)), "low order"


@pytest.mark.parametrize("which", range(8))
def test_a_client_refuses_a_roster(which: int) -> None:
    game = Round(FOUR)
    roster, why = list(spoilt_rosters(game.roster()[7]))[which]
    refused(game.clients[7], lambda client: client.share(roster), why)


def refused(client: LightSecAggClient, step: Callable[[LightSecAggClient], object], why: str) -> None:
    """A step is refused; then the client takes none, and has no secret left."""
    with pytest.raises(SecureAbort, match=why):
        step(client)
    assert (client._pair, client._seed, client._sealing, client._sealed) == (None, b"", {}, {})
    with pytest.raises(SecureAbort, match="after the round was aborted"):
        client.answer(Survivors(numbers(FOUR.ids)))


def test_a_client_refuses_deliveries() -> None:
    def spoil(change: Callable[[DeliveredPieces], DeliveredPieces], why: str) -> None:
        game = Round(FOUR)
        delivered = game.delivered()
        refused(game.clients[7], lambda client: client.receive(change(delivered[7])), why)

    spoil(lambda it: DeliveredPieces(numbers([3, 20, 3]), it.sealed), "twice")
    spoil(lambda it: DeliveredPieces(numbers([3, 20, 7]), it.sealed), "twice")
    spoil(lambda it: DeliveredPieces(numbers([3, 20, 12]), it.sealed), "not one of those")
    spoil(lambda it: DeliveredPieces(it.ids[:1], it.sealed[:1]), "only 2")
    spoil(lambda it: DeliveredPieces(it.ids, [row[1:] for row in it.sealed]), "bytes instead of")


def test_a_client_refuses_a_peer_that_was_not_on_the_roster() -> None:
    game = Round(FOUR)
    game.shared(game.roster([7, 3, 20]))
    stranger = DeliveredPieces(numbers([3, 11]), np.zeros((2, FOUR.sealed_bytes), np.uint8))
    refused(game.clients[7], lambda client: client.receive(stranger), "client 11 is not one of those")


def test_a_client_refuses_vectors() -> None:
    vectors = [np.zeros(6, np.uint32), np.zeros(7, np.int64), np.zeros((7, 1), np.uint32)]
    for vector in [*vectors, np.full(7, PRIME, np.uint32), np.full(7, 2**32 - 1, np.uint32)]:
        game = Round(FOUR)
        delivered = game.delivered()
        game.clients[7].receive(delivered[7])
        refused(game.clients[7], lambda client, vector=vector: client.masked(vector), "vector to mask")


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ([3, 20, 11], "listed as dropped"),
        ([7, 3, 20, 20], "twice"),
        ([7, 3, 20, 12], "not one of those"),
        ([7, 3], "only 2"),
        ([], "only 0"),
    ],
)
def test_a_client_refuses_survivors(ids: list[int], why: str) -> None:
    game = Round(FOUR)
    game.ready()
    refused(game.clients[7], lambda client: client.answer(Survivors(numbers(ids))), why)


def test_a_client_refuses_a_survivor_that_sent_it_no_piece() -> None:
    game = Round(FOUR)
    game.uploads(game.delivered(who=[7, 3, 20]), residues(FOUR))
    refused(
        game.clients[7], lambda client: client.answer(Survivors(numbers(FOUR.ids))), "client 11 is not one"
    )


def test_a_client_answers_once() -> None:
    game = Round(FOUR)
    shown = game.ready()[7]
    game.clients[7].answer(shown)
    with pytest.raises(SecureAbort):
        game.clients[7].answer(shown)
    with pytest.raises(SecureAbort):
        game.clients[7].answer(Survivors(numbers([7, 3, 20])))


def test_a_client_masks_once() -> None:
    game = Round(FOUR)
    game.uploads(game.delivered(), residues(FOUR))
    refused(game.clients[7], lambda client: client.masked(residues(FOUR)[7]), "where 'answer' is due")


def test_steps_out_of_order_are_refused() -> None:
    refused(
        LightSecAggClient(FOUR, 7),
        lambda client: client.masked(residues(FOUR)[7]),
        "where 'advertise' is due",
    )
    game = Round(FOUR)
    shown = game.roster()
    with pytest.raises(SecureAbort, match="where 'deliver' is due"):
        game.server.survivors(FOUR.ids)
    with pytest.raises(SecureAbort, match="aborted"):
        game.server.deliver(game.shared(shown))


def tampered(change: Callable[[Round, dict[int, DeliveredPieces]], DeliveredPieces]) -> None:
    """Client 7 gets other pieces than were sealed for it: no answer."""
    game = Round(FOUR)
    delivered = game.delivered()
    delivered[7] = change(game, delivered)
    shown = game.server.survivors(game.uploads(delivered, residues(FOUR)))
    refused(game.clients[7], lambda client: client.answer(shown[7]), "altered")


def test_altered_and_misdirected_pieces_do_not_open() -> None:
    def flipped(_: Round, delivered: dict[int, DeliveredPieces]) -> DeliveredPieces:
        rows = np.array(delivered[7].sealed)
        rows[1, 40] ^= 1
        return DeliveredPieces(delivered[7].ids, rows)

    def exchanged(_: Round, delivered: dict[int, DeliveredPieces]) -> DeliveredPieces:
        return DeliveredPieces(delivered[7].ids, delivered[7].sealed[::-1])

    def mirrored(_: Round, delivered: dict[int, DeliveredPieces]) -> DeliveredPieces:
        """What 7 itself sealed for the others, sent back: the keys are the same, the direction is not."""
        ids = delivered[7].ids.tolist()
        own = [dict(zip(delivered[i].ids.tolist(), delivered[i].sealed, strict=True))[7] for i in ids]
        return DeliveredPieces(delivered[7].ids, own)

    def of_another_round(_: Round, __: dict[int, DeliveredPieces]) -> DeliveredPieces:
        return Round(FOUR).delivered()[7]

    for change in (flipped, exchanged, mirrored, of_another_round):
        tampered(change)


def test_a_piece_beyond_the_field_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    game = Round(FOUR)
    shown = game.roster()
    with monkeypatch.context() as patch:
        patch.setattr(lightsecagg, "encode", lambda *args: np.full_like(encode(*args), PRIME))
        sealed = {3: game.clients[3].share(shown[3])}
    sealed |= game.shared(shown, [7, 20, 11])
    survivors = game.server.survivors(game.uploads(game.server.deliver(sealed), residues(FOUR)))
    refused(game.clients[7], lambda client: client.answer(survivors[7]), "client 3 has a value")


def test_the_server_refuses_shares_for_the_wrong_clients() -> None:
    def spoil(change: Callable[[SealedPieces], SealedPieces], why: str) -> None:
        game = Round(FOUR)
        shared = game.shared(game.roster())
        shared[3] = change(shared[3])
        with pytest.raises(SecureAbort, match=why):
            game.server.deliver(shared)

    spoil(lambda it: SealedPieces(it.ids[:2], it.sealed[:2]), "client 3 did not seal")
    spoil(lambda it: SealedPieces(numbers([*it.ids[:2], 3]), it.sealed), "client 3 did not seal")
    spoil(lambda it: SealedPieces(numbers([*it.ids, it.ids[0]]), [*it.sealed, it.sealed[0]]), "did not seal")
    spoil(lambda it: SealedPieces(it.ids, [row[:-1] for row in it.sealed]), "bytes instead of")


def test_the_server_refuses_strangers_and_too_few() -> None:
    game = Round(FOUR)
    with pytest.raises(SecureAbort, match="client 12 is not one"):
        game.server.roster({one: LightSecAggClient(FOUR, 7).advertise() for one in (7, 3, 20, 12)})
    for uploaded, why in (([7, 3, 20, 20], "twice"), ([7, 3, 12], "not one"), ([7, 3], "only 2")):
        game = Round(FOUR)
        game.uploads(game.delivered(), residues(FOUR))
        with pytest.raises(SecureAbort, match=why):
            game.server.survivors(uploaded)


def test_the_server_refuses_answers_that_are_no_sums() -> None:
    def spoil(change: Callable[[dict[int, CodedSum]], object], why: str) -> None:
        game = Round(FOUR)
        shown = game.ready()
        answers = {one: game.clients[one].answer(shown[one]) for one in FOUR.ids}
        change(answers)
        with pytest.raises(SecureAbort, match=why):
            game.server.recover(answers)

    spoil(lambda it: it.update({12: it[7]}), "client 12 is not one")
    spoil(lambda it: it.update({7: CodedSum(it[7].values[:-1])}), "must have 4 elements")
    spoil(lambda it: it.update({7: CodedSum(np.full(4, PRIME, np.uint32))}), "no residue")
    spoil(lambda it: it.update({7: CodedSum((it[7].values + 1) % np.uint32(PRIME))}), "do not fit")
    spoil(lambda it: [it.pop(7), it.pop(3)], "only 2")


# --- messages


def test_messages_travel_and_have_the_size_that_is_told() -> None:
    game = Round(FOUR)
    shown = game.ready()
    answer = game.clients[7].answer(shown[7])
    for message in [*game.log, shown[7], answer]:
        data = to_bytes(message)
        assert len(data) == size(message)
        if isinstance(message, PieceMessage):
            back = pieces_from_bytes(data, type(message), limit=4, width=FOUR.sealed_bytes)
        else:
            back = from_bytes(data, type(message), limit=4)
        assert to_bytes(back) == data
    assert size(game.log[0]) == 5 + 32
    assert {size(it) for it in game.log if isinstance(it, PieceMessage)} == {
        5 + 3 * (4 + 4 * 4 + SEALED_EXTRA)
    }
    assert size(answer) == 5 + 4 * 4


def test_pieces_are_passed_on_without_a_copy() -> None:
    game = Round(FOUR)
    shared = game.shared(game.roster())
    data = to_bytes(shared[3])
    shared[3] = pieces_from_bytes(memoryview(data), SealedPieces, 4, FOUR.sealed_bytes)
    buffer = np.frombuffer(data, np.uint8)
    delivered = game.server.deliver(shared)
    index = delivered[7].ids.tolist().index(3)
    assert np.shares_memory(delivered[7].sealed[index], buffer)
    game.clients[7].receive(delivered[7])
    assert np.shares_memory(game.clients[7]._sealed[3], buffer)


def test_malformed_pieces_are_refused() -> None:
    data = to_bytes(SealedPieces(numbers([1, 2]), np.zeros((2, 30), np.uint8)))
    assert pieces_from_bytes(data, SealedPieces, limit=2, width=30).ids.tolist() == [1, 2]
    empty = pieces_from_bytes(to_bytes(DeliveredPieces(numbers([]), ())), DeliveredPieces, limit=2, width=30)
    assert len(empty.sealed) == 0
    huge = data[:1] + b"\xff" * 4 + data[5:]
    for wrong in (b"", data[:4], data[:-1], data + b"\0", huge, b"\x14" + data[1:]):
        with pytest.raises(SecureAbort):
            pieces_from_bytes(wrong, SealedPieces, limit=2, width=30)
    for limit, width in ((1, 30), (2, 29), (2, 31)):
        with pytest.raises(SecureAbort, match="expected"):
            pieces_from_bytes(data, SealedPieces, limit, width)
    with pytest.raises(SecureAbort, match="of one length"):
        SealedPieces(numbers([1, 2]), [np.zeros(3, np.uint8), np.zeros(4, np.uint8)])
    with pytest.raises(SecureAbort, match="client number"):
        SealedPieces(numbers([1]), np.zeros((2, 3), np.uint8))


def test_an_advertised_key_has_32_bytes() -> None:
    with pytest.raises(SecureAbort):
        AdvertiseSealKey(np.zeros((1, 31), np.uint8))


def test_decoding_is_the_inverse_of_coding_at_full_size() -> None:
    """N = 100 as the paper's experiments: coefficients fill the field and rows come in groups."""
    n, u, t = 100, 70, 30
    drawn = np.random.default_rng(3).integers(0, PRIME, (u, 11), dtype=np.uint32)
    matrix = lagrange(range(n + 1, n + u + 1), range(1, n + 1))
    coded = encode(drawn, n, range(1, n + 1))
    assert np.array_equal(coded, combine_rows(matrix, drawn))
    points = range(n, n - u - 3, -1)
    assert np.array_equal(decode(coded[::-1][: u + 3], n, points, u, t), drawn[: u - t].ravel())


def test_a_client_goes_on_from_its_saved_state() -> None:
    """Each is made anew, from JSON, before each of its steps; one drops out with its vector."""
    spec, vectors = FOUR, residues(FOUR)
    saved = {own: (LightSecAggClient(spec, own).saved(), np.empty(0, np.uint32), None) for own in spec.ids}

    def each(method: str, arguments: Mapping[int, tuple[object, ...]]) -> dict[int, Any]:
        made = {}
        for own, said in arguments.items():
            state, piece, delivered = saved[own]
            client = LightSecAggClient.restored(
                spec, own, json.loads(json.dumps(state)), piece.copy(), delivered
            )
            made[own] = getattr(client, method)(*said)
            saved[own] = client.saved(), client.piece, said[0] if method == "receive" else delivered
        return made

    def shown(messages: Mapping[int, object]) -> dict[int, tuple[object]]:
        return {own: (message,) for own, message in messages.items()}

    server, stay = LightSecAggServer(spec), spec.ids[1:]
    rosters = server.roster(each("advertise", dict.fromkeys(spec.ids, ())))
    each("receive", shown(server.deliver(each("share", shown(rosters)))))
    masked = total(each("masked", shown({own: vectors[own] for own in stay})), stay)
    subtract(masked, server.recover(each("answer", shown(server.survivors(stay)))))
    assert np.array_equal(masked, total(vectors, stay))
    for own in stay:
        state, piece, _ = saved[own]
        assert not any(state[name] for name in ("pair", "seed", "sealing"))
        assert not len(piece)
