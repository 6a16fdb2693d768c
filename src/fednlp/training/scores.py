"""Scores from predictions: over all examples, and of each client's own."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fednlp.data.features import Features
from fednlp.partition import Partition
from fednlp.tasks.base import Predictions, Task

Scores = dict[str, float | None]
"""Values by metric; None where the examples do not define one, since JSON knows no NaN."""


def scored(task: Task, features: Features, outcomes: Sequence[Predictions]) -> Scores | None:
    """Return the task's metrics and the mean loss over outcomes; None where there are no examples."""
    numbers, predictions = joined(outcomes)
    if not len(numbers):
        return None
    return defined(task.metrics(predictions, features, numbers)) | {"loss": mean_loss(outcomes)}


def defined(metrics: Mapping[str, float]) -> Scores:
    """Return metrics with None for NaN.

    >>> defined({"accuracy": 0.5, "mcc": math.nan})
    {'accuracy': 0.5, 'mcc': None}
    """
    return {name: None if math.isnan(value) else value for name, value in metrics.items()}


def mean_loss(outcomes: Sequence[Predictions]) -> float | None:
    """Return the mean loss over outcomes; None where nothing was to be predicted."""
    weight = sum(outcome.weight for outcome in outcomes)
    return sum(outcome.loss for outcome in outcomes) / weight if weight else None


def mean_scores(found: Sequence[Scores]) -> Scores:
    """Return the mean of each metric over those evaluations that define it.

    >>> mean_scores([{"pearson": 0.5, "mse": 1.0}, {"pearson": None, "mse": 2.0}])
    {'pearson': 0.5, 'mse': 1.5}
    """
    values = {key: [value for one in found if (value := one[key]) is not None] for key in found[0]}
    return {key: float(np.mean(some)) if some else None for key, some in values.items()}


def scores_by_owner(
    task: Task, features: Features, partition: Partition, outcomes: Sequence[Predictions]
) -> np.ndarray:
    """Return the score on each client's own test examples, float64; NaN where these do not define one."""
    numbers, predictions = joined(outcomes)
    statistics = task.statistics(predictions, features, numbers)
    places = np.full(len(features), -1, dtype=np.int64)
    places[numbers] = np.arange(len(numbers))
    sizes = np.diff(partition.test_offsets)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    at = places[partition.test_indices]
    owners, own = owners[at >= 0], statistics[at[at >= 0]]
    columns = [np.bincount(owners, weights=column, minlength=len(sizes)) for column in own.T]
    predicted = np.bincount(owners, minlength=len(sizes)) > 0
    return np.where(predicted, task.score(np.stack(columns, axis=-1)), np.nan)


def joined(outcomes: Sequence[Predictions]) -> tuple[np.ndarray, list[object]]:
    """Return the examples of all outcomes, and their predictions."""
    numbers = np.array([n for outcome in outcomes for n in outcome.indices], dtype=np.int64)
    return numbers, [p for outcome in outcomes for p in outcome.predictions]
