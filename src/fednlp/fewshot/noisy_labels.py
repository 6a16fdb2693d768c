"""Detects clients whose gold labels contradict the global model."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import DataError

_ROUNDING = 1e-6
"""Tolerance for the differences of a text's probabilities between batches."""


def find_noisy_clients(
    clients: NDArray[np.integer[Any]],
    labels: NDArray[np.integer[Any]],
    probabilities: NDArray[np.floating[Any]],
    least: int = 2,
    more_than: float = 0.5,
    chance: float = 0.05,
) -> NDArray[np.int64]:
    """Return the clients whose gold labels contradict confident predictions of the global model.

    A prediction is confident in class j if the model's probability of j is at least t_j, the mean probability of j
    over all gold texts labelled j, less a millionth; of several such classes the likeliest counts. There are no
    confident predictions of a class without gold labels. Let m of a client's texts, at least ``least``, have confident
    predictions, and let d of these differ from the gold label. The client is returned if d / m is above ``more_than``,
    and if d or more of m has at most the probability ``chance`` for a client like the others: one in which each text
    disagrees with the median of the others' shares d / m.

    The thresholds are those of confident learning (Northcutt, Jiang and Chuang 2021, "Confident Learning:
    Estimating Uncertainty in Dataset Labels", JAIR 70), which adapt to any model's confidence.

    Args:
        clients: Integers (texts,), the client of each gold text, for all clients together.
        labels: Integers (texts,), the gold labels as class numbers.
        probabilities: (texts, classes), the model's probabilities, 0 to 1. Rows with NaN are ignored.
        least: Minimum number of confident predictions of a client.
        more_than: Threshold of the share d / m, 0 to 1.
        chance: Significance level, which keeps a weak model from accusing all clients.

    Returns:
        int64, the numbers of the clients in ascending order.

    Raises:
        DataError: The three arrays differ in length, or a label is not a class number.

    >>> sure = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.9, 0.1], [0.9, 0.1]])
    >>> find_noisy_clients(np.array([3, 3, 3, 3, 7, 7]), np.array([0, 0, 1, 1, 1, 1]), sure)
    array([7])
    """
    if not (probabilities.ndim == 2 and clients.shape == labels.shape == probabilities.shape[:1]):
        raise DataError(
            f"clients, labels and probabilities of shapes {clients.shape}, {labels.shape}, {probabilities.shape}: "
            "give one client, one label and one row of probabilities for every gold text"
        )
    texts, classes = probabilities.shape
    if texts and not (labels.min() >= 0 and labels.max() < classes):
        raise DataError(
            f"gold labels from {labels.min()} to {labels.max()}: there are {classes} classes, from 0"
        )
    disagrees, sure = _against_labels(labels, probabilities)
    names, who = np.unique(clients, return_inverse=True)
    m = np.bincount(who[sure], minlength=len(names))
    enough = m >= max(least, 1)
    names, m = names[enough], m[enough]
    d = np.bincount(who[disagrees], minlength=len(enough))[enough]
    shares = d / m
    usual = _medians_of_the_others(shares)
    unlikely = [
        client
        for client in np.flatnonzero(shares > more_than).tolist()
        if _at_least(int(d[client]), int(m[client]), float(usual[client])) <= chance
    ]
    found: NDArray[np.int64] = names[unlikely].astype(np.int64)
    return found


def _against_labels(
    labels: NDArray[np.integer[Any]], probabilities: NDArray[np.floating[Any]]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the texts with a confident prediction of another class than their label, and all with a confident one."""
    known = ~np.isnan(probabilities).any(axis=1)
    given, count = labels[known], probabilities.shape[1]
    numbers = np.bincount(given, minlength=count)
    sums = np.bincount(given, weights=probabilities[known, given], minlength=count)
    thresholds = np.divide(sums, numbers, out=np.full(count, np.inf), where=numbers > 0)
    reached = known[:, None] & (probabilities >= thresholds - _ROUNDING)
    likeliest = np.where(reached, probabilities, -np.inf).argmax(axis=1)
    sure = reached.any(axis=1)
    return sure & (likeliest != labels), sure


def _medians_of_the_others(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each number the median of all others; 0 where there is no other."""
    others = len(numbers) - 1
    if others < 1:
        return np.zeros(len(numbers))
    rising = np.sort(numbers)
    own = np.searchsorted(rising, numbers)
    lower, upper = (others - 1) // 2, others // 2
    medians: NDArray[np.float64] = (rising[lower + (own <= lower)] + rising[upper + (own <= upper)]) / 2
    return medians


def _at_least(d: int, m: int, probability: float) -> float:
    """Return the probability that d or more of m independent events happen, d from 1."""
    from scipy.special import bdtrc

    return float(bdtrc(d - 1, m, probability))
