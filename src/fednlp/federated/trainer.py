"""Federate a trainer that somebody wrote for one process and one client."""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.params import Kind, Layout
from fednlp.federated.round import Gathered, Reply, RoundReport, failed, run_round
from fednlp.federated.state import State
from fednlp.federated.sums import ExactSum

logger = logging.getLogger("fednlp")

Params = Mapping[str, Any]
"""Named torch tensors, NumPy arrays or numbers."""


class Trainer(Protocol):
    """What a user writes: one model, one client's data at a time, no word of federation.

    Optional attributes: ``buffer_names``, the names that are statistics rather than parameters (they are
    averaged and not moved by the server optimiser); ``mu``, if the trainer adds FedProx's term itself.
    """

    def get_model_params(self) -> Params:
        """Return the model's named values."""

    def set_model_params(self, params: dict[str, Tensor]) -> None:
        """Take over named values."""

    def train(self, data: Any) -> Any:
        """Train on one client's data; may return the mean loss, or a dict with ``"loss"``."""

    def test(self, data: Any) -> Mapping[str, float]:
        """Return metrics on data."""


@dataclass(frozen=True)
class Federation:
    """What came out: the model's final values, a report a round, and the tests by round.

    Attributes:
        params: Final named tensors, with the types the trainer gave.
        rounds: One report a round.
        tests: ``{round: metrics}`` on ``test_data``, if it was given.
    """

    params: dict[str, Tensor]
    rounds: list[RoundReport]
    tests: dict[int, dict[str, float]]

    def __repr__(self) -> str:
        return f"<Federation after {len(self.rounds):,} rounds: {len(self.params):,} tensors>"


class _Trainers:
    """A runtime of one process around a user's trainer."""

    def __init__(
        self, trainer: Trainer, clients: Sequence[Any], algorithm: Algorithm, start: dict[str, Tensor]
    ) -> None:
        buffers = set(getattr(trainer, "buffer_names", ()))
        shapes: dict[str, tuple[tuple[int, ...], Kind]] = {
            name: (tuple(value.shape), "buffer" if name in buffers else "parameter")
            for name, value in start.items()
            if value.is_floating_point()
        }
        self.layout = Layout.of(shapes)
        self.trainer, self.clients, self.start = trainer, clients, start
        self.total = ExactSum(self.layout)
        if algorithm.mu:
            if not hasattr(trainer, "mu"):
                raise ConfigError(
                    "FedProx changes the local loss, which is your trainer's own: add (mu/2)||x - x_t||^2 to it and "
                    "give the trainer an attribute mu, which is set before training; or use fedavg or fedopt"
                )
            trainer.mu = algorithm.mu

    def params(self, x: Tensor) -> dict[str, Tensor]:
        """Return the flat model as the trainer's own names and types; what does not travel stays as it was."""
        views = self.layout.views(x)
        return {
            name: views[name].clone().to(value.dtype) if name in views else value.clone()
            for name, value in self.start.items()
        }

    def train(
        self, round_number: int, state: State, factors: dict[int, float], done: Callable[[int], None]
    ) -> Gathered:
        """Train one client after the other."""
        replies = []
        for count, (client, factor) in enumerate(sorted(factors.items()), start=1):
            replies.append(self._train(client, factor, state.x))
            done(count)
        return Gathered(self.total, replies)

    def _train(self, client: int, factor: float, x: Tensor) -> Reply:
        data = self.clients[client]
        try:
            self.trainer.set_model_params(self.params(x))
            said = self.trainer.train(data)
            trained = self.layout.flatten(named_tensors(self.trainer.get_model_params()))
            self.total.add(factor, trained.sub_(x))
        except Exception as error:
            return failed(client, factor, error)
        loss = said.get("loss") if isinstance(said, Mapping) else said
        loss = loss.item() if isinstance(loss, Tensor) else loss
        mean = float(loss) if isinstance(loss, (int, float, np.floating)) else float("nan")
        return Reply(client, factor, len(data), 1, mean * len(data))


def named_tensors(params: Params) -> dict[str, Tensor]:
    """Return named values as tensors.

    Raises:
        ConfigError: A value is neither a tensor, nor an array, nor a number.
    """
    tensors = {}
    for name, value in params.items():
        try:
            tensors[name] = (
                value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
            )
        except (TypeError, ValueError):
            raise ConfigError(
                f"get_model_params() gave {name} as {type(value).__name__}: give tensors, arrays or numbers"
            ) from None
    return tensors


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


def federate(
    trainer: Trainer,
    clients: Sequence[Any] | Mapping[Any, Any],
    algorithm: Algorithm,
    *,
    num_rounds: int = 10,
    seed: int = 0,
    test_data: Any = None,
    on_round: Callable[[RoundReport, dict[str, float]], None] = lambda report, metrics: None,
) -> Federation:
    """Federate a single-process trainer.

    Args:
        trainer: See :class:`Trainer`.
        clients: Each client's data; anything with a length, which is the client's weight.
        algorithm: From :func:`fednlp.fedavg`, :func:`fednlp.fedopt`, ...
        num_rounds: Rounds.
        seed: Draws the cohorts.
        test_data: If given, ``trainer.test(test_data)`` with the global model after each round.
        on_round: Called after each round with its report and its metrics.

    Raises:
        ConfigError: ``algorithm`` is none, a client's data has no length, no value is floating-point, or FedProx
            meets a trainer that does not know it.
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
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"algorithm is {algorithm!r}: build one, for example fednlp.fedavg(clients_per_round=2)"
        )
    values = list(clients.values()) if isinstance(clients, Mapping) else list(clients)
    try:
        sizes = [len(data) for data in values]
    except TypeError:
        raise ConfigError("a client's data must have a length: it is the client's weight") from None
    if not values:
        raise ConfigError("there are no clients: give at least one client's data")
    start = _start(trainer.get_model_params())
    runtime = _Trainers(trainer, values, algorithm, start)
    state = State(0, runtime.layout, runtime.layout.flatten(start))
    state.slots = algorithm.server.init(runtime.layout)
    reports, tests = [], {}
    for _ in range(num_rounds):
        report = run_round(algorithm, state, sizes, runtime, seed)
        for reply in report.dropped:
            logger.warning("round %d: client %d was dropped: %s", report.round, reply.client, reply.error)
        trainer.set_model_params(runtime.params(state.x))
        metrics = dict(trainer.test(test_data)) if test_data is not None else {}
        if metrics:
            tests[report.round] = metrics
        reports.append(report)
        on_round(report, metrics)
    return Federation(runtime.params(state.x), reports, tests)
