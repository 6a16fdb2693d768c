"""Predictions of a worker's model on test examples, and their scores."""

from typing import Any

import numpy as np
import torch

from fednlp.data.features import Features
from fednlp.partition import OneClient, Partition
from fednlp.tasks.base import Predictions, Task
from fednlp.tasks.label_scores import LabelScores, by_label
from fednlp.training.batches import evaluation_batches
from fednlp.training.precision import low_precision
from fednlp.training.replica import Replica
from fednlp.training.scores import (
    Scores,
    interval,
    joined,
    require_summable,
    scored,
    scores_by_owner,
    sums_of,
)


class Evaluator:
    """Predicts with the weights that a replica holds.

    Args:
        partition: Whose test examples are whose.
        numbers: Path of the file with the numbers of the global test set's examples.
        batch_size: Test examples a batch.
        dtype: Of the forward pass; None for float32.
    """

    def __init__(
        self,
        replica: Replica,
        task: Task,
        features: Features,
        partition: Partition | OneClient,
        numbers: str,
        batch_size: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.replica, self.task, self.features = replica, task, features
        self.partition, self.numbers, self.batch_size = partition, numbers, batch_size
        self.dtype = dtype
        self._global_batches: list[np.ndarray] = []

    def test_batches(self, client: int | None = None) -> list[np.ndarray]:
        """Return the batches of the global test set, or of one client's own, the longest first."""
        if client is None and self._global_batches:
            return self._global_batches
        numbers = np.load(self.numbers) if client is None else self.partition.test(client)
        lengths = self.features.lengths(numbers)
        batches = evaluation_batches(numbers, lengths, self.batch_size)
        if client is None:
            self._global_batches = batches
        return batches

    def tokens(self, numbers: np.ndarray) -> float:
        """Return how many tokens some test examples have."""
        return float(self.features.lengths(numbers).sum())

    def predict(self, numbers: np.ndarray) -> Predictions:
        """Predict one batch of test examples with the weights as they stand."""
        self.replica.train(False)
        replica = self.replica
        with torch.inference_mode(), replica.caching_activations(), low_precision(replica.model, self.dtype):
            return self.task.predict(self.replica.model, self.features, numbers, self.replica.device)

    def predict_all(self, client: int | None = None) -> list[Predictions]:
        """Predict the whole test set, or a client's own, with the weights as they stand."""
        return [self.predict(batch) for batch in self.test_batches(client)]

    def by_owner(self, outcomes: list[Predictions]) -> list[float | None]:
        """Return the task's metric on each client's own test examples; None where these do not define it."""
        assert isinstance(self.partition, Partition)
        found = scores_by_owner(self.task, self.features, self.partition, outcomes)
        return [None if np.isnan(score) else float(score) for score in found]  # JSON knows no NaN

    def scored(self, outcomes: list[Predictions]) -> Scores | None:
        """Return the task's metrics and the mean loss over outcomes; None where there are no examples."""
        return scored(self.task, self.features, outcomes)

    def interval(self, outcomes: list[Predictions]) -> dict[str, Any] | None:
        """Return the 95 % interval of the task's metric for other examples like these; None where there is none."""
        return interval(self.task, self.features, outcomes)

    def sums(self, outcomes: list[Predictions]) -> list[int]:
        """Return the whole numbers whose sums over clients the task's metrics are made of."""
        return sums_of(require_summable(self.task), self.features, outcomes)

    def by_label(self, outcomes: list[Predictions]) -> LabelScores | None:
        """Return the scores by label over outcomes; None where there are no examples, or no labels."""
        numbers, predictions = joined(outcomes)
        return by_label(self.task, predictions, self.features, numbers) if len(numbers) else None
