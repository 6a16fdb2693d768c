"""What a run gives away: epsilon at a delta, at the level of clients, by the accountants of dp-accounting.

``noise_multiplier`` is always the standard deviation of the noise in the sum over the clip norm C. How far
one client can move the sum follows from the sampling: by C where a client is there or not ("poisson"), by 2 C
where its data are exchanged for others ("fixed").
"""

import math
from importlib import metadata
from typing import Any, Literal

import numpy as np

from fednlp.errors import ConfigError, MissingDependency, install_command
from fednlp.formatting.units import plural

Sampling = Literal["fixed", "poisson"]

_ORDERS = (*range(2, 65), 72, 84, 100, 128, 192, 384, 512, 768, 1024)
"""Whole numbers: at these, one discrete Gaussian has the very moments of the continuous one."""
_UNSAMPLED_ORDERS = (*(1 + k / 20 for k in range(1, 20)), *_ORDERS)
_WORTH_REFINING = 20.0
"""Above this epsilon nothing is promised, and the grid of the privacy loss distribution gets large."""
_LARGEST = 1e6
"""Of noise multipliers: beyond it sampling adds nothing, and its formulas run out of digits."""


def epsilon(
    noise_multiplier: float,
    sampling: Sampling,
    clients: int,
    cohort: int,
    rounds: int,
    delta: float,
    *,
    distance: float | None = None,
) -> float:
    """Return an epsilon for which ``rounds`` rounds are (epsilon, delta)-differentially private.

    It is the smallest of bounds that each hold: Rényi with sampling; the Gaussian mechanism of all rounds
    without it; and, for "poisson" and real-valued noise, the privacy loss distribution.

    Args:
        noise_multiplier: Standard deviation of the sum's noise over the clip norm; 0 gives infinity.
        sampling: "fixed": ``cohort`` of ``clients`` without replacement every round, neighbours differ in one
            client's data (Wang, Balle, Kasiviswanathan 2019, Theorem 27). "poisson": every client for itself
            with probability ``cohort / clients``, neighbours differ by one client (Mironov, Talwar, Zhang 2019).
        clients: Number of clients, above 0.
        cohort: Clients a round, at most ``clients``; with "poisson" the expected number.
        rounds: Number of rounds, 0 or more.
        delta: Above 0, below 1; far below 1 / clients.
        distance: None for real-valued noise; for noise in whole numbers what
            :func:`fednlp.privacy.noise.sum_distance` says (0 for a discrete Gaussian that one party draws).

    Raises:
        ConfigError: A number out of its range.
        MissingDependency: dp-accounting is not installed.

    >>> 0.7 < epsilon(1.0, "poisson", 1000, 10, 100, 1e-5) < 0.75
    True
    >>> epsilon(0.0, "fixed", 1000, 10, 100, 1e-5)
    inf
    """
    _check(noise_multiplier, sampling, clients, cohort, rounds, delta)
    loss = rounds * (distance or 0.0)
    if rounds == 0:
        return 0.0
    if noise_multiplier == 0 or not math.isfinite(loss):
        return math.inf
    # If all rounds' densities with the sum's noise are within exp(+-loss) of those with one discrete Gaussian,
    # which is (e, d)-private, they are (e + 2 loss, d exp(loss))-private.
    allowed = delta * math.exp(-loss)
    if allowed == 0:
        return math.inf
    multiplier = noise_multiplier / 2 if sampling == "fixed" else noise_multiplier
    best = _unsampled(multiplier, rounds, allowed, distance is None)
    if cohort < clients and best > 0 and multiplier <= _LARGEST:
        best = min(best, _renyi(multiplier, sampling, clients, cohort, rounds, allowed))
    if sampling == "poisson" and distance is None and best < _WORTH_REFINING:
        best = min(best, _loss_distribution(multiplier, cohort / clients, rounds, allowed))
    return best + 2 * loss


def epsilon_of_known_cohorts(
    noise_multiplier: float, sampling: Sampling, rounds: int, delta: float, *, distance: float | None = None
) -> float:
    """Return :func:`epsilon` of one client towards those who know in which rounds it took part, as the server does.

    Sampling hides nothing from them, and the rounds without the client say nothing of it.

    Args:
        noise_multiplier: As for :func:`epsilon`, like the rest.
        sampling: What neighbours differ by; the client's rounds are counted, whichever way it was drawn.
        rounds: Rounds that the client took part in.
        delta: Above 0, below 1.
        distance: None for real-valued noise.

    Raises:
        ConfigError: A number out of its range.
        MissingDependency: dp-accounting is not installed.

    >>> 8.3 < epsilon_of_known_cohorts(1.0, "poisson", 3, 1e-5) < 8.5
    True
    """
    return epsilon(noise_multiplier, sampling, 1, 1, rounds, delta, distance=distance)


