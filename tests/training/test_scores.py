"""Scores from predictions: the mean loss, and what no example defines."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data.features import Features
from fednlp.partition.index import from_owners
from fednlp.tasks.base import Predictions
from fednlp.training.scores import defined, joined, mean_loss, mean_scores, scored, scores_by_owner

LABELS = np.array([0, 1, 0, 1, 1, 0, 0, 1])
FEATURES = Features.in_memory({"input_ids": [1], "label": int(label)} for label in LABELS)


@dataclass
class Share:
    """A task whose score is the share of right labels."""

    def metrics(self, predictions: list[Any], features: Features, numbers: np.ndarray) -> dict[str, float]:
        right = np.mean(np.array(predictions) == features.values("label")[numbers])
        return {"accuracy": float(right), "pearson": math.nan}

    def statistics(self, predictions: list[Any], features: Features, numbers: np.ndarray) -> np.ndarray:
        right = np.array(predictions) == features.values("label")[numbers]
        return np.stack([right, np.ones(len(right))], axis=1).astype(float)

    def score(self, sums: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(sums[..., 0] / sums[..., 1])


def outcome(
    numbers: list[int], predictions: list[int], loss: float = 0.0, weight: float = 0.0
) -> Predictions:
    return Predictions(numbers, predictions, loss, weight)


losses = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50)), max_size=6)


@given(losses)
def test_the_mean_loss_is_the_summed_loss_over_the_summed_weight(pairs: list[tuple[float, int]]) -> None:
    """Not a mean of means: batches of one example and of many count by what they hold."""
    found = mean_loss([outcome([0], [0], loss, weight) for loss, weight in pairs])
    weight = sum(weight for _, weight in pairs)
    if weight:
        assert found == pytest.approx(sum(loss for loss, _ in pairs) / weight)
    else:
        assert found is None


def test_known_losses() -> None:
    assert mean_loss([outcome([0], [0], 6.0, 2), outcome([1], [1], 1.0, 12)]) == 0.5
    assert mean_loss([outcome([0], [0], 0.25, 1)]) == 0.25
    assert mean_loss([]) is None


def test_scores_are_over_all_batches_and_nan_is_none() -> None:
    batches = [outcome([0, 1], [0, 0], 3.0, 2), outcome([2, 3], [0, 1], 1.0, 2)]
    assert scored(Share(), FEATURES, batches) == {"accuracy": 0.75, "pearson": None, "loss": 1.0}  # type: ignore[arg-type]
    assert scored(Share(), FEATURES, []) is None  # type: ignore[arg-type]
    assert scored(Share(), FEATURES, [outcome([], [])]) is None  # type: ignore[arg-type]


def test_joined_keeps_predictions_with_their_examples() -> None:
    numbers, predictions = joined([outcome([5, 2], [1, 0]), outcome([7], [1])])
    assert numbers.dtype == np.int64
    assert (numbers.tolist(), predictions) == ([5, 2, 7], [1, 0, 1])


def test_means_are_over_those_that_define_a_metric() -> None:
    assert defined({"a": math.nan, "b": 0.0, "c": math.inf}) == {"a": None, "b": 0.0, "c": math.inf}
    found = [{"a": 0.0, "b": None, "c": 1.0}, {"a": 1.0, "b": None, "c": None}]
    assert mean_scores(found) == {"a": 0.5, "b": None, "c": 1.0}


def test_each_owner_has_the_score_of_its_own_examples() -> None:
    """Whatever the order of predictions; an owner without predictions has none, nor one without examples."""
    part = from_owners(np.arange(5), np.array([0, 0, -1, 2, 3, 3, 3, 4]), 5)
    batches = [outcome([6, 0, 5], [0, 0, 1]), outcome([4, 1, 7], [1, 0, 1])]
    scores = scores_by_owner(Share(), FEATURES, part, batches)  # type: ignore[arg-type]
    np.testing.assert_allclose(scores, [1 / 2, np.nan, np.nan, 2 / 3, 1])
