"""Who shares keys with whom: the bounds against exact fractions, the parameters, and the graph."""

import math
import random
from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.errors import ConfigError
from fednlp.secure.graph import (
    choose,
    count,
    log_disconnected,
    log_split,
    log_tail,
    neighbours,
    secagg_threshold,
)

networkx = pytest.importorskip("networkx")

PARTS = st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.29, 0.33, 0.45])


def exact_tail(population: int, marked: int, drawn: int, least: int) -> Fraction:
    """Return P(X >= least) of the hypergeometric law."""
    ways = sum(
        comb(marked, i) * comb(population - marked, drawn - i) for i in range(max(least, 0), drawn + 1)
    )
    return Fraction(ways, comb(population, drawn))


def exact_choice(
    n: int, gamma: Fraction, delta: Fraction, sigma: int, eta: int, malicious_server: bool
) -> tuple[int, int] | None:
    """Return the smallest k, and the smallest t for it, by trying all in exact fractions."""
    colluding, dropouts = math.floor(gamma * n), math.floor(delta * n)
    gone = colluding + dropouts
    for k in range(2, n - 1, 2):
        apart = Fraction(n * (n - k - 1), 2) * Fraction(
            comb(n - k, gone - k) if gone >= k else 0, comb(n, gone)
        )
        for t in range(2, k + 1):
            few = exact_tail(n - 1, dropouts, k, k - t + 1)
            open_ = exact_tail(n - 1, colluding, k, 2 * t - k if malicious_server else t)
            pairs = Fraction(n * (n - k - 1), 2)
            if malicious_server and pairs * exact_tail(n, colluding, k, 2 * t - k) * 2 ** (sigma + 1) > 1:
                continue
            if apart * 2 ** (sigma + 1) < 1 and n * open_ * 2 ** (sigma + 1) <= 1 and n * few * 2**eta <= 1:
                return k, t
    return None


@pytest.mark.parametrize(
    ("n", "gamma", "delta", "k", "t"),
    [
        (10, 0.33, 0.33, 8, 4),
        (100, 0.05, 0.05, 12, 6),
        (100, 0.1, 0.1, 22, 11),
        (1000, 0.1, 0.1, 48, 27),
        (1000, 0.33, 0.33, 286, 150),
        (10000, 0.05, 0.05, 34, 20),
    ],
)
def test_the_known_choices_come_out(n: int, gamma: float, delta: float, k: int, t: int) -> None:
    assert choose(n, gamma, delta) == (k, t)


@pytest.mark.parametrize(
    ("n", "gamma", "delta", "k", "t"),
    [
        (100, 0.45, 0.45, 92, 46),
        (100, 0.33, 0.33, 68, 34),
        (10000, 0.33, 0.33, 422, 221),
        (1000, 0.05, 0.33, 72, 24),
        (100000, 0.05, 0.33, 96, 32),
        (10, 0.33, 0.05, 4, 4),
        (1000, 0.33, 0.05, 78, 60),
    ],
)
def test_choices_are_those_of_another_implementation(
    n: int, gamma: float, delta: float, k: int, t: int
) -> None:
    """The expected values in the tests of google/federated-compute, fcp/secagg/server."""
    assert choose(n, gamma, delta) == (k, t)


@pytest.mark.parametrize(
    ("n", "gamma", "delta", "theirs", "ours"),
    [
        (100, 0.3, 0.3, (92, 62), (92, 62)),
        (1000, 0.3, 0.3, (872, 584), (876, 587)),
        (10000, 0.05, 0.33, (746, 420), (788, 446)),
        (100, 0.33, 0.05, (42, 37), (44, 39)),
    ],
)
def test_against_a_malicious_server_choices_are_no_smaller_than_those_of_another_implementation(
    n: int, gamma: float, delta: float, theirs: tuple[int, int], ours: tuple[int, int]
) -> None:
    """It takes a server that lies about dropouts to have them drop out at random, and so needs fewer neighbours."""
    assert choose(n, gamma, delta, malicious_server=True) == ours
    assert ours >= theirs


def split_probability(n: int, k: int, t: int, colluding: int) -> Fraction:
    """Return the union bound on a split, with the exact law of the colluding in two runs of k/2 places."""
    half = k // 2
    ways = sum(
        comb(half, one) * comb(half, other) * comb(n - k, colluding - one - other)
        for one in range(t - half, half + 1)
        for other in range(t - half, half + 1)
        if one + other <= colluding
    )
    return Fraction(n * (n - k - 1) * ways, 2 * comb(n, colluding))


