"""A test set held out of one set of examples, by label."""

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import DataError
from fednlp.seeds import generator

Numbers = NDArray[np.int64]


def hold_out(
    labels: Numbers, num_labels: int, fraction: float, seed: int, purpose: str = "held-out"
) -> tuple[Numbers, Numbers]:
    """Split examples into training and test examples with the same shares of the labels.

    Each label gives ``fraction`` of its examples, rounded by the largest remainder so that the test set has
    ``fraction`` of all examples; of equal remainders the more frequent label is rounded up. Neither side is
    empty.

    Args:
        labels: Label ids, 0 to ``num_labels - 1``, one an example.
        num_labels: How many labels there are.
        fraction: Share of the test set, above 0 and below 1.
        purpose: What names its random stream.

    Returns:
        The numbers of the training examples and of the test examples, each in order.

    Raises:
        DataError: The fraction is not between 0 and 1, or there are fewer than two examples.

    >>> train, test = hold_out(np.array([0, 0, 0, 0, 1, 1, 1, 1]), 2, 0.5, seed=0)
    >>> np.bincount(np.array([0, 0, 0, 0, 1, 1, 1, 1])[test]).tolist()
    [2, 2]
    """
    if not 0 < fraction < 1:
        raise DataError(f"test_fraction is {fraction}: give a number above 0 and below 1, such as 0.2")
    if len(labels) < 2:
        raise DataError("a test set cannot be held out of one example: give more, or a test set by test_path")
    counts = np.bincount(labels, minlength=num_labels)
    quotas = _quotas(counts, fraction)
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(counts)
    random = generator(seed, purpose)
    chosen = np.zeros(len(labels), dtype=bool)
    for end, count, quota in zip(ends.tolist(), counts.tolist(), quotas.tolist(), strict=True):
        own = order[end - count : end]
        chosen[random.permutation(own)[:quota]] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def hold_out_labelled(
    labels: Numbers, num_labels: int, fraction: float, seed: int
) -> tuple[Numbers, Numbers]:
    """Split examples of which some have no label: the test examples are drawn among those with one.

    Args:
        labels: Label ids, one an example; -1 for none.
        num_labels: How many labels there are.
        fraction: Share of the examples with a label that the test set has, above 0 and below 1.

    Returns:
        The numbers of the training examples and of the test examples, each in order; no test examples where fewer than
        two have a label.

    >>> train, test = hold_out_labelled(np.array([-1, 0, -1, 0]), 1, 0.5, seed=0)
    >>> len(train), len(test)
    (3, 1)
    """
    labelled = np.flatnonzero(labels >= 0)
    if len(labelled) < 2:
        return np.arange(len(labels)), labelled[:0]
    _, held = hold_out(labels[labelled], num_labels, fraction, seed)
    return np.setdiff1d(np.arange(len(labels)), labelled[held]), labelled[held]


def _quotas(counts: Numbers, fraction: float) -> Numbers:
    total = int(counts.sum())
    size = min(max(int(fraction * total + 0.5), 1), total - 1)
    exact = counts * fraction
    quotas: Numbers = np.floor(exact).astype(np.int64)
    # Negated keys: largest remainder first, then the more frequent label, then the lower id.
    order = np.lexsort((np.arange(len(counts)), -counts, -(exact - quotas)))
    quotas[order[: size - int(quotas.sum())]] += 1
    return quotas
