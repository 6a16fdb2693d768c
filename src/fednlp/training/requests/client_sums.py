"""Sums over a client's own test examples, by the published model: what the clients' scores are made of together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fednlp.clock import EVALUATION, timed
from fednlp.federated.runtime import MODEL
from fednlp.runtime.messages import declare
from fednlp.tasks.whole_sums import SUM_BITS
from fednlp.training.client_record import model_of
from fednlp.training.handling import handles
from fednlp.training.work import prediction_work

if TYPE_CHECKING:
    from fednlp.runtime.engine import Vectors
    from fednlp.training.worker import ClientWorker


@dataclass(frozen=True)
class ClientSumsRequest:
    """Have a client evaluate the published model on its own test examples, and return sums over them.

    Attributes:
        client: Its id.
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
        client: Its id.
        error: Why it failed; None if it did not.
        sums: The numbers (:func:`fednlp.training.scores.sums_of`), or masked residues.
    """

    client: int
    error: str | None = None
    sums: list[int] = field(default_factory=list)


declare(ClientSumsRequest, ClientSums)


def _work(worker: ClientWorker, request: ClientSumsRequest) -> float:
    return prediction_work(worker.evaluator.tokens(worker.partition.test(request.client)))


@handles(ClientSumsRequest, work=_work)
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
        from fednlp.secure.number_sum import masked_numbers

        sums = masked_numbers(sums, SUM_BITS, request.masking).tolist()
    return ClientSums(client, None, sums)
