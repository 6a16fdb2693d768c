"""FedBuff: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation" (arXiv:2106.06639).

M clients train at any time, and every K updates that arrive are a flush. :class:`Places` says who trains and whose
updates wait. Who arrives next is for others to say: a simulated clock (:class:`FlushSchedule`), or the sites of a
deployment.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Unpack

import numpy as np
from pydantic import Field

from fednlp.errors import ConfigError
from fednlp.federated.aggregators.base import AggregatedUpdate, Mean
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.algorithm import Algorithm, RoundOptions
from fednlp.federated.algorithms import method
from fednlp.federated.client import ClientResult
from fednlp.federated.cohort import Cohort, Population, RoundPlan
from fednlp.federated.server import ServerOptimizer, ServerUpdate
from fednlp.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.params import Layout
    from fednlp.federated.state import State
    from fednlp.federated.sums import ExactSum

_VERSION = "version."


def _refuses(options: Mapping[str, Any], experiment: Any) -> list[str]:
    """Return what contradicts the options."""
    found, size = [], options.get("buffer_size", 10)
    clients = experiment.partition.clients
    if clients is not None and size > clients:
        found.append(_too_large(size, clients))
    if experiment.min_clients > size:
        found.append(
            f"min_clients = {experiment.min_clients} is more than algorithm.buffer_size = {size}, the clients in a "
            "step: lower it"
        )
    if options.get("staleness") == "constant" and options.get("staleness_exponent", 0.5) != 0.5:
        found.append(
            'algorithm.staleness_exponent is for algorithm.staleness = "polynomial": leave one of them out'
        )
    return found


@method(
    "FedBuff",
    refuses=_refuses,
    needs={
        "clock": "needs the time that each client takes",
        "same_tensors": "divides by the whole buffer",
        "updates": "adds updates to newer models than they were made of",
        "all_drawn": "has clients that train across rounds",
    },
    breaks={
        "waits": "waits for no client",
        "open_population": "draws who trains among the sites of the beginning",
    },
)
def fedbuff(
    clients_per_round: int,
    buffer_size: Annotated[int, Field(ge=1)] = 10,
    staleness: Literal["polynomial", "constant"] = "polynomial",
    staleness_exponent: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5,
    server: ServerOptimizer = ServerOptimizer(),
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return FedBuff (Algorithm 1): clients train at their own pace, and every K updates the server takes a step.

    A round is a flush of the buffer.

    Args:
        clients_per_round: M, how many clients train at any time.
        buffer_size: K, how many updates a step is made of.
        staleness: How an update that is tau flushes late counts: ``"polynomial"``, (1 + tau)^-a; ``"constant"``, 1.
        common: What every method takes: :class:`~fednlp.federated.algorithm.RoundOptions`. In the paper ``weight`` is
            :func:`~fednlp.federated.cohort.equally`.
    """
    exponent = staleness_exponent if staleness == "polynomial" else 0.0
    schedule = FlushSchedule(clients_per_round, buffer_size)
    return Algorithm(
        "fedbuff",
        FlushCohorts(schedule, exponent),
        aggregator=BufferedMean(),
        server=FedBuffServer(server, schedule),
        **common,
    )


@dataclass(frozen=True)
class Flush:
    """One flush of the buffer.

    Attributes:
        cohort: Whose updates are in it, how late they are, and the seconds since the flush before.
        needed: Numbers of flushes after which clients got the models on which they still train; the model after
            this flush is not among them.
    """

    cohort: Cohort
    needed: frozenset[int]


class Schedule(Protocol):
    """What says who is in which flush."""

    def flush(self, population: Population, number: int) -> Flush:
        """Return a flush by its number from 1; asked again, it is the same."""