@pytest.mark.parametrize(
    ("n", "part", "old", "new"), [(300, 0.1, (66, 46), (70, 49)), (1000, 0.05, (52, 37), (54, 39))]
)
def test_a_malicious_server_that_chooses_who_drops_out_hardly_ever_splits_the_sum(
    n: int, part: float, old: tuple[int, int], new: tuple[int, int]
) -> None:
    """The numbers that withstand losses at random are not enough; those chosen are."""
    assert choose(n, part, part, malicious_server=True) == new
    assert split_probability(n, *old, count(n, part, "")) > Fraction(1, 2**40)
    assert split_probability(n, *new, count(n, part, "")) <= Fraction(1, 2**41)


@pytest.mark.parametrize(("n", "k", "colluding"), [(9, 2, 3), (9, 4, 4), (10, 4, 5), (10, 6, 6)])
def test_the_bound_on_a_split_holds(n: int, k: int, colluding: int) -> None:
    """Every way to place the colluding clients, and every part of the ring that the server could cut out."""
    half, bounds = k // 2, log_split(n, k, colluding)
    for t in range(half, k + 1):
        split = 0
        for chosen in combinations(range(n), colluding):
            found = [sum((place + step) % n in chosen for step in range(half)) for place in range(n)]
            split += any(
                min(found[place], found[(place + gap) % n]) >= t - half
                for place in range(n)
                for gap in range(half + 1, n - half)
            )
        assert split / comb(n, colluding) <= math.exp(bounds[2 * t - k]) * (1 + 1e-9)


@settings(max_examples=60)
@given(
    n=st.integers(4, 40),
    gamma=PARTS,
    delta=PARTS,
    sigma=st.integers(1, 40),
    eta=st.integers(1, 20),
    malicious_server=st.booleans(),
)
def test_the_choice_is_the_smallest_in_exact_fractions(
    n: int, gamma: float, delta: float, sigma: int, eta: int, malicious_server: bool
) -> None:
    exact = exact_choice(n, Fraction(str(gamma)), Fraction(str(delta)), sigma, eta, malicious_server)
    if exact is None:
        with pytest.raises(ConfigError, match='write protocol = "secagg"'):
            choose(n, gamma, delta, malicious_server, sigma, eta)
    else:
        assert choose(n, gamma, delta, malicious_server, sigma, eta) == exact


@given(n=st.integers(10, 3000), gamma=st.floats(0, 0.4), delta=st.floats(0, 0.3))
def test_against_a_malicious_server_no_two_secrets_of_a_client_open(
    n: int, gamma: float, delta: float
) -> None:
    try:
        k, t = choose(n, gamma, delta, malicious_server=True)
    except ConfigError:
        return
    both = exact_tail(n - 1, count(n, gamma, ""), k, 2 * t - k) if n < 500 else None
    assert k < 2 * t <= 2 * k
    assert both is None or n * both * 2**41 <= 1
    assert choose(n, gamma, delta)[0] <= k


@given(st.data(), st.integers(1, 80))
def test_tails_are_those_of_exact_fractions(data: st.DataObject, population: int) -> None:
    marked = data.draw(st.integers(0, population))
    drawn = data.draw(st.integers(0, population))
    tails = log_tail(population, marked, drawn)
    assert len(tails) == drawn + 2
    for least, tail in enumerate(tails):
        exact = exact_tail(population, marked, drawn, least)
        if exact == 0:
            assert tail == -math.inf
        else:
            assert tail == pytest.approx(
                float(math.log(exact.numerator) - math.log(exact.denominator)), abs=1e-9
            )


def test_tails_too_small_for_a_float_are_still_right() -> None:
    exact = exact_tail(9999, 500, 400, 300)
    expected = math.log2(exact.numerator) - math.log2(exact.denominator)
    assert expected < -1074  # as a float it is zero
    assert log_tail(9999, 500, 400)[300] / math.log(2) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("n", "k"), [(7, 2), (8, 2), (9, 4), (10, 4), (10, 6), (11, 4)])
def test_the_bound_on_falling_apart_holds(n: int, k: int) -> None:
    """Every way to remove m of n clients is tried."""
    graph = networkx.Graph(neighbours(range(n), k, range(n)))
    for removed in range(n - 1):
        apart = total = 0
        for gone in combinations(range(n), removed):
            left = graph.subgraph(set(range(n)) - set(gone))
            apart += not networkx.is_connected(left)
            total += 1
        bound = log_disconnected(n, k, removed)
        assert apart == 0 or math.log(apart / total) <= bound + 1e-9
        assert (bound == -math.inf) == (removed < k)
        if removed == k:  # the first that can tear it: no two pairs of runs at once
            assert math.log(apart / total) == pytest.approx(bound)


