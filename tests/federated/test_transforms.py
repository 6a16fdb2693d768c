"""Laws of the transforms: what arrives, how long it is, and that nothing is lost or hidden."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fednlp.errors import ModelError, RunError
from fednlp.federated.message import message_bytes, pack, shapes_of, unpack
from fednlp.federated.params import Layout
from fednlp.federated.sums import NonFiniteUpdate, check_finite
from fednlp.federated.transform_spec import parse_chain
from fednlp.federated.transforms import (
    Chain,
    Clip,
    Half,
    Quantise,
    RandomK,
    RngKey,
    Sign,
    Tensors,
    TopK,
    Transform,
    feedback,
    make_chain,
)
from fednlp.federated.transforms.sparse import count_kept, draw
from fednlp.seeds import generator

KEY = RngKey(seed=7, round=3, client=5)
FLOATS = st.floats(-1000, 1000, width=32).map(lambda value: value + 0.0)  # no -0.0
EVERY = [
    [],
    ["float16"],
    ["bfloat16"],
    ["int8"],
    ["int8:4"],
    ["int4"],
    ["int4:3"],
    ["sign"],
    ["topk:0.3"],
    ["randomk:0.3"],
    ["clip:1.0"],
    ["clip:1.0", "topk:0.2", "int8:4"],
    ["randomk:0.4", "sign"],
    ["topk:0.5", "float16"],
]
LOSSY = [words for words in EVERY if words and "clip:1.0" not in words]
BLOCKED = st.builds(Quantise, st.sampled_from([8, 4]), st.none() | st.integers(1, 9), st.booleans())


@st.composite
def tensor(draw: st.DrawFn, values: st.SearchStrategy[float] = FLOATS) -> torch.Tensor:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    count = torch.Size(shape).numel()
    return torch.tensor(draw(st.lists(values, min_size=count, max_size=count)), dtype=torch.float32).view(
        shape
    )


UPDATES = st.dictionaries(st.sampled_from(["w", "layer.bias", "scale", "ä"]), tensor(), min_size=1)


def chain_of(words: Sequence[str], nearest: bool = False) -> Chain:
    return make_chain(parse_chain(words, "up"), nearest=nearest)


def through(transform: Transform, values: torch.Tensor, key: RngKey = KEY) -> torch.Tensor:
    """Return one tensor encoded and decoded."""
    shapes = shapes_of({"w": values})
    return transform.decode(transform.encode({"w": values}, key), shapes, key)["w"]


def normal(*shape: int, number: int = 0) -> torch.Tensor:
    return torch.from_numpy(generator(0, "test", number).standard_normal(shape, dtype=np.float32))


def same(one: Tensors, other: Tensors) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


# ---- chains


@given(bits=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=9))
def test_no_step_no_change(bits: list[int]) -> None:
    values = {"w": torch.tensor(bits, dtype=torch.int32).view(torch.float32)}
    encoded = Chain().encode(values, KEY)
    decoded = Chain().decode(encoded, shapes_of(values), KEY)
    assert decoded["w"].view(torch.int32).tolist() == bits
    layout = Layout.of({"w": ((len(bits),), "parameter")})
    assert message_bytes(Chain().shapes(shapes_of(values))) == layout.message_bytes == len(pack(values))


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
@given(update=UPDATES, seed=st.integers(0, 9))
@settings(max_examples=30)
def test_shapes_lengths_and_bytes_are_a_function_of_shapes_and_key(
    words: list[str], update: dict[str, torch.Tensor], seed: int
) -> None:
    chain, shapes, key = chain_of(words), shapes_of(update), RngKey(seed, 1, 2)
    before = {name: value.clone() for name, value in update.items()}
    encoded = chain.encode(update, key)
    message = pack(encoded)
    assert same(update, before)
    assert shapes_of(encoded) == chain.shapes(shapes)
    assert len(message) == message_bytes(chain.shapes(shapes))
    assert message == pack(chain.encode(before, key))
    decoded = chain.decode(unpack(message, chain.shapes(shapes)), shapes, key)
    assert shapes_of(decoded) == shapes
    assert list(decoded) == list(update)
    assert same(decoded, chain.decode(encoded, shapes, key))


@given(update=UPDATES)
def test_a_chain_is_its_steps_by_hand(update: dict[str, torch.Tensor]) -> None:
    clip, top, whole = Clip(3.0), TopK(0.4), Quantise(8, 2)
    shapes = shapes_of(update)
    encoded = Chain((clip, top, whole)).encode(update, KEY)
    assert same(encoded, whole.encode(top.encode(clip.encode(update, KEY), KEY), KEY))
    middle = top.shapes(shapes)
    by_hand = top.decode(whole.decode(encoded, middle, KEY), shapes, KEY)
    assert same(Chain((clip, top, whole)).decode(encoded, shapes, KEY), by_hand)


@given(update=UPDATES)
def test_side_tensors_pass_and_a_tensor_depends_on_no_other(update: dict[str, torch.Tensor]) -> None:
    chain = chain_of(["topk:0.4", "int8"])
    encoded = chain.encode(update, KEY)
    for name, value in update.items():
        alone = chain.encode({name: value}, KEY)
        assert alone[f"{name}#index"].dtype == torch.int32
        assert alone[f"{name}#scale"].dtype == torch.float32
        assert set(alone) == {name, f"{name}#index", f"{name}#scale"}
        assert all(torch.equal(alone[part], encoded[part]) for part in alone)


@pytest.mark.parametrize("words", [["int8"], ["int4:8"], ["randomk:0.1"], ["topk:0.3", "int4"]], ids=" ".join)
def test_another_client_round_seed_or_name_draws_otherwise(words: list[str]) -> None:
    chain, update = chain_of(words), {"w": normal(400)}
    keys = [KEY, KEY._replace(client=6), KEY._replace(round=4), KEY._replace(seed=8)]
    assert len({pack(chain.encode(update, key)) for key in keys}) == 4
    both = chain.encode({"w": update["w"], "v": update["w"]}, KEY)
    assert not torch.equal(both["w"], both["v"])


def test_a_parameter_may_not_pose_as_a_side_tensor() -> None:
    with pytest.raises(ModelError, match="has a # in its name"):
        Chain((TopK(0.5),)).shapes({"w#index": ((2,), torch.float32)})


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 7, 29])
def test_what_is_not_finite_is_refused_by_the_sum(words: list[str], bad: float, place: int) -> None:
    for nearest in (False, True):
        values = normal(30)
        values[place] = bad
        with pytest.raises(NonFiniteUpdate):
            check_finite(through(chain_of(words, nearest), values))


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_zeros_arrive_as_zeros(words: list[str]) -> None:
    for shape in ((), (0,), (0, 3), (5,), (2, 3)):
        assert torch.equal(through(chain_of(words), torch.zeros(shape)), torch.zeros(shape))


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_tensors_need_not_lie_in_one_piece(words: list[str]) -> None:
    values = normal(6, 4)
    assert torch.equal(through(chain_of(words), values.T), through(chain_of(words), values.T.contiguous()))


# ---- 16 bits


@given(values=tensor(st.floats(width=32, allow_nan=False)))
def test_16_bits_are_those_of_torch(values: torch.Tensor) -> None:
    assert torch.equal(through(Half(), values), values.half().float())
    assert torch.equal(through(Half(torch.bfloat16), values), values.bfloat16().float())


def test_float16_never_turns_a_large_number_into_another() -> None:
    values = torch.tensor([65504.0, 65519.0, 65520.0, -1e6])
    assert through(Half(), values).tolist() == [65504.0, 65504.0, math.inf, -math.inf]
    assert torch.isfinite(through(Half(torch.bfloat16), values)).all()


# ---- whole numbers


@given(values=tensor(), how=BLOCKED)
def test_the_error_is_below_a_step_and_to_nearest_half_of_one(values: torch.Tensor, how: Quantise) -> None:
    step = naive_steps(values, how)
    error = (through(how, values).double() - values.double()).abs().view(-1)
    allowed = step * (0.5 if how.nearest else 1.0) + values.double().abs().view(-1) * 1e-6
    assert bool((error <= allowed).all())


def naive_steps(values: torch.Tensor, how: Quantise) -> torch.Tensor:
    flat, levels = values.reshape(-1).tolist(), 127 if how.bits == 8 else 7
    size = how.block or max(len(flat), 1)
    tops = [max(map(abs, flat[i - i % size : i - i % size + size])) for i in range(len(flat))]
    return torch.tensor(tops, dtype=torch.float64) / levels + 1e-37


@given(values=tensor(), how=BLOCKED)
def test_the_largest_of_a_block_arrives(values: torch.Tensor, how: Quantise) -> None:
    if not values.numel():
        return
    place = int(values.abs().view(-1).argmax())
    arrived = through(how, values).view(-1)[place]
    torch.testing.assert_close(arrived, values.view(-1)[place], rtol=2e-7, atol=1e-37)


@pytest.mark.parametrize("how", [Quantise(8), Quantise(4), Quantise(4, 5), Chain((RandomK(0.3, True),))])
def test_the_mean_over_messages_is_the_update(how: Transform) -> None:
    values, draws = normal(40), 2000
    arrived = torch.stack([through(how, values, RngKey(1, number, 0)) for number in range(draws)]).double()
    spread = arrived.std(0) / math.sqrt(draws)
    away = (arrived.mean(0) - values).abs()
    assert bool((away <= 5 * spread + 1e-6).all())
    assert float(spread.max()) > 1e-5


def test_rounding_goes_up_as_often_as_the_fraction_says() -> None:
    values = torch.full((200_001,), 0.25)
    values[0] = 127.0  # so that a step is 1
    arrived = through(Quantise(8), values)[1:]
    assert set(arrived.tolist()) == {0.0, 1.0}
    assert abs(float(arrived.mean()) - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 200_000)


@given(values=st.lists(st.integers(-7, 7), max_size=9))
def test_four_bits_are_packed_as_a_loop_packs_them(values: list[int]) -> None:
    values = [7, *values]
    encoded = Quantise(4).encode({"w": torch.tensor(values, dtype=torch.float32)}, KEY)
    expected = []
    for first in range(0, len(values), 2):
        second = values[first + 1] if first + 1 < len(values) else 0
        expected.append((values[first] + 8) + 16 * (second + 8))
    assert encoded["w"].tolist() == expected
    assert encoded["w#scale"].tolist() == [1.0]


def test_known_codes() -> None:
    values = torch.tensor([[-2.0, 1.0], [0.51, 0.0]])
    encoded = Quantise(8, nearest=True).encode({"w": values}, KEY)
    assert encoded["w"].tolist() == [[-127, 64], [32, 0]]
    assert encoded["w"].dtype == torch.int8
    blocks = Quantise(8, 2, nearest=True).encode({"w": values}, KEY)
    assert blocks["w"].tolist() == [[-127, 64], [127, 0]]
    torch.testing.assert_close(blocks["w#scale"], torch.tensor([2.0, 0.51]) / 127)


@pytest.mark.parametrize("how", [Quantise(8), Quantise(4), Quantise(8, 2, nearest=True)])
def test_the_ends_of_the_range(how: Quantise) -> None:
    for size in (1e-45, 1e-40, 1e-38, 1.0, 1e30):
        values = torch.tensor([size, -size, 0.0, size / 3])
        assert float(how.encode({"w": values}, KEY)["w#scale"].min()) > 1e-38  # a normal number, to divide by
        arrived = through(how, values)
        assert bool(((arrived - values).abs() <= max(size / 7, 1.2e-38) * 1.001).all())


def test_a_block_that_is_not_finite_leaves_the_others() -> None:
    arrived = through(Quantise(8, 2, nearest=True), torch.tensor([1.0, math.nan, 2.0, 0.0]))
    assert not torch.isfinite(arrived[:2]).any()
    torch.testing.assert_close(arrived[2:], torch.tensor([2.0, 0.0]))


# ---- some of the values


@given(values=tensor(), share=st.floats(0.01, 1))
def test_the_largest_are_those_of_torch(values: torch.Tensor, share: float) -> None:
    kept = count_kept(tuple(values.shape), share)
    encoded = TopK(share).encode({"w": values}, KEY)
    assert len(encoded["w"]) == kept
    expected = torch.topk(values.abs().view(-1), kept).values.sort().values
    assert torch.equal(encoded["w"].abs().sort().values, expected)
    assert torch.equal(values.view(-1)[encoded["w#index"].long()], encoded["w"])


@given(values=st.lists(st.integers(-3, 3), min_size=1, max_size=20), kept=st.integers(1, 20))
def test_of_equal_ones_the_first(values: list[int], kept: int) -> None:
    kept = min(kept, len(values))
    order = sorted(range(len(values)), key=lambda place: (-abs(values[place]), place))
    encoded = TopK(kept / len(values)).encode({"w": torch.tensor(values, dtype=torch.float32)}, KEY)
    assert encoded["w#index"].tolist() == sorted(order[:kept])


@pytest.mark.parametrize("index", [[0, 9], [-1, 2], [2, 1], [1, 1], [2**31 - 1, 0]])
def test_places_from_the_wire_are_checked(index: list[int]) -> None:
    encoded = {"w": torch.ones(2), "w#index": torch.tensor(index, dtype=torch.int32)}
    with pytest.raises(RunError, match="places in w are not ascending"):
        TopK(0.25).decode(encoded, {"w": ((3, 3), torch.float32)}, KEY)


@given(values=tensor(), share=st.floats(0.01, 1))
def test_random_places_are_known_to_both_and_not_sent(values: torch.Tensor, share: float) -> None:
    encoded = RandomK(share).encode({"w": values}, KEY)
    assert set(encoded) == {"w"}
    arrived = through(RandomK(share), values)
    kept = arrived != 0
    assert torch.equal(arrived[kept], values[kept])
    marked = through(RandomK(share), torch.ones(values.shape))
    assert int(marked.sum()) == count_kept(tuple(values.shape), share)


@given(count=st.integers(0, 60), share=st.floats(0, 1), number=st.integers(0, 100))
def test_drawn_places_are_distinct_and_ascending(count: int, share: float, number: int) -> None:
    kept = round(count * share)
    places = draw(count, kept, generator(0, "test", number))
    assert len(places) == kept
    assert (np.diff(places) > 0).all()
    assert not kept or (places[0] >= 0 and places[-1] < count)


@pytest.mark.parametrize("kept", [2, 3])
def test_every_set_of_places_is_equally_likely(kept: int) -> None:
    random = generator(0, "test", kept)
    seen: dict[Any, int] = {}
    for _ in range(3000):
        places = tuple(draw(5, kept, random).tolist())
        seen[places] = seen.get(places, 0) + 1
    assert len(seen) == 10
    assert stats.chisquare(list(seen.values())).pvalue > 1e-4


# ---- signs, norms


@given(values=tensor())
def test_a_sign_is_the_mean_size_with_the_sign(values: torch.Tensor) -> None:
    arrived = through(Sign(), values)
    if values.numel():
        size = float(values.double().abs().mean())
        expected = torch.where(values >= 0, size, -size).float()
        torch.testing.assert_close(arrived, expected, rtol=1e-6, atol=1e-30)


@given(values=st.lists(st.booleans(), max_size=20))
def test_signs_are_packed_as_a_loop_packs_them(values: list[bool]) -> None:
    encoded = Sign().encode({"w": torch.tensor([1.0 if up else -1.0 for up in values])}, KEY)
    expected = [0] * -(-len(values) // 8)
    for place, up in enumerate(values):
        expected[place // 8] += up << place % 8
    assert encoded["w"].tolist() == expected


@given(update=UPDATES, bound=st.floats(0.01, 100))
@pytest.mark.whole
def test_the_whole_update_is_scaled_to_the_norm(update: dict[str, torch.Tensor], bound: float) -> None:
    norm = float(torch.cat([value.double().view(-1) for value in update.values()]).norm())
    clipped = Clip(bound).encode(update, KEY)
    after = float(torch.cat([value.double().view(-1) for value in clipped.values()]).norm())
    if norm <= bound:
        assert same(clipped, update)
    else:
        assert after == pytest.approx(bound, rel=1e-6)
        for name, value in update.items():
            torch.testing.assert_close(clipped[name], value * (bound / norm), rtol=1e-6, atol=1e-37)


# ---- error feedback


@pytest.mark.parametrize("words", LOSSY, ids=" ".join)
def test_with_feedback_everything_arrives_in_the_end(words: list[str]) -> None:
    chain, residual = chain_of(words), {}
    sent, given_in = torch.zeros(6, 5, dtype=torch.float64), torch.zeros(6, 5, dtype=torch.float64)
    for number in range(40):
        update = {"w": normal(6, 5, number=number)}
        encoded, decoded, residual = feedback(update, residual, chain, KEY._replace(round=number))
        assert same(decoded, chain.decode(encoded, shapes_of(update), KEY._replace(round=number)))
        sent += decoded["w"]
        given_in += update["w"]
    torch.testing.assert_close(sent + residual["w"], given_in, rtol=1e-5, atol=1e-4)
    assert float(residual["w"].norm()) < 40


def test_top_k_forgets_no_small_value() -> None:
    chain, residual = chain_of(["topk:0.34"]), {}
    update = {"w": torch.tensor([4.0, 1.0, 0.0])}
    arrived = []
    for number in range(6):
        _, decoded, residual = feedback(update, residual, chain, KEY._replace(round=number))
        arrived.append(decoded["w"].tolist())
    assert arrived[:4] == [[4.0, 0, 0], [4.0, 0, 0], [4.0, 0, 0], [4.0, 0, 0]]
    assert arrived[4] == [0.0, 5.0, 0.0]
    assert arrived[5] == [8.0, 0, 0]


def test_a_tensor_that_is_not_sent_keeps_its_residual() -> None:
    residual = {"w": torch.ones(3), "v": torch.ones(2)}
    _, _, after = feedback({"w": torch.ones(3)}, residual, chain_of(["topk:0.3"]), KEY)
    assert after["v"] is residual["v"]
    assert after["w"].tolist() == [0, 2, 2]
    assert residual["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("words", LOSSY, ids=" ".join)
def test_an_update_that_burst_does_not_spoil_the_residual(words: list[str]) -> None:
    residual = {"w": torch.ones(30)}
    values = normal(30)
    values[3] = math.nan
    _, decoded, after = feedback({"w": values}, residual, chain_of(words), KEY)
    assert not torch.isfinite(decoded["w"]).all()
    assert after["w"].tolist() == [1.0] * 30
