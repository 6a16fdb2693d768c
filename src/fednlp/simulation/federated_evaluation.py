"""Evaluate the global model on all clients' own tests by sums: no client's own score is needed, nor its examples.

Each client sends sums of whole numbers over its test examples, such as how often each label was predicted. The metrics
are functions of the sums over all clients. With secure aggregation the numbers are masked, and the server learns no
client's sums.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fednlp.config import Experiment
from fednlp.errors import ConfigError, SecureAbort
from fednlp.federated.runtime import MODEL
from fednlp.formatting.units import plural
from fednlp.simulation.context import RunContext
from fednlp.tasks.base import Task
from fednlp.tasks.whole_sums import SUM_BITS
from fednlp.training.requests.predict import ClientSums, ClientSumsRequest
from fednlp.training.scores import NoSums, num_sums, require_summable, scores_of_sums, unsummed

if TYPE_CHECKING:
    from fednlp.secure.params import SecAggParams

_MOST_CLIENT = 1 << (SUM_BITS - 25)
"""No client's number is beyond this: so many clients' sums lie within the range of a sum."""


class _Found(NamedTuple):
    """The sums, how many clients are in them, and what the round's line says besides."""

    sums: list[int]
    clients: int
    sent: dict[str, int]


def evaluate_by_sums(context: RunContext) -> dict[str, Any]:
    """Return the metrics of the global model over all clients' own test examples.

    Args:
        context: The run, after a round.

    Returns:
        The metrics; ``loss``, the mean; ``examples`` and ``clients``, how many are in the sums; with secure aggregation
        ``bytes``, the length of its messages. Without sums only ``clients``, which is 0; the reason is logged.
    """
    clients = clients_with_tests(context.partition.test_offsets)
    if not clients:
        return {"clients": 0}
    context.pool.publish(MODEL, context.state.params)
    task = require_summable(context.worker.task)
    secure = context.experiment.secure.protocol != "none"
    try:
        found = (_masked if secure else _plain)(context, clients, num_sums(task))
        scores = scores_of_sums(task, found.sums)
    except (NoSums, SecureAbort) as reason:
        context.log(f"round {context.state.round}: the clients' tests have no sum: {reason}")
        return {"clients": 0}
    return {**scores, "clients": found.clients, **found.sent}


def clients_with_tests(test_offsets: np.ndarray) -> list[int]:
    """Return the clients that have test examples of their own."""
    found: list[int] = np.flatnonzero(np.diff(test_offsets)).tolist()
    return found


def check_federated_evaluation(experiment: Experiment, task: Task, test_offsets: np.ndarray) -> list[str]:
    """Check that clients can evaluate by sums.

    Args:
        experiment: Resolved.

    Returns:
        A line for people on what the sums leave out; nothing where they leave out nothing.

    Raises:
        ConfigError: They cannot.
    """
    if not experiment.evaluation.federated:
        return []
    summable = require_summable(task)
    if experiment.secure.protocol != "none":
        clients = len(clients_with_tests(test_offsets))
        try:
            sums_params(experiment, clients, num_sums(summable))
        except ConfigError as error:
            raise ConfigError(
                f"evaluation.federated over {plural(clients, 'client')} with test examples: {error}"
            ) from None
    missing = unsummed(task)
    return [f"evaluation.federated leaves out {', '.join(missing)}: no function of sums"] if missing else []


def sums_params(experiment: Experiment, clients: int, numbers: int) -> "SecAggParams":
    """Return the parameters of the protocol of ``[secure]`` for the sums of an evaluation.

    Args:
        experiment: The experiment, with a protocol.
        numbers: How many numbers each adds.

    Raises:
        ConfigError: No parameters of the protocol meet its security requirements with so many clients.
    """
    from fednlp.secure.params import make_params

    secure = experiment.secure
    return make_params(
        secure.protocol,
        clients,
        numbers,
        1.0,
        experiment.seed,
        clip=1.0,
        dropout=secure.dropout,
        max_colluding=secure.max_colluding,
        malicious_server=secure.malicious_server,
    )


def _asked(
    context: RunContext, clients: Sequence[int], masking: Mapping[int, dict[str, Any]] | None = None
) -> list[ClientSums]:
    """Have clients evaluate the model that is published, and return what they send."""
    number, masks = context.state.round, masking or {}
    requests = [ClientSumsRequest(client, number, masks.get(client)) for client in clients]
    found: list[ClientSums] = context.pool.do(
        requests, lambda done: context.on_progress(done, len(clients), "clients' tests")
    )
    return found


def _plain(context: RunContext, clients: Sequence[int], length: int) -> _Found:
    """Return the sums of what the clients send, each of which the server sees."""
    kept = [
        one.sums
        for one in _asked(context, clients)
        if len(one.sums) == length and all(abs(number) < _MOST_CLIENT for number in one.sums)
    ]
    if not kept:
        raise NoSums("no client answered")
    return _Found([sum(column) for column in zip(*kept, strict=True)], len(kept), {})


def _masked(context: RunContext, clients: Sequence[int], length: int) -> _Found:
    """Return the sums by the protocol of ``[secure]``."""
    from fednlp.secure.round import NumberSum
    from fednlp.secure.session import open_session

    params = sums_params(context.experiment, len(clients), length)
    secure = NumberSum(
        params, clients, context.state.round, length, SUM_BITS, context.sum_sessions or open_session
    )
    masking = secure.begin()
    for answer in _asked(context, list(masking), masking):
        if answer.error is None:
            with suppress(SecureAbort):  # of a client that sent no residues
                secure.add(answer.client, answer.sums)
    return _Found(secure.finish(), len(secure.arrived), {"bytes": secure.bytes})
