"""Batches of the global test set, predicted by the published model: work of the server's own."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fednlp.clock import EVALUATION, timed
from fednlp.federated.runtime import MODEL
from fednlp.runtime.messages import declare
from fednlp.training.handling import handles
from fednlp.training.work import prediction_work

if TYPE_CHECKING:
    from fednlp.runtime.engine import Vectors
    from fednlp.training.worker import ClientWorker


@dataclass(frozen=True)
class EvaluateRequest:
    """Have one batch of the global test set predicted.

    Attributes:
        batch: Its number.
        key: Changes when the published model does: a worker loads it once for each key.
    """

    batch: int
    key: int


@dataclass(frozen=True)
class BatchPredictions:
    """Predictions of some test examples.

    Attributes:
        indices: The examples.
        predictions: One each, as JSON.
        loss: Summed over what is predicted.
        weight: How much that is.
    """

    indices: list[int]
    predictions: list[Any]
    loss: float
    weight: float


declare(EvaluateRequest, BatchPredictions)


def _work(worker: ClientWorker, request: EvaluateRequest) -> float:
    evaluator = worker.evaluator
    return prediction_work(evaluator.tokens(evaluator.test_batches()[request.batch]))


@handles(EvaluateRequest, work=_work)
@timed(EVALUATION)
def evaluate(worker: ClientWorker, request: EvaluateRequest, vectors: Vectors) -> BatchPredictions:
    """Predict one batch of the test set with the published model."""
    worker.load_once(vectors[MODEL], request.key)
    evaluator = worker.evaluator
    return BatchPredictions(**asdict(evaluator.predict(evaluator.test_batches()[request.batch])))
