"""Labels and their probabilities for training texts, by the published model or by the one that a client has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fednlp.clock import EVALUATION, timed
from fednlp.federated.runtime import MODEL
from fednlp.runtime.messages import declare
from fednlp.training.client_record import model_of
from fednlp.training.handling import handles
from fednlp.training.label_probabilities import label_probabilities
from fednlp.training.work import prediction_work

if TYPE_CHECKING:
    from fednlp.runtime.engine import Vectors
    from fednlp.training.worker import ClientWorker


@dataclass(frozen=True)
class LabelRequest:
    """Have a client label texts with the model that it has after a broadcast.

    Attributes:
        client: Its id.
        round: The number of the round.
        texts: Numbers of its training examples.
    """

    client: int
    round: int
    texts: list[int]


@dataclass(frozen=True)
class Labels:
    """The likeliest label of each text, and its probability."""

    labels: list[int]
    confidences: list[float]


@dataclass(frozen=True)
class ProbabilitiesRequest:
    """Have one batch of training texts classified by the model that is published."""

    texts: list[int]


@dataclass(frozen=True)
class Probabilities:
    """A row of label probabilities for each text."""

    rows: list[list[float]]


declare(LabelRequest, Labels)
declare(ProbabilitiesRequest, Probabilities)


def _work(worker: ClientWorker, request: LabelRequest | ProbabilitiesRequest) -> float:
    texts = np.array(request.texts, dtype=np.int64)
    return prediction_work(float(worker.train_features.lengths(texts).sum()))


@handles(LabelRequest, work=_work)
@timed(EVALUATION)
def label(worker: ClientWorker, request: LabelRequest, vectors: Vectors) -> Labels:
    """Return the likeliest label of each text of a client, and its probability, by the model that it has."""
    x = vectors[MODEL]
    init = worker.trainer.init(request.client, request.round - 1, x)
    worker.replica.load_for_evaluation(model_of(init, worker.algorithm, x), init.personal)
    found = _probabilities(worker, request.texts)
    return Labels(found.argmax(1).tolist(), found.max(1).astype(float).tolist())


@handles(ProbabilitiesRequest, work=_work)
@timed(EVALUATION)
def probabilities(worker: ClientWorker, request: ProbabilitiesRequest, vectors: Vectors) -> Probabilities:
    """Return what the published model gives every label for some training texts."""
    worker.replica.load_for_evaluation(vectors[MODEL])
    return Probabilities(_probabilities(worker, request.texts).astype(float).tolist())


def _probabilities(worker: ClientWorker, texts: list[int]) -> np.ndarray:
    """Return what the model that is loaded gives every label for some training texts, (texts, labels)."""
    worker.forget()
    return label_probabilities(
        worker.replica, worker.task, worker.train_features, texts, worker.evaluator.batch_size
    )
