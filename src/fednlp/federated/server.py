"""Server optimisers on the pseudo-gradient: FedOpt of Reddi et al. 2021, Algorithm 2.

The mean update ``delta`` is minus the pseudo-gradient. With learning rate eta:

    sgd      m <- momentum m + delta                               x <- x + eta m
    adagrad  m <- beta1 m + (1 - beta1) delta,  v <- v + delta^2    x <- x + eta m / (sqrt(v) + tau)
    adam     ...  v <- beta2 v + (1 - beta2) delta^2
    yogi     ...  v <- v - (1 - beta2) delta^2 sign(v - delta^2)

As in the paper there is no bias correction, and v starts at tau^2. What a step needs from one round to the next are
named flat tensors, which are part of the state and of its checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fednlp.federated.schedules import RateSchedule

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.aggregators.base import AggregatedUpdate, Mean
    from fednlp.federated.params import Layout
    from fednlp.federated.state import State


class ServerUpdate(ABC):
    """The server's part: it moves the global model, and may keep named vectors of its own.

    A subclass says what a step does. By default it keeps no vectors, and all clients start from the newest model.
    """

    def init(self, layout: Layout) -> dict[str, Tensor]:
        """Return its vectors before the first round, flat, by name."""
        return {}

    def first_models(self, layout: Layout, x: Tensor, seed: int) -> dict[str, Tensor]:
        """Return the models that it keeps beside the first, flat, by the names in ``Algorithm.models``.

        Args:
            x: The first model, which the run starts from.
        """
        return {}

    @abstractmethod
    def step(self, state: State, update: AggregatedUpdate) -> Mapping[str, Any] | None:
        """Move ``state.params`` and the vectors in ``state.vectors``, in place.

        Returns:
            What the round's line says of the step: JSON values by name; None for nothing.
        """

    def model(self, state: State, staleness: int) -> Tensor:
        """Return the model that clients get which start from the one of ``staleness`` rounds ago."""
        return state.params


OPTIMIZERS = ("sgd", "adagrad", "adam", "yogi")


@dataclass(frozen=True)
class ServerOptimizer(ServerUpdate):
    """A server optimiser with its numbers. SGD with learning rate 1 and no momentum is plain averaging.

    Attributes:
        name: ``"sgd"``, ``"adagrad"``, ``"adam"`` or ``"yogi"``.
        tau: Of the adaptive ones: how far they adapt.
        rate: The learning rate over the rounds, as a factor.
    """

    name: str = "sgd"
    learning_rate: float = 1.0
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    rate: RateSchedule = field(default_factory=RateSchedule)

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ValueError(f"unknown server optimiser {self.name}: choose sgd, adagrad, adam or yogi")

    @property
    def averages(self) -> bool:
        """Whether a step sets the model to the mean of the clients' models."""
        plain = self.name == "sgd" and self.learning_rate == 1.0 and not self.momentum
        return plain and self.rate.is_constant

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of the flat tensors that it keeps."""
        if self.name == "sgd":
            return ("momentum",) if self.momentum else ()
        return ("first", "second")

    def init(self, layout: Layout) -> dict[str, Tensor]:
        """Return its vectors before the first round."""
        vectors = {name: layout.zeros() for name in self.vectors}
        if "second" in vectors:
            vectors["second"].fill_(self.tau**2)
        return vectors

    def step(self, state: State, update: AggregatedUpdate) -> None:
        """Move the model and the optimiser's vectors by one step, in place."""
        self.move(state.layout, state.params, update.model, state.vectors, state.round + 1)

    def move(
        self, layout: Layout, params: Tensor, mean: Mean, vectors: dict[str, Tensor], round_number: int = 1
    ) -> None:
        """Move a flat model by one step, in place.

        Args:
            layout: What lies where in the flat tensors.
            mean: The mean update. Stretches that no client sent stay as they are, and so do the vectors there.
            vectors: From :meth:`init`; updated in place too.
            round_number: Of the step, from 1.

        Buffers are averaged, never optimised: they move by the mean update itself.
        """
        delta, rows, rate = mean.delta, mean.rows, self.learning_rate * self.rate.factor(round_number)
        own = [vectors[name] for name in self.vectors]
        kept = [(tensor[place], tensor[place].clone()) for tensor in (params, *own) for place in mean.unsent]
        buffers = params[layout.buffers] + delta[layout.buffers]
        if self.name == "sgd" and not self.momentum:
            params[: layout.dense].add_(delta[: layout.dense], alpha=rate)
            if len(rows):
                layout.rows(params).index_add_(0, rows, layout.rows(delta)[rows], alpha=rate)
        elif self.name == "sgd":
            momentum = vectors["momentum"].mul_(self.momentum).add_(delta)
            params.add_(momentum, alpha=rate)
        else:
            self._adapt(params, delta, vectors, rate)
        params[layout.buffers] = buffers
        for there, before in kept:
            there.copy_(before)

    def _adapt(self, params: Tensor, delta: Tensor, vectors: dict[str, Tensor], rate: float) -> None:
        first = vectors["first"].mul_(self.beta1).add_(delta, alpha=1 - self.beta1)
        second = vectors["second"]
        if self.name == "adagrad":
            second.addcmul_(delta, delta)
        elif self.name == "adam":
            second.mul_(self.beta2).addcmul_(delta, delta, value=1 - self.beta2)
        else:
            square = delta * delta
            second.addcmul_(square, (second - square).sign(), value=-(1 - self.beta2))
        params.addcdiv_(first, second.sqrt().add_(self.tau), value=rate)


def default_server(optimizer: str, **given: Any) -> ServerOptimizer:
    """Return a server optimiser with the defaults of Reddi et al. 2021, and what is given over them.

    >>> default_server("adagrad").beta1, default_server("adam", tau=0.1).tau
    (0.0, 0.1)
    """
    if optimizer == "sgd":
        return ServerOptimizer(**{"name": "sgd", **given})
    defaults = {"learning_rate": 0.01, "beta1": 0.0 if optimizer == "adagrad" else 0.9, "tau": 1e-3}
    return ServerOptimizer(optimizer, **{**defaults, **given})
