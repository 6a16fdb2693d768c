"""Pacing: how often, by how many clients and how much is labelled; and whose gold labels look wrong.

A pace <f, n, k> has n clients label their texts every f rounds, and at the g-th labelling each gives pseudo
labels to the g k percent of its candidates of which the model is surest (FeS, Cai et al. 2023, section 3.1).
Pure functions of numbers: nothing here draws, trains or reads a clock.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError, DataError

_DIGITS = 9
"""Decimals of a percentage that count: 3 times 0.1 is 0.3."""

_ROUNDING = 1e-6
"""By so much a text's probabilities may differ with the texts that are in the same batch."""


@dataclass(frozen=True)
class Pace:
    """A pace of the curriculum (FeS, section 3.1).

    Attributes:
        f: Rounds from one labelling to the next.
        n: Clients that label.
        k: Percent of a client's candidates that each labelling gives more than the one before.

    Raises:
        ConfigError: f or n is no whole number from 1, or k is not above 0 and at most 100.
    """

    f: int
    n: int
    k: int | float

    def __post_init__(self) -> None:
        """Refuse what is no pace."""
        _require_counts(f=self.f, n=self.n)
        if isinstance(self.k, bool) or not isinstance(self.k, int | float) or not 0 < self.k <= 100:
            raise ConfigError(f"k = {self.k!r:.80}: give a percentage above 0 and at most 100, such as k = 1")


@dataclass(frozen=True)
class Static:
    """Static pacing: as many pseudo labels at every labelling (the baseline FedFSL; FeS, section 4.1).

    Attributes:
        per_client: Pseudo labels of one client at one labelling.
        f: Rounds from one labelling to the next.
        n: Clients that label.

    Raises:
        ConfigError: A number is no whole number from 1.
    """

    per_client: int = 100
    f: int = 1
    n: int = 5

    def __post_init__(self) -> None:
        """Refuse what is no pace."""
        _require_counts(per_client=self.per_client, f=self.f, n=self.n)


def due(pace: Pace | Static, round_number: int, first_round: int) -> bool:
    """Say whether clients label in a round: in the first round of a pace, and every f rounds from there.

    Args:
        pace: The pace.
        round_number: The round, counted as ``first_round`` is.
        first_round: The first round with this pace.

    >>> [r for r in range(1, 12) if due(Pace(f=4, n=2, k=1), r, first_round=2)]
    [2, 6, 10]
    """
    return round_number >= first_round and (round_number - first_round) % pace.f == 0


def share(pace: Pace, labelling: int, reached: float = 0.0) -> float:
    """Return the percentage of a client's candidates that the g-th labelling of a pace takes.

    Args:
        pace: The pace.
        labelling: g, counted from 1 since the pace began; 0 gives what was reached before.
        reached: The percentage that the paces before this one had come to; a change of pace changes how fast
            the curriculum goes on from there, and never takes it back.

    >>> share(Pace(5, 2, 1), 3), share(Pace(1, 4, 2), 3, reached=3.0), share(Pace(1, 1, 30), 4)
    (3.0, 9.0, 100.0)
    """
    return min(100.0, round(reached + labelling * pace.k, _DIGITS))


def take(pace: Pace | Static, labelling: int, candidates: int, reached: float = 0.0) -> int:
    """Return how many pseudo labels a client gives at the g-th labelling.

    Args:
        pace: With a :class:`Pace` the share of the candidates, rounded up: a client that has run the model
            over its texts gives at least one. With :class:`Static` the number, at most all candidates.
        labelling: g, counted from 1 since the pace began.
        candidates: The client's texts that may be given a pseudo label.
        reached: As in :func:`share`.

    Raises:
        ConfigError: The labelling is below 1.

    >>> [take(Pace(5, 2, 1), g, 1000) for g in (1, 2, 3, 200)]
    [10, 20, 30, 1000]
    >>> take(Pace(1, 1, 1), 1, 20), take(Static(), 7, 350), take(Static(), 7, 35)
    (1, 100, 35)
    """
    if labelling < 1:
        raise ConfigError(f"labelling = {labelling!r:.80}: labellings are counted from 1")
    if isinstance(pace, Static):
        return min(pace.per_client, candidates)
    return rounded_up(share(pace, labelling, reached) * candidates / 100)


