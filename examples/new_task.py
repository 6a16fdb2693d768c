"""Federate a task that fednlp does not know: one text, one or several labels (multi-label classification).

    PYTHONPATH=examples fednlp run my_experiment.toml

where the experiment says

    [task]
    name = "new_task:MultiLabel"
    options = { threshold = 0.4 }

and the label column holds the names of a text's labels with a bar between them: ``economy|science``.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fednlp.data.features import Features
from fednlp.tasks.base import Batch, Predictions, Row
from fednlp.tasks.inputs import encode_texts, model_inputs, padded_inputs, padding_of, ratio


@dataclass(frozen=True)
class MultiLabel:
    """Binary cross-entropy for each label; micro-averaged F1.

    Args:
        labels: Label names, sorted.
        padding: The tokenizer's padding id.
        threshold: Probability from which a label is predicted, in (0, 1).
    """

    labels: tuple[str, ...]
    padding: int = 0
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    name: str = "new_task:MultiLabel"
    metric: str = "micro_f1"
    model_class: str = "AutoModelForSequenceClassification"
    uses_only_input_ids: bool = True

    @classmethod
    def build(cls, labels: Sequence[str], tokenizer: Any, **options: Any) -> Self:
        """Make the task; ``labels`` are the values of the label column."""
        names = sorted({name for value in labels for name in value.split("|") if name})
        return cls(tuple(names), padding_of(tokenizer), **options)

    def settings(self) -> dict[str, Any]:
        """Return the size of the head."""
        return {"pad_token_id": self.padding, "num_labels": len(self.labels)}

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return each text's tokens, and the ids of its labels: all that training and scoring need."""
        rows = list(rows)
        encoded = encode_texts(rows, tokenizer, max_length, self.padding)
        return [
            {**tokens, "labels": [n for n, name in enumerate(self.labels) if name in own.split("|")]}
            for tokens, own in zip(encoded, ((row["label"] or "") for row in rows), strict=True)
        ]

    def _truth(self, features: Features, indices: np.ndarray) -> np.ndarray:
        truth = np.zeros((len(indices), len(self.labels)), np.float32)
        for place, index in enumerate(indices.tolist()):
            truth[place, features.ragged("labels", index)] = 1
        return truth

    def collate(
        self, features: Features, indices: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Return tokens, mask, and ones and zeros for labels, float32 (batch, labels)."""
        truth = torch.from_numpy(self._truth(features, indices)).to(device)
        return padded_inputs(features, indices, self.padding, device) | {"labels": truth}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean binary cross-entropy."""
        logits = model(**model_inputs(batch)).logits
        return F.binary_cross_entropy_with_logits(logits, batch["labels"])

    def predict(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> Predictions:
        """Return each text's likely labels, as a list of their ids."""
        batch = self.collate(features, indices, device)
        logits = model(**model_inputs(batch)).logits.float()
        losses = F.binary_cross_entropy_with_logits(logits, batch["labels"], reduction="none").mean(1)
        found = [row.nonzero()[:, 0].tolist() for row in logits.sigmoid() >= self.threshold]
        return Predictions(indices.tolist(), found, float(losses.sum()), len(indices))

    def statistics(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
        """Return each text's right, predicted and true labels: sums that F1 is a function of."""
        truth, guess = self._truth(features, indices), np.zeros((len(indices), len(self.labels)))
        for row, found in zip(guess, predictions, strict=True):
            row[found] = 1
        return np.stack([(truth * guess).sum(1), guess.sum(1), truth.sum(1)], axis=1).astype(np.float64)

    def score(self, sums: np.ndarray) -> np.ndarray:
        """Return micro-averaged F1: 2 right / (predicted + true)."""
        return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])

    def metrics(
        self, predictions: Sequence[Any], features: Features, indices: np.ndarray
    ) -> dict[str, float]:
        """Return micro-averaged precision, recall and F1."""
        sums = self.statistics(predictions, features, indices).sum(0)
        return {
            "micro_f1": float(self.score(sums)),
            "micro_precision": float(ratio(sums[0], sums[1])),
            "micro_recall": float(ratio(sums[0], sums[2])),
        }

    def baseline(
        self, train: Features, examples: np.ndarray, test: Features, indices: np.ndarray
    ) -> tuple[str, list[Any]]:
        """Predict for every text the labels that most training texts have together."""
        sets = Counter(tuple(train.ragged("labels", index).tolist()) for index in examples.tolist())
        return "the most frequent labels", [list(sets.most_common(1)[0][0])] * len(indices)

    def format_prediction(self, prediction: Any) -> list[str]:
        """Return the labels' names."""
        return [self.labels[label] for label in prediction]
