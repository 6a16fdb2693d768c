"""Clients whose gold labels look wrong to the global model."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import DataError

_ROUNDING = 1e-6
"""By so much a text's probabilities may differ with the texts that are in the same batch."""


def find_noisy_clients(
    clients: NDArray[np.integer[Any]],
    labels: NDArray[np.integer[Any]],
    probabilities: NDArray[np.floating[Any]],
    least: int = 2,
    more_than: float = 0.5,
    chance: float = 0.05,
) -> NDArray[np.int64]:
    """Return the clients whose gold labels look wrong, by what the global model is sure of.

    The rule: a text counts as surely of class j if the model gives j at least t_j, the mean probability of j
    over all gold texts that are labelled j, or a millionth less; of several such classes, the likeliest. A class
    without any gold label is never sure. Of a client's texts that are surely of some class, at least ``least``,
    let d of m be surely of another class than their label. The client is suspected if d / m is above
    ``more_than`` and if d or more of m would happen with probability ``chance`` at most, were the client as the
    others: each text in disagreement with the median of their shares d / m.

    The thresholds are those of confident learning (Northcutt, Jiang and Chuang 2021, "Confident Learning:
    Estimating Uncertainty in Dataset Labels", JAIR 70): they fit any model, however sure it is of itself.

    Args:
        clients: Whose text it is, one number a gold text; of all clients together.
        labels: Its gold label, a class number.
        probabilities: What the model gives each class, (texts, classes). Rows with NaN say nothing.
        least: Fewer sure texts than this are no evidence.
        more_than: The share, from 0 to 1.
        chance: What a weak model, which disagrees with everybody, must not exceed.

    Returns:
        Their numbers, each once, rising.

    Raises:
        DataError: The three are not of one length, or a label is no class.

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
    """Return which texts are surely of another class than their label, and which are surely of any."""
    said = ~np.isnan(probabilities).any(axis=1)
    given, count = labels[said], probabilities.shape[1]
    numbers = np.bincount(given, minlength=count)
    sums = np.bincount(given, weights=probabilities[said, given], minlength=count)
    thresholds = np.divide(sums, numbers, out=np.full(count, np.inf), where=numbers > 0)
    reached = said[:, None] & (probabilities >= thresholds - _ROUNDING)
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
