"""A client's part in a round, from the request to train to its upload."""

from dataclasses import dataclass

import numpy as np

from fednlp.clock import SUMS, timed
from fednlp.errors import ConfigError
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.runtime import MODEL
from fednlp.federated.upload import Trained
from fednlp.runtime.engine import Vectors
from fednlp.training.client import ClientInit, ClientTrainer, Record, init_of
from fednlp.training.local import LocalTrainer


@dataclass(frozen=True)
class Participation:
    """What a client trains with in a round.

    Attributes:
        request: What it was told.
        record: What it had kept.
        init: What it has of its own.
        local: Its data, model and optimiser.
    """

    request: TrainRequest
    record: Record
    init: ClientInit
    local: LocalTrainer


def begin(
    trainer: ClientTrainer, request: TrainRequest, examples: np.ndarray, vectors: Vectors
) -> Participation:
    """Read what a client kept, and prepare its training.

    Args:
        trainer: Trains it.
        request: What it was told.
        examples: Its example numbers.
        vectors: What was published.
    """
    algorithm, x = trainer.algorithm, vectors[MODEL]
    record = trainer.record(request.client, request.round - 1)
    init = init_of(record, algorithm, trainer.replica.layout, x)
    local = trainer.local(request.client, examples, request.began, x, init)
    local.rate, local.staleness = request.rate, request.staleness
    local.all_words = algorithm.uplink.pull.rule != "all"
    return Participation(request, record, init, local)


def finish(trainer: ClientTrainer, part: Participation, vectors: Vectors) -> Trained | ClientResult:
    """Compute what a client sends, and keep what it keeps. A client that fails is reported, not raised.

    Args:
        trainer: Trains it.
        part: What it trains with.
        vectors: What was published.

    Raises:
        ConfigError: The algorithm's client does not fit what the algorithm declares.
    """
    request, local, record = part.request, part.local, part.record
    try:
        result = trainer.algorithm.client(local, vectors[MODEL], vectors, part.init.method)
        with timed(SUMS):
            sent = trainer.encode(request, local, result, record)
    except ConfigError:  # it would be the same for every client
        raise
    except Exception as error:
        return fail(trainer, part, error)
    trainer.keep(request, local, result, sent)
    return Trained(trainer.result(request, local, result, sent, record), sent.upload)


def fail(trainer: ClientTrainer, part: Participation, error: Exception) -> ClientResult:
    """Return the result of a client that failed; of an earlier attempt at the round nothing is kept.

    Args:
        trainer: Trains it.
        part: What it trained with.
        error: Why.
    """
    trainer.forget(part.request)
    return trainer.failure(part.request, error, part.record)
