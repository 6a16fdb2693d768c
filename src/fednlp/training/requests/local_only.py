"""A client that trains by itself from the start: what it would have without the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fednlp.clock import EVALUATION, STEPS, timed
from fednlp.federated.runtime import MODEL
from fednlp.plugins import raised
from fednlp.runtime.messages import declare
from fednlp.training.alone import train_alone
from fednlp.training.client_record import ClientInit
from fednlp.training.handling import handles
from fednlp.training.work import training_work

if TYPE_CHECKING:
    from fednlp.runtime.engine import Vectors
    from fednlp.training.local_training import LocalTraining
    from fednlp.training.worker import ClientWorker


@dataclass(frozen=True)
class LocalOnlyRequest:
    """Have a client train by itself from the start, and its model evaluated.

    Attributes:
        client: Its id.
        epochs: Passes over its examples.
        max_steps: Local steps in place of epochs, if positive.
        on_own: Whether its own test examples are predicted.
        on_all: Whether the whole test set is.
    """

    client: int
    epochs: int
    max_steps: int
    on_own: bool
    on_all: bool


@dataclass(frozen=True)
class LocalOnlyResult:
    """How a client did by itself; ``loss`` is summed over the examples seen.

    Attributes:
        client: Its id.
        error: Why it failed; None if it did not.
        examples: Seen in training, once per epoch.
        steps: Taken.
        loss: Of training.
        own: All metrics on its own test examples.
        everyone: All metrics on the whole test set.
    """

    client: int
    error: str | None = None
    examples: int = 0
    steps: int = 0
    loss: float = 0.0
    own: dict[str, float | None] | None = None
    everyone: dict[str, float | None] | None = None


declare(LocalOnlyRequest, LocalOnlyResult)


def _options(worker: ClientWorker, request: LocalOnlyRequest) -> LocalTraining:
    changes = {"num_train_epochs": request.epochs, "max_steps": request.max_steps}
    return worker.options.model_copy(update=changes)


def _work(worker: ClientWorker, request: LocalOnlyRequest) -> float:
    lengths = worker.train_features.lengths(worker.partition.train(request.client))
    return training_work(_options(worker, request), lengths)


@handles(LocalOnlyRequest, work=_work)
@timed(STEPS)
def local_only(worker: ClientWorker, request: LocalOnlyRequest, vectors: Vectors) -> LocalOnlyResult:
    """Train one client by itself from the start; evaluate its model on its own and the global test set."""
    client, trainer, evaluator = request.client, worker.trainer, worker.evaluator
    worker.forget()
    options, examples = _options(worker, request), worker.partition.train(client)
    try:
        local = train_alone(trainer, client, examples, options, 0, vectors[MODEL], ClientInit())
    except Exception as error:
        return LocalOnlyResult(client, raised(error))
    with timed(EVALUATION):
        own = evaluator.predict_all(client) if request.on_own else []
        everyone = evaluator.predict_all() if request.on_all else []
    return LocalOnlyResult(
        client,
        None,
        local.total_examples,
        local.total_steps,
        local.total_loss,
        evaluator.scored(own),
        evaluator.scored(everyone),
    )
