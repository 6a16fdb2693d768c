"""Epsilons against dp-accounting's own parts, exact divergences of one round, and published values."""

import builtins
import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from fednlp.errors import ConfigError, MissingDependency
from fednlp.privacy.accountant import (
    Sampling,
    epsilon,
    epsilon_of_known_cohorts,
    noise_multiplier_for,
    statement,
)

dp_accounting = pytest.importorskip("dp_accounting")

DELTA = 1e-5


def _density(x: np.ndarray, mean: float, sigma: float, q: float) -> np.ndarray:
    return (1 - q) * stats.norm.pdf(x, 0, sigma) + q * stats.norm.pdf(x, mean, sigma)


def _delta(epsilon_: float, sigma: float, q: float, first: float, second: float) -> float:
    """How far one round's outputs are apart at epsilon: exact, by the definition."""
    x = np.linspace(-12 * sigma - 3, 12 * sigma + 3, 100_001)
    apart = _density(x, first, sigma, q) - math.exp(epsilon_) * _density(x, second, sigma, q)
    return float(integrate.trapezoid(np.maximum(apart, 0), x))


@pytest.mark.parametrize("sigma", [1.0, 2.0, 5.0])
@pytest.mark.parametrize(("clients", "cohort"), [(100, 1), (10, 5), (10, 10)])
@pytest.mark.variants(6)
def test_one_poisson_round_is_exact(sigma: float, clients: int, cohort: int) -> None:
    q = cohort / clients
    got = epsilon(sigma, "poisson", clients, cohort, 1, DELTA)
    worse = max(_delta(got, sigma, q, 1, 0), _delta(got, sigma, q, 0, 1))
    assert worse <= DELTA * (1 + 1e-6)
    assert max(_delta(0.97 * got - 1e-3, sigma, q, *pair) for pair in ((1, 0), (0, 1))) > DELTA


@pytest.mark.parametrize("sigma", [0.7, 3.0])
@pytest.mark.parametrize(("clients", "cohort"), [(100, 1), (10, 5), (10, 9), (10, 10)])
def test_one_fixed_round_covers_what_an_adversary_could_see(sigma: float, clients: int, cohort: int) -> None:
    """One client at +1 or -1, all others at 0, at +1 or at -1."""
    got = epsilon(sigma, "fixed", clients, cohort, 1, DELTA)
    for pair in ((1, -1), (2, 0), (0, 2)):
        assert _delta(got, sigma, cohort / clients, *pair) <= DELTA * (1 + 1e-6)
    if cohort == clients:
        assert _delta(0.99 * got, sigma, 1.0, 1, -1) > DELTA, "without sampling it is exact"


@pytest.mark.parametrize(("sigma", "clients", "cohort", "rounds"), [(1.0, 1000, 10, 100), (4.0, 50, 10, 30)])
def test_fixed_is_the_renyi_accountant_with_twice_the_sensitivity(
    sigma: float, clients: int, cohort: int, rounds: int
) -> None:
    from dp_accounting.rdp import rdp_privacy_accountant as parts

    orders = list(range(2, 65))
    curve = rounds * parts._compute_rdp_sample_wor_gaussian(cohort / clients, sigma / 2, orders)
    expected, _ = parts.compute_epsilon(orders, curve, DELTA)
    assert epsilon(sigma, "fixed", clients, cohort, rounds, DELTA) == pytest.approx(expected, rel=1e-9)


