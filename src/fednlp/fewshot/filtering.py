"""Representational filtering: selects the texts of a client that may get a pseudo label (FeS, section 3.2)."""

import math

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError
from fednlp.fewshot.neighbours import EXACT_UP_TO, nearest
from fednlp.fewshot.pacing import rounded_up
from fednlp.partition.index import FloatArray, IntArray, Partition

NEIGHBOURS = 150
RHO = 10.0
# A score is summed again below this share of the highest one when last summed; until then, rounding has moved
# it by far less than half of the other share.
_SMALL, _ROUNDING = 1e-4, 1e-8
# The next picks are looked for among the scores above this share of the highest, until none is left there.
_LEADING = 0.8
# Texts of which the worth is summed at once, for little memory.
_ROWS = 8192


def representative(
    embeddings: NDArray[np.float32],
    budget: int,
    k: int | None = None,
    rho: float = RHO,
    *,
    exact_up_to: int = EXACT_UP_TO,
    threads: int = 1,
) -> IntArray:
    """Pick texts that stand for many others and differ from each other.

    V(x) is the k nearest texts of x by cosine, without x, and E(u) = {x : u in V(x)}. The next pick is the u of
    the highest score, the sum over x in E(u) of rho^(-|V(x) and L|) with L the picks so far (FeS, section 3.2,
    equation 2; vote-k of Su et al., "Selective Annotation Makes Language Models Better Few-Shot Learners",
    2022); of equal scores, the lower index. FeS leaves k and rho open; its authors' code has 150 and 10. A
    smaller budget gives the beginning of a larger one.

    Args:
        embeddings: float32 (n, d), one row a text, finite; their lengths do not matter.
        budget: Number of texts to pick, 0 or more; n or more picks all.
        k: Number of neighbours, 1 or more; with k or fewer texts, V(x) is all the others and all scores are equal. By
            default 150 and at most a twentieth of the texts.
        rho: Base of the weights, above 1; the larger, the more the picks differ.
        exact_up_to: See :func:`~fednlp.fewshot.neighbours.nearest`.
        threads: Number of threads of the neighbour search; the picks do not depend on it.

    Returns:
        int64 (min(budget, n)): row numbers in the order of picking, each once.

    Raises:
        ConfigError: `budget`, `k` or `rho` is out of range.
        ModelError: An embedding is not finite.

    >>> texts = np.array([[9, 1], [9, 2], [9, 3], [1, 9], [2, 9], [3, 9]], dtype=np.float32)
    >>> representative(texts, budget=2, k=2).tolist()
    [0, 3]
    """
    if budget < 0:
        raise ConfigError(f"budget = {budget}: the number of texts to pick must be 0 or more")
    if k is None:
        k = max(1, min(NEIGHBOURS, len(embeddings) // 20))
    return pick(nearest(embeddings, k, exact_up_to=exact_up_to, threads=threads), budget, rho)


def filter_clients(
    partition: Partition,
    usable: NDArray[np.bool_],
    embeddings: NDArray[np.float32],
    fraction: float,
    k: int | None = None,
    rho: float = RHO,
) -> NDArray[np.bool_]:
    """Return the texts that remain where each client keeps a fraction of its own, the most representative ones.

    Args:
        partition: The clients' training examples.
        usable: bool, by example number: the texts to choose among.
        embeddings: float32 (texts, d), one row a usable text, by rising example number.
        fraction: Fraction of each client's usable texts to keep, above 0 and at most 1, rounded up.
        k: Number of neighbours, as for :func:`representative`.
        rho: Base of the weights, as for :func:`representative`.

    Returns:
        bool, by example number; False wherever `usable` is False.

    Raises:
        ConfigError: `k` or `rho` is out of range.
        ModelError: An embedding is not finite.
    """
    row = np.cumsum(usable) - 1
    left = np.zeros(len(usable), dtype=bool)
    for client in range(partition.num_clients):
        own = np.sort(partition.train(client))
        own = own[usable[own]]
        picks = representative(embeddings[row[own]], rounded_up(fraction * len(own)), k, rho)
        left[own[picks]] = True
    return left


def filter_at_random(
    partition: Partition, usable: NDArray[np.bool_], fraction: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Return the texts that remain where each client keeps a fraction of its own, drawn at random.

    The baseline of FeS (Figure 5b), which needs no embeddings.

    Args:
        partition: The clients' training examples.
        usable: bool, by example number: the texts to choose among.
        fraction: Fraction of each client's usable texts to keep, above 0 and at most 1, rounded up.

    Returns:
        bool, by example number; False wherever `usable` is False.
    """
    left = np.zeros(len(usable), dtype=bool)
    for client in range(partition.num_clients):
        own = np.sort(partition.train(client))
        own = own[usable[own]]
        left[rng.choice(own, rounded_up(fraction * len(own)), replace=False)] = True
    return left


def pick(neighbours: NDArray[np.int32], budget: int, rho: float) -> IntArray:
    """Return the picks of :func:`representative` for given neighbours.

    Scores are kept up to date by subtraction, and summed again when they have become small. Those that rounding
    could have put first are computed exactly, in sums that are rounded once, so that equal scores are equal.

    Args:
        neighbours: int32 (n, k), the V(x), in any order.
        budget: 0 or more.
        rho: Above 1.

    Raises:
        ConfigError: `rho` is out of range.
    """
    if not 1 < rho < math.inf:
        raise ConfigError(f"rho = {rho}: it must be a number above 1")
    texts, k = neighbours.shape
    offsets, near = _turned(neighbours)  # E(u) is near[offsets[u]:offsets[u + 1]]
    weights = np.array([rho**-taken for taken in range(k + 1)])
    taken, worth = np.zeros(texts, dtype=np.int64), np.full(texts, weights[0])
    exact = np.diff(offsets).astype(np.float64)
    stale = np.zeros(texts, dtype=bool)
    scores, summed = exact.copy(), exact.max(initial=0.0)
    picks = np.empty(min(budget, texts), dtype=np.int64)
    leading, bar = np.arange(texts), np.inf  # all texts of scores from the bar on: scores only fall
    for place in range(len(picks)):
        top = scores[leading].max()
        if top < max(_SMALL * summed, bar + _ROUNDING * summed):
            top = scores.max()
            if top < _SMALL * summed:
                scores = _summed(neighbours, worth)
                scores[picks[:place]] = -np.inf
                top = summed = scores.max()
            bar = _LEADING * top - _ROUNDING * summed
            leading = np.flatnonzero(scores >= bar)
        first = leading[scores[leading] >= top - _ROUNDING * summed]
        for text in first[stale[first]]:
            exact[text] = math.fsum(worth[near[offsets[text] : offsets[text + 1]]].tolist())
        stale[first] = False
        text = first[np.argmax(exact[first])]
        picks[place], scores[text] = text, -np.inf
        around = near[offsets[text] : offsets[text + 1]]
        before = worth[around]
        taken[around] += 1
        worth[around] = weights[taken[around]]
        touched = neighbours[around].ravel().astype(np.intp)
        stale[touched] = True
        np.subtract.at(scores, touched, np.repeat(before - worth[around], k))
    return picks


def _turned(neighbours: NDArray[np.int32]) -> tuple[IntArray, NDArray[np.int32]]:
    """Return the inverse of the neighbour lists: offsets (n + 1) and, text by text, the texts that it is near to."""
    from scipy.sparse import csr_array

    texts, k = neighbours.shape
    ones = np.ones(neighbours.size, dtype=np.int8)
    graph = csr_array((ones, neighbours.ravel(), np.arange(texts + 1) * k), shape=(texts, texts)).tocsc()
    return graph.indptr.astype(np.int64), graph.indices.astype(np.int32, copy=False)


def _summed(neighbours: NDArray[np.int32], worth: FloatArray) -> FloatArray:
    """Return every text's score: the worth of all x in whose neighbours it is."""
    texts, k = neighbours.shape
    sums = np.zeros(texts)
    for start in range(0, texts, _ROWS):
        rows = slice(start, start + _ROWS)
        sums += np.bincount(neighbours[rows].ravel(), np.repeat(worth[rows], k), minlength=texts)
    return sums
