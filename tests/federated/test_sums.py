"""The exact sum: no order, grouping or absent client changes a bit."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.federated.params import Layout
from fednlp.federated.sums import LARGEST, ExactSum, NonFiniteUpdate, nonzero_rows, weight_unit

LAYOUT = Layout.of({"a": ((3, 2), "parameter"), "words": ((5, 2), "parameter")}, table="words")
PLAIN = Layout.of({"a": ((7,), "parameter")})
floats = st.floats(-1000, 1000, width=32)
clients = st.lists(
    st.tuples(st.integers(0, 500), st.lists(floats, min_size=7, max_size=7)), min_size=1, max_size=12
)


def mean(total: ExactSum, share: float) -> torch.Tensor:
    return total.mean(share)[0].clone()


@given(clients=clients, data=st.data())
@settings(deadline=None)
def test_no_order_and_no_grouping_changes_a_bit(
    clients: list[tuple[int, list[float]]], data: st.DataObject
) -> None:
    unit = weight_unit(sum(weight for weight, _ in clients))
    share = sum(weight / unit for weight, _ in clients)
    one = ExactSum(PLAIN)
    for weight, update in clients:
        one.add(weight / unit, torch.tensor(update))
    shuffled = data.draw(st.permutations(clients))
    cut = data.draw(st.integers(0, len(clients)))
    left, right = ExactSum(PLAIN), ExactSum(PLAIN)
    for place, (weight, update) in enumerate(shuffled):
        (left if place < cut else right).add(weight / unit, torch.tensor(update))
    left.merge(right)
    assert torch.equal(one.storage, left.storage)
    assert torch.equal(mean(one, share), mean(left, share))


@given(clients=clients)
@settings(deadline=None)
def test_it_is_the_weighted_mean(clients: list[tuple[int, list[float]]]) -> None:
    weights = np.array([weight for weight, _ in clients], dtype=float)
    unit = weight_unit(weights.sum())
    total = ExactSum(PLAIN)
    for weight, update in clients:
        total.add(weight / unit, torch.tensor(update))
    got = mean(total, weights.sum() / unit).numpy()
    if weights.sum() == 0:
        assert not got.any()
        return
    updates = np.array([np.float32(update) for _, update in clients], dtype=np.float64)
    np.testing.assert_allclose(got, weights @ updates / weights.sum(), rtol=2e-7, atol=1e-11 * len(clients))


def test_a_client_of_weight_zero_changes_nothing() -> None:
    one, other = ExactSum(PLAIN), ExactSum(PLAIN)
    for total in (one, other):
        total.add(0.5, torch.arange(7.0))
    other.add(0.0, torch.full((7,), 1e5))
    assert torch.equal(mean(one, 0.5), mean(other, 0.5))


@given(rows=st.lists(st.integers(0, 4), unique=True, min_size=1), seed=st.integers(0, 1000))
@settings(deadline=None)
def test_rows_equal_the_whole_table(rows: list[int], seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    dense = torch.randn(LAYOUT.dense, generator=rng)
    table = torch.zeros(5, 2)
    table[sorted(rows)] = torch.randn(len(rows), 2, generator=rng)
    whole, parts = ExactSum(LAYOUT), ExactSum(LAYOUT)
    whole.add(0.25, dense, None, table)
    parts.add(0.25, dense, torch.tensor(sorted(rows)), table[sorted(rows)])
    assert torch.equal(whole.storage, parts.storage)
    other = ExactSum(LAYOUT)
    other.merge(parts)
    assert torch.equal(mean(other, 0.25), mean(whole, 0.25))
    parts.clear()
    assert not parts.storage.any()
    assert not parts.touched_rows.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2 * LARGEST])
@pytest.mark.parametrize("where", ["dense", "table"])
def test_what_is_not_finite_is_refused_and_adds_nothing(bad: float, where: str) -> None:
    total = ExactSum(LAYOUT)
    dense, table = torch.ones(LAYOUT.dense), torch.ones(2, 2)
    (dense if where == "dense" else table)[0] = bad
    with pytest.raises(NonFiniteUpdate):
        total.add(1.0, dense, torch.tensor([0, 1]), table)
    assert not total.storage.any()
    assert not total.touched_rows.any()


@given(weights=st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_the_largest_updates_cannot_overflow(weights: list[int]) -> None:
    unit = weight_unit(sum(weights))
    assert sum(weights) / unit <= 1
    assert LARGEST * 2**40 * sum(weights) / unit < 2**63


def test_long_tensors_are_summed_in_pieces_without_a_seam() -> None:
    count = (1 << 16) * 2 + 17
    layout = Layout.of({"a": ((count,), "parameter")})
    update = torch.randn(count, generator=torch.Generator().manual_seed(0))
    total = ExactSum(layout)
    total.add(1.0, update)
    assert torch.equal(mean(total, 1.0), update.double().mul(2.0**40).round().mul(2.0**-40).float())


@given(share=st.floats(1e-5, 1.0), values=st.lists(st.floats(-100, 100, width=32), min_size=7, max_size=7))
def test_a_tensor_that_one_client_alone_sends_is_known_to_the_unit_over_its_share(
    share: float, values: list[float]
) -> None:
    total, update = ExactSum(PLAIN), torch.tensor(values)
    total.add(share, update)
    bound = 2.0**-41 / share + 1e-7 * update.double().abs()  # half a unit, and the float32 of the mean
    assert ((mean(total, share).double() - update.double()).abs() <= bound).all()


def test_rows_wider_than_a_piece_are_summed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, rows, table = torch.randn(6), torch.tensor([1, 4]), torch.randn(2, 2)

    def summed() -> torch.Tensor:
        one, other = ExactSum(LAYOUT), ExactSum(LAYOUT)
        other.add(1.0, dense, rows, table)
        one.merge(other)
        return torch.cat([part.flatten() for part in one.mean(1.0)])

    whole = summed()
    monkeypatch.setattr("fednlp.federated.sums._CHUNK", 1)
    assert torch.equal(summed(), whole)


@given(
    rows=st.lists(
        st.lists(st.sampled_from([0.0, -0.0, 1e-42, -3.5, LARGEST]), min_size=2, max_size=2),
        min_size=9,
        max_size=9,
    ),
    factors=st.lists(st.sampled_from([0.0, 0.125, 1.0]), min_size=1, max_size=3),
    zeros=st.sets(st.integers(0, 8)),
)
@settings(deadline=None)
def test_an_update_in_stretches_is_summed_as_one_in_memory(
    rows: list[list[float]], factors: list[float], zeros: set[int]
) -> None:
    """Few rows or many that are not zero, zeros of either sign, and a tensor without elements before the table."""
    layout = Layout.of(
        {"a": ((3, 2), "parameter"), "none": ((0,), "parameter"), "words": ((9, 2), "parameter")}, "words"
    )
    table = torch.tensor([[0.0, -0.0] if number in zeros else row for number, row in enumerate(rows)])
    flat = torch.cat((torch.arange(6.0), table.reshape(-1)))
    whole, parts = ExactSum(layout), ExactSum(layout)
    for factor in factors:
        whole.add(factor, flat[:6], None, table)
        parts.add_stretches(factor, lambda: [(e.start, flat[e.start : e.stop]) for e in layout.entries])
    assert torch.equal(parts.storage, whole.storage)
    assert torch.equal(parts.touched_rows, (table != 0).any(1))
    one, other = mean(parts, 1.0), mean(whole, 1.0)
    assert torch.equal(one.view(torch.int32), other.view(torch.int32))
    merged = ExactSum(layout)
    merged.merge(parts)
    assert torch.equal(merged.storage, whole.storage)
    parts.clear()
    assert not parts.storage.any()
    assert not parts.touched_rows.any()


@given(st.lists(st.lists(st.sampled_from([0.0, -0.0, 1e-38, -2.0, 3.0]), min_size=2, max_size=2), max_size=8))
def test_rows_that_are_not_zero_are_found_whatever_their_signs(rows: list[list[float]]) -> None:
    expected = [number for number, row in enumerate(rows) if any(row)]
    assert nonzero_rows(torch.tensor(rows).reshape(len(rows), 2)).tolist() == expected
