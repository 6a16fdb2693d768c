"""The flushes of FedBuff: M clients train at any time, and every K updates that arrive are a flush.

:class:`Places` says who trains and whose updates wait. Who arrives next is for others to say: a simulated clock
(:class:`Timeline`), or the sites of a deployment.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from fednlp.errors import ConfigError
from fednlp.federated.cohort import Cohort, Population
from fednlp.seeds import generator


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


def too_large(size: int, clients: int) -> str:
    """Return the message about a buffer that can never be full."""
    return (
        f"algorithm.buffer_size = {size} is more than the {clients} clients, and a buffer holds at most one update of "
        "each: lower it"
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
            raise ConfigError(too_large(size, clients))
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
        self._timeline: Timeline | None = None

    def flush(self, population: Population, number: int) -> Flush:
        """Return a flush by its number from 1.

        Raises:
            ConfigError: How long clients take is not known, or there are fewer clients than a buffer holds.
        """
        if self._timeline is None or not self._timeline.is_of(population):
            self._timeline = Timeline(population, self.concurrency, self.buffer_size)
        flushes = self._timeline.places.flushes
        while len(flushes) < number:
            self._timeline.advance()
        return flushes[number - 1]


class Timeline:
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
