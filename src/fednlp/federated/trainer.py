"""Federate a trainer that somebody wrote for one process and one client."""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.cohort import Population
from fednlp.federated.links import Downlink, Uplink
from fednlp.federated.round import RoundReport, new_vectors, run_round
from fednlp.federated.state import State
from fednlp.federated.trainer_runtime import Params, Trainer, TrainerRuntime, named_tensors
from fednlp.formatting.units import plural

logger = logging.getLogger("fednlp")


@dataclass(frozen=True)
class Federation:
    """What came out: the model's final values, a report a round, and the tests by round.

    Attributes:
        params: Final named tensors, with the types the trainer gave.
        rounds: One report a round.
        tests: ``{round: metrics}`` on ``test_data``, if it was given.
        personal: The clients' own models, by the clients' places from 0, where the method gives them any; a client that
            was never drawn has none.
    """

    params: dict[str, Tensor]
    rounds: list[RoundReport]
    tests: dict[int, dict[str, float]]
    personal: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Federation after {plural(len(self.rounds), 'round')}: {plural(len(self.params), 'tensor')}>"


def _start(params: Params) -> dict[str, Tensor]:
    """Return copies of a trainer's first values, which its training does not reach.

    Raises:
        ConfigError: None of them is floating-point.
    """
    start = {name: value.clone() for name, value in named_tensors(params).items()}
    if not any(value.is_floating_point() for value in start.values()):
        raise ConfigError(
            "get_model_params() gave no floating-point value, so there is nothing to average: write 0.0 in place of 0"
        )
    whole = [name for name, value in params.items() if type(value) is int]
    if whole:
        warnings.warn(
            f"{', '.join(whole)}: whole numbers are not averaged and stay as they are; for a parameter write 0.0 in "
            "place of 0",
            stacklevel=3,
        )
    return start


def _require_supported(algorithm: Any) -> None:
    """Check that an algorithm is one, and has nothing that a trainer of one process does not follow.

    Raises:
        ConfigError: It is none, its learning rate changes over the rounds, or it compresses messages.
    """
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"algorithm is {algorithm!r}: build one, for example fednlp.fedavg(clients_per_round=2)"
        )
    if not algorithm.client_rate.is_constant:
        raise ConfigError(
            f"{algorithm.name}: client_rate changes the clients' learning rate over the rounds, and in federate() that "
            "rate is your trainer's own: leave client_rate out"
        )
    if algorithm.uplink != Uplink() or algorithm.downlink != Downlink():
        raise ConfigError(
            f"{algorithm.name}: federate() sends updates and the model as they are: leave uplink and downlink out"
        )


def federate(
    trainer: Trainer,
    clients: Sequence[Any] | Mapping[Any, Any],
    algorithm: Algorithm,
    *,
    num_rounds: int = 10,
    seed: int = 0,
    seconds: Sequence[float] | None = None,
    test_data: Any = None,
    on_round: Callable[[RoundReport, dict[str, float]], None] = lambda report, metrics: None,
) -> Federation:
    """Federate a single-process trainer.

    Args:
        trainer: See :class:`Trainer`.
        clients: Each client's data; anything with a length, which is the client's weight.
        algorithm: From :func:`fednlp.fedavg`, :func:`fednlp.fedopt`, ...
        num_rounds: Rounds.
        seconds: How long each client takes for a round, for a method that goes by a simulated clock.
        test_data: If given, ``trainer.test(test_data)`` with the global model after each round.
        on_round: Called after each round with its report and its metrics.

    Raises:
        ConfigError: ``algorithm`` is none, or has what no trainer follows (compression, a learning rate that
            changes over the rounds); a client's data has no length, ``seconds`` are not one for each client, no value
            is floating-point, or a method meets a trainer that lacks what it needs.
        TooFewClients: Fewer than ``algorithm.min_clients`` clients came through a round.

    >>> class Mean:
    ...     weight = 0.0
    ...     def get_model_params(self): return {"w": self.weight}
    ...     def set_model_params(self, params): self.weight = float(params["w"])
    ...     def train(self, data): self.weight = sum(data) / len(data)
    ...     def test(self, data): return {"error": abs(self.weight - data)}
    >>> from fednlp import fedavg
    >>> federate(Mean(), [[1.0], [4.0, 4.0, 4.0]], fedavg(2), num_rounds=1, test_data=3.25).tests
    {1: {'error': 0.0}}
    """
    _require_supported(algorithm)
    values = list(clients.values()) if isinstance(clients, Mapping) else list(clients)
    try:
        sizes = [len(data) for data in values]
    except TypeError:
        raise ConfigError("a client's data must have a length: it is the client's weight") from None
    if not values:
        raise ConfigError("there are no clients: give at least one client's data")
    if seconds is not None and len(seconds) != len(values):
        raise ConfigError(
            f"seconds has {plural(len(seconds), 'number')} for {plural(len(values), 'client')}: give one for each"
        )
    start = _start(trainer.get_model_params())
    runtime = TrainerRuntime(trainer, values, algorithm, start)
    state = State(0, runtime.layout, runtime.layout.flatten(start))
    state.vectors |= new_vectors(algorithm, state, len(values), seed)
    clock = None if seconds is None else np.array(seconds, dtype=np.float64)
    population = Population(np.array(sizes, dtype=np.int64), seed, clock)
    reports, tests = [], {}
    for _ in range(num_rounds):
        report = run_round(algorithm, state, population, runtime)
        for result in report.dropped:
            logger.warning("round %d: client %d was dropped: %s", report.round, result.client, result.error)
        trainer.set_model_params(runtime.params(state.params))
        metrics = dict(trainer.test(test_data)) if test_data is not None else {}
        if metrics:
            tests[report.round] = metrics
        reports.append(report)
        on_round(report, metrics)
    return Federation(runtime.params(state.params), reports, tests, runtime.personal())
