"""Text regression: one text or a pair of texts, one number (e.g. the similarity of STS-B)."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fednlp.data.features import Features
from fednlp.tasks.base import Batch, Predictions, Row
from fednlp.tasks.inputs import encode_texts, model_inputs, padded_inputs, padding_of, to_device
from fednlp.tasks.whole_sums import correlation, moments, squared_error

_CONSTANT = 1e-12
"""A variance below this share of the mean square is rounding: the scores are all the same."""


@dataclass(frozen=True)
class TextRegression:
    """One output, trained with the mean squared error."""

    padding: int = 0
    name: str = "text-regression"
    metric: str = "pearson"
    model_class: str = "AutoModelForSequenceClassification"
    uses_only_input_ids: bool = True
    unsummed: ClassVar[tuple[str, ...]] = ("spearman",)

    @classmethod
    def build(cls, labels: Sequence[str], tokenizer: Any, **options: Any) -> Self:
        """Make the task; it has no labels."""
        return cls(padding_of(tokenizer), **options)

    def settings(self) -> dict[str, Any]:
        """Return the head's one output, and the padding that decoders must know of."""
        return {"pad_token_id": self.padding, "num_labels": 1, "problem_type": "regression"}

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return each row's ``input_ids`` (at most ``max_length``) and ``score``."""
        rows = list(rows)
        texts = encode_texts(rows, tokenizer, max_length, self.padding)
        return [
            {**encoded, "score": float(str(row["score"]))} for encoded, row in zip(texts, rows, strict=True)
        ]

    def input_lengths(self, features: Features) -> np.ndarray:
        """Return the tokens of each text as it is read."""
        return features.all_lengths

    def collate(
        self, features: Features, indices: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Return ``input_ids`` and ``attention_mask`` (batch, longest), int64, and ``scores`` (batch), float32."""
        scores = torch.from_numpy(features.values("score")[indices].astype(np.float32))
        return padded_inputs(features, indices, self.padding, device) | to_device({"scores": scores}, device)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean squared error."""
        return F.mse_loss(_outputs(model, batch), batch["scores"])

    def predict(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> Predictions:
        """Return the number of each text. Outputs of a diverged model that are not finite become finite."""
        batch = self.collate(features, indices, device)
        outputs = _outputs(model, batch)
        loss = F.mse_loss(outputs, batch["scores"], reduction="sum")
        return Predictions(indices.tolist(), torch.nan_to_num(outputs).tolist(), float(loss), len(indices))

    def metrics(
        self, predictions: Sequence[Any], features: Features, indices: np.ndarray
    ) -> dict[str, float]:
        """Return Pearson's and Spearman's correlation (SciPy) and the mean squared error, over the whole set.

        A correlation is NaN where there are fewer than two scores, or all are the same: no model could have one.
        It is 0 where all predictions are the same.
        """
        from scipy.stats import pearsonr, spearmanr

        truth, guess = features.values("score")[indices], _single(predictions)
        varied = len(truth) > 1 and bool(np.ptp(truth))
        made = dict.fromkeys(("pearson", "spearman"), 0.0 if varied else math.nan)
        made["mse"] = float(np.mean((truth - guess) ** 2)) if len(guess) else math.nan
        if varied and np.ptp(guess):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # almost the same is no fault to warn of
                made["pearson"] = float(np.nan_to_num(pearsonr(truth, guess).statistic))
                made["spearman"] = float(np.nan_to_num(spearmanr(truth, guess).statistic))
        return made

    def statistics(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
        """Return the moments n, x, y, x² (its upper half, its lower half), y² and xy of each example.

        Sums of squares lose what a difference of two large ones leaves over. So scores y are taken from the
        middle of the whole table, the same in every call. No middle of the predictions x is known beforehand,
        but they are 32-bit floats: x² is exact in 64 bits, and so are sums of its halves where the x are much
        alike, which is where it matters.
        """
        x = _single(predictions)
        y = features.values("score")[indices] - features.values("score").mean()
        square = x * x
        upper = _upper_half(square)
        return np.stack([np.ones(len(x)), x, y, upper, square - upper, y * y, x * y], axis=1)

    def score(self, sums: np.ndarray) -> np.ndarray:
        """Return Pearson's correlation: NaN where the scores do not vary, 0 where the predictions do not."""
        n, x, y, upper, lower, yy, xy = np.moveaxis(np.asarray(sums, np.float64), -1, 0)
        spread_x, spread_y = _spread(n, x, upper, lower), n * yy - y * y
        varied = spread_y > _CONSTANT * n * yy
        known = (spread_x > 0) & varied
        below = np.sqrt(np.where(known, spread_x, 1.0)) * np.sqrt(np.where(known, spread_y, 1.0))
        correlation = np.where(known, np.clip((n * xy - x * y) / below, -1.0, 1.0), 0.0)
        return np.where(varied, correlation, np.nan)

    def truths(self, features: Features, indices: np.ndarray) -> list[float]:
        """Return the score of each text."""
        scores: list[float] = features.values("score")[indices].tolist()
        return scores

    @property
    def num_sums(self) -> int:
        """The number of texts, and five moments."""
        return 6

    def sums(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> list[int]:
        """Return the moments of predictions and scores."""
        return moments(_single(predictions), features.values("score")[indices])

    def metrics_of_sums(self, sums: Sequence[int]) -> dict[str, float]:
        """Return Pearson's correlation and the mean squared error; Spearman's is of ranks, and no function of sums."""
        return {"pearson": correlation(sums), "mse": squared_error(sums)}

    def baseline(
        self, train: Features, examples: np.ndarray, test: Features, indices: np.ndarray
    ) -> tuple[str, list[Any]]:
        """Predict the training examples' mean score."""
        mean = float(train.values("score")[examples].mean())
        return "the mean score", [mean] * len(indices)

    def format_prediction(self, prediction: Any) -> Any:
        """Return the number."""
        return prediction


def _outputs(model: nn.Module, batch: Batch) -> Tensor:
    outputs: Tensor = model(**model_inputs(batch)).logits.float().squeeze(-1)
    return outputs


def _single(predictions: Sequence[Any]) -> np.ndarray:
    """Return the predictions as the model made them: 32-bit floats, held in 64 bits."""
    return np.asarray(predictions, np.float64).astype(np.float32).astype(np.float64)


def _upper_half(values: np.ndarray) -> np.ndarray:
    """Return the upper 24 of the 53 bits of each number (Veltkamp's splitting; Dekker 1971)."""
    scaled = values * (2.0**29 + 1)
    upper: np.ndarray = scaled - (scaled - values)
    return upper


def _spread(n: np.ndarray, x: np.ndarray, upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Return n Σx² - (Σx)², worked out in fractions, without rounding."""

    def exact(n: float, x: float, upper: float, lower: float) -> float:
        return float(Fraction(n) * (Fraction(upper) + Fraction(lower)) - Fraction(x) ** 2)

    spread: np.ndarray = np.asarray(np.frompyfunc(exact, 4, 1)(n, x, upper, lower), np.float64)
    return spread
