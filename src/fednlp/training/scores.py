"""Scores from predictions: over all examples, and of each client's own."""

from collections.abc import Sequence

import numpy as np

from fednlp.data.features import Features
from fednlp.partition import Partition
from fednlp.tasks.base import Outcome, Task


def scored(task: Task, features: Features, outcomes: Sequence[Outcome]) -> dict[str, float] | None:
    """Return the task's metrics and the mean loss over outcomes; None where there are no examples."""
    numbers, predictions = joined(outcomes)
    if not len(numbers):
        return None
    weight = sum(outcome.weight for outcome in outcomes)
    loss = sum(outcome.loss for outcome in outcomes)
    return task.metrics(predictions, features, numbers) | {"loss": loss / weight if weight else 0.0}


def scores_by_owner(
    task: Task, features: Features, partition: Partition, outcomes: Sequence[Outcome]
) -> np.ndarray:
    """Return the score on each client's own test examples, float64; NaN where none of them was predicted."""
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


def joined(outcomes: Sequence[Outcome]) -> tuple[np.ndarray, list[object]]:
    """Return the examples of all outcomes, and their predictions."""
    numbers = np.array([n for outcome in outcomes for n in outcome.numbers], dtype=np.int64)
    return numbers, [p for outcome in outcomes for p in outcome.predictions]
