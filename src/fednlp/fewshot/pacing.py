"""Pacing: the frequency of labelling, the number of labelling clients, and the number of labels.

A pace <f, n, k> has n clients label their texts every f rounds, and at the g-th labelling each gives pseudo
labels to the g k percent of its candidates of which the model is surest (FeS, Cai et al. 2023, section 3.1).
Pure functions of numbers: nothing here draws, trains or reads a clock.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError

_DIGITS = 9
"""Decimals of a percentage that count: 3 times 0.1 is 0.3."""


@dataclass(frozen=True)
class Pace:
    """A pace of the curriculum (FeS, section 3.1).

    Attributes:
        f: Number of rounds from one labelling to the next.
        n: Number of clients that label.
        k: Percentage points of a client's candidates by which each labelling exceeds the one before.

    Raises:
        ConfigError: f or n is no whole number from 1, or k is not above 0 and at most 100.
    """

    f: int
    n: int
    k: int | float

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        _require_counts(f=self.f, n=self.n)
        if isinstance(self.k, bool) or not isinstance(self.k, int | float) or not 0 < self.k <= 100:
            raise ConfigError(f"k = {self.k!r:.80}: give a percentage above 0 and at most 100, such as k = 1")

    @property
    def numbers(self) -> tuple[int, int, int | float]:
        """f, n and k."""
        return self.f, self.n, self.k


@dataclass(frozen=True)
class FixedPacing:
    """Static pacing: a client gets as many pseudo labels more at each of its labellings (FedFSL; FeS, section 4.1).

    Attributes:
        per_client: Number of pseudo labels that one labelling adds to a client's.
        f: Number of rounds from one labelling to the next.
        n: Number of clients that label.

    Raises:
        ConfigError: A number is no whole number from 1.
    """

    per_client: int = 100
    f: int = 1
    n: int = 5

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        _require_counts(per_client=self.per_client, f=self.f, n=self.n)


def is_labelling_round(pace: Pace | FixedPacing, round_number: int, first_round: int) -> bool:
    """Return whether clients label in a round: in the first round of a pace, and every f rounds from there.

    Args:
        round_number: The round, counted as ``first_round`` is.
        first_round: The first round with this pace.

    >>> [r for r in range(1, 12) if is_labelling_round(Pace(f=4, n=2, k=1), r, first_round=2)]
    [2, 6, 10]
    """
    return round_number >= first_round and (round_number - first_round) % pace.f == 0


def num_labellings(pace: Pace | FixedPacing, rounds: int) -> int:
    """Return the number of labelling rounds among the first rounds of a pace.

    >>> [num_labellings(Pace(f=4, n=2, k=1), rounds) for rounds in (0, 1, 4, 5)]
    [0, 1, 1, 2]
    """
    return -(-rounds // pace.f)


def candidate_percentage(pace: Pace, labelling: int, reached: float = 0.0) -> float:
    """Return the percentage of a client's candidates that get a pseudo label at the g-th labelling of a pace.

    Args:
        labelling: g, counted from 1 since the pace began; 0 gives what was reached before.
        reached: The percentage that the paces before this one had reached. A change of pace changes the speed of the
            curriculum from there on, and never reduces the percentage.

    >>> candidate_percentage(Pace(5, 2, 1), 3), candidate_percentage(Pace(1, 1, 30), 4)
    (3.0, 100.0)
    >>> candidate_percentage(Pace(1, 4, 2), 3, reached=3.0)
    9.0
    """
    return min(100.0, round(reached + labelling * pace.k, _DIGITS))


@dataclass(frozen=True)
class LabelQuota:
    """How many of its texts each client gives a pseudo label at a labelling.

    Attributes:
        percentage: Of the client's candidates, above 0 and at most 100.
        most: Maximum number of labels; None for no maximum.
    """

    percentage: float
    most: int | None = None

    def beyond(self, labels: int) -> "LabelQuota":
        """Return the quota of a client that has pseudo labels already, to whose number a maximum is added.

        Static pacing adds ``per_client`` labels at each labelling of a client; the earlier ones are given anew.

        >>> LabelQuota(100.0, 20).beyond(40).of(500), LabelQuota(3.0).beyond(40).of(500)
        (60, 15)
        """
        return self if self.most is None else LabelQuota(self.percentage, self.most + labels)

    def of(self, candidates: int) -> int:
        """Return the number of pseudo labels of a client, rounded up: with candidates it gets at least one.

        Args:
            candidates: The client's texts that may be given a pseudo label.
        """
        labels = rounded_up(self.percentage * candidates / 100)
        return labels if self.most is None else min(self.most, labels)


def label_quota(pace: Pace | FixedPacing, labelling: int, reached: float = 0.0) -> LabelQuota:
    """Return how many of its texts each client gives a pseudo label at the g-th labelling.

    Args:
        pace: A :class:`Pace`, for a percentage of the candidates; or :class:`FixedPacing`, for a fixed number, at most
            all candidates.
        labelling: g, counted from 1 since the pace began.
        reached: The percentage reached before, as in :func:`candidate_percentage`.

    Raises:
        ConfigError: The labelling is below 1.

    >>> [label_quota(Pace(5, 2, 1), g).of(1000) for g in (1, 2, 3, 200)]
    [10, 20, 30, 1000]
    >>> label_quota(Pace(1, 1, 1), 1).of(20)
    1
    >>> label_quota(FixedPacing(), 7).of(350), label_quota(FixedPacing(), 7).of(35)
    (100, 35)
    """
    if labelling < 1:
        raise ConfigError(f"labelling = {labelling!r:.80}: labellings are counted from 1")
    if isinstance(pace, FixedPacing):
        return LabelQuota(100.0, pace.per_client)
    return LabelQuota(candidate_percentage(pace, labelling, reached))


def rounded_up(amount: float) -> int:
    """Return an amount rounded up to a whole number, without the error of floating point.

    >>> 0.07 * 100 > 7, rounded_up(0.07 * 100), rounded_up(7.01)
    (True, 7, 8)
    """
    return math.ceil(round(amount, _DIGITS))


def most_confident(
    confidences: NDArray[np.floating[Any]], count: int, labels: NDArray[np.integer[Any]] | None = None
) -> NDArray[np.int64]:
    """Return the indices of the highest confidences, the highest first; of equal ones the lower index first.

    Args:
        confidences: (texts,), the model's confidence in each text's label; NaN is never selected.
        count: Maximum number of indices, 0 or more.
        labels: (texts,), the predicted label of each text, for class-balanced selection: the same share of every label
            is selected, as nearly as ``count`` allows, against confirmation bias towards labels with high confidence.
            The order is then by a text's rank within its label, over the label's number of texts.

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


