"""Who shares keys with whom in SecAgg+: a random k-regular graph, and how small k may be.

n clients, of which at most c = floor(gamma n) collude and at most d = floor(delta n) drop out, neither
chosen with knowledge of the graph. They sit on a ring in random order, and each has the k nearest as
neighbours (a Harary graph). Every secret is shared among the neighbours, t of whom recover it. A client has
n - 1 others, k of them its neighbours; so the number of colluding neighbours of an honest client is
hypergeometric, k draws among n - 1 of which c are marked. Of a client that stays, the number of neighbours that
drop out is hypergeometric, k draws among n - 1 of which d are marked. The protocol is private with
probability at least 1 - 2^-sigma and finishes with probability at least 1 - 2^-eta when

    P(the honest clients that stay are not connected) < 2^-(sigma+1)
    n P(an honest client has t or more colluding neighbours) <= 2^-(sigma+1)
    n P(a client that stays has fewer than t neighbours that stay) <= 2^-eta

A malicious server knows the graph and chooses who drops out. The first bound does not hold against it, so t is
large enough that :func:`log_split` is at most 2^-(sigma+1) as well.

Source: J. Bell, K. Bonawitz, A. Gascon, T. Lepoint, M. Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead", CCS 2020. These probabilities are far below what 1 - cdf can tell
apart from zero; they are summed as logarithms.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError

FEWEST_CLIENTS = 3
"""Of a sum over two clients, each learns the other's update."""
FEWEST_HONEST = 2
"""Of a sum with one honest client, all others together learn its update."""
FEWEST_NEIGHBOURS = FEWEST_CLIENTS - 1
"""A sum in SecAgg+ is over a client and t of its neighbours at least."""


def fewest_in_sum(colluding: int) -> int:
    """Return how many clients a sum must be over at least, given how many of them collude.

    >>> fewest_in_sum(0), fewest_in_sum(5)
    (3, 7)
    """
    return max(FEWEST_CLIENTS, colluding + FEWEST_HONEST)


