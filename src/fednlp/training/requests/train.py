"""A client's part in a round, alone or with others at once: up to its upload, and from its upload on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fednlp.clock import STEPS, SUMS, timed
from fednlp.errors import ConfigError
from fednlp.federated.client import ClientResult, TrainRequest, checked_result, failed
from fednlp.federated.runtime import MODEL
from fednlp.federated.transforms import RngKey
from fednlp.federated.upload import Trained, received, require_reported
from fednlp.runtime.engine import Vectors
from fednlp.runtime.messages import declare, from_json, to_json
from fednlp.training.client_record import ClientInit, Record, init_of
from fednlp.training.client_stack import take_steps
from fednlp.training.handling import handles, training_work
from fednlp.training.local import LocalTrainer
from fednlp.training.sending import encode

if TYPE_CHECKING:
    from fednlp.training.client import ClientTrainer
    from fednlp.training.worker import ClientWorker


@dataclass(frozen=True)
class TrainTogetherRequest:
    """Have several clients of a round train at once.

    Attributes:
        clients: Their requests, as :func:`fednlp.runtime.messages.to_json` gives them.
    """

    clients: list[Any]


@dataclass(frozen=True)
class TrainedTogether:
    """What several clients report.

    Attributes:
        clients: Their results in the order of the requests, as :func:`fednlp.runtime.messages.to_json` gives them.
    """

    clients: list[Any]


declare(TrainTogetherRequest, TrainedTogether)


class _Participation(NamedTuple):
    """What a client trains with: what it had kept, what it has of its own, and its data, model and optimiser."""

    request: TrainRequest
    record: Record
    init: ClientInit
    local: LocalTrainer


def _begin(
    worker: ClientWorker, request: TrainRequest, examples: np.ndarray, vectors: Vectors
) -> _Participation:
    """Read what a client kept, and prepare its training."""
    trainer, algorithm = worker.trainer, worker.algorithm
    adapters = algorithm.uplink.adapters
    x = adapters.start(worker.layout, vectors[MODEL], request.client)
    record = trainer.record(request.client, request.round - 1)
    init = init_of(record, algorithm, worker.layout, x)
    local = trainer.local(
        request.client,
        examples,
        request.began,
        x,
        init,
        rate=request.rate,
        staleness=request.staleness,
        all_words=algorithm.uplink.pull.rule != "all",
        held=adapters.held(request.began),
    )
    return _Participation(request, record, init, local)


def _failed(trainer: ClientTrainer, part: _Participation, error: Exception) -> Trained:
    """Return the answer of a client that failed; of an earlier attempt at the round nothing is kept."""
    trainer.forget(part.request.client, part.request.round)
    return Trained(trainer.failure(part.request, error, part.record), None)


def _work(worker: ClientWorker, request: TrainRequest) -> float:
    given = request.examples
    examples = worker.partition.train(request.client) if given is None else np.array(given, dtype=np.int64)
    return training_work(worker.options, worker.train_features.lengths(examples))


def _work_together(worker: ClientWorker, request: TrainTogetherRequest) -> float:
    return sum(_work(worker, from_json(one)) for one in request.clients)


def _receive(
    worker: ClientWorker, request: TrainRequest, answer: Trained, vectors: Vectors, total: Any
) -> ClientResult:
    """Add an update to the total; one that cannot be added drops its client."""
    result = answer.result
    if answer.upload is None:
        return result
    key = RngKey(worker.spec.seed, request.began, request.client)
    try:
        require_reported(result, worker.algorithm)
        update = received(answer.upload, worker.algorithm, worker.layout, vectors[MODEL], key)
        factor = worker.weight(update, vectors[MODEL])
        if factor != 1.0:
            request = replace(request, weight=request.weight * factor)
            result = replace(result, weight=request.weight)
        if isinstance(update, dict) and result.model != MODEL:
            update[result.model] = update.pop(MODEL)
        worker.algorithm.aggregator.add(total, request, update)
    except Exception as error:
        worker.trainer.forget(request.client, request.round)
        return failed(request, error, result.bytes_down, result.tensors_down)
    return result


def _receive_together(
    worker: ClientWorker, request: TrainTogetherRequest, answer: list[Trained], vectors: Vectors, total: Any
) -> TrainedTogether:
    pairs = zip(map(from_json, request.clients), answer, strict=True)
    return TrainedTogether([to_json(_receive(worker, *pair, vectors, total)) for pair in pairs])


@handles(TrainRequest, work=_work, receive=_receive)
@timed(STEPS)
def train(
    worker: ClientWorker, request: TrainRequest, vectors: Vectors, begun: _Participation | None = None
) -> Trained:
    """Let one client take its part in a round, up to its upload.

    A client that fails is reported, not raised.

    Args:
        begun: What it trains with, where that is prepared already.

    Raises:
        ConfigError: The algorithm's client does not fit what the algorithm declares.
    """
    worker.forget()
    trainer, algorithm = worker.trainer, worker.algorithm
    with worker.labelled_examples(request) as examples:
        part = begun or _begin(worker, request, examples, vectors)
        try:
            with worker.scaled(request.client):
                made = algorithm.client(part.local, part.local.x, vectors, part.init.method)
            result = checked_result(made, algorithm.client)
            with timed(SUMS):
                sent = encode(algorithm, request, part.local, result, part.record)
        except ConfigError:  # it would be the same for every client
            raise
        except Exception as error:
            return _failed(trainer, part, error)
    trainer.keep(request, part.local, result, sent)
    return Trained(trainer.result(request, part.local, result, sent, part.record), sent.upload)


@handles(TrainTogetherRequest, work=_work_together, receive=_receive_together)
@timed(STEPS)
def train_together(worker: ClientWorker, request: TrainTogetherRequest, vectors: Vectors) -> list[Trained]:
    """Let several clients take their part in a round, with their local steps at once.

    Raises:
        ConfigError: The model or the task does not allow it.
    """
    worker.forget()
    trainer = worker.trainer
    requests: list[TrainRequest] = [from_json(one) for one in request.clients]
    parts = [_begin(worker, one, worker.partition.train(one.client), vectors) for one in requests]
    try:
        take_steps(worker.stack(len(parts)), [part.local for part in parts])
    except ConfigError:
        raise
    except Exception as error:
        return [_failed(trainer, part, error) for part in parts]
    return [train(worker, part.request, vectors, part) for part in parts]
