"""Scores from predictions: over all examples, of each client's own, and from sums over the clients."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from fednlp.data.features import Features
from fednlp.errors import ConfigError, FednlpError
from fednlp.partition import Partition
from fednlp.tasks.base import Predictions, Task
from fednlp.tasks.intervals import of_examples
from fednlp.tasks.label_scores import defined_together
from fednlp.tasks.whole_sums import SummableTask, total_steps

Scores = dict[str, float | None]
"""Values by metric; None where the examples do not define one, since JSON knows no NaN."""
_COMMON = 3
"""Sums that all tasks have: the number of examples, their loss, and its weight."""


class NoSums(FednlpError):
    """There are no sums over clients' examples, or none that examples could have."""


def scored(task: Task, features: Features, outcomes: Sequence[Predictions]) -> Scores | None:
    """Return the task's metrics and the mean loss over outcomes; None where there are no examples."""
    numbers, predictions = joined(outcomes)
    if not len(numbers):
        return None
    return defined(task.metrics(predictions, features, numbers)) | {"loss": mean_loss(outcomes)}


def interval(task: Task, features: Features, outcomes: Sequence[Predictions]) -> dict[str, Any] | None:
    """Return the 95 % interval of the task's metric for other examples like these; None where there is none."""
    numbers, predictions = joined(outcomes)
    ends = of_examples(task.statistics(predictions, features, numbers), task.score) if len(numbers) else None
    if ends is None:
        return None
    return {"metric": task.metric, "low": ends[0], "high": ends[1], "examples": len(numbers)}


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


def require_summable(task: Task) -> SummableTask:
    """Return a task, having checked that its metrics are functions of sums over examples.

    Raises:
        ConfigError: They are not, or are not said to be.
    """
    if not isinstance(task, SummableTask) or not defined_together(task, "sums", "metrics"):
        raise ConfigError(
            f"evaluation.federated needs metrics that are functions of sums, and the task {task.name} has no methods "
            "num_sums, sums and metrics_of_sums beside its metrics: leave evaluation.federated out"
        )
    return task


def unsummed(task: Task) -> tuple[str, ...]:
    """Return the metrics of a task that are no function of sums over examples."""
    return tuple(getattr(task, "unsummed", ()))


def num_sums(task: SummableTask) -> int:
    """Return how many whole numbers :func:`sums_of` returns."""
    return _COMMON + task.num_sums


def sums_of(task: SummableTask, features: Features, outcomes: Sequence[Predictions]) -> list[int]:
    """Return what a client tells of its test examples: their number, their loss and its weight, and the task's sums."""
    numbers, predictions = joined(outcomes)
    loss, weight = (total_steps([getattr(one, part) for one in outcomes]) for part in ("loss", "weight"))
    own = task.sums(predictions, features, numbers) if len(numbers) else [0] * task.num_sums
    return [len(numbers), loss, weight, *own]


def scores_of_sums(task: SummableTask, sums: Sequence[int]) -> Scores:
    """Return the metrics and the mean loss of all clients' examples, and their number, from the sums of all clients.

    Raises:
        NoSums: No examples have such sums.
    """
    examples, loss, weight = sums[:_COMMON]
    try:
        found = task.metrics_of_sums(sums[_COMMON:])
        if defined_together(cast(Task, task), "baseline_of_sums", "metrics_of_sums"):
            found = {**found, "baseline": task.baseline_of_sums(sums[_COMMON:])}  # type: ignore[attr-defined]
    except (ArithmeticError, ValueError):
        raise NoSums("they are not those of any examples") from None
    return {**defined(found), "loss": loss / weight if weight else None, "examples": examples}
