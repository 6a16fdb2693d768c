"""The random draws behind partitions: Dirichlet shares, sizes, and a low-discrepancy order."""

import math

import numpy as np
from numpy.typing import ArrayLike

from fednlp.errors import PartitionError
from fednlp.formatting.units import plural
from fednlp.partition.index import FloatArray, IntArray

# Beyond this the draw equals its mean to far more than the number of examples could show.
_LARGEST_CONCENTRATION = 1e12
_GOLDEN = (math.sqrt(5) - 1) / 2


def dirichlet(rng: np.random.Generator, concentration: float, prior: ArrayLike, rows: int) -> FloatArray:
    """Draw rows from Dir(concentration * prior), without under- or overflow at any concentration.

    Works with logarithms: log Gamma(a) has the law of log Gamma(a + 1) + log(U) / a (Marsaglia and Tsang,
    "A simple method for generating gamma variables", 2000, section 6).

    Args:
        concentration: Above 0; near 0 each row is one category, far above 1 each row is the prior.
        prior: Positive shares (K), sum 1.
        rows: Number of rows.

    Returns:
        Shares (rows, K); each row sums to 1.

    >>> dirichlet(np.random.default_rng(0), 1e-4, [0.5, 0.5], 3).max(axis=1).tolist()
    [1.0, 1.0, 1.0]
    """
    shares = np.asarray(prior, dtype=np.float64)
    scale = min(concentration, _LARGEST_CONCENTRATION)
    size = (rows, len(shares))
    # Everything times the concentration, so that dividing by a tiny one comes last, when the largest is 0.
    logs = np.log(rng.standard_gamma(np.broadcast_to(scale * shares + 1, size)))
    logs *= scale
    logs += np.log1p(-rng.random(size)) / shares
    logs -= logs.max(axis=1, keepdims=True)
    with np.errstate(over="ignore", under="ignore"):
        logs /= scale
        np.exp(logs, out=logs)
        logs /= logs.sum(axis=1, keepdims=True)
    return logs


def largest_remainder(shares: ArrayLike, total: int) -> IntArray:
    """Return integers in proportion to the shares, with the given sum.

    Whole shares are divided exactly: of equal remainders the first is rounded up.

    Args:
        shares: 0 or more.
        total: The sum, 0 or more.

    Returns:
        The integers; all 0 if all shares are.

    >>> largest_remainder([0.5, 0.3, 0.2], 9).tolist()
    [4, 3, 2]
    >>> largest_remainder([2, 1, 1, 0], 5).tolist()
    [3, 1, 1, 0]
    """
    weights = np.asarray(shares)
    whole: IntArray = np.zeros(weights.shape, dtype=np.int64)
    if not weights.any():
        return whole
    if np.issubdtype(weights.dtype, np.integer):
        whole[:], rest = np.divmod(total * weights.astype(np.int64), int(weights.sum()))
    else:
        weights = weights.astype(np.float64)
        exact = weights / weights.sum() * total
        whole[:] = np.floor(exact)
        rest = exact - whole
    whole[np.argsort(-rest, kind="stable")[: total - int(whole.sum())]] += 1
    return whole


def equal_sizes(rng: np.random.Generator, examples: int, clients: int) -> IntArray:
    """Return sizes that differ by at most one; the clients that get one more are drawn.

    Args:
        examples: Number of examples.
        clients: Number of clients.

    Raises:
        PartitionError: There are more clients than examples.
    """
    _check_clients(examples, clients)
    sizes = np.full(clients, examples // clients, dtype=np.int64)
    sizes[rng.permutation(clients)[: examples % clients]] += 1
    return sizes


def skewed_sizes(rng: np.random.Generator, examples: int, clients: int, beta: float) -> IntArray:
    """Return sizes in proportion to z ~ Dir_C(beta), each at least 1, by largest remainder.

    Args:
        examples: Number of examples.
        beta: The concentration of every client's share, above 0; small is uneven.

    Raises:
        PartitionError: There are more clients than examples.
    """
    _check_clients(examples, clients)
    shares = dirichlet(rng, beta * clients, np.full(clients, 1 / clients), 1)[0]
    sizes = np.ones(clients, dtype=np.int64)
    free = np.arange(clients)
    # Whose share is below one example gets one; that leaves less for the others, so look again.
    while len(free):
        left = examples - (clients - len(free))
        enough = shares[free] / shares[free].sum() * left >= 1
        if enough.all():
            sizes[free] = largest_remainder(shares[free], left)
            break
        free = free[enough]
    return sizes


def _check_clients(examples: int, clients: int) -> None:
    """Check that there are from 1 to `examples` clients.

    Raises:
        PartitionError: There are fewer or more.
    """
    if clients < 1:
        raise PartitionError(f"partition.clients = {clients}: there must be at least 1")
    if clients > examples:
        raise PartitionError(
            f"{plural(clients, 'client')} cannot share {plural(examples, 'training example')}: say at most "
            f"partition.clients = {examples}"
        )


def low_discrepancy_order(rng: np.random.Generator, count: int) -> IntArray:
    """Return an order of 0 to count-1 in which every range of numbers is spread evenly over the positions.

    The order of the fractional parts of i * golden ratio, in which any stretch of numbers is spread evenly
    (Knuth, "The Art of Computer Programming", volume 3, section 6.4), begun at a random position, so that
    every number has the same chance of every position.

    >>> sorted(low_discrepancy_order(np.random.default_rng(1), 8).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    order = np.argsort(np.arange(count) * _GOLDEN % 1.0, kind="stable")
    return np.roll(order, rng.integers(count))
