"""Federate a task that fednlp does not know: one text, any number of labels (multi-label classification).

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
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fednlp.data.features import Features
from fednlp.tasks.base import Batch, Outcome, Row
from fednlp.tasks.inputs import encode_texts, model_inputs, padded_inputs, padding_of, share


@dataclass(frozen=True)
class MultiLabel:
    """Binary cross-entropy for each label; micro-averaged F1.

    Args:
        labels: Label names, sorted.
        padding: The tokenizer's padding id.
        threshold: A label is predicted from this probability on.
    """

    labels: tuple[str, ...]
    padding: int = 0
    threshold: float = 0.5
    name: str = "new_task:MultiLabel"
    metric: str = "micro_f1"
    model_class: str = "AutoModelForSequenceClassification"
    own_words_only: bool = True

    @classmethod
    def build(cls, labels: Sequence[str], tokenizer: Any, **options: Any) -> Self:
        """Make the task; ``labels`` are the values of the label column."""
        names = sorted({name for value in labels for name in value.split("|") if name})
        return cls(tuple(names), padding_of(tokenizer), **options)

    def settings(self) -> dict[str, Any]:
        """Return the size of the head."""
        return {"pad_token_id": self.padding, "num_labels": len(self.labels)}

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return each text's tokens, and the numbers of its labels: all that training and scoring need."""
        rows = list(rows)
        encoded = encode_texts(rows, tokenizer, max_length, self.padding)
        return [
            {**tokens, "labels": [n for n, name in enumerate(self.labels) if name in own.split("|")]}
            for tokens, own in zip(encoded, ((row["label"] or "") for row in rows), strict=True)
        ]

    def _truth(self, features: Features, numbers: np.ndarray) -> np.ndarray:
        truth = np.zeros((len(numbers), len(self.labels)), np.float32)
        for place, number in enumerate(numbers.tolist()):
            truth[place, features.ragged("labels", number)] = 1
        return truth

    def collate(
        self, features: Features, numbers: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Return tokens, mask, and ones and zeros for labels, float32 (batch, labels)."""
        truth = torch.from_numpy(self._truth(features, numbers)).to(device)
        return padded_inputs(features, numbers, self.padding, device) | {"labels": truth}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean binary cross-entropy."""
        logits = model(**model_inputs(batch)).logits
        return F.binary_cross_entropy_with_logits(logits, batch["labels"])

    def predict(
        self, model: nn.Module, features: Features, numbers: np.ndarray, device: torch.device
    ) -> Outcome:
        """Return each text's likely labels, as a list of their numbers."""
        batch = self.collate(features, numbers, device)
        logits = model(**model_inputs(batch)).logits.float()
        losses = F.binary_cross_entropy_with_logits(logits, batch["labels"], reduction="none").mean(1)
        found = [row.nonzero()[:, 0].tolist() for row in logits.sigmoid() >= self.threshold]
        return Outcome(numbers.tolist(), found, float(losses.sum()), len(numbers))

    def statistics(self, predictions: Sequence[Any], features: Features, numbers: np.ndarray) -> np.ndarray:
        """Return each text's right, predicted and true labels: sums that F1 is a function of."""
        truth, guess = self._truth(features, numbers), np.zeros((len(numbers), len(self.labels)))
        for row, found in zip(guess, predictions, strict=True):
            row[found] = 1
        return np.stack([(truth * guess).sum(1), guess.sum(1), truth.sum(1)], axis=1).astype(np.float64)

    def score(self, sums: np.ndarray) -> np.ndarray:
        """Return micro-averaged F1: 2 right / (predicted + true)."""
        return share(2 * sums[..., 0], sums[..., 1] + sums[..., 2])

    def metrics(
        self, predictions: Sequence[Any], features: Features, numbers: np.ndarray
    ) -> dict[str, float]:
        """Return micro-averaged precision, recall and F1."""
        sums = self.statistics(predictions, features, numbers).sum(0)
        return {
            "micro_f1": float(self.score(sums)),
            "micro_precision": float(share(sums[0], sums[1])),
            "micro_recall": float(share(sums[0], sums[2])),
        }

    def baseline(
        self, train: Features, examples: np.ndarray, test: Features, numbers: np.ndarray
    ) -> tuple[str, list[Any]]:
        """Predict for every text the labels that most training texts have together."""
        sets = Counter(tuple(train.ragged("labels", number).tolist()) for number in examples.tolist())
        return "the most frequent labels", [list(sets.most_common(1)[0][0])] * len(numbers)

    def shown(self, prediction: Any) -> list[str]:
        """Return the labels' names."""
        return [self.labels[number] for number in prediction]
