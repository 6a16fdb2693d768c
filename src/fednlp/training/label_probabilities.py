"""What the model that is loaded gives every label for some texts."""

from typing import Any

import numpy as np
import torch

from fednlp.data.features import Features
from fednlp.training.replica import Replica


def label_probabilities(
    replica: Replica, task: Any, features: Features, numbers: list[int], batch: int
) -> np.ndarray:
    """Return the probability of each label for some texts, (texts, labels), in float32.

    Args:
        replica: Holds the model.
        task: One with labels.
        features: Of the texts.
        numbers: Of the texts, in any order.
        batch: Texts at once.
    """
    examples = np.array(numbers, dtype=np.int64)
    places = np.argsort(-features.lengths(examples), kind="stable")
    probabilities = np.empty((len(examples), len(task.labels)), dtype=np.float32)
    replica.train(False)
    with torch.inference_mode(), replica.caching_activations():
        for start in range(0, len(places), batch):
            some = places[start : start + batch]
            probabilities[some] = task.probabilities(replica.model, features, examples[some], replica.device)
    return probabilities
