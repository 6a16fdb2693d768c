"""The interface of a task formulation to the rest of the library."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from fednlp.data.features import Features

Batch = dict[str, Tensor]
Row = dict[str, str | None]
"""A row of a data set, by the canonical names of its task's columns (:mod:`fednlp.formulations`)."""


@dataclass(frozen=True)
class Predictions:
    """Predictions for some examples.

    Attributes:
        indices: Example numbers.
        predictions: One an example, each a value that JSON can hold.
        weight: What the sum is to be divided by for the mean loss: examples, or tokens.
    """

    indices: list[int]
    predictions: list[Any]
    loss: float
    weight: float


class Task(Protocol):
    """One formulation: how text becomes tensors, what is minimised, and how predictions are scored.

    A task is a frozen dataclass whose fields are JSON values, so that a worker can build it again. It may have other
    members beside these:

    - ``by_label(predictions, features, indices)`` returns the scores of each label
      (:class:`fednlp.tasks.label_scores.LabelScores`);
    - ``predict_with_probabilities(model, features, indices, device)`` returns the predictions, and each label's
      probability, float32 (examples, labels);
    - ``input_lengths(features)`` returns the tokens of each example's input, where :meth:`encode` cuts an input that is
      too long (:mod:`fednlp.tasks.truncation`);
    - ``whole_lengths(features)`` returns the same before the cut, where the features say so;
    - ``cuts(features, indices)`` returns how many examples lose which part of what is too long, by words for it;
      ``severe_cuts``, a class variable, has the words of what is never a minor loss;
    - ``trained_tokens(features, indices)`` returns how many tokens of each example are learnt, int64;
    - ``generation(model)`` returns transformers' ``GenerationConfig`` that texts are generated with, for the model's
      folder;
    - ``replies(model, rows, tokenizer, max_length, device)`` returns the text that answers each row, in place of
      predictions;
    - ``reference(model, features, number, device)`` returns what the model that a run begins with says of an example,
      fractions by the names of columns: they are computed once, of each example alone, and the features that are
      trained and tested on have these columns (:mod:`fednlp.training.reference`);
    - ``draws_inputs``, a class variable, is True where :meth:`collate` draws what a model reads anew each time, so that
      nothing computed of it is worth keeping;
    - ``num_sums``, ``sums`` and ``metrics_of_sums`` are for metrics that are functions of sums over examples, which
      clients may then evaluate together (:class:`fednlp.tasks.whole_sums.SummableTask`); ``unsummed``, a class
      variable, names those that are not.
    """

    @property
    def name(self) -> str:
        """The formulation, e.g. ``"text-classification"``."""

    @property
    def metric(self) -> str:
        """The metric that stands for the task where there is room for one; higher is better."""

    @property
    def model_class(self) -> str:
        """The Hugging Face auto class with the right head."""

    @property
    def uses_only_input_ids(self) -> bool:
        """True if a batch holds no token ids but those of its examples' ``input_ids`` and special ones."""

    @classmethod
    def build(cls, labels: Sequence[str], tokenizer: Any, **options: Any) -> Self:
        """Make the task for a data set's labels (none, for most tasks) and a fast tokenizer.

        Args:
            labels: Label or tag names, in the order of their ids.
            options: Of ``[task]``; only those that the task takes (:data:`fednlp.formulations.TASKS`).
        """

    def settings(self) -> dict[str, Any]:
        """Return the settings of the model's configuration, e.g. the number of labels and their names."""

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Turn rows of a data set into features, one dict a row.

        A list of whole numbers becomes a ragged int32 column, a whole number an int64 one, a fraction a
        float64 one, a string a column of text. The lists ``input_ids`` decide an example's length.
        """

    def collate(
        self, features: Features, indices: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Make one batch, padded to its own longest example, with its attention mask.

        What is drawn at random in training comes from torch's default generator.
        """

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss over the batch."""

    def predict(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> Predictions:
        """Predict some examples with a model in evaluation mode."""

    def metrics(
        self, predictions: Sequence[Any], features: Features, indices: np.ndarray
    ) -> dict[str, float]:
        """Score predictions over a whole evaluation set; NaN for a metric that the set does not define."""

    def statistics(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
        """Return what each example adds to the metric, float64 (examples, k): see :meth:`score`."""

    def score(self, sums: np.ndarray) -> np.ndarray:
        """Return :attr:`metric` from summed statistics, (..., k) to (...): of a client, or of everyone.

        It is NaN where the examples do not define it: such a client is left out of the means over clients.
        ``score(statistics(...).sum(0))`` equals ``metrics(...)[metric]``.
        """

    def baseline(
        self, train: Features, examples: np.ndarray, test: Features, indices: np.ndarray
    ) -> tuple[str, list[Any]]:
        """Predict test examples without a model: the least that a trained one must be better than.

        Args:
            train: Features of the training set.
            examples: The training examples that clients hold.
            test: Features of the test set.
            indices: The test examples, by number.

        Returns:
            What it does, in a few words, and a prediction for each test example.
        """

    def format_prediction(self, prediction: Any) -> Any:
        """Return a prediction in readable form, e.g. the name of a label."""
