"""What a model predicts: the published one, or one that a client has or trains for itself."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fednlp.clock import EVALUATION, STEPS, timed
from fednlp.errors import DIVERGED
from fednlp.federated.client import ClientLoss, LossRequest, nearest_model
from fednlp.federated.runtime import MODEL
from fednlp.federated.store import ClientStore
from fednlp.federated.sums import NonFiniteUpdate, count_nonfinite
from fednlp.plugins import raised
from fednlp.runtime.engine import Vectors
from fednlp.runtime.messages import declare
from fednlp.tasks.whole_sums import SUM_BITS
from fednlp.training.client_record import ClientInit, model_of
from fednlp.training.handling import handles, prediction_work, training_work
from fednlp.training.worker_spec import model_fields

if TYPE_CHECKING:
    from fednlp.training.client import ClientTrainer
    from fednlp.training.local import LocalTrainer
    from fednlp.training.local_training import LocalTraining
    from fednlp.training.worker import ClientWorker


@dataclass(frozen=True)
class LabelRequest:
    """Have a client label texts with the model that it has after a broadcast.

    Attributes:
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


def _labelling_work(worker: ClientWorker, request: LabelRequest | ProbabilitiesRequest) -> float:
    texts = np.array(request.texts, dtype=np.int64)
    return prediction_work(float(worker.train_features.lengths(texts).sum()))


@handles(LabelRequest, work=_labelling_work)
@timed(EVALUATION)
def label(worker: ClientWorker, request: LabelRequest, vectors: Vectors) -> Labels:
    """Return the likeliest label of each text of a client, and its probability, by the model that it has."""
    x = vectors[MODEL]
    init = worker.trainer.init(request.client, request.round - 1, x)
    worker.replica.load_for_evaluation(model_of(init, worker.algorithm, x), init.personal)
    found = _probabilities(worker, request.texts)
    return Labels(found.argmax(1).tolist(), found.max(1).astype(float).tolist())


@handles(ProbabilitiesRequest, work=_labelling_work)
@timed(EVALUATION)
def probabilities(worker: ClientWorker, request: ProbabilitiesRequest, vectors: Vectors) -> Probabilities:
    """Return what the published model gives every label for some training texts."""
    worker.replica.load_for_evaluation(vectors[MODEL])
    return Probabilities(_probabilities(worker, request.texts).astype(float).tolist())


def _probabilities(worker: ClientWorker, texts: list[int]) -> np.ndarray:
    """Return the probability of each label for some texts by the model that is loaded, float32 (texts, labels)."""
    worker.forget()
    replica, features = worker.replica, worker.train_features
    task: Any = worker.task  # one with labels
    examples, size = np.array(texts, dtype=np.int64), worker.evaluator.batch_size
    places = np.argsort(-features.lengths(examples), kind="stable")
    probabilities = np.empty((len(examples), len(task.labels)), dtype=np.float32)
    replica.train(False)
    with torch.inference_mode(), replica.caching_activations():
        for start in range(0, len(places), size):
            some = places[start : start + size]
            probabilities[some] = task.probabilities(replica.model, features, examples[some], replica.device)
    return probabilities


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


def _batch_work(worker: ClientWorker, request: EvaluateRequest) -> float:
    evaluator = worker.evaluator
    return prediction_work(evaluator.tokens(evaluator.test_batches()[request.batch]))


@handles(EvaluateRequest, work=_batch_work)
@timed(EVALUATION)
def evaluate(worker: ClientWorker, request: EvaluateRequest, vectors: Vectors) -> BatchPredictions:
    """Predict one batch of the test set with the published model."""
    worker.load_once(vectors[MODEL], request.key)
    evaluator = worker.evaluator
    return BatchPredictions(**asdict(evaluator.predict(evaluator.test_batches()[request.batch])))


@dataclass(frozen=True)
class ClientModelRequest:
    """Have a client's own model evaluated, after some more steps of its own where ``finetune_steps`` is positive.

    Attributes:
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


def _client_model_work(worker: ClientWorker, request: ClientModelRequest) -> float:
    own = prediction_work(worker.evaluator.tokens(worker.partition.test(request.client)))
    if not request.finetune_steps:
        return own
    options = worker.options.model_copy(update={"max_steps": request.finetune_steps})
    lengths = worker.train_features.lengths(worker.partition.train(request.client))
    return own + training_work(options, lengths)


@handles(ClientModelRequest, work=_client_model_work)
@timed(EVALUATION)
def client_model(worker: ClientWorker, request: ClientModelRequest, vectors: Vectors) -> ClientModelResult:
    """Evaluate the model that one client has after a round, or after some more steps by itself.

    A client that fails in these steps is reported, not raised.
    """
    client, x, evaluator = request.client, vectors[MODEL], worker.evaluator
    worker.forget()
    init = worker.trainer.init(client, request.round, x)
    init = replace(init, shared=_own_model(worker, request, init, vectors))
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


def _own_model(
    worker: ClientWorker, request: ClientModelRequest, init: ClientInit, vectors: Vectors
) -> torch.Tensor:
    """Return the shared parameters of a client's model: where the server has several, the one that it fits."""
    x, models = vectors[MODEL], worker.algorithm.models
    if not models:
        return model_of(init, worker.algorithm, x)
    with worker.labelled_examples(request) as examples:
        if not len(examples):
            return x
        local = worker.trainer.local(request.client, examples, request.round, x, init)
        return vectors[nearest_model(local, x, vectors, models)]