def cost(
    pace: Pace,
    inference_seconds: float,
    training_seconds: float,
    theta: float = 1.0,
    round_seconds: float = 0.0,
) -> float:
    """Return the cost of a round with a pace: C_infer + theta C_train, and what a round costs whatever its pace is.

    C_infer + theta C_train = l_i n / f + theta l_t k (FeS, equation 1).

    Args:
        inference_seconds: l_i: one client's labelling.
        training_seconds: l_t: one training batch.
        theta: Weight of training against labelling.
        round_seconds: A round without labelling; 0 in the paper's equation.

    >>> cost(Pace(f=2, n=4, k=1), 3.0, 2.0), cost(Pace(f=2, n=4, k=1), 3.0, 2.0, round_seconds=20.0)
    (8.0, 28.0)
    """
    return inference_seconds * pace.n / pace.f + theta * training_seconds * pace.k + round_seconds


def aug_e(
    gained_accuracy: float,
    pace: Pace,
    inference_seconds: float,
    training_seconds: float,
    theta: float = 1.0,
    eta: float = 1.0,
    round_seconds: float = 0.0,
) -> float:
    """Return the augment efficiency of a pace: accuracy gained for what it costs (FeS, equation 1).

        AUG-E(f, n, k) = eta delta_acc / (l_i n / f + theta l_t k + round_seconds)

    Args:
        gained_accuracy: delta_acc, between -1 and 1.
        pace: The pace under which it was gained.
        inference_seconds: l_i: one client's labelling.
        training_seconds: l_t: one training batch.
        theta: Weight of training against labelling.
        round_seconds: A round without labelling; 0 in the paper's equation.

    Raises:
        ConfigError: The pace would cost nothing, or a cost is not finite.

    >>> aug_e(0.25, Pace(f=2, n=4, k=1), inference_seconds=3.0, training_seconds=2.0)
    0.03125
    """
    price = cost(pace, inference_seconds, training_seconds, theta, round_seconds)
    if not 0 < price < math.inf:
        raise ConfigError(
            f"labelling in {inference_seconds:g} s and training in {training_seconds:g} s cost {price:g}: "
            "give seconds that are finite and not all 0, and theta above 0"
        )
    return eta * gained_accuracy / price


def _require_counts(**counts: object) -> None:
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise ConfigError(f"{name} = {count!r:.80}: give a whole number from 1")
