"""Dirichlet shares at any concentration, sizes that add up, an order that favours nobody."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fednlp.errors import PartitionError
from fednlp.partition.draws import (
    dirichlet,
    equal_sizes,
    largest_remainder,
    low_discrepancy_order,
    skewed_sizes,
)

SEEDS = st.integers(0, 2**32)
CONCENTRATIONS = st.floats(-6, 6).map(lambda power: 10.0**power)
SHARES = st.lists(st.floats(0.01, 1), min_size=1, max_size=30).map(lambda w: np.array(w) / sum(w))


def rng(seed=0):
    return np.random.default_rng(seed)


@given(SEEDS, CONCENTRATIONS | st.sampled_from([1e-300, 1e-12, 1e300]), SHARES)
def test_shares_are_shares_at_any_concentration(seed, concentration, prior):
    rows = dirichlet(rng(seed), concentration, prior, 20)
    assert rows.shape == (20, len(prior))
    assert np.isfinite(rows).all()
    assert (rows >= 0).all()
    np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize("concentration", [0.7, 1.0, 30.0])
@pytest.mark.parametrize("category", [0, 2])
def test_a_category_follows_scipys_beta(concentration, category):
    prior = np.array([0.2, 0.3, 0.5])
    drawn = dirichlet(rng(), concentration, prior, 4000)[:, category]
    mine = concentration * prior[category]
    assert stats.kstest(drawn, stats.beta(mine, concentration - mine).cdf).pvalue > 0.01


def test_the_extremes_are_one_category_and_the_prior():
    prior = np.array([0.1, 0.2, 0.7])
    tiny = dirichlet(rng(), 1e-6, prior, 5000)
    assert tiny.max(axis=1).min() > 1 - 1e-9
    np.testing.assert_allclose(tiny.mean(axis=0), prior, atol=0.03)
    np.testing.assert_allclose(dirichlet(rng(), 1e6, prior, 100), np.tile(prior, (100, 1)), atol=0.005)


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=50).filter(lambda w: sum(w) > 1e-3),
    st.integers(0, 10**9),
)
def test_largest_remainder_is_within_one_of_exact(weights, total):
    whole = largest_remainder(weights, total)
    exact = np.array(weights) / np.sum(weights) * total
    assert whole.sum() == total
    assert (np.abs(whole - exact) < 1 + 1e-6).all()


def test_largest_remainder_known_values():
    # Hamilton's method on the apportionment of 100 seats over six parties.
    votes = [47_000, 16_000, 15_800, 12_000, 6_100, 3_100]
    assert largest_remainder(votes, 10).tolist() == [5, 2, 1, 1, 1, 0]
    assert largest_remainder([1, 1, 1], 2).tolist() == [1, 1, 0]


@given(SEEDS, st.integers(1, 60), st.integers(0, 200))
def test_equal_sizes_differ_by_at_most_one(seed, clients, more):
    sizes = equal_sizes(rng(seed), clients + more, clients)
    assert sizes.sum() == clients + more
    assert sizes.max() - sizes.min() <= 1
    assert sizes.min() >= 1


@given(SEEDS, CONCENTRATIONS, st.integers(1, 60), st.integers(0, 500))
def test_skewed_sizes_add_up_and_leave_nobody_out(seed, beta, clients, more):
    sizes = skewed_sizes(rng(seed), clients + more, clients, beta)
    assert len(sizes) == clients
    assert sizes.sum() == clients + more
    assert sizes.min() >= 1


def test_skewed_sizes_are_in_proportion():
    shares = dirichlet(rng(3), 5.0 * 50, np.full(50, 0.02), 1)[0]
    sizes = skewed_sizes(rng(3), 100_000, 50, 5.0)
    assert np.abs(sizes - shares * 100_000).max() < 1
    assert np.ptp(skewed_sizes(rng(3), 100_000, 50, 1e6)) < 100
    assert skewed_sizes(rng(3), 1000, 50, 1e-6).max() == 951


@pytest.mark.parametrize("sizes", [equal_sizes, lambda *a: skewed_sizes(*a, 1.0)])
@pytest.mark.parametrize(
    ("clients", "said"), [(8, "7 training examples: say at most partition.clients = 7"), (0, "at least 1")]
)
def test_more_clients_than_examples_are_refused(sizes, clients, said):
    with pytest.raises(PartitionError, match=said):
        sizes(rng(), 7, clients)


@given(SEEDS, st.integers(20, 400))
def test_every_stretch_holds_early_and_late_places_alike(seed, count):
    order = low_discrepancy_order(rng(seed), count)
    assert sorted(order.tolist()) == list(range(count))
    place = np.empty(count)
    place[order] = np.arange(count) / count
    width = count // 5
    for start in range(count - width + 1):
        stretch = np.sort(place[start : start + width])
        # Wherever it begins, a fifth of the numbers leaves no gap of two and a half times its even distance.
        assert np.diff(stretch).max() < 2.7 / width + 1 / count
        assert abs(stretch.mean() - 0.5) < 1.0 / np.sqrt(width) * 0.5


def test_every_place_is_as_likely_for_every_number():
    places = np.array([np.argsort(low_discrepancy_order(rng(seed), 10)) for seed in range(2000)])
    np.testing.assert_allclose(places.mean(axis=0), 4.5, atol=0.2)


WHOLE_SHARES = st.lists(st.integers(0, 1000), min_size=1, max_size=8)


@given(st.integers(0, 5000), WHOLE_SHARES)
def test_parts_of_whole_shares_sum_to_the_number_and_are_rounded(
    total: int, given_weights: list[int]
) -> None:
    shares = largest_remainder(np.array(given_weights), total).tolist()
    whole = sum(given_weights)
    assert sum(shares) == (total if whole else 0)
    for share, weight in zip(shares, given_weights, strict=True):
        assert not whole or -1 < share - Fraction(total * weight, whole) < 1
        assert weight or not share


@given(st.integers(0, 5000), WHOLE_SHARES.filter(any))
def test_the_largest_remainders_are_rounded_up_of_equal_ones_the_first(
    total: int, given_weights: list[int]
) -> None:
    exact = [Fraction(total * weight, sum(given_weights)) for weight in given_weights]
    down = [int(one) for one in exact]
    order = sorted(range(len(exact)), key=lambda label: (down[label] - exact[label], label))
    for label in order[: total - sum(down)]:
        down[label] += 1
    assert largest_remainder(np.array(given_weights), total).tolist() == down


@given(WHOLE_SHARES.filter(any), st.data())
def test_no_whole_share_is_exceeded_by_a_part_of_their_sum(
    given_weights: list[int], data: st.DataObject
) -> None:
    total = data.draw(st.integers(0, sum(given_weights)))
    shares = largest_remainder(np.array(given_weights), total)
    assert (shares <= np.array(given_weights)).all()
