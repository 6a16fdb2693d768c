"""The discrete Gaussian against its own probabilities, and what shares of it are worth in a sum."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fednlp.errors import ConfigError
from fednlp.privacy.dp import DPMechanism
from fednlp.privacy.noise import (
    discrete_gaussian,
    effective_multiplier,
    local_sigma,
    noise_bound,
    os_generator,
    sum_distance,
)


def _pmf(sigma: float, reach: int) -> np.ndarray:
    """Probabilities of -reach..reach, by the definition."""
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * sigma**2))
    return weights / weights.sum()


def _chi_square(draws: np.ndarray, probabilities: np.ndarray, reach: int) -> float:
    """P-value of the counts of -reach..reach, rare values put together at each end."""
    assert np.abs(draws).max() <= reach
    counts = np.bincount(draws + reach, minlength=2 * reach + 1)
    expected = probabilities * len(draws)
    common = np.flatnonzero(expected >= 10)
    first, last = common[0], common[-1]
    seen = [counts[: first + 1].sum(), *counts[first + 1 : last], counts[last:].sum()]
    due = [expected[: first + 1].sum(), *expected[first + 1 : last], expected[last:].sum()]
    return float(stats.chisquare(seen, due).pvalue)


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.0, 1.5, 4.2, 37.0, 200.0])
def test_draws_follow_the_definition(sigma: float) -> None:
    """Enough draws that one part in a hundred too few at zero, or a wrong tail, would show."""
    reach = int(7 * sigma) + 3
    draws = discrete_gaussian(sigma, 1_000_000, np.random.default_rng(7))
    assert _chi_square(draws, _pmf(sigma, reach), reach) > 0.001


def test_zero_is_as_likely_as_it_should_be() -> None:
    """Zero with a minus sign must go: it would make zero twice as likely."""
    draws = discrete_gaussian(0.5, 400_000, np.random.default_rng(3))
    share = _pmf(0.5, 10)[10]
    assert abs((draws == 0).mean() - share) < 5 * math.sqrt(share * (1 - share) / len(draws))


@pytest.mark.parametrize("sigma", [1e3, 1e6, 2.0**50])
def test_large_sigma_has_the_moments_and_the_shape_of_a_gaussian(sigma: float) -> None:
    count = 1_000_000
    draws = discrete_gaussian(sigma, count, np.random.default_rng(11))
    scaled = draws / sigma
    assert abs(scaled.mean()) < 5 / math.sqrt(count)
    assert abs(scaled.var() - 1) < 5 * math.sqrt(2 / count)
    assert stats.kstest(scaled, "norm").pvalue > 0.001
    assert np.unique(draws & 1, return_counts=True)[1].min() > 0.49 * count, "odd and even alike"


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1e9), st.integers(0, 200_000), st.integers(0, 2**32))
def test_always_whole_numbers_of_the_asked_count_and_the_same_for_the_same_generator(
    sigma: float, count: int, seed: int
) -> None:
    first, second = (discrete_gaussian(sigma, count, np.random.default_rng(seed)) for _ in range(2))
    assert first.dtype == np.int64
    assert first.shape == (count,)
    assert np.array_equal(first, second)


def test_no_noise_and_hardly_any_is_zero() -> None:
    for sigma in (0.0, 5e-324, 1e-200, 0.01):
        assert not discrete_gaussian(sigma, 1000, np.random.default_rng(0)).any()


@pytest.mark.parametrize("sigma", [-1.0, math.nan, math.inf, 2.0**51])
def test_a_sigma_that_cannot_be_is_refused(sigma: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 2\\^50"):
        discrete_gaussian(sigma, 1, np.random.default_rng(0))


def test_the_generator_of_the_system_is_fresh_and_draws_the_same_law() -> None:
    first, second = os_generator(), os_generator()
    assert first.bytes(32) != second.bytes(32)
    assert not isinstance(first.bit_generator, np.random.PCG64)
    draws = discrete_gaussian(2.0, 200_000, first)
    assert abs(draws.var() - 4) < 8 * 4 * math.sqrt(2 / len(draws))


def test_a_sum_of_many_clients_is_one_discrete_gaussian_of_their_summed_variance() -> None:
    clients, sigma = 16, 1.5
    rng = np.random.default_rng(5)
    total = sum(discrete_gaussian(sigma, 200_000, rng) for _ in range(clients))
    together = sigma * math.sqrt(clients)
    assert _chi_square(np.asarray(total), _pmf(together, 60), 60) > 0.001


@pytest.mark.parametrize("sigma", [0.5, 0.6, 0.8, 1.0])
def test_the_distance_of_a_sum_bounds_the_true_one(sigma: float) -> None:
    """Convolved exactly: the log ratio to one discrete Gaussian, wherever probabilities are above rounding."""
    reach = 40
    summed = one = _pmf(sigma, reach)
    for clients in range(2, 6):
        summed = np.convolve(summed, one)
        single = _pmf(sigma * math.sqrt(clients), reach * clients)
        sure = single > 1e-13
        true = np.abs(np.log(summed[sure] / single[sure])).max()
        bound = sum_distance(sigma, clients, 1)
        assert true <= bound + 1e-12
        if sigma <= 0.6:
            assert true > bound / 20, "the bound is about this, not any large number"


def test_the_distance_grows_with_values_and_is_nothing_for_one_client() -> None:
    assert sum_distance(1.0, 1, 10) == 0
    assert sum_distance(0.0, 5, 10) == 0
    assert sum_distance(1.0, 5, 1000) == pytest.approx(1000 * sum_distance(1.0, 5, 1))


@pytest.mark.parametrize(("sigma", "clients", "shift"), [(0.5, 2, 1), (0.6, 3, 2), (1.0, 4, 3), (2.0, 5, 7)])
def test_theorem_1_bounds_the_renyi_divergence_of_a_true_sum(sigma: float, clients: int, shift: int) -> None:
    """In one dimension the sum's divergence from itself, shifted, can be added up."""
    summed = one = _pmf(sigma, 60)
    for _ in range(clients - 1):
        summed = np.convolve(summed, one)
    multiplier = effective_multiplier(sigma, clients, shift - 0.5, 1)  # rounding adds the other half unit
    for alpha in (1.5, 2.0, 3.0, 5.0):
        p, q = summed[shift:], summed[:-shift]
        sure = (p > 1e-200) & (q > 1e-200)
        terms = alpha * np.log(p[sure]) + (1 - alpha) * np.log(q[sure])
        true = math.log(np.exp(terms).sum()) / (alpha - 1)
        assert true <= alpha / (2 * multiplier**2) * (1 + 1e-9)
        assert true > 0.2 * alpha / (2 * multiplier**2)


