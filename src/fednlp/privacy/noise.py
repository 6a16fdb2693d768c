"""Noise in whole numbers: the discrete Gaussian, exactly; what to draw it from; what shares of it add up to."""

import math
import os

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError

LARGEST_SIGMA = 2.0**50
_CHUNK = 1 << 16


def discrete_gaussian(sigma: float, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw whole numbers x with probability in proportion to exp(-x^2 / (2 sigma^2)).

    Canonne, Kamath, Steinke 2020, *The Discrete Gaussian for Differential Privacy*, Algorithms 1 to 3: a draw
    from the discrete Laplace, which is u + t v with a sign, accepted with the probability that turns it into
    the Gaussian. Whole numbers are drawn and added as whole numbers. Floating point comes in only as the
    probability to accept, right to about 1e-15 of itself. No normal variable is rounded.

    Args:
        sigma: The parameter, in units; from 1 on the standard deviation, to 6 digits. 0 gives zeros.
        rng: :func:`os_generator` where privacy is meant in earnest; a derived one in a simulation.

    Returns:
        int64 (count,).

    Raises:
        ConfigError: ``sigma`` is negative, not a number, or above 2^50.

    >>> discrete_gaussian(2.0, 5, np.random.default_rng(0)).dtype
    dtype('int64')
    """
    if not 0 <= sigma <= LARGEST_SIGMA:
        raise ConfigError(f"noise of standard deviation {sigma} units: it must lie between 0 and 2^50")
    out = np.zeros(count, dtype=np.int64)
    done = 0 if sigma else count
    while done < count:
        drawn = _proposals(sigma, min(_CHUNK, 3 * (count - done) + 16), rng)[: count - done]
        out[done : done + len(drawn)] = drawn
        done += len(drawn)
    return out


def _proposals(sigma: float, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return those of ``count`` draws from the discrete Laplace that are accepted, about half of them."""
    t = math.floor(sigma) + 1
    u = rng.integers(0, 2 * t, count)
    negative = (u & 1).astype(bool)
    u >>= 1
    # The whole part of an exponential variable is v or more with probability exp(-v): a geometric one.
    x = rng.standard_exponential(count).astype(np.int64)
    x *= t
    x += u
    # Accept u with exp(-u/t), and x with exp(-(x - sigma^2/t)^2 / (2 sigma^2)): an exponential variable is
    # above a with probability exp(-a), to full precision where that is small too, which a uniform one is not.
    with np.errstate(over="ignore"):  # infinite for the tiniest sigma: only zero is accepted
        against = x / sigma
        against -= sigma / t
        against *= against
    against *= 0.5
    against += u / t
    kept = rng.standard_exponential(count) > against
    kept &= ~negative | (x > 0)  # zero has one sign
    np.negative(x, out=x, where=negative)
    return x[kept]


def os_generator() -> np.random.Generator:
    """Return a generator keyed from the operating system, for noise that must stay unknown.

    It is Philox-4x64-10 (Salmon et al. 2011), a block cipher on a counter, cut down in rounds: 128 bits of
    key, and 256 bits for where the counter begins. We know of no way from its output to its key, but it was made
    for simulation, and no one vouches for it as a cipher. PCG64, NumPy's default, is not fit: its
    state can be computed from its output (Bouillaguet, Martinez, Sauvage 2020).
    """
    key, counter = (int.from_bytes(os.urandom(size), "little") for size in (16, 32))
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def noise_bound(sigma: float, summands: int, count: int, failure: float = 2.0**-40) -> int:
    """Return what none of ``count`` sums of ``summands`` draws exceeds, but with probability ``failure``.

    The discrete Gaussian is sub-Gaussian: P(|sum| >= x) <= 2 exp(-x^2 / (2 n sigma^2)) (Canonne, Kamath,
    Steinke 2020, Corollary 17). It is the room that the noise needs in the field.

    >>> noise_bound(1000.0, 10, 1_000_000)
    29064
    """
    return math.ceil(sigma * math.sqrt(2 * summands * math.log(2 * count / failure)))


def local_sigma(
    noise_multiplier: float, clip_units: float, least: int, dimension: int = 0, *, stochastic: bool = False
) -> float:
    """Return the standard deviation, in units, that each client adds so that ``least`` of them suffice.

    Args:
        noise_multiplier: What the sum of ``least`` updates must have.
        clip_units: The clip norm C in units of the integer encoding.
        least: The fewest honest clients whose sum is ever opened: the survivors below which a round aborts,
            less those who may be in league with the server and know their own noise.
        dimension: Number of values; if given, the noise also covers what rounding adds to C.
        stochastic: Values are rounded up or down at random, not to nearest.

    Raises:
        ConfigError: A number out of its range.

    >>> local_sigma(1.0, 1000.0, 100)
    100.0
    """
    if not (0 <= noise_multiplier < math.inf and 0 < clip_units < math.inf and least >= 1 and dimension >= 0):
        raise ConfigError(
            f"noise multiplier {noise_multiplier}, clip norm {clip_units} units, {least} clients: "
            "the first must be 0 or more, the others above 0"
        )
    return noise_multiplier * _rounded_norm(clip_units, dimension, stochastic) / math.sqrt(least)


def effective_multiplier(
    sigma_i: float, survivors: int, clip_units: float, dimension: int, *, stochastic: bool = False
) -> float:
    """Return the noise multiplier of the Gaussian that is as private as the survivors' summed noise.

    Kairouz, Liu, Steinke 2021, *The Distributed Discrete Gaussian Mechanism*, Theorem 1: the sum of n discrete
    Gaussians hides a whole-number shift of norm D with (1/2) e^2-concentrated privacy for

        e = D / (sqrt(n) sigma) + tau sqrt(d),   tau = 10 sum_(k=1)^(n-1) exp(-2 pi^2 sigma^2 k / (k + 1)),

    and the Gaussian of multiplier z has e = 1 / z. D is the clip norm and what rounding can add to it.
    For a shift of 2 D this bound is at most twice as large, so that halving z, as "fixed" does, is safe.

    Args:
        sigma_i: What each client added, in units, 1/2 or more; 0 is no noise.
        survivors: Number of honest clients in the sum.
        clip_units: The clip norm in units, before rounding.
        dimension: Number of values in the update.
        stochastic: Values were rounded up or down at random (norm + sqrt(d)), not to nearest (+ sqrt(d) / 2).

    Raises:
        ConfigError: A number out of its range.

    >>> round(effective_multiplier(100.0, 100, 1000.0, 1_000_000), 3)  # rounding made 1000 units 1500
    0.667
    """
    _check_sum(sigma_i, survivors, dimension)
    if not 0 < clip_units < math.inf:
        raise ConfigError(f"a clip norm of {clip_units} units: it must be above 0")
    if sigma_i == 0:
        return 0.0
    shift = _rounded_norm(clip_units, dimension, stochastic)
    return 1 / (shift / (math.sqrt(survivors) * sigma_i) + _tau(sigma_i, survivors) * math.sqrt(dimension))


def sum_distance(sigma_i: float, survivors: int, dimension: int) -> float:
    """Return how far summed discrete Gaussians are from one: the largest |log ratio| of their probabilities.

    At most tau / 2 a value, by Poisson summation: adding the (k+1)-th to k puts at most
    5 exp(-2 pi^2 sigma^2 k / (k + 1)) between them, which is where the tau of Kairouz, Liu, Steinke 2021 comes
    from. 0 for one client; nothing to speak of from sigma_i = 3 on. With it
    :func:`fednlp.privacy.accountant.epsilon` holds for sampled cohorts too.

    Args:
        sigma_i: What each client adds, in units, 1/2 or more; 0 for none.
        survivors: Number of honest clients in the sum.
        dimension: Number of values in the update.

    Raises:
        ConfigError: A number out of its range.

    >>> sum_distance(3.0, 100, 10**9) < 1e-28
    True
    """
    _check_sum(sigma_i, survivors, dimension)
    return _tau(sigma_i, survivors) * dimension / 2 if sigma_i else 0.0


def _tau(sigma: float, summands: int) -> float:
    share = np.arange(1, summands) / np.arange(2, summands + 1)
    return float(10 * np.exp(-2 * (math.pi * sigma) ** 2 * share).sum())


def _rounded_norm(clip_units: float, dimension: int, stochastic: bool) -> float:
    return clip_units + math.sqrt(dimension) * (1.0 if stochastic else 0.5)


def _check_sum(sigma: float, survivors: int, dimension: int) -> None:
    if survivors < 1 or dimension < 1:
        raise ConfigError(
            f"{survivors} clients' noise in {dimension} values: there must be one of each at least"
        )
    if not (sigma == 0 or 0.5 <= sigma < math.inf):
        raise ConfigError(
            f"noise of {sigma} units a client: the bound holds from half a unit on; encode with more bits"
        )