def rounded_up(amount: float) -> int:
    """Return the whole number that is not below an amount, but for what floating point adds to it.

    >>> 0.07 * 100 > 7, rounded_up(0.07 * 100), rounded_up(7.01)
    (True, 7, 8)
    """
    return math.ceil(round(amount, _DIGITS))


def most_confident(
    confidences: NDArray[np.floating[Any]], count: int, labels: NDArray[np.integer[Any]] | None = None
) -> NDArray[np.int64]:
    """Return the indices of the highest confidences, the highest first; of equal ones the lower index first.

    Args:
        confidences: One number a text; NaN is never taken.
        count: How many, at least 0; fewer come back where there are no more.
        labels: The likeliest label of each text. With them the same share of every label is taken, as nearly as
            ``count`` allows, and a label that the model is surer of than of others does not crowd these out. The
            order is then by the share of a text's label that is surer than it.

    >>> confidences = np.array([0.2, 0.9, np.nan, 0.9, 0.5])
    >>> most_confident(confidences, 3).tolist()
    [1, 3, 4]
    >>> most_confident(confidences, 2, labels=np.array([7, 0, 0, 0, 7])).tolist()
    [1, 4]
    """
    numbers = np.flatnonzero(~np.isnan(confidences))
    order = numbers[np.argsort(-confidences[numbers], kind="stable")]
    if labels is not None:
        passed = np.empty(len(order))
        for label in np.unique(labels[order]):
            own = np.flatnonzero(labels[order] == label)
            passed[own] = np.arange(len(own)) / len(own)
        order = order[np.argsort(passed, kind="stable")]
    return order[: max(count, 0)].astype(np.int64)


def cost(pace: Pace, inference_seconds: float, training_seconds: float, theta: float = 1.0) -> float:
    """Return the price of a pace: C_infer + theta C_train = l_i n / f + theta l_t k (FeS, equation 1).

    Args:
        pace: The pace.
        inference_seconds: l_i: one client's labelling.
        training_seconds: l_t: one training batch.
        theta: Weight of training against labelling.
    """
    return inference_seconds * pace.n / pace.f + theta * training_seconds * pace.k


def aug_e(
    gained_accuracy: float,
    pace: Pace,
    inference_seconds: float,
    training_seconds: float,
    theta: float = 1.0,
    eta: float = 1.0,
) -> float:
    """Return the augment efficiency of a pace: accuracy gained for what it costs (FeS, equation 1).

        AUG-E(f, n, k) = eta delta_acc / (l_i n / f + theta l_t k)

    Args:
        gained_accuracy: delta_acc, between -1 and 1.
        pace: The pace under which it was gained.
        inference_seconds: l_i: one client's labelling.
        training_seconds: l_t: one training batch.
        theta: Weight of training against labelling.
        eta: Scale of the result.

    Raises:
        ConfigError: The pace would cost nothing, or a cost is not finite.

    >>> aug_e(0.25, Pace(f=2, n=4, k=1), inference_seconds=3.0, training_seconds=2.0)
    0.03125
    """
    price = cost(pace, inference_seconds, training_seconds, theta)
    if not 0 < price < math.inf:
        raise ConfigError(
            f"labelling in {inference_seconds:g} s and training in {training_seconds:g} s cost {price:g}: "
            "give seconds that are finite and not all 0, and theta above 0"
        )
    return eta * gained_accuracy / price


def suspects(
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
    >>> suspects(np.array([3, 3, 3, 3, 7, 7]), np.array([0, 0, 1, 1, 1, 1]), sure)
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


def _require_counts(**counts: object) -> None:
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise ConfigError(f"{name} = {count!r:.80}: give a whole number from 1")
