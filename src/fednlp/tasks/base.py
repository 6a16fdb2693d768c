"""What a task formulation is to the rest of the library."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fednlp.data.features import Features

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Outcome:
    """Predictions for some examples, and the sum of their losses."""

    numbers: list[int]
    predictions: list[Any]
    loss: float


class Task(Protocol):
    """One formulation: how text becomes tensors, what is minimised, and how predictions are scored."""

    @property
    def name(self) -> str:
        """The formulation, e.g. ``"text-classification"``."""

    @property
    def model_class(self) -> str:
        """The Hugging Face auto class with the right head."""

    def settings(self) -> dict[str, Any]:
        """Return what the model's configuration must say, e.g. the number of labels and their names."""

    def encode(self, rows: Iterable[dict[str, Any]], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Turn rows of a data set into features: token ids and targets, one dict a row."""

    def collate(self, features: Features, numbers: np.ndarray, device: torch.device) -> Batch:
        """Make one batch, padded to its own longest example, with its attention mask."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss over the batch's examples."""

    def predict(self, model: nn.Module, batch: Batch, numbers: np.ndarray) -> Outcome:
        """Return predictions, as values that JSON can hold, and the summed loss."""

    def metrics(
        self, predictions: Sequence[Any], features: Features, numbers: np.ndarray
    ) -> dict[str, float]:
        """Score predictions over a whole evaluation set."""

    def correct(self, predictions: Sequence[Any], features: Features, numbers: np.ndarray) -> np.ndarray:
        """Return each example's own score in [0, 1]; a client's score is the mean over its examples."""