def test_the_fixed_curve_is_theorem_27_in_many_digits() -> None:
    """Written down anew, with as many digits as it takes: chi^j of the Gaussian for even j."""
    import mpmath

    sigma, q, alpha, rounds = 3.0, 0.1, 8, 20
    half = mpmath.mpf(sigma) / 2
    with mpmath.workdps(100):

        def chi(j: int) -> Any:
            moments = (mpmath.e ** (k * (k - 1) / (2 * half**2)) for k in range(j + 1))
            return mpmath.fsum((-1) ** (j - k) * mpmath.binomial(j, k) * m for k, m in enumerate(moments))

        total = 1 + q**2 * mpmath.binomial(alpha, 2) * min(
            4 * (mpmath.e ** (1 / half**2) - 1), 2 * mpmath.e ** (1 / half**2)
        )
        for j in range(3, alpha + 1):
            term = 4 * mpmath.sqrt(chi(2 * (j // 2)) * chi(2 * ((j + 1) // 2)))
            largest = 2 * mpmath.e ** (j * (j - 1) / (2 * half**2))
            total += mpmath.mpf(q) ** j * mpmath.binomial(alpha, j) * min(term, largest)
        curve = float(rounds * mpmath.log(total) / (alpha - 1))
    at_alpha = curve + math.log1p(-1 / alpha) - math.log(DELTA * alpha) / (alpha - 1)
    got = epsilon(sigma, "fixed", 100, 10, rounds, DELTA)
    assert got <= at_alpha * (1 + 1e-9)
    assert got > 0.9 * at_alpha, "8 is near the best order here"


@pytest.mark.parametrize(("sigma", "q", "rounds"), [(1.1, 0.005, 2000), (1.5, 0.1, 20), (4.0, 0.01, 10_000)])
@pytest.mark.variants(1)
def test_poisson_is_the_composed_privacy_loss_distribution(sigma: float, q: float, rounds: int) -> None:
    from dp_accounting.pld import privacy_loss_distribution as parts

    once = parts.from_gaussian_mechanism(sigma, sampling_prob=q)
    expected = once.self_compose(rounds).get_epsilon_for_delta(DELTA)
    assert epsilon(sigma, "poisson", 10_000, round(10_000 * q), rounds, DELTA) == pytest.approx(
        expected, rel=1e-6
    )


def _by_central_limit(sigma: float, q: float, rounds: int, delta: float) -> float:
    """Bu, Dong, Long, Su 2020, *Deep Learning with Gaussian Differential Privacy*: mu, and its epsilon."""
    mu = q * math.sqrt(rounds * math.expm1(sigma**-2))

    def gap(value: float) -> float:
        tail = stats.norm.cdf(-value / mu - mu / 2) * math.exp(value)
        return float(stats.norm.cdf(-value / mu + mu / 2) - tail - delta)

    return float(optimize.brentq(gap, 0, 50))


@pytest.mark.parametrize(
    ("sigma", "batch", "epochs", "published"),
    [
        (
            1.3,
            256,
            15,
            1.19,
        ),  # the table of the MNIST tutorial of TensorFlow Privacy: 60,000 images, delta 1e-5
        (1.1, 256, 60, 3.01),
        (0.7, 256, 45, 7.10),
    ],
)
def test_the_tutorial_of_dp_sgd(sigma: float, batch: int, epochs: int, published: float) -> None:
    """Their moments accountant is an upper bound, the central limit an estimate from below."""
    rounds = epochs * 60_000 // batch
    got = epsilon(sigma, "poisson", 60_000, batch, rounds, DELTA)
    assert _by_central_limit(sigma, batch / 60_000, rounds, DELTA) < got < published


def test_the_example_of_the_moments_accountant() -> None:
    """Abadi et al. 2016, section 3.2: q = 0.01, sigma = 4, 10,000 steps, delta 1e-5 give 1.26."""
    got = epsilon(4.0, "poisson", 100, 1, 10_000, DELTA)
    assert 0.95 * _by_central_limit(4.0, 0.01, 10_000, DELTA) < got < 1.26


def test_drawing_a_fixed_number_costs_far_more_than_drawing_each_for_itself() -> None:
    """Lebeda, Regehr, Kamath, Steinke 2024: the two are not to be taken for one another."""
    assert (
        epsilon(1.0, "fixed", 1000, 10, 100, DELTA) > 10 > 1 > epsilon(1.0, "poisson", 1000, 10, 100, DELTA)
    )


both = st.sampled_from(["fixed", "poisson"])
runs = st.tuples(st.floats(1, 10), both, st.integers(2, 10_000), st.floats(0, 1), st.integers(1, 300))


@settings(max_examples=2, deadline=None)
@given(runs, st.sampled_from([None, 0.0]))
def test_more_noise_fewer_rounds_smaller_cohorts_and_larger_delta_give_away_less(
    run: tuple[float, Sampling, int, float, int], distance: float | None
) -> None:
    sigma, sampling, clients, share, rounds = run
    cohort = max(1, int(share * clients))

    def of(sigma: float, cohort: int, rounds: int, delta: float) -> float:
        return epsilon(sigma, sampling, clients, cohort, rounds, delta, distance=distance)

    base = of(sigma, cohort, rounds, DELTA) * 1.001 + 1e-3  # the grids of the accountants
    assert of(sigma * 1.5, cohort, rounds, DELTA) <= base
    assert of(sigma, cohort, max(1, rounds // 2), DELTA) <= base
    assert of(sigma, max(1, cohort // 2), rounds, DELTA) <= base
    assert of(sigma, cohort, rounds, 10 * DELTA) <= base


@settings(max_examples=2, deadline=None)
@given(runs, st.floats(0, 1e-3))
def test_whole_numbers_never_count_for_more_than_real_ones(
    run: tuple[float, Sampling, int, float, int], distance: float
) -> None:
    sigma, sampling, clients, share, rounds = run
    arguments = (sigma, sampling, clients, max(1, int(share * clients)), rounds, DELTA)
    real, one, summed = (epsilon(*arguments, distance=d) for d in (None, 0.0, distance))
    assert real <= one * (1 + 1e-9)
    assert one + 2 * rounds * distance <= summed * (1 + 1e-9)


@pytest.mark.parametrize("sigma", [1.0, 2.5, 6.0])
def test_one_round_of_a_discrete_gaussian_is_covered(sigma: float) -> None:
    """A shift by one unit under Poisson sampling, added up exactly."""
    x = np.arange(-100, 101)
    still = np.exp(-(x**2) / (2 * sigma**2))
    still /= still.sum()
    moved = 0.8 * still + 0.2 * np.roll(still, 1)
    got = epsilon(sigma, "poisson", 10, 2, 1, DELTA, distance=0.0)
    for p, q in ((moved, still), (still, moved)):
        assert np.maximum(p - math.exp(got) * q, 0).sum() <= DELTA
        assert np.maximum(p - math.exp(0.6 * got) * q, 0).sum() > DELTA or p is still


@pytest.mark.parametrize(
    ("sampling", "target", "distance"),
    [("poisson", 0.5, None), ("poisson", 0.5, 0.0), ("fixed", 8.0, 0.001)],
)
@pytest.mark.variants(1)
def test_the_noise_for_an_epsilon_reaches_it_and_no_more(
    sampling: Sampling, target: float, distance: float | None
) -> None:
    found = noise_multiplier_for(target, sampling, 1000, 20, 50, DELTA, distance=distance)
    assert epsilon(found, sampling, 1000, 20, 50, DELTA, distance=distance) <= target
    assert epsilon(found * 0.999, sampling, 1000, 20, 50, DELTA, distance=distance) > target


def test_the_noise_without_sampling_is_that_of_the_gaussian_mechanism() -> None:
    expected = 2 * math.sqrt(50) * dp_accounting.get_sigma_gaussian(2.0, DELTA)
    assert noise_multiplier_for(2.0, "fixed", 10, 10, 50, DELTA) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize(("clients", "cohort"), [(10, 10), (100, 10)])
def test_what_the_sum_is_apart_from_one_discrete_gaussian_is_counted(
    sampling: Sampling, clients: int, cohort: int
) -> None:
    """(e, d)-private with it, (e + 2 T x, d exp(T x))-private with the sum: T rounds, densities exp(+-x) apart."""
    rounds, apart = 5, 0.01
    alone = epsilon(2.0, sampling, clients, cohort, rounds, DELTA * math.exp(-rounds * apart), distance=0.0)
    got = epsilon(2.0, sampling, clients, cohort, rounds, DELTA, distance=apart)
    assert got == pytest.approx(alone + 2 * rounds * apart, rel=1e-12)


def test_the_ends_of_the_range() -> None:
    assert epsilon(0.0, "fixed", 10, 2, 5, DELTA) == math.inf
    assert epsilon(0.0, "poisson", 10, 2, 5, DELTA) == math.inf
    assert epsilon(1.0, "fixed", 10, 2, 0, DELTA) == 0
    assert epsilon(1e9, "fixed", 10, 2, 5, DELTA) == 0
    assert 100 < epsilon(0.01, "poisson", 10, 2, 5, DELTA) < math.inf
    assert epsilon(1.0, "fixed", 10, 2, 5, DELTA, distance=1e6) == math.inf
    assert epsilon(1.0, "fixed", 10, 2, 5, DELTA, distance=math.inf) == math.inf


def test_the_statement_says_what_holds_and_under_what() -> None:
    line = statement(1.0, "poisson", 1000, 10, 100, DELTA)
    assert "\n" not in line
    for part in (
        "(0.718, 1e-05)",
        "one client is there or not",
        "0.01",
        "100 rounds",
        "dp-accounting",
        "assumes",
    ):
        assert part in line
    line = statement(1.0, "fixed", 1000, 10, 100, DELTA, distance=0.0)
    for part in ("(11.2, 1e-05)", "10 of 1,000 clients without replacement", "whole-number", "Rényi"):
        assert part in line
    assert "no differential privacy" in statement(0.0, "fixed", 1000, 10, 100, DELTA)


@pytest.mark.parametrize(
    ("rounds", "replaced", "removed"), [(2, 12.490, 5.456), (6, 25.503, 10.568), (7, 28.065, 11.529)]
)
def test_who_knows_the_cohorts_learns_what_one_gaussian_a_round_gives_away(
    rounds: int, replaced: float, removed: float
) -> None:
    """Of the noise that is worth epsilon 8 to those who do not: 20 of 1,000 clients, 100 rounds."""
    z = 1.24935
    orders = [*(1 + k / 100 for k in range(1, 1000)), *range(11, 200)]
    for sampling, expected, moved in (("fixed", replaced, 2.0), ("poisson", removed, 1.0)):
        got = epsilon_of_known_cohorts(z, sampling, rounds, DELTA, distance=0.0)
        accountant = dp_accounting.rdp.RdpAccountant(orders)
        own = accountant.compose(dp_accounting.GaussianDpEvent(z / moved), rounds).get_epsilon(DELTA)
        assert got == pytest.approx(expected, abs=0.001)
        assert own < got == pytest.approx(own, rel=0.02)
        exact = dp_accounting.get_epsilon_gaussian(z / moved / math.sqrt(rounds), DELTA)
        assert epsilon_of_known_cohorts(z, sampling, rounds, DELTA) == pytest.approx(exact)
        assert exact < got


def test_the_statement_names_the_server_where_it_is_one_of_those_noise_is_against() -> None:
    line = statement(1.2494, "fixed", 1000, 20, 100, DELTA, distance=0.0, most_rounds=7)
    assert line.startswith("(8, 1e-05)")
    assert (
        "against the server, which knows who took part, (28.1, 1e-05) for the client drawn most often" in line
    )
    assert "in 7 rounds" in line
    assert "server" not in statement(1.2494, "fixed", 1000, 20, 100, DELTA)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((-1.0, "fixed", 10, 2, 5, DELTA), "0 or more"),
        ((math.nan, "fixed", 10, 2, 5, DELTA), "0 or more"),
        ((1.0, "shuffled", 10, 2, 5, DELTA), 'choose "fixed" or "poisson"'),
        ((1.0, "fixed", 10, 11, 5, DELTA), "no more than there are"),
        ((1.0, "fixed", 10, 0, 5, DELTA), "at least 1"),
        ((1.0, "fixed", 10, 2, -1, DELTA), "rounds"),
        ((1.0, "fixed", 10, 2, 5, 0.0), "between 0 and 1"),
        ((1.0, "fixed", 10, 2, 5, 1.0), "between 0 and 1"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        epsilon(*arguments)


def test_an_epsilon_out_of_reach_is_refused() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        noise_multiplier_for(0.0, "fixed", 10, 2, 5, DELTA)
    with pytest.raises(ConfigError, match="raise epsilon or delta"):
        noise_multiplier_for(1e-9, "poisson", 10, 10, 5, 1e-12, distance=0.0)


def test_a_missing_library_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "dp_accounting":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "dp_accounting")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependency, match=r"pip install .*\[privacy\]"):
        epsilon(1.0, "fixed", 10, 2, 5, DELTA)