@dataclass(frozen=True)
class FlushCohorts:
    """The cohort of a round: whose updates are in the flush, with their staleness weights s(tau) = (1 + tau)^-a.

    Attributes:
        schedule: Says who is in which flush.
        exponent: a; 0 counts all updates alike.
    """

    schedule: Schedule
    exponent: float

    def __call__(self, population: Population, round_number: int) -> Cohort:
        """Return the cohort of a flush."""
        cohort = self.schedule.flush(population, round_number).cohort
        return replace(cohort, scale=[(1.0 + late) ** -self.exponent for late in cohort.staleness])


class BufferedMean(WeightedMean):
    """sum s(tau_i) p_i update_i / sum p_i: staleness makes an update smaller, and no other one larger."""

    def finish(
        self, total: Mapping[str, "ExactSum"], plan: RoundPlan, results: Sequence[ClientResult]
    ) -> AggregatedUpdate:
        """Return the sums over the weights of the buffer's clients, whatever their staleness."""
        sizes, weight = plan.population.counted, plan.weight
        whole = sum(weight(int(sizes[result.client])) for result in results)
        vectors = {name: Mean(*one.mean(whole / plan.unit)) for name, one in total.items()}
        return replace(super().finish({}, plan, results), vectors=vectors)


@dataclass(frozen=True)
class FedBuffServer(ServerUpdate):
    """Moves the model by a server optimiser, and keeps the older models on which clients still train.

    Attributes:
        schedule: Says which models are still needed.
    """

    server: ServerOptimizer
    schedule: Schedule

    def init(self, layout: "Layout") -> "dict[str, Tensor]":
        """Return the optimiser's vectors before the first flush."""
        return self.server.init(layout)

    def step(self, state: "State", update: AggregatedUpdate) -> None:
        """Move the model; keep the one before under ``version.<flushes>`` if a client trains on it."""
        needed = self.schedule.flush(update.plan.population, update.plan.number).needed
        for name in [name for name in state.vectors if name.startswith(_VERSION)]:
            if int(name.removeprefix(_VERSION)) not in needed:
                del state.vectors[name]
        if state.round in needed:
            state.vectors[f"{_VERSION}{state.round}"] = state.params.clone()
        self.server.step(state, update)

    def model(self, state: "State", staleness: int) -> "Tensor":
        """Return the model of ``staleness`` flushes ago."""
        return state.vectors[f"{_VERSION}{state.round - staleness}"] if staleness else state.params


def on_schedule(algorithm: Algorithm, schedule: Schedule) -> Algorithm:
    """Return FedBuff with other flushes than those of the simulated clock.

    Args:
        algorithm: From :func:`fedbuff`.
        schedule: Says who is in which flush.
    """
    cohorts, server = algorithm.sample, algorithm.server
    assert isinstance(cohorts, FlushCohorts)
    assert isinstance(server, FedBuffServer)
    return replace(
        algorithm,
        sample=replace(cohorts, schedule=schedule),
        server=replace(server, schedule=schedule),
    )


