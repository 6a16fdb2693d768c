"""The order in which requests are begun, so that all workers are done at about the same time."""

import heapq
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

Request = TypeVar("Request")


def schedule(work: Sequence[float], workers: int) -> list[int]:
    """Return the order in which requests are to be begun by whichever worker is free.

    The requests are shared out, the longest first, each to the worker with the least work so far (Graham 1969, "Bounds
    on multiprocessing timing anomalies"). Then requests move or change places between the workers with most and least
    work while that helps. Workers that take requests in the order of their planned beginnings follow this plan; one
    that is slower than planned takes fewer.

    Args:
        work: How long each takes, from 0, in any unit; all 0 where nothing is known.

    Returns:
        The numbers of the requests; their own order for a single worker, or where nothing is known.

    >>> schedule([3, 3, 2, 2, 2], 2)
    [0, 2, 3, 1, 4]
    """
    if workers == 1 or not any(work):
        return list(range(len(work)))
    begun = [0.0] * len(work)
    for share in _balanced(_shared_out(work, workers), work):
        at = 0.0
        for number in sorted(share, key=lambda one: (-work[one], one)):
            begun[number] = at
            at += work[number]
    return sorted(range(len(work)), key=lambda number: (begun[number], -work[number], number))


def scheduled(requests: Sequence[Request], work: Callable[[Request], float], workers: int) -> list[int]:
    """Return the numbers of requests in the order in which they are to be begun, as :func:`schedule` has it.

    Args:
        requests: What is to be done.
        work: Predicts how long a request takes; a single worker does not ask.
    """
    if workers == 1:
        return list(range(len(requests)))
    return schedule([work(request) for request in requests], workers)


def _shared_out(work: Sequence[float], workers: int) -> list[list[int]]:
    """Give each request, the longest first, to the worker with the least work so far."""
    shares: list[list[int]] = [[] for _ in range(workers)]
    loads = [(0.0, worker) for worker in range(workers)]
    for number in sorted(range(len(work)), key=lambda one: (-work[one], one)):
        load, worker = loads[0]
        shares[worker].append(number)
        heapq.heapreplace(loads, (load + work[number], worker))
    return shares


def _balanced(shares: list[list[int]], work: Sequence[float]) -> list[list[int]]:
    """Let requests of the fullest share move to the emptiest, or change places with its own, while that helps."""
    for _ in work:
        loads = [sum(work[number] for number in share) for share in shares]
        fullest, emptiest = shares[int(np.argmax(loads))], shares[int(np.argmin(loads))]
        gap = max(loads) - min(loads)
        here, there, left = _best_exchange([work[n] for n in fullest], [work[n] for n in emptiest], gap)
        if not left < gap * (1 - 1e-9):
            break
        back = [emptiest.pop(there)] if there < len(emptiest) else []
        emptiest.append(fullest.pop(here))
        fullest += back
    return shares


def _best_exchange(given: list[float], got: list[float], gap: float) -> tuple[int, int, float]:
    """Return which request to give and which to get for it, and the gap that is left; in O(n log n) steps.

    The best to get for a request lies beside what would close the gap, among what is got in sorted order.

    Args:
        given: Work of the requests of the fullest share.
        got: Work of those of the emptiest; its length stands for nothing in return.
    """
    offered, returned = np.array(given), np.array([*got, 0.0])
    order = returned.argsort(kind="stable")
    above = returned[order].searchsorted(offered - gap / 2).clip(max=len(order) - 1)
    beside = order[np.stack([above, (above - 1).clip(min=0)])]
    moved = offered - returned[beside]
    left = np.where(moved > 0, np.abs(gap - 2 * moved), np.inf)
    which, here = np.unravel_index(int(left.argmin()), left.shape)
    return int(here), int(beside[which, here]), float(left[which, here])
