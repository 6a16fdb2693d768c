"""The order of requests: each once, and workers that follow it are done no later than Graham's rule has them."""

import heapq
import tracemalloc
from collections.abc import Sequence
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fednlp.runtime.schedule import _best_exchange, schedule

WORK = st.lists(st.integers(1, 1000).map(float), min_size=1, max_size=40)


def ends(work: Sequence[float], order: Sequence[int], workers: int) -> float:
    """Return when the last worker is done, if each takes the next request when it is free."""
    free = [0.0] * workers
    for number in order:
        heapq.heapreplace(free, free[0] + work[number])
    return max(free)


@given(WORK, st.integers(1, 6))
def test_no_later_than_the_longest_first(work: list[float], workers: int) -> None:
    order = schedule(work, workers)
    assert sorted(order) == list(range(len(work)))
    longest_first = sorted(range(len(work)), key=lambda number: -work[number])
    assert ends(work, order, workers) <= ends(work, longest_first, workers) * (1 + 1e-9)
    assert ends(work, order, workers) <= sum(work) / workers + max(work)


@given(st.lists(st.integers(1, 50).map(float), min_size=2, max_size=9))
def test_two_workers_are_within_a_sixth_of_the_best(work: list[float]) -> None:
    """As Graham proved of the longest first: 4/3 - 1/(3m) for m workers."""
    halves = (
        sum(one for one, mine in zip(work, which, strict=True) if mine)
        for which in product((0, 1), repeat=len(work))
    )
    best = min(max(half, sum(work) - half) for half in halves)
    assert ends(work, schedule(work, 2), 2) <= best * 7 / 6


def test_what_is_not_known_keeps_its_order() -> None:
    assert schedule([0.0] * 5, 2) == [0, 1, 2, 3, 4]
    assert schedule([1.0, 9.0, 3.0], 1) == [0, 1, 2]


def test_places_are_changed_where_that_helps() -> None:
    """The longest first ends at 7 here, and 3 + 3 against 2 + 2 + 2 ends at 6."""
    work = [3.0, 3.0, 2.0, 2.0, 2.0]
    assert ends(work, sorted(range(5), key=lambda number: -work[number]), 2) == 7.0
    assert ends(work, schedule(work, 2), 2) == 6.0


@given(WORK, WORK, st.floats(0.5, 2000))
def test_the_best_exchange_is_that_of_all_pairs(
    given_away: list[float], got: list[float], gap: float
) -> None:
    here, there, left = _best_exchange(given_away, got, gap)
    moved = given_away[here] - [*got, 0.0][there]
    assert moved > 0
    assert left == abs(gap - 2 * moved)
    assert left == min(abs(gap - 2 * (a - b)) for a, b in product(given_away, [*got, 0.0]) if a > b)


def test_memory_grows_with_the_requests_and_not_with_their_pairs() -> None:
    """An evaluation of each client's own model is a request for every client that there is."""
    draw = np.random.default_rng(0)
    work = draw.integers(1, 10**6, 3000).astype(float).tolist()
    tracemalloc.start()
    try:
        order = schedule(work, 2)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sorted(order) == list(range(3000))
    assert most < 3000 * 1000
    assert ends(work, order, 2) <= sum(work) / 2 + 1


@given(st.lists(st.sampled_from([0.0, 1.0, 7.0, 1e-300]), max_size=12), st.integers(1, 4))
def test_each_request_is_there_once_whatever_its_work(work: list[float], workers: int) -> None:
    assert sorted(schedule(work, workers)) == list(range(len(work)))
