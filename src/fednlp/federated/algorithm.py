"""An algorithm is a value: everything in which one method of federated learning differs from another.

A method is one file in :mod:`fednlp.federated.algorithms`: a function that returns this value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from fednlp.federated.aggregators.base import Aggregator
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.client import ClientFunction, average_model
from fednlp.federated.schedules import RateSchedule
from fednlp.federated.server import ServerOptimizer
from fednlp.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.aggregators.base import AggregatedUpdate
    from fednlp.federated.communication import Downlink, Uplink
    from fednlp.federated.params import Layout
    from fednlp.federated.state import State

WeightFunction = Callable[[int], float]
"""Number of a client's training examples -> its weight p_i."""


@dataclass(frozen=True)
class Population:
    """All clients, as far as the server knows them.

    Attributes:
        sizes: int64 (clients,): training examples of each.
        seed: The experiment's.
        seconds: float64 (clients,): how long each would take for a round; None where ``[costs]`` names no device.
    """

    sizes: NDArray[np.int64]
    seed: int = 0
    seconds: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class Cohort:
    """Who trains in a round.

    Attributes:
        clients: Distinct ids.
        staleness: For each, how many rounds ago the server had the model that it starts from; empty for 0.
        scale: For each, a factor of its weight; empty for 1.
        seconds: How long the round takes by the simulated clock, where that is not the slowest client's time.
    """

    clients: Sequence[int]
    staleness: Sequence[int] = ()
    scale: Sequence[float] = ()
    seconds: float | None = None


Sample = Callable[[Population, int], Cohort]
"""(all clients, number of the round from 1) -> who trains."""


class ServerUpdate(Protocol):
    """The server's part: it moves the global model, and may keep named vectors of its own."""

    def init(self, layout: Layout) -> dict[str, Tensor]:
        """Return its vectors before the first round, flat, by name."""

    def step(self, state: State, update: AggregatedUpdate) -> None:
        """Move ``state.params`` and the vectors in ``state.vectors``, in place."""

    def model(self, state: State, staleness: int) -> Tensor:
        """Return the model that clients get which start from the one of ``staleness`` rounds ago."""


def _uncompressed_uplink() -> Uplink:
    from fednlp.federated.communication import Uplink  # it loads torch

    return Uplink()


def _uncompressed_downlink() -> Downlink:
    from fednlp.federated.communication import Downlink  # it loads torch

    return Downlink()


@dataclass(frozen=True)
class Algorithm:
    """One method of federated learning.

    Attributes:
        name: For people.
        sample: Draws the cohort.
        weight: p_i of a client, from its number of examples.
        client: What a client computes (:mod:`fednlp.federated.client`).
        uplink: What happens to updates on their way to the server.
        downlink: What happens to the global model on its way to the clients.
        aggregator: How updates become one.
        server: What the server does with it.
        min_clients: A round in which fewer clients come through stops the run.
        sends: Names of the vectors that a client sends; the first is the model's update.
        keeps: Names of the vectors that a client keeps between its rounds, in its record on disk.
        receives: Names of the server's vectors that travel to the clients with the model.
        personal_model: Which of ``keeps`` is a client's own model, to be evaluated and used; None for none.
        client_rate: The clients' learning rate over the rounds, as a factor.
    """

    name: str
    sample: Sample
    weight: WeightFunction = float
    client: ClientFunction = average_model
    uplink: Uplink = field(default_factory=_uncompressed_uplink)
    downlink: Downlink = field(default_factory=_uncompressed_downlink)
    aggregator: Aggregator = field(default_factory=WeightedMean)
    server: ServerUpdate = field(default_factory=ServerOptimizer)
    min_clients: int = 1
    sends: tuple[str, ...] = ("model",)
    keeps: tuple[str, ...] = ()
    receives: tuple[str, ...] = ()
    personal_model: str | None = None
    client_rate: RateSchedule = field(default_factory=RateSchedule)


@dataclass(frozen=True)
class RoundPlan:
    """What the server knows of a round before it begins.

    Attributes:
        number: From 1.
        cohort: Who is to train.
        weights: p_i of each client of the cohort, scaled.
        unit: The power of two that weights are divided by on their way (:func:`fednlp.federated.sums.weight_unit`).
        population: All clients.
        algorithm: The method.
    """

    number: int
    cohort: Cohort
    weights: dict[int, float]
    unit: float
    population: Population
    algorithm: Algorithm

    @cached_property
    def total_weight(self) -> float:
        """The sum of p_i over all clients."""
        sizes, counts = np.unique(self.population.sizes, return_counts=True)
        weights = (self.algorithm.weight(int(size)) * int(n) for size, n in zip(sizes, counts, strict=True))
        return sum(weights)


def uniform_cohort(size: int) -> Sample:
    """Draw ``size`` distinct clients uniformly each round (all of them if there are fewer), in id order."""

    def sample(population: Population, round_number: int) -> Cohort:
        rng = generator(population.seed, "cohort", round_number)
        clients = len(population)
        drawn = rng.choice(clients, size=min(size, clients), replace=False)
        return Cohort([int(c) for c in np.sort(drawn)])

    return sample


def poisson_cohort(size: int) -> Sample:
    """Draw each client by itself with probability ``size`` / clients, so that a cohort may have any size."""

    def sample(population: Population, round_number: int) -> Cohort:
        rng = generator(population.seed, "cohort", round_number)
        clients = len(population)
        return Cohort(np.flatnonzero(rng.random(clients) < size / clients).tolist())

    return sample


def by_examples(examples: int) -> float:
    """Weigh a client by its number of examples, the default of FedAvg."""
    return float(examples)


def equally(examples: int) -> float:
    """Weigh every client that has examples alike."""
    return float(examples > 0)