@pytest.mark.parametrize(("n", "k", "colluding"), [(7, 4, 3), (9, 2, 4), (10, 5, 3)])
def test_colluding_neighbours_follow_the_law_that_is_summed(n: int, k: int, colluding: int) -> None:
    near = set(neighbours(range(n), k, random.Random(3).sample(range(n), n))[0])
    counts = [len(near & set(chosen)) for chosen in combinations(range(1, n), colluding)]
    for least in range(k + 2):
        part = Fraction(sum(number >= least for number in counts), len(counts))
        assert part == exact_tail(n - 1, colluding, k, least)


def test_a_part_is_the_decimal_that_was_written() -> None:
    assert int(0.29 * 100) == 28
    assert count(100, 0.29, "dropout") == 29
    assert count(1000, np.float64(0.999), "dropout") == 999


@given(n=st.integers(2, 400), hundredths=st.integers(0, 99), malicious_server=st.booleans())
def test_secagg_has_the_smallest_safe_threshold(n: int, hundredths: int, malicious_server: bool) -> None:
    t = secagg_threshold(n, hundredths / 100, malicious_server)
    colluding = Fraction(hundredths * n, 100)
    least = (n + colluding) / 2 if malicious_server else colluding
    assert t > least
    assert t >= 3
    assert t - math.floor(colluding) >= 2
    assert t == 3 or t - 1 <= least or t - math.floor(colluding) == 2


@pytest.mark.parametrize(
    ("n", "gamma", "delta", "words"),
    [
        (1, 0.1, 0.1, "at least two clients"),
        (10, 1.0, 0.1, "max_colluding = 1.0"),
        (10, 0.1, -0.1, "dropout = -0.1"),
        (10, 0.1, math.nan, "dropout = nan"),
        (3, 0.1, 0.1, "no graph of 3 clients"),
        (1000000, 0.5, 0.5, "no graph of 1000000 clients"),
    ],
)
def test_what_cannot_be_is_refused(n: int, gamma: float, delta: float, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose(n, gamma, delta)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], int, list[int]]:
    ids = draw(st.lists(st.integers(0, 10**6), min_size=2, max_size=24, unique=True))
    n = len(ids)
    k = draw(st.integers(2, n + 2).filter(lambda k: k >= n - 1 or k % 2 == 0 or n % 2 == 0))
    return ids, k, draw(st.permutations(range(n)))


@settings(max_examples=60)
@given(graphs())
def test_a_graph_is_regular_symmetric_and_as_connected_as_can_be(
    drawn: tuple[list[int], int, list[int]],
) -> None:
    ids, k, permutation = drawn
    graph = neighbours(ids, k, permutation)
    degree = min(k, len(ids) - 1)
    assert list(graph) == ids
    for one, others in graph.items():
        assert one not in others
        assert list(others) == sorted(set(others))
        assert len(others) == degree
        assert all(one in graph[other] for other in others)
    assert networkx.node_connectivity(networkx.Graph(graph)) == degree


def test_the_permutation_says_who_sits_beside_whom() -> None:
    seated = [3, 0, 4, 1, 5, 2]
    graph = neighbours([10, 11, 12, 13, 14, 15], 2, seated)
    for j, position in enumerate(seated):
        assert set(graph[10 + position]) == {10 + seated[j - 1], 10 + seated[(j + 1) % 6]}
    assert neighbours(range(6), 3, range(6))[0] == (1, 3, 5)


@pytest.mark.parametrize(
    ("ids", "k", "permutation", "words"),
    [
        ([1, 2, 2], 2, [0, 1, 2], "twice"),
        ([1, 2, 3], 2, [0, 1, 1], "permutation"),
        ([1, 2, 3], 2, [0, 1], "permutation"),
        ([1, 2, 3, 4, 5], 3, [0, 1, 2, 3, 4], "5 clients 3 neighbours"),
        ([1, 2, 3, 4], 1, [0, 1, 2, 3], "4 clients 1 neighbours"),
        ([1, 2, 3, 4], 0, [0, 1, 2, 3], "4 clients 0 neighbours"),
    ],
)
def test_a_graph_that_cannot_be_is_refused(
    ids: list[int], k: int, permutation: list[int], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        neighbours(ids, k, permutation)