def test_without_rounding_to_speak_of_it_is_noise_over_norm() -> None:
    assert effective_multiplier(100.0, 25, 1e9, 1) == pytest.approx(100 * 5 / 1e9, rel=1e-6)
    assert effective_multiplier(0.0, 25, 1000, 10) == 0


@settings(max_examples=50, deadline=None)
@given(
    st.floats(0.1, 20), st.floats(10, 1e7), st.integers(1, 500), st.integers(1, 10**8), st.integers(0, 100)
)
def test_shares_for_the_fewest_survivors_are_enough_for_more(
    multiplier: float, clip_units: float, least: int, dimension: int, more: int
) -> None:
    sigma = local_sigma(multiplier, clip_units, least, dimension)
    if sigma < 3:
        return  # there tau has a say
    got = effective_multiplier(sigma, least, clip_units, dimension)
    assert got == pytest.approx(multiplier, rel=1e-9)
    assert effective_multiplier(sigma, least + more, clip_units, dimension) >= got * (1 - 1e-12)
    assert effective_multiplier(sigma, least, clip_units, dimension + 1) <= got
    assert effective_multiplier(sigma, least, clip_units, dimension, stochastic=True) < got
    assert local_sigma(multiplier, clip_units, least) < sigma


def test_rounding_enlarges_a_norm_by_no_more_than_is_counted() -> None:
    rng = np.random.default_rng(1)
    for dimension in (1, 10, 1000):
        update = rng.normal(size=dimension)
        update = np.abs(update) * 5 / np.linalg.norm(update)
        nearest, up = np.linalg.norm(np.rint(update)), np.linalg.norm(np.ceil(update))
        assert effective_multiplier(100.0, 1, 5.0, dimension) <= 100 / nearest
        assert effective_multiplier(100.0, 1, 5.0, dimension, stochastic=True) <= 100 / up


def test_room_for_noise_holds_and_is_not_wasted() -> None:
    rng = np.random.default_rng(2)
    total = np.abs(sum(discrete_gaussian(50.0, 100_000, rng) for _ in range(9)))
    assert total.max() <= noise_bound(50.0, 9, 100_000) < 2 * total.max()
    assert noise_bound(50.0, 9, 100_000, failure=0.9999) < 1.3 * total.max()


@pytest.mark.parametrize(
    "call",
    [
        lambda: local_sigma(-1.0, 10.0, 1),
        lambda: local_sigma(1.0, 0.0, 1),
        lambda: local_sigma(1.0, 10.0, 0),
        lambda: local_sigma(1.0, math.nan, 1),
        lambda: local_sigma(math.inf, 10.0, 1),
        lambda: local_sigma(1.0, math.inf, 1),
        lambda: local_sigma(1.0, 10.0, 1, -1),
        lambda: effective_multiplier(1.0, 2, 0.0, 1),
        lambda: effective_multiplier(1.0, 2, math.inf, 1),
        lambda: effective_multiplier(0.4, 2, 10.0, 1),
        lambda: effective_multiplier(1.0, 0, 10.0, 1),
        lambda: effective_multiplier(1.0, 2, -1.0, 1),
        lambda: effective_multiplier(math.nan, 2, 1.0, 1),
        lambda: sum_distance(1.0, 2, 0),
        lambda: sum_distance(math.inf, 2, 1),
    ],
)
def test_numbers_out_of_range_are_refused(call: object) -> None:
    with pytest.raises(ConfigError):
        call()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("noise", "cohort", "parameters", "largest", "said"),
    [
        (1.0, 100, 10**6, 100.0, None),  # ten times: many rounds average it out
        (0.0, 1, 10**9, 100.0, None),
        (
            1.0,
            50,
            10**6,
            100.0,
            "warning: .* norm of 10 in each.* at most 0.5: 20 times.*about 100 clients a round",
        ),
        (
            1.0,
            4,
            10**6,
            100.0,
            "drowns: .*250 times.*about 100 clients a round.*privacy.max_noise_ratio=1000$",
        ),
        (1.0, 4, 10**6, 1000.0, "warning: .*250 times"),
        (1.0, 100, 10**6, 5.0, "drowns"),
    ],
)
def test_noise_in_which_an_update_drowns_is_told_or_refused(
    noise: float, cohort: int, parameters: int, largest: float, said: str | None
) -> None:
    mechanism = DPMechanism(0.5, noise, True, "fixed", 1000, cohort, 5, 1e-5, 0)
    assert mechanism.noise_norm(parameters) == pytest.approx(0.5 * noise * parameters**0.5 / cohort)
    try:
        told = mechanism.check_noise(parameters, largest)
    except ConfigError as error:
        told = str(error)
    assert (told is None) == (said is None)
    assert said is None or re.search(said, str(told))