def noise_multiplier_for(
    target: float,
    sampling: Sampling,
    clients: int,
    cohort: int,
    rounds: int,
    delta: float,
    *,
    distance: float | None = None,
) -> float:
    """Return a noise multiplier whose :func:`epsilon` is at most ``target``, and the smallest to 1 in 10,000.

    Args:
        target: The largest epsilon, above 0.
        sampling: As for :func:`epsilon`, like the rest.
        clients: Number of clients.
        cohort: Clients a round.
        rounds: Number of rounds, 1 or more.
        delta: Above 0, below 1.
        distance: None for real-valued noise.

    Raises:
        ConfigError: A number out of its range, or no noise up to 10^6 reaches the target.
        MissingDependency: dp-accounting is not installed.
    """
    if not target > 0 or rounds < 1:
        raise ConfigError(f"epsilon {target} in {rounds} rounds: give an epsilon above 0 and 1 round or more")

    def excess(log_multiplier: float) -> float:
        """Log against log it is nearly a straight line."""
        noise = math.exp(log_multiplier)
        given = epsilon(noise, sampling, clients, cohort, rounds, delta, distance=distance)
        return math.log(min(max(given, 1e-300), 1e300) / target)

    high = 1.0
    while excess(math.log(high)) > 0:
        high *= 2
        if high > _LARGEST:
            raise ConfigError(f"no noise gives epsilon {target} at delta {delta}: raise epsilon or delta")
    low = high / 2
    while low > 1e-6 and excess(math.log(low)) <= 0:
        low, high = low / 2, low
    if low <= 1e-6:
        return high
    from scipy import optimize

    found = math.exp(optimize.brentq(excess, math.log(low), math.log(high), xtol=1e-5))
    while excess(math.log(found)) > 0:
        found *= 1 + 2e-5
    return found


def statement(
    noise_multiplier: float,
    sampling: Sampling,
    clients: int,
    cohort: int,
    rounds: int,
    delta: float,
    *,
    distance: float | None = None,
    most_rounds: int = 0,
) -> str:
    """Return one line for people: epsilon and delta, between whom, by which accountant, and what is assumed.

    Arguments are those of :func:`epsilon`, and ``most_rounds``: the rounds of the client drawn most often. Above 0
    the line also says what :func:`epsilon_of_known_cohorts` gives for it.
    """
    value = epsilon(noise_multiplier, sampling, clients, cohort, rounds, delta, distance=distance)
    if math.isinf(value):
        return "no differential privacy: epsilon is infinite, for there is no noise to speak of"
    drawn, neighbours = {
        "fixed": (
            f"{cohort:,} of {plural(clients, 'client')} without replacement",
            "one client's data are others",
        ),
        "poisson": (
            f"each of {plural(clients, 'client')} with {cohort / clients:.3g}",
            "one client is there or not",
        ),
    }[sampling]
    accountant = (
        "Rényi" if sampling == "fixed" or distance is not None else "privacy loss distribution or Rényi"
    )
    kind = "real-valued" if distance is None else "whole-number"
    server = ""
    if most_rounds:
        known = epsilon_of_known_cohorts(noise_multiplier, sampling, most_rounds, delta, distance=distance)
        server = (
            f"; against the server, which knows who took part, ({known:.3g}, {delta:.3g}) for the client drawn most "
            f"often, in {plural(most_rounds, 'round')}"
        )
    return (
        f"({value:.3g}, {delta:.3g})-differential privacy of clients: runs where {neighbours}; "
        f"{plural(rounds, 'round')}, a round draws {drawn}; {kind} noise, {noise_multiplier:.4g} x the clip norm; "
        f"accountant {accountant} of dp-accounting {metadata.version('dp-accounting')}; assumes that whoever sees "
        "the models knows neither noise nor who took part, that all updates weigh alike, and that dropping out "
        f"does not depend on the data{server}"
    )


def _unsampled(multiplier: float, rounds: int, delta: float, continuous: bool) -> float:
    """All rounds as one Gaussian mechanism: exactly (Balle and Wang 2018), or by concentrated privacy."""
    dp = _dp_accounting()
    if continuous:
        with np.errstate(divide="ignore"):
            return float(dp.get_epsilon_gaussian(multiplier / math.sqrt(rounds), delta))
    accountant = dp.rdp.RdpAccountant(_UNSAMPLED_ORDERS)
    return float(accountant.compose(dp.GaussianDpEvent(multiplier), rounds).get_epsilon(delta))


def _renyi(
    multiplier: float, sampling: Sampling, clients: int, cohort: int, rounds: int, delta: float
) -> float:
    """``multiplier`` is the noise over the sensitivity, which is how this accountant takes it (release 0.6)."""
    dp = _dp_accounting()
    gaussian = dp.GaussianDpEvent(float(multiplier))
    if sampling == "fixed":
        neighbours = dp.NeighboringRelation.REPLACE_ONE
        event = dp.SampledWithoutReplacementDpEvent(clients, cohort, gaussian)
    else:
        neighbours = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
        event = dp.PoissonSampledDpEvent(cohort / clients, gaussian)
    accountant = dp.rdp.RdpAccountant(_ORDERS, neighbours)
    return float(accountant.compose(event, rounds).get_epsilon(delta))


def _loss_distribution(multiplier: float, probability: float, rounds: int, delta: float) -> float:
    dp = _dp_accounting()
    event = dp.PoissonSampledDpEvent(probability, dp.GaussianDpEvent(multiplier))
    return float(dp.pld.PLDAccountant().compose(event, rounds).get_epsilon(delta))


def _dp_accounting() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise MissingDependency(
            f"differential privacy is counted by dp-accounting: run {install_command('privacy')}"
        ) from None
    return dp_accounting


def _check(multiplier: float, sampling: str, clients: int, cohort: int, rounds: int, delta: float) -> None:
    if sampling not in {"fixed", "poisson"}:
        raise ConfigError(f'unknown sampling {sampling}: choose "fixed" or "poisson"')
    if not 0 <= multiplier < math.inf:
        raise ConfigError(f"a noise multiplier of {multiplier}: it must be 0 or more")
    if not 1 <= cohort <= clients:
        raise ConfigError(
            f"a cohort of {cohort} of {clients} clients: give at least 1, and no more than there are"
        )
    if rounds < 0 or not 0 < delta < 1:
        raise ConfigError(
            f"{rounds} rounds at delta {delta}: rounds must be 0 or more, delta between 0 and 1"
        )
