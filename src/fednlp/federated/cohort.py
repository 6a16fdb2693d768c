"""Who trains in a round, and with which weight."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fednlp.federated.schedules import RateSchedule
from fednlp.seeds import generator

WeightFunction = Callable[[int], float]
"""Number of a client's training examples -> its weight p_i."""


@dataclass(frozen=True)
class Population:
    """All clients, as far as the server knows them.

    Attributes:
        sizes: int64 (clients,): training examples of each.
        seed: The experiment's.
        seconds: float64 (clients,): how long each takes for a round by the simulated clock: to receive the model, train
            and send its update. None where ``[costs]`` says nothing of it.
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
        reason: Why no client is drawn, where that is as it should be: the round then changes nothing, whatever
            ``min_clients`` is.
    """

    clients: Sequence[int]
    staleness: Sequence[int] = ()
    scale: Sequence[float] = ()
    seconds: float | None = None
    reason: str | None = None


Sample = Callable[[Population, int], Cohort]
"""(all clients, number of the round from 1) -> who trains."""


@dataclass(frozen=True)
class RoundPlan:
    """What the server knows of a round before it begins.

    Attributes:
        number: From 1.
        cohort: Who is to train.
        weights: p_i of each client of the cohort, scaled.
        unit: The power of two that weights are divided by on their way (:func:`fednlp.federated.sums.weight_unit`).
        population: All clients.
        weight: p_i of a client, from its number of examples.
        rate: The clients' learning rate over the rounds, as a factor.
        min_clients: The round counts if so many clients come through.
    """

    number: int
    cohort: Cohort
    weights: dict[int, float]
    unit: float
    population: Population
    weight: WeightFunction
    rate: RateSchedule = RateSchedule()
    min_clients: int = 1

    @cached_property
    def total_weight(self) -> float:
        """The sum of p_i over all clients."""
        sizes, counts = np.unique(self.population.sizes, return_counts=True)
        weights = (self.weight(int(size)) * int(n) for size, n in zip(sizes, counts, strict=True))
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
