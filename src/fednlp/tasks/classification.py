"""Text classification: one text, one label."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fednlp.data.features import Features
from fednlp.tasks.base import Batch, Outcome


@dataclass(frozen=True)
class TextClassification:
    """Sequence classification with cross-entropy.

    Args:
        labels: Label names in the order of their ids (sorted, so that ids are stable across processes).
        padding: The tokenizer's padding id.
        text: The text's column.
        label: The label's column.
    """

    labels: tuple[str, ...]
    padding: int = 0
    text: str = "text"
    label: str = "label"
    name: str = "text-classification"
    model_class: str = "AutoModelForSequenceClassification"

    def settings(self) -> dict[str, Any]:
        """Return the head's size and its label names, and the padding that decoders must know of."""
        return {
            "pad_token_id": self.padding,
            "num_labels": len(self.labels),
            "id2label": dict(enumerate(self.labels)),
            "label2id": {name: i for i, name in enumerate(self.labels)},
        }

    def encode(self, rows: Iterable[dict[str, Any]], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return each row's ``input_ids`` (at most ``max_length``) and ``label`` (-1 where unknown)."""
        rows = list(rows)
        texts = [row[self.text] for row in rows]
        encoded = tokenizer(texts, truncation=True, max_length=max_length, return_attention_mask=False)
        ids = {name: i for i, name in enumerate(self.labels)}
        return [
            {"input_ids": tokens or [self.padding], "label": ids.get(row[self.label], -1)}
            for tokens, row in zip(encoded["input_ids"], rows, strict=True)
        ]

    def collate(self, features: Features, numbers: np.ndarray, device: torch.device) -> Batch:
        """Return ``input_ids`` and ``attention_mask`` (batch, longest) and ``labels`` (batch), int64."""
        ids, mask = features.padded("input_ids", numbers, self.padding)
        labels = torch.from_numpy(features.values("label")[numbers])
        batch = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "labels": labels,
        }
        return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy."""
        return F.cross_entropy(_logits(model, batch), batch["labels"])

    def predict(self, model: nn.Module, batch: Batch, numbers: np.ndarray) -> Outcome:
        """Return the likeliest label of each text. Texts with an unknown label add nothing to the loss."""
        logits = _logits(model, batch).float()
        loss = F.cross_entropy(logits, batch["labels"], reduction="sum", ignore_index=-1)
        return Outcome([int(n) for n in numbers], logits.argmax(1).tolist(), float(loss))

    def metrics(
        self, predictions: Sequence[Any], features: Features, numbers: np.ndarray
    ) -> dict[str, float]:
        """Return accuracy, macro-F1 and Matthews correlation (scikit-learn), over the whole set."""
        from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

        truth, guess = features.values("label")[numbers], np.asarray(predictions)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a client with one label is nothing unusual here
            return {
                "accuracy": float(accuracy_score(truth, guess)),
                "macro_f1": float(f1_score(truth, guess, average="macro", zero_division=0)),
                "mcc": float(matthews_corrcoef(truth, guess)),
            }

    def correct(self, predictions: Sequence[Any], features: Features, numbers: np.ndarray) -> np.ndarray:
        """Return 1 for each right label, 0 for each wrong one."""
        right: np.ndarray = features.values("label")[numbers] == np.asarray(predictions)
        return right.astype(np.float64)


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    logits: Tensor = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return logits
