"""Federate a trainer that somebody wrote for one process and one client."""

import inspect
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import (
    Another,
    ClientLoss,
    ClientResult,
    Gradient,
    LossRequest,
    Objective,
    TrainRequest,
    checked_result,
    failed,
)
from fednlp.federated.cohort import Population
from fednlp.federated.gradients import changed_gradient
from fednlp.federated.links import Downlink, Uplink
from fednlp.federated.pages import LeanRoom
from fednlp.federated.params import Kind, Layout
from fednlp.federated.round import RoundReport, new_vectors, run_round
from fednlp.federated.runtime import MODEL
from fednlp.federated.state import State
from fednlp.federated.update import Update
from fednlp.formatting.units import plural

_logger = logging.getLogger("fednlp")

Params = Mapping[str, Any]
"""Named torch tensors, NumPy arrays or numbers."""


class Trainer(Protocol):
    """What a user writes: one model, one client's data at a time, no word of federation.

    Optional attributes: ``buffer_names``, the names that are statistics rather than parameters (they are
    averaged and not moved by the server optimiser); ``learning_rate`` and ``momentum`` of its SGD, for methods that
    need them.

    A method that changes the gradient of every local step, such as FedProx or SCAFFOLD, or that counts the steps, such
    as FedNova, needs ``train(data, adjust)``: call ``adjust(params)`` before every step of the optimiser, with the
    named parameters and their ``.grad``.
    """

    def get_model_params(self) -> Params:
        """Return the model's named values."""

    def set_model_params(self, params: dict[str, Tensor]) -> None:
        """Take over named values."""

    def train(self, data: Any, *adjust: Any) -> Any:
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
        personal: The clients' own models, by the clients' places from 0, where the method gives them any; a client that
            was never drawn has none.
    """

    params: dict[str, Tensor]
    rounds: list[RoundReport]
    tests: dict[int, dict[str, float]]
    personal: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Federation after {plural(len(self.rounds), 'round')}: {plural(len(self.params), 'tensor')}>"


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
    runtime = _TrainerRuntime(trainer, values, algorithm, start)
    state = State(0, runtime.layout, runtime.layout.flatten(start))
    state.vectors |= new_vectors(algorithm, state, len(values), seed)
    clock = None if seconds is None else np.array(seconds, dtype=np.float64)
    population = Population(np.array(sizes, dtype=np.int64), seed, clock)
    reports, tests = [], {}
    for _ in range(num_rounds):
        report = run_round(algorithm, state, population, runtime)
        for result in report.dropped:
            _logger.warning("round %d: client %d was dropped: %s", report.round, result.client, result.error)
        trainer.set_model_params(runtime.params(state.params))
        metrics = dict(trainer.test(test_data)) if test_data is not None else {}
        if metrics:
            tests[report.round] = metrics
        reports.append(report)
        on_round(report, metrics)
    return Federation(runtime.params(state.params), reports, tests, runtime.personal())


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


def _start(params: Params) -> dict[str, Tensor]:
    """Return copies of a trainer's first values, which its training does not reach.

    Raises:
        ConfigError: None of them is floating-point.
    """
    start = {name: value.clone() for name, value in _named_tensors(params).items()}
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


class _TrainerRuntime:
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
        self.trainer, self.clients, self.algorithm, self.start = trainer, clients, algorithm, start
        self.adjusts = "adjust" in inspect.signature(trainer.train).parameters
        self.total: Any = algorithm.aggregator.init(self.layout, algorithm.sends, LeanRoom())
        self._vectors: dict[str, Tensor] = {}
        self._kept: dict[int, Mapping[str, Tensor]] = {}

    def params(self, x: Tensor) -> dict[str, Tensor]:
        """Return the flat model as the trainer's own names and types; what does not travel stays as it was."""
        views = self.layout.views(x)
        return {
            name: views[name].clone().to(value.dtype) if name in views else value.clone()
            for name, value in self.start.items()
        }

    def personal(self) -> dict[int, dict[str, Tensor]]:
        """Return the clients' own models; none for a method that gives them none."""
        name = self.algorithm.personal_model
        if name is None:
            return {}
        return {client: self.params(self._kept[client][name]) for client in sorted(self._kept)}

    def __len__(self) -> int:
        return 1

    def publish(self, name: str, vector: Tensor, message: bytes | None = None) -> None:
        """Let the clients have a flat vector under a name."""
        self._vectors[name] = vector

    def do(
        self, requests: Sequence[Any], on_progress: Callable[[int], None] = lambda done: None
    ) -> list[Any]:
        """Train one client after the other."""
        results: list[ClientResult | ClientLoss] = []
        for request in requests:
            results.append(self._loss(request) if isinstance(request, LossRequest) else self._train(request))
            on_progress(len(results))
        return results

    def _loss(self, request: LossRequest) -> ClientLoss:
        local = _TrainerLocal(self, TrainRequest(request.client, request.round, 1.0))
        loss = local.loss(self._vectors[MODEL])
        return ClientLoss(request.client, None, loss, len(self.clients[request.client]))

    def _train(self, request: TrainRequest) -> ClientResult:
        local = _TrainerLocal(self, request)
        try:
            kept = self._kept.get(request.client, {})
            made = self.algorithm.client(local, self._vectors[MODEL], self._vectors, kept)
            result = checked_result(made, self.algorithm.client)
            update = {
                name: Update.of(value, self.layout) if isinstance(value, Tensor) else value.take()
                for name, value in result.update.items()
            }
            if result.model != MODEL:
                update[result.model] = update.pop(MODEL)
            self.algorithm.aggregator.add(self.total, request, update)
        except ConfigError:  # it would be the same for every client
            raise
        except Exception as error:
            return failed(request, error)
        self._kept[request.client] = result.keep
        return ClientResult(
            request.client,
            request.weight,
            local.examples,
            local.total_steps,
            local.total_loss,
            metrics=dict(result.metrics),
            facts={} if result.model == MODEL else {"model": result.model},
        )


