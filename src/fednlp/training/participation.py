"""A client's part in a round: how it begins, and what is reported of one that fails."""

from dataclasses import dataclass

import numpy as np

from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.runtime import MODEL
from fednlp.runtime.engine import Vectors
from fednlp.training.client import ClientTrainer
from fednlp.training.client_record import ClientInit, Record, init_of
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
    local = trainer.local(
        request.client,
        examples,
        request.began,
        x,
        init,
        rate=request.rate,
        staleness=request.staleness,
        all_words=algorithm.uplink.pull.rule != "all",
    )
    return Participation(request, record, init, local)


def fail(trainer: ClientTrainer, part: Participation, error: Exception) -> ClientResult:
    """Return the result of a client that failed; of an earlier attempt at the round nothing is kept.

    Args:
        trainer: Trains it.
        part: What it trained with.
        error: Why.
    """
    trainer.forget(part.request)
    return trainer.failure(part.request, error, part.record)
