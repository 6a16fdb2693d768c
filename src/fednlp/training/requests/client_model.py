"""Scores of a client's own model: the one that it has after a round, or after some more steps by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fednlp.clock import EVALUATION, timed
from fednlp.federated.runtime import MODEL
from fednlp.plugins import raised
from fednlp.runtime.messages import declare
from fednlp.training.alone import keep_model, train_alone
from fednlp.training.client_record import ClientInit, model_of
from fednlp.training.handling import handles
from fednlp.training.labelled_examples import labelled_examples
from fednlp.training.work import prediction_work, training_work

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.runtime.engine import Vectors
    from fednlp.training.worker import ClientWorker


@dataclass(frozen=True)
class ClientModelRequest:
    """Have a client's own model evaluated, after some more steps of its own where ``finetune_steps`` is positive.

    Attributes:
        client: Its id.
        round: The last round that is saved: whose record counts.
        on_own: Whether its own test examples are predicted.
        on_all: Whether the whole test set is.
        finetune_steps: Local steps before that.
        save_to: File of client models that the model is written to; None for nowhere.
        examples: The training examples for these steps; None for all that the client has.
        labels: The labels of ``examples``; None for those of the data set.
        labelling: As in :class:`fednlp.federated.client.TrainRequest`.
    """

    client: int
    round: int
    on_own: bool
    on_all: bool
    finetune_steps: int = 0
    save_to: str | None = None
    examples: list[int] | None = None
    labels: list[int] | None = None
    labelling: int | None = None


@dataclass(frozen=True)
class ClientModelResult:
    """How a client's own model did.

    Attributes:
        client: Its id.
        error: Why it failed; None if it did not.
        own: The task's metric on its own test examples.
        everyone: All metrics on the whole test set.
        by_owner: The task's metric on each client's test examples.
    """

    client: int
    error: str | None = None
    own: float | None = None
    everyone: dict[str, float | None] | None = None
    by_owner: list[float | None] | None = None


declare(ClientModelRequest, ClientModelResult)


def _work(worker: ClientWorker, request: ClientModelRequest) -> float:
    own = prediction_work(worker.evaluator.tokens(worker.partition.test(request.client)))
    if not request.finetune_steps:
        return own
    options = worker.options.model_copy(update={"max_steps": request.finetune_steps})
    lengths = worker.train_features.lengths(worker.partition.train(request.client))
    return own + training_work(options, lengths)


@handles(ClientModelRequest, work=_work)
@timed(EVALUATION)
def client_model(worker: ClientWorker, request: ClientModelRequest, vectors: Vectors) -> ClientModelResult:
    """Evaluate the model that one client has after a round, or after some more steps by itself.

    A client that fails in these steps is reported, not raised.
    """
    client, x, evaluator = request.client, vectors[MODEL], worker.evaluator
    worker.forget()
    init = worker.trainer.init(client, request.round, x)
    init = replace(init, shared=model_of(init, worker.algorithm, x))
    if request.finetune_steps:
        error = _finetune(worker, request, x, init)
        if error is not None:
            return ClientModelResult(client, error)
    else:
        assert init.shared is not None
        worker.replica.load_for_evaluation(init.shared, init.personal)
    if not request.on_all:
        own = evaluator.scored(evaluator.predict_all(client)) if request.on_own else None
        return ClientModelResult(client, own=None if own is None else own[worker.task.metric])
    everyone = evaluator.predict_all()
    by_owner = evaluator.by_owner(everyone)
    return ClientModelResult(
        client, own=by_owner[client], everyone=evaluator.scored(everyone), by_owner=by_owner
    )


def _finetune(worker: ClientWorker, request: ClientModelRequest, x: Tensor, init: ClientInit) -> str | None:
    """Let a client train on by itself, with nothing but its loss, and keep its model if configured.

    Returns:
        Why it failed; None if it did not.
    """
    options = worker.options.model_copy(update={"max_steps": request.finetune_steps})
    told = request.client, request.examples, request.labels
    try:
        with labelled_examples(worker.train_features, worker.partition, *told) as examples:
            train_alone(worker.trainer, request.client, examples, options, request.round + 1, x, init)
    except Exception as error:
        return raised(error)
    if request.save_to is not None:
        keep_model(worker.replica, Path(request.save_to), request.client, request.round)
    return None