class _TrainerLocal:
    """One client of a user's trainer for the time of a round (:class:`fednlp.federated.client.Local`)."""

    def __init__(self, runtime: _TrainerRuntime, request: TrainRequest) -> None:
        self._runtime = runtime
        self.client, self.round, self.staleness = request.client, request.began, request.staleness
        self.adjusted, self.total_steps, self.examples, self.total_loss = 0, 0, 0, 0.0

    @property
    def momentum(self) -> float:
        return float(getattr(self._runtime.trainer, "momentum", 0.0))

    @property
    def num_steps(self) -> int:
        if not self.adjusted:
            raise ConfigError(
                f"{self._runtime.algorithm.name} needs to know how many local steps a client takes: give train a "
                "second parameter, train(data, adjust), and call adjust(params) before every step of the optimiser"
            )
        return self.adjusted

    @property
    def rate_sum(self) -> float:
        rate = getattr(self._runtime.trainer, "learning_rate", None)
        if rate is None:
            raise ConfigError(
                f"{self._runtime.algorithm.name} needs to know the clients' learning rate: give your trainer an "
                "attribute learning_rate"
            )
        return self.num_steps * float(rate)

    @property
    def layout(self) -> Layout:
        return self._runtime.layout

    def steps(
        self,
        start: Tensor,
        gradient: Gradient | None = None,
        *vectors: Tensor,
        sparse: bool = False,
        objective: Objective | None = None,
        before_step: Callable[[Any, Tensor], None] | None = None,
    ) -> "_Weights":
        """Have the trainer train on the client's data."""
        runtime, self.adjusted = self._runtime, 0
        if objective is not None or before_step is not None:
            raise ConfigError(
                f"{runtime.algorithm.name} looks into every batch, which is your trainer's own: choose a method that "
                "changes the gradient at most, or run an experiment with one of fednlp's tasks"
            )
        data = runtime.clients[self.client]
        if gradient is not None and not runtime.adjusts:
            raise ConfigError(
                f"{runtime.algorithm.name} changes the gradient of every local step, which is your trainer's own: "
                "give train a second parameter, train(data, adjust), and call adjust(params) before every step of the "
                "optimiser, where params are the named parameters with their .grad; or use fedavg or fedopt"
            )
        runtime.trainer.set_model_params(runtime.params(start))

        def adjust(params: Mapping[str, Tensor]) -> None:
            self.adjusted += 1
            if gradient is None:
                return
            for entry in runtime.layout.entries:
                if entry.kind == "parameter":
                    parameter, place = params[entry.name], slice(entry.start, entry.stop)
                    parts = (vector[place].view(entry.shape) for vector in vectors)
                    grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    with torch.no_grad():
                        parameter.grad = changed_gradient(gradient, grad, parameter.detach(), *parts)

        reported = runtime.trainer.train(data, adjust) if runtime.adjusts else runtime.trainer.train(data)
        self.total_steps += max(1, self.adjusted)
        self.examples += len(data)
        self.total_loss += _mean_loss(reported) * len(data)
        flat = runtime.layout.flatten(_named_tensors(runtime.trainer.get_model_params()))
        return _Weights(flat, runtime.layout)

    def gradient(self, at: Tensor, batch: Any = None) -> Tensor:
        """Refuse: a trainer gives no gradient of all its data."""
        raise ConfigError(
            f"{self._runtime.algorithm.name} asks for the gradient of all of a client's data, which a trainer of your "
            "own does not give: choose the method's other option"
        )

    def loss(self, at: Tensor) -> float:
        """Return the trainer's ``loss(data)``, where it has such a method."""
        runtime = self._runtime
        loss = getattr(runtime.trainer, "loss", None)
        if loss is None:
            raise ConfigError(
                f"{runtime.algorithm.name} asks for the loss of the model that a client gets: give your trainer a "
                "method loss(data) that returns the mean loss, or choose another method"
            )
        runtime.trainer.set_model_params(runtime.params(at))
        return float(loss(runtime.clients[self.client]))

    def another(self, start: Tensor) -> Another:
        """Refuse: a trainer has one model and one optimiser."""
        raise ConfigError(
            f"{self._runtime.algorithm.name} trains two models of a client in step, and a trainer of your own has one: "
            "choose another method, such as ditto"
        )


@dataclass(frozen=True)
class _Weights:
    """What a trainer ended with (:class:`fednlp.federated.client.Weights`)."""

    values: Tensor
    layout: Layout

    def flat(self) -> Tensor:
        return self.values

    def __sub__(self, other: Tensor) -> "_Change":
        return _Change(self.values - other, self.layout)

    def __rsub__(self, other: Tensor) -> Tensor:
        return other - self.values


@dataclass(frozen=True)
class _Change:
    """What a trainer changed (:class:`fednlp.federated.client.Change`)."""

    values: Tensor
    layout: Layout

    def take(self) -> Update:
        return Update.of(self.values, self.layout)

    def flat(self) -> Tensor:
        return self.values

    def __truediv__(self, number: float) -> "_Change":
        return _Change(self.values / number, self.layout)


def _mean_loss(reported: Any) -> float:
    """Return the mean loss that a trainer reports; NaN where it reports none."""
    loss = reported.get("loss") if isinstance(reported, Mapping) else reported
    loss = loss.item() if isinstance(loss, Tensor) else loss
    return float(loss) if isinstance(loss, (int, float, np.floating)) else float("nan")


def _named_tensors(params: Params) -> dict[str, Tensor]:
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