def _loss_work(worker: ClientWorker, request: LossRequest) -> float:
    return prediction_work(float(worker.train_features.lengths(worker.partition.train(request.client)).sum()))


@handles(LossRequest, work=_loss_work)
@timed(EVALUATION)
def client_loss(worker: ClientWorker, request: LossRequest, vectors: Vectors) -> ClientLoss:
    """Return a client's loss by the model that it gets in a round, on its training examples.

    A client that fails is reported, not raised.
    """
    client, number, trainer = request.client, request.round, worker.trainer
    x = worker.algorithm.uplink.adapters.start(worker.layout, vectors[MODEL], client)
    worker.forget()
    examples, record = worker.partition.train(client), trainer.record(client, number - 1)
    down = trainer.down(record)
    try:
        init = trainer.init(client, number - 1, x)
        with worker.scaled(client):
            loss = trainer.local(client, examples, number, x, init).loss(x)
    except Exception as error:
        return ClientLoss(client, raised(error), 0.0, 0, *down)
    if not math.isfinite(loss):
        return ClientLoss(client, f"its loss is {loss}", 0.0, 0, *down)
    return ClientLoss(client, None, loss, len(examples), *down)


def _finetune(
    worker: ClientWorker, request: ClientModelRequest, x: torch.Tensor, init: ClientInit
) -> str | None:
    """Let a client train on by itself, with nothing but its loss, and keep its model if configured.

    Returns:
        Why it failed; None if it did not.
    """
    options = worker.options.model_copy(update={"max_steps": request.finetune_steps})
    try:
        with worker.labelled_examples(request) as examples:
            _train_alone(worker.trainer, request.client, examples, options, request.round + 1, x, init)
    except Exception as error:
        return raised(error)
    if request.save_to is not None:
        replica = worker.replica
        shared = torch.empty(replica.layout.numel)
        replica.store(shared)
        with closing(ClientStore(Path(request.save_to), model_fields(replica))) as store:
            store.write(request.client, request.round, {"shared": shared, "personal": replica.own()})
    return None


def _train_alone(
    trainer: ClientTrainer,
    client: int,
    examples: np.ndarray,
    options: LocalTraining,
    round_number: int,
    x: torch.Tensor,
    init: ClientInit,
) -> LocalTrainer:
    """Train one client for itself, without a server between its steps, so that its model can be evaluated as it stands.

    Raises:
        NonFiniteUpdate: Training ended in NaN, infinity or huge numbers.
    """
    local = trainer.local(client, examples, round_number, x, init, options, all_words=True)
    local.steps(x)
    if trainer.replica.count_nonfinite() > count_nonfinite(x):
        raise NonFiniteUpdate(DIVERGED)
    return local


@dataclass(frozen=True)
class ClientSumsRequest:
    """Have a client evaluate the published model on its own test examples, and return sums over them.

    Attributes:
        round: The last round that is saved, or about to be: whose record counts.
        masking: How it masks the sums for secure aggregation; None without.
    """

    client: int
    round: int
    masking: dict[str, Any] | None = None


@dataclass(frozen=True)
class ClientSums:
    """Whole numbers that a client sums over its test examples, or what it sends of them under masks.

    Attributes:
        error: Why it failed; None if it did not.
        sums: The numbers (:func:`fednlp.training.scores.sums_of`), or masked residues.
    """

    client: int
    error: str | None = None
    sums: list[int] = field(default_factory=list)


declare(ClientSumsRequest, ClientSums)


def _client_sums_work(worker: ClientWorker, request: ClientSumsRequest) -> float:
    return prediction_work(worker.evaluator.tokens(worker.partition.test(request.client)))


@handles(ClientSumsRequest, work=_client_sums_work)
@timed(EVALUATION)
def client_sums(worker: ClientWorker, request: ClientSumsRequest, vectors: Vectors) -> ClientSums:
    """Return sums over a client's own test examples, by the global model and the layers of its own."""
    client, x = request.client, vectors[MODEL]
    if worker.has_global_model:
        worker.load_once(x, request.round)
    else:
        init = worker.trainer.init(client, request.round, x)
        shared = model_of(init, worker.algorithm, x)
        worker.forget()
        worker.replica.load_for_evaluation(shared, init.personal)
    sums = worker.evaluator.sums(worker.evaluator.predict_all(client))
    if request.masking is not None:
        from fednlp.secure.upload import masked_numbers

        sums = masked_numbers(sums, SUM_BITS, request.masking).tolist()
    return ClientSums(client, None, sums)


@dataclass(frozen=True)
class LocalOnlyRequest:
    """Have a client train by itself from the start, and its model evaluated.

    Attributes:
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
        error: Why it failed; None if it did not.
        examples: Seen in training, once per epoch.
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


def _local_only_work(worker: ClientWorker, request: LocalOnlyRequest) -> float:
    lengths = worker.train_features.lengths(worker.partition.train(request.client))
    return training_work(_options(worker, request), lengths)


@handles(LocalOnlyRequest, work=_local_only_work)
@timed(STEPS)
def local_only(worker: ClientWorker, request: LocalOnlyRequest, vectors: Vectors) -> LocalOnlyResult:
    """Train one client by itself from the start; evaluate its model on its own and the global test set."""
    client, trainer, evaluator = request.client, worker.trainer, worker.evaluator
    worker.forget()
    options, examples = _options(worker, request), worker.partition.train(client)
    try:
        local = _train_alone(trainer, client, examples, options, 0, vectors[MODEL], ClientInit())
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