def choose(
    n: int, gamma: float, delta: float, malicious_server: bool = False, sigma: int = 40, eta: int = 20
) -> tuple[int, int]:
    """Return the fewest neighbours k, and the smallest threshold t for them, that meet the three bounds.

    Only even k are tried: a ring of any length has a k-regular graph then.

    Args:
        n: Clients that take part in the round.
        gamma: The largest fraction of them that colludes with the server, in [0, 1).
        delta: The largest fraction of them that drops out, in [0, 1).
        malicious_server: The server may tell different clients different lists of survivors. Honest neighbours then
            give either share, colluding ones both, k + (colluding neighbours) in all; 2t must be more. It may
            also choose who drops out. The graph is still taken to be drawn honestly.
        sigma: Privacy fails with probability at most 2^-sigma.
        eta: The round fails, though no more than delta dropped out, with probability at most 2^-eta.

    Raises:
        ConfigError: A value is out of range, or no graph but the complete one will do.

    >>> choose(1000, 0.1, 0.1)
    (48, 27)
    """
    colluding, dropouts = count(n, gamma, "max_colluding"), count(n, delta, "dropout")
    private = -(sigma + 1) * math.log(2)
    complete = -eta * math.log(2) - math.log(n)
    # With as many colluding as surviving others, no t tells them apart, whatever k is.
    degrees = range(2, n - 1, 2) if colluding + dropouts < n - 1 else range(0)
    for k in degrees:
        if log_disconnected(n, k, colluding + dropouts) >= private:
            continue
        colluding_tail = log_tail(n - 1, colluding, k)
        # t is at most k + 1: the tail there is zero.
        few = int(np.argmax(colluding_tail <= private - math.log(n)))
        if malicious_server:
            few = max(few, int(np.argmax(log_split(n, k, colluding) <= private)))
        t = max(FEWEST_NEIGHBOURS, -(-(k + few) // 2) if malicious_server else few)
        if t <= k and log_tail(n - 1, dropouts, k)[k - t + 1] <= complete:
            return k, t
    raise ConfigError(
        f"[secure] no graph of {n} clients withstands max_colluding = {gamma} and dropout = {delta}: "
        f'write protocol = "secagg", in which all are neighbours, or take more clients a round'
    )


def secagg_threshold(n: int, gamma: float, malicious_server: bool) -> int:
    """Return the smallest threshold of SecAgg, in which every client is a neighbour of every other.

    t > gamma n, so that the colluding clients cannot open a secret by themselves; or, where the server may tell
    different clients different things, t > (n + gamma n) / 2, so that not both secrets of a client open
    (K. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017,
    section 6). A sum is over t clients at least, so t is never below :func:`fewest_in_sum`; it may be above n.

    Raises:
        ConfigError: Fewer than two clients, or gamma is not in [0, 1).

    >>> secagg_threshold(10, 0.33, malicious_server=False), secagg_threshold(10, 0.33, malicious_server=True)
    (5, 7)
    """
    least = fewest_in_sum(count(n, gamma, "max_colluding"))
    return max(least, math.floor(n * (1 + _exactly(gamma)) / 2) + 1) if malicious_server else least


def neighbours(ids: Sequence[int], k: int, permutation: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return each client's neighbours in a random k-regular Harary graph: symmetric and connected.

    Client ``ids[permutation[j]]`` takes place j of a ring; neighbours are the k/2 nearest on either side, and
    for odd k the one opposite (Harary, "The maximum connectivity of a graph", 1962). It stays connected unless
    k clients go. For k >= n - 1 all are neighbours.

    Args:
        k: Neighbours of each; even, or the number of clients is.
        permutation: The numbers 0..n-1 in random order, not to be foreseen by a client.

    Raises:
        ConfigError: There is no such graph.

    >>> neighbours([10, 11, 12, 13, 14], 2, [0, 2, 4, 1, 3])[10]
    (12, 13)
    """
    n = len(ids)
    if len(set(ids)) != n:
        raise ConfigError("a graph of neighbours has a client twice: each id may stand there once")
    if sorted(permutation) != list(range(n)):
        raise ConfigError(f"a graph of {n} clients needs a permutation of the numbers 0 to {n - 1}")
    if k >= n - 1:
        return {one: tuple(sorted(other for other in ids if other != one)) for one in ids}
    if k < 2 or (k % 2 and n % 2):
        raise ConfigError(f"no connected graph gives {n} clients {k} neighbours each: take an even k from 2")
    steps = [sign * step for step in range(1, k // 2 + 1) for sign in (-1, 1)] + [n // 2] * (k % 2)
    ring = [ids[position] for position in permutation]
    graph = {one: tuple(sorted(ring[(j + step) % n] for step in steps)) for j, one in enumerate(ring)}
    return {one: graph[one] for one in ids}


def log_disconnected(n: int, k: int, removed: int) -> float:
    """Return the logarithm of a bound on P(what is left is not connected), k even.

    ``removed`` clients are chosen at random. The others fall apart only if two separate runs of k/2
    neighbouring places are empty: n (n-k-1) / 2 pairs of runs with somebody on either side between them, each
    empty with probability C(n-k, m-k) / C(n, m), m = ``removed``; so, by the union bound,

        P <= n (n-k-1) / 2 * C(n-k, m-k) / C(n, m), and P = 0 for m < k.
    """
    if removed < k or k >= n - 1:
        return -math.inf
    logs = _log_factorials(n)
    log_empty = logs[n - k] - logs[removed - k] - logs[n] + logs[removed]
    return math.log(n * (n - k - 1) / 2) + float(log_empty)


def log_split(n: int, k: int, colluding: int) -> NDArray[np.float64]:
    """Return logarithms of bounds on P(a malicious server can split the sum), for 2t - k = 0 .. k + 1, k even.

    It sees the graph and chooses who drops out: the clients in two separate runs of k/2 neighbouring places, so that
    the others are in two parts. The clients at either end of a part have k/2 neighbours there, and need t that answer:
    so t - k/2 colluding ones in each of the two runs, 2t - k of k in both. There are n (n-k-1) / 2 pairs of runs; by
    the union bound, with X the colluding ones in a pair,

        P <= n (n-k-1) / 2 * P(X >= 2t - k), X hypergeometric: k draws among n, of which ``colluding`` are marked.
    """
    return log_tail(n, colluding, k) + math.log(n * (n - k - 1) / 2)


def log_tail(population: int, marked: int, drawn: int) -> NDArray[np.float64]:
    """Return log P(X >= x) for x = 0 .. drawn + 1, X the marked ones among those drawn without replacement.

        P(X >= x) = sum over i >= x of C(marked, i) C(population - marked, drawn - i) / C(population, drawn)

    >>> np.exp(log_tail(4, 2, 2))  # P(X >= 2) = 1/6
    array([1.        , 0.83333333, 0.16666667, 0.        ])
    """
    logs = _log_factorials(population)
    rest = population - marked
    first, last = max(0, drawn - rest), min(drawn, marked)
    i = np.arange(first, last + 1)
    terms = logs[marked] - logs[i] - logs[marked - i]
    terms += logs[rest] - logs[drawn - i] - logs[rest - drawn + i]
    terms -= logs[population] - logs[drawn] - logs[population - drawn]
    tails = np.full(drawn + 2, -np.inf)
    tails[first : last + 1] = np.logaddexp.accumulate(terms[::-1])[::-1]  # the smallest first
    tails[: first + 1] = 0.0
    return tails


def count(n: int, part: float, name: str) -> int:
    """Return floor(part * n), the part taken as the decimal it is written as: 0.29 of 100 is 29.

    Raises:
        ConfigError: Fewer than two clients, or the part is not in [0, 1).
    """
    if n < 2:
        raise ConfigError(f"secure aggregation needs at least two clients a round, not {n}")
    if not 0 <= part < 1:
        raise ConfigError(f"[secure] {name} = {part}: a part of the clients, from 0 to below 1")
    return math.floor(n * _exactly(part))


def _exactly(part: float) -> Fraction:
    """Return a number as the fraction it is written as: 1/10 for 0.1."""
    return Fraction(str(float(part)))


@lru_cache(maxsize=4)
def _log_factorials(n: int) -> NDArray[np.float64]:
    """Return log 0! .. log n!."""
    from scipy.special import gammaln

    table = np.asarray(gammaln(np.arange(1.0, n + 2.0)), dtype=np.float64)
    table.flags.writeable = False
    return table