class Places:
    """The places in which clients train, and the buffer of the updates that have arrived.

    A free place is taken by a client drawn uniformly among those that neither train nor have an update in the buffer,
    which starts from the newest model. Where no client is left, the place stays free until one is.

    Args:
        concurrency: How many of them train at any time.

    Attributes:
        began: The number of flushes when it began, for each client that trains or has an update in the buffer.
        buffer: The clients whose updates wait for the next flush, in the order of their arrival.
        gone: Clients that are not drawn any more.

    Raises:
        ConfigError: There are fewer clients than a buffer holds.
    """

    def __init__(self, seed: int, clients: int, concurrency: int, size: int) -> None:
        if size > clients:
            raise ConfigError(_too_large(size, clients))
        self.flushes: list[Flush] = []
        self.began: dict[int, int] = {}
        self.buffer: list[int] = []
        self.gone: set[int] = set()
        self._clients, self._concurrency, self._size = clients, concurrency, size
        self._rng = generator(seed, "fedbuff")
        self._flushed = 0.0

    @property
    def training(self) -> list[int]:
        """The clients that train, in the order in which they were drawn."""
        waiting = {*self.buffer}
        return [client for client in self.began if client not in waiting]

    def fill(self) -> list[int]:
        """Draw a client for every free place; return those that were drawn."""
        drawn = []
        while len(self.began) - len(self.buffer) < self._concurrency:
            client = self._draw()
            if client is None:
                break
            self.began[client] = len(self.flushes)
            drawn.append(client)
        return drawn

    def arrive(self, client: int, now: float | None = None) -> None:
        """Put the update of a client that trains into the buffer, and flush it if it is full.

        Args:
            now: By the simulated clock, if there is one.
        """
        self.buffer.append(client)
        if len(self.buffer) == self._size:
            self._flush(now)

    def _flush(self, now: float | None) -> None:
        clients, newest = sorted(self.buffer), len(self.flushes)
        late = [newest - self.began.pop(client) for client in clients]
        cohort = Cohort(clients, late, seconds=None if now is None else now - self._flushed)
        self.flushes.append(Flush(cohort, frozenset(self.began.values())))
        self.buffer, self._flushed = [], now or 0.0

    def _draw(self) -> int | None:
        """Return a client that is neither training nor in the buffer; None where there is none."""
        clients = self._clients
        busy: Set[int] = self.began.keys() | self.gone if self.gone else self.began.keys()
        if clients > 2 * len(busy):  # two draws on average at most
            while (client := int(self._rng.integers(clients))) in busy:
                pass
            return client
        idle = [client for client in range(clients) if client not in busy]
        return idle[int(self._rng.integers(len(idle)))] if idle else None


class FlushSchedule:
    """The flushes by a simulated clock: a function of seed and population, of which the last run's are remembered.

    Args:
        concurrency: How many clients train at any time.
    """

    def __init__(self, concurrency: int, buffer_size: int) -> None:
        self.concurrency, self.buffer_size = concurrency, buffer_size
        self._timeline: _Timeline | None = None

    def flush(self, population: Population, number: int) -> Flush:
        """Return a flush by its number from 1.

        Raises:
            ConfigError: How long clients take is not known, or there are fewer clients than a buffer holds.
        """
        if self._timeline is None or not self._timeline.is_of(population):
            self._timeline = _Timeline(population, self.concurrency, self.buffer_size)
        flushes = self._timeline.places.flushes
        while len(flushes) < number:
            self._timeline.advance()
        return flushes[number - 1]


class _Timeline:
    """The events of a simulated clock, one instant after the other.

    At each instant the updates that arrive are added to the buffer in the order of the clients' ids, and whenever the
    buffer is full, it is flushed. Then every free place is taken.

    Args:
        concurrency: How many clients train at any time.

    Raises:
        ConfigError: How long clients take is not known, or there are fewer clients than a buffer holds.
    """

    def __init__(self, population: Population, concurrency: int, buffer_size: int) -> None:
        if population.seconds is None:
            raise ConfigError(
                "fedbuff needs the time that each client takes, which is not known: set costs.device to a profile that "
                "says how long the model takes, or give seconds to federate()"
            )
        self.places = Places(population.seed, len(population), concurrency, buffer_size)
        self._seed, self._seconds = population.seed, population.seconds.copy()
        self._training: list[tuple[float, int]] = []
        self._fill(0.0)

    def is_of(self, population: Population) -> bool:
        """Whether these are the events of a population."""
        return population.seed == self._seed and np.array_equal(population.seconds, self._seconds)  # type: ignore[arg-type]

    def advance(self) -> None:
        """Go on to the next instant at which an update arrives."""
        now = self._training[0][0]
        while self._training and self._training[0][0] == now:
            self.places.arrive(heappop(self._training)[1], now)
        self._fill(now)

    def _fill(self, now: float) -> None:
        for client in self.places.fill():
            heappush(self._training, (now + float(self._seconds[client]), client))


def _too_large(size: int, clients: int) -> str:
    """Return the message about a buffer that can never be full."""
    return (
        f"algorithm.buffer_size = {size} is more than the {clients} clients, and a buffer holds at most one update of "
        "each: lower it"
    )
