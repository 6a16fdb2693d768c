"""Shared by causal and masked language modelling: loss, predictions and scores over predicted tokens."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fednlp.data.features import Features
from fednlp.tasks.base import Batch, Predictions
from fednlp.tasks.blocks import logits_at, no_cache, split_batch
from fednlp.tasks.inputs import ratio, to_device
from fednlp.tasks.whole_sums import fraction, quotient, total_steps

_MOST_NATS = 700.0
"""The largest mean loss that is distinguished: exp of much more overflows."""

_AT_ONCE = 256


class LanguageModeling:
    """Scores a batch's ``labels`` at its ``places``; a subclass makes such batches of texts.

    An example's prediction is ``[right tokens, predicted tokens, negative log-likelihood in nats]``.
    """

    decoder: ClassVar[bool]
    vocabulary: int

    def collate(
        self, features: Features, indices: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Return rows of tokens, their mask, ``places``, ``labels``, and the example of each place."""
        raise NotImplementedError

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs: dict[str, Any] = {name: batch[name] for name in ("input_ids", "attention_mask")}
        extra = no_cache(model) if self.decoder else {}
        return logits_at(model, inputs | extra, batch["places"], batch["input_ids"].shape)

    def _sum(self, model: nn.Module, batch: Batch) -> Tensor:
        logits, labels = self._logits(model, batch), batch["labels"]
        if "weights" in batch:
            return (F.cross_entropy(logits, labels, reduction="none") * batch["weights"]).sum()
        return F.cross_entropy(logits, labels, reduction="sum")

    def _pieces(self, batch: Batch) -> list[Batch]:
        return list(split_batch(batch, self.vocabulary, batch["input_ids"].shape[1]))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy a predicted token, in nats, by the ``weights`` of tokens where there are any.

        Long texts make more rows than fit at once; then each piece of the batch is computed again on the way
        back, so that memory holds the activations of one.
        """
        parts = self._pieces(batch)
        if len(parts) == 1:
            total = self._sum(model, batch)
        else:
            sums = [checkpoint(self._sum, model, part, use_reentrant=False) for part in parts]
            total = torch.stack(sums).sum()
        if "weights" in batch:
            return total / batch["weights"].sum().clamp(min=1)
        return total / max(1, len(batch["labels"]))

    def predict(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> Predictions:
        """Return ``[right, predicted, negative log-likelihood]`` of each example."""
        batch = self.collate(features, indices, torch.device("cpu"))
        sums = np.zeros((len(indices), 3))
        for owners, right, losses in self._scored(model, batch, device):
            for column, weights in enumerate((right, np.ones(len(owners)), losses)):
                sums[:, column] += np.bincount(owners, weights, len(indices))
        total, weight = float(sums[:, 2].sum()), float(sums[:, 1].sum())
        worst = _MOST_NATS * sums[:, 1]
        sums[:, 2] = np.where(np.isfinite(sums[:, 2]), np.minimum(sums[:, 2], worst), worst)
        predictions = [[int(right), int(count), loss] for right, count, loss in sums.tolist()]
        return Predictions(indices.tolist(), predictions, total, weight)

    def _scored(
        self, model: nn.Module, batch: Batch, device: torch.device
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield, of each piece's places: their example, whether the likeliest token is right, their loss."""
        for part in self._pieces(batch):
            owners, labels = part.pop("owners").numpy(), part["labels"].to(device)
            logits = self._logits(model, to_device(part, device)).float()
            losses = F.cross_entropy(logits, labels, reduction="none")
            yield owners, (logits.argmax(1) == labels).cpu().numpy(), losses.double().cpu().numpy()

    def metrics(
        self, predictions: Sequence[Any], features: Features, indices: np.ndarray
    ) -> dict[str, float]:
        """Return the share of right tokens, and the perplexity: exp of the mean loss a token, over all texts."""
        sums = np.asarray(predictions, np.float64).reshape(-1, 3).sum(0)
        return {"accuracy": float(ratio(sums[0], sums[1])), "perplexity": _perplexity(sums[2], sums[1])}

    def statistics(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
        """Return each example's right tokens and predicted tokens."""
        return np.asarray(predictions, np.float64).reshape(-1, 3)[:, :2]

    def score(self, sums: np.ndarray) -> np.ndarray:
        """Return the share of right tokens."""
        return ratio(sums[..., 0], sums[..., 1])

    @property
    def num_sums(self) -> int:
        """Right tokens, predicted tokens, negative log-likelihood."""
        return 3

    def sums(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> list[int]:
        """Return the numbers of right and of predicted tokens, and the negative log-likelihood in steps of nats."""
        right, count, losses = np.asarray(predictions, np.float64).reshape(-1, 3).T
        return [int(right.sum()), int(count.sum()), total_steps(losses)]

    def metrics_of_sums(self, sums: Sequence[int]) -> dict[str, float]:
        """Return the share of right tokens, and the perplexity, from their sums."""
        right, count, loss = sums
        return {"accuracy": quotient(right, count), "perplexity": _perplexity(fraction(loss), count)}

    def baseline(
        self, train: Features, examples: np.ndarray, test: Features, indices: np.ndarray
    ) -> tuple[str, list[Any]]:
        """Predict the most frequent token everywhere; each token is as likely as it is frequent, counted from 1."""
        counts = np.ones(self.vocabulary)
        for labels, _ in self._labels(train, examples):
            np.add.at(counts, labels, 1)
        likeliest, losses = int(counts.argmax()), -np.log(counts / counts.sum())
        sums = np.zeros((len(indices), 3))
        for labels, owners in self._labels(test, indices):
            np.add.at(
                sums, owners, np.stack([labels == likeliest, np.ones(len(labels)), losses[labels]], axis=1)
            )
        found = [[int(right), int(count), loss] for right, count, loss in sums.tolist()]
        return "each token as often as in training", found

    def _labels(self, features: Features, indices: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the tokens that are predicted in evaluation, and the position of their example among ``indices``."""
        for start in range(0, len(indices), _AT_ONCE):
            batch = self.collate(features, indices[start : start + _AT_ONCE], torch.device("cpu"))
            yield batch["labels"].numpy(), batch["owners"].numpy() + start

    def format_prediction(self, prediction: Any) -> float:
        """Return the text's perplexity."""
        _, count, loss = prediction
        return _perplexity(loss, count)


def _perplexity(loss: float, count: float) -> float:
    """Return exp(loss / count), as a number that JSON can hold; 0 where nothing was predicted."""
    return math.exp(min(float(loss) / float(count), _MOST_NATS)) if count else 0.0
