"""Text classification: one text or a pair of texts, one label."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fednlp.data.features import Features
from fednlp.data.label_names import label_name
from fednlp.errors import ConfigError
from fednlp.tasks.base import Batch, Predictions, Row
from fednlp.tasks.inputs import (
    class_settings,
    encode_texts,
    model_inputs,
    padded_inputs,
    padding_of,
    ratio,
    to_device,
)
from fednlp.tasks.label_scores import LabelScores, class_scores
from fednlp.tasks.whole_sums import quotient

_METRICS = ("accuracy", "macro_f1", "f1", "mcc")


@dataclass(frozen=True)
class TextClassification:
    """Sequence classification with cross-entropy.

    Args:
        labels: Label names in the order of their ids (sorted, so that ids are stable across processes).
        label_smoothing_factor: Share of the target that is spread over all labels in training, in [0, 1).
        metric: What stands for the task, and what a client's own score is: ``"accuracy"``, ``"macro_f1"``, ``"mcc"``,
            or ``"f1"``, that of ``positive_label``.
        positive_label: A name in ``labels``, for ``"f1"``.
    """

    labels: tuple[str, ...]
    padding: int = 0
    label_smoothing_factor: float = 0.0
    name: str = "text-classification"
    metric: str = "accuracy"
    positive_label: str | None = None
    model_class: str = "AutoModelForSequenceClassification"
    uses_only_input_ids: bool = True

    @classmethod
    def build(cls, labels: Sequence[str], tokenizer: Any, **options: Any) -> Self:
        """Make the task for a data set's labels.

        Raises:
            ConfigError: The metric is the F1 of a label, and there is no such label.
        """
        metric, positive = options.get("metric"), options.get("positive_label")
        if isinstance(positive, str) and positive not in labels:
            positive = options["positive_label"] = label_name(positive)
        if metric is not None and metric not in _METRICS:
            raise ConfigError(f'task.metric = "{metric}" is not for labels: type {", ".join(_METRICS)}')
        choices = " or ".join(map(repr, labels[:3]))
        if (metric == "f1") != (positive is not None):
            raise ConfigError(
                f'task.metric = "f1" and task.positive_label go together: say whose F1 it is, {choices}'
            )
        if positive is not None and positive not in labels:
            raise ConfigError(
                f"task.positive_label = {positive!r}: the data have no such label; choose a label such as {choices}"
            )
        return cls(tuple(labels), padding_of(tokenizer), **options)

    def settings(self) -> dict[str, Any]:
        """Return the head's size and its label names, and the padding that decoders must know of."""
        return class_settings(self.labels, self.padding)

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return each row's ``input_ids`` (at most ``max_length``) and ``label`` (-1 where unknown)."""
        rows = list(rows)
        ids = {name: i for i, name in enumerate(self.labels)}
        return [
            {**encoded, "label": ids.get(row["label"] or "", -1)}
            for encoded, row in zip(
                encode_texts(rows, tokenizer, max_length, self.padding), rows, strict=True
            )
        ]

    def input_lengths(self, features: Features) -> np.ndarray:
        """Return the tokens of each text as it is read."""
        return features.all_lengths

    def collate(
        self, features: Features, indices: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Return ``input_ids`` and ``attention_mask`` (batch, longest) and ``labels`` (batch), int64."""
        labels = {"labels": torch.from_numpy(features.values("label")[indices])}
        return padded_inputs(features, indices, self.padding, device) | to_device(labels, device)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy."""
        logits = self.logits(model, batch)
        return F.cross_entropy(logits, batch["labels"], label_smoothing=self.label_smoothing_factor)

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return each label's logit (batch, labels)."""
        logits: Tensor = model(**model_inputs(batch)).logits
        return logits

    def predict(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> Predictions:
        """Return the likeliest label of each text. The loss is that of the texts whose label is known."""
        batch = self.collate(features, indices, device)
        return _outcome(indices, self.logits(model, batch).float(), batch["labels"])

    def predict_with_probabilities(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> tuple[Predictions, np.ndarray]:
        """Return what :meth:`predict` does, and each label's probability, float32 (texts, labels)."""
        batch = self.collate(features, indices, device)
        logits = self.logits(model, batch).float()
        return _outcome(indices, logits, batch["labels"]), torch.softmax(logits, dim=1).cpu().numpy()

    def probabilities(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> np.ndarray:
        """Return each label's probability for each text, float32 (texts, labels); no label is read."""
        logits = self.logits(model, self.collate(features, indices, device))
        probabilities: np.ndarray = torch.softmax(logits.float(), dim=1).cpu().numpy()
        return probabilities

    def metrics(
        self, predictions: Sequence[Any], features: Features, indices: np.ndarray
    ) -> dict[str, float]:
        """Return accuracy, macro-F1 and Matthews correlation, as scikit-learn has them, over the whole set.

        A text with an unknown label is predicted wrongly. It has no class, so macro-F1 and Matthews correlation
        are those of the other texts, and NaN where there are none.
        """
        truth, guess = features.values("label")[indices], np.asarray(predictions, np.int64)
        counts = _class_counts(len(self.labels), truth, guess)
        return self._with_positive(counts, _class_metrics(counts, to_last_bit=True))

    def truths(self, features: Features, indices: np.ndarray) -> list[str]:
        """Return the label of each text; an empty text where it is unknown."""
        return [self.labels[one] if one >= 0 else "" for one in features.values("label")[indices].tolist()]

    def by_label(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> LabelScores:
        """Return precision, recall, F1 and support of each label, and the confusion matrix."""
        truth, guess = features.values("label")[indices], np.asarray(predictions, np.int64)
        return class_scores(self.labels, truth, guess)

    def statistics(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
        """Return 1 for each right label and 0 for each wrong one, and a count of 1.

        For other metrics than accuracy: what :func:`_class_counts` adds up.
        """
        truth, guess = features.values("label")[indices], np.asarray(predictions, np.int64)
        if self.metric != "accuracy":
            return _counts_by_example(len(self.labels), truth, guess)
        return np.stack([truth == guess, np.ones(len(indices))], axis=1).astype(np.float64)

    def score(self, sums: np.ndarray) -> np.ndarray:
        """Return the share of right labels, or the metric that is configured."""
        if self.metric == "accuracy":
            return ratio(sums[..., 0], sums[..., 1])
        rows = sums.reshape(-1, sums.shape[-1]).astype(np.int64).tolist()
        found = [self.metrics_of_sums(row)[self.metric] if row[0] else math.nan for row in rows]
        return np.array(found).reshape(sums.shape[:-1])

    @property
    def num_sums(self) -> int:
        """The number of texts, and three counts for each label."""
        return 1 + 3 * len(self.labels)

    def sums(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> list[int]:
        """Return the number of texts, and how often each label is right, predicted, and true."""
        truth, guess = features.values("label")[indices], np.asarray(predictions, np.int64)
        return _class_counts(len(self.labels), truth, guess)

    def metrics_of_sums(self, sums: Sequence[int]) -> dict[str, float]:
        """Return accuracy, macro-F1 and Matthews correlation from counts, and the F1 of the positive label, if any."""
        return self._with_positive(sums, _class_metrics(sums))

    def baseline_of_sums(self, sums: Sequence[int]) -> float:
        """Return what predicting the label that most of these texts have would score on them."""
        labels = len(self.labels)
        true = list(sums[1 + 2 * labels :])
        usual = true.index(max(true))
        right, guessed = (
            [count if place == usual else 0 for place in range(labels)] for count in (true[usual], sum(true))
        )
        return self.metrics_of_sums([sums[0], *right, *guessed, *true])[self.metric]

    def _with_positive(self, counts: Sequence[int], found: dict[str, float]) -> dict[str, float]:
        """Return metrics with the F1 of the positive label, if there is one."""
        if self.positive_label is None:
            return found
        known = not math.isnan(found["mcc"])
        return found | {
            "f1": _label_f1(counts, self.labels.index(self.positive_label)) if known else math.nan
        }

    def baseline(
        self, train: Features, examples: np.ndarray, test: Features, indices: np.ndarray
    ) -> tuple[str, list[Any]]:
        """Predict the label that most training examples have."""
        counts = np.bincount(train.values("label")[examples], minlength=len(self.labels))
        return "the most frequent label", [int(counts.argmax())] * len(indices)

    def format_prediction(self, prediction: Any) -> str:
        """Return the label's name."""
        label: str = self.labels[prediction]
        return label


def _outcome(indices: np.ndarray, logits: Tensor, labels: Tensor) -> Predictions:
    loss = F.cross_entropy(logits, labels, reduction="sum", ignore_index=-1)
    return Predictions(indices.tolist(), logits.argmax(1).tolist(), float(loss), int((labels >= 0).sum()))


def _class_counts(labels: int, truth: np.ndarray, guess: np.ndarray) -> list[int]:
    """Return the number of examples, then of each label: how often it is right, predicted, and true.

    Accuracy, macro F1 and Matthews correlation are made of these. They are fewer than a confusion matrix holds, and
    tell less.

    Args:
        truth: The right class of each example, int64; -1 for a label that is not among these, whose examples count
            in the first number alone.
        guess: The predicted class of each example, int64.

    >>> _class_counts(2, np.array([0, 0, 1, -1]), np.array([0, 1, 1, 1]))
    [4, 1, 1, 1, 2, 2, 1]
    """
    examples, known = len(truth), truth >= 0
    truth, guess = truth[known], guess[known]
    counted = (truth[truth == guess], guess, truth)
    return [examples, *(int(n) for ids in counted for n in np.bincount(ids, minlength=labels))]


def _counts_by_example(labels: int, truth: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Return what each example adds to :func:`_class_counts`, float64 (examples, 1 + 3 labels).

    >>> _counts_by_example(2, np.array([0, -1]), np.array([1, 1])).astype(int).tolist()
    [[1, 0, 0, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0, 0]]
    """
    known = (truth >= 0)[:, None]
    guessed, true = (known & (ids[:, None] == np.arange(labels)) for ids in (guess, truth))
    return np.hstack([np.ones((len(truth), 1)), guessed & true, guessed, true])


def _label_f1(counts: Sequence[int], label: int) -> float:
    """Return the F1 of one label from counts of examples; it is 0 where the label is neither true nor predicted.

    >>> _label_f1([4, 1, 1, 1, 2, 2, 1], 1)
    0.6666666666666666
    """
    labels = len(counts) // 3
    right, guessed, true = (counts[1 + k * labels + label] for k in range(3))
    return quotient(2 * right, guessed + true)


def _class_metrics(counts: Sequence[int], *, to_last_bit: bool = False) -> dict[str, float]:
    """Return accuracy, macro F1 and Matthews correlation (as scikit-learn has them) from counts of examples.

    The correlation is the R_K of J. Gorodkin, "Comparing two K-category assignments by a K-category correlation
    coefficient", 2004.

    Args:
        counts: From :func:`_class_counts`, summed.
        to_last_bit: Round each step as scikit-learn does. What a run says of its whole test set is rounded in this way,
            and what it says of sums over clients is not.
    """
    labels = len(counts) // 3
    examples, (right, guessed, true) = counts[0], (counts[1 + k * labels :][:labels] for k in range(3))
    hits, known = sum(right), sum(true)
    accuracy = quotient(hits, examples)
    if not known:
        return {"accuracy": accuracy, "macro_f1": math.nan, "mcc": math.nan}
    both = [(r, g + t) for r, g, t in zip(right, guessed, true, strict=True) if g + t]
    each = [2 * r / total for r, total in both]
    shared = hits * known - sum(g * t for g, t in zip(guessed, true, strict=True))
    of_guessed, of_true = (known * known - sum(n * n for n in of) for of in (guessed, true))
    varied = min(of_guessed, of_true) > 0
    if to_last_bit:
        f1 = float(np.mean(each))
        mcc = shared / math.sqrt(of_guessed * of_true) if varied else 0.0
    else:
        f1 = math.fsum(each) / len(each)
        mcc = shared / math.sqrt(of_guessed) / math.sqrt(of_true) if varied else 0.0
    return {"accuracy": accuracy, "macro_f1": f1, "mcc": mcc}
