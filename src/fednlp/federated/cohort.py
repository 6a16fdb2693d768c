"""Who trains in a round, and with which weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError
from fednlp.federated.schedules import RateSchedule
from fednlp.seeds import generator

if TYPE_CHECKING:
    from fednlp.federated.state import State

LATE = "late"
"""With this word begins the reason why a client was dropped that was drawn beyond what its round needed."""
WeightFunction = Callable[[int], float]
"""Number of a client's training examples, or of the tokens that it learns -> its weight p_i."""


@dataclass(frozen=True)
class Population:
    """All clients, as far as the server knows them.

    Attributes:
        sizes: int64 (clients,): training examples of each.
        seconds: float64 (clients,): how long each takes for a round by the simulated clock: to receive the model, train
            and send its update. None where ``[costs]`` says nothing of it.
        tokens: int64 (clients,): tokens that each learns, where weights are functions of these and not of examples.
    """

    sizes: NDArray[np.int64]
    seed: int = 0
    seconds: NDArray[np.float64] | None = None
    tokens: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def counted(self) -> NDArray[np.int64]:
        """What each client's weight is a function of: its examples, or its tokens."""
        return self.sizes if self.tokens is None else self.tokens


@dataclass(frozen=True)
class Cohort:
    """Who trains in a round.

    Attributes:
        staleness: For each, how many rounds ago the server had the model that it starts from; empty for 0.
        scale: For each, a factor of its weight; empty for 1.
        seconds: How long the round takes by the simulated clock, where that is not the slowest client's time.
        reason: Why no client is drawn, where that is as it should be: the round then changes nothing, whatever
            ``min_clients`` is.
        late: Those of ``clients`` whose updates do not count, because enough others are faster.
    """

    clients: Sequence[int]
    staleness: Sequence[int] = ()
    scale: Sequence[float] = ()
    seconds: float | None = None
    reason: str | None = None
    late: Sequence[int] = ()


Sample = Callable[[Population, int], Cohort]
"""(all clients, number of the round from 1) -> who trains."""


Ask = Callable[[Iterable[int]], dict[int, float]]
"""(clients) -> the mean loss of the global model, as each of them gets it, on its training examples.

A client that does not answer is not in the result.
"""
Select = Callable[[Population, "State", Ask], Cohort]
"""(all clients, the server, ask) -> who trains in round ``state.round + 1``."""
REMEMBERED = ("round", "examples", "loss")
"""What a server can remember of each client: the last round in which it trained (0 for none), the training examples
that it has, and its mean training loss."""


@dataclass(frozen=True)
class Selection:
    """How cohorts are drawn that nobody can foresee: by what clients answer, or by what the server saw of them.

    Attributes:
        draw: Draws the cohort, after the model was published. It draws random numbers by seed and round.
        asks: Whether it calls ``ask``.
        remembers: Which of :data:`REMEMBERED` it needs, and of the numbers that the method's clients report
            (:attr:`Algorithm.reports`): ``state.vectors["clients.loss"]``, float32 (clients,), for example.
    """

    draw: Select
    asks: bool = False
    remembers: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoundPlan:
    """What the server knows of a round before it begins.

    Attributes:
        number: From 1.
        weights: p_i of each client of the cohort, scaled.
        unit: The power of two that weights are divided by on their way (:func:`fednlp.federated.sums.weight_unit`).
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
        sizes, counts = np.unique(self.population.counted, return_counts=True)
        weights = (self.weight(int(size)) * int(n) for size, n in zip(sizes, counts, strict=True))
        return sum(weights)


def is_drawn_from(cohort: Any, population: Population) -> bool:
    """Return whether a cohort is one of distinct clients of a population: ``sample`` may be of the user's own."""
    if not isinstance(cohort, Cohort):
        return False
    drawn, clients = list(cohort.clients), len(population)
    whole = all(isinstance(client, (int, np.integer)) and 0 <= client < clients for client in drawn)
    return whole and len({*drawn}) == len(drawn)


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


def fastest(sample: Sample, size: int) -> Sample:
    """Have the ``size`` fastest clients of each cohort count, by the simulated clock; equally fast ones by their ids.

    Drawing more clients than a round needs is called over-selection (Bonawitz et al. 2019, "Towards Federated Learning
    at Scale: System Design", section 2.2).

    Args:
        size: How many updates a round needs.

    >>> four = Population(np.ones(4, dtype=np.int64), seconds=np.array([3.0, 1.0, 2.0, 1.0]))
    >>> fastest(lambda population, number: Cohort([0, 1, 2, 3]), 2)(four, 1)
    Cohort(clients=[0, 1, 2, 3], staleness=(), scale=(), seconds=1.0, reason=None, late=[0, 2])
    """

    def over_selected(population: Population, round_number: int) -> Cohort:
        if population.seconds is None:
            raise ConfigError(
                "rounds.over_selection needs the time that each client takes, which is not known: set costs.device to "
                "a profile that says how long the model takes, or rounds.over_selection = 1.0"
            )
        cohort = sample(population, round_number)
        if not is_drawn_from(cohort, population):  # whoever asked for it says what is wrong
            return cohort
        times = [float(population.seconds[client]) for client in cohort.clients]
        order = sorted(zip(times, cohort.clients, strict=True))
        if len(order) <= size:
            return cohort
        late = sorted(client for _, client in order[size:])
        return replace(cohort, seconds=order[size - 1][0], late=late)

    return over_selected


def by_examples(examples: int) -> float:
    """Weigh a client by its number of examples, the default of FedAvg."""
    return float(examples)


def by_examples_up_to(most: int) -> WeightFunction:
    """Weigh a client by its number of examples, and one that has or claims more than ``most`` by that number.

    >>> [by_examples_up_to(500)(examples) for examples in (20, 500, 10_000_000)]
    [20.0, 500.0, 500.0]
    """
    return lambda examples: float(min(examples, most))


def equally(examples: int) -> float:
    """Weigh every client that has examples alike."""
    return float(examples > 0)


def failures(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the clients that were dropped from a round because they failed, and not because others were faster.

    >>> failures({"dropped": [{"client": 3, "reason": "late: ..."}, {"client": 4, "reason": "its disk is full"}]})
    [{'client': 4, 'reason': 'its disk is full'}]
    """
    return [
        dropped
        for dropped in line.get("dropped", [])
        if not str(dropped.get("reason")).startswith(f"{LATE}:")
    ]
