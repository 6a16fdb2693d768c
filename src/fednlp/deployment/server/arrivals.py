"""The flushes of FedBuff between machines: whose updates arrive, in the order in which they do.

M calls are open at any time, each with the model as it was when its site was drawn. When K replies are stored, they are
a flush. What happens is written down before it is used (:class:`Events`), and who is drawn next is a function of it. So
a server that is killed goes on with the same flush, and asks no site again that has answered.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from fednlp.deployment.server.publishing import Offer
from fednlp.deployment.server.site_engine import SiteEngine
from fednlp.deployment.server.waiting import LOOK, Patience, Reminders
from fednlp.deployment.session.call_ids import round_of
from fednlp.deployment.session.hub import StoredReply
from fednlp.deployment.session.site_kinds import call_id
from fednlp.disk import sync_folder, writing
from fednlp.errors import RunError, TooFewClients
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.algorithms.fedbuff import (
    FedBuffServer,
    Flush,
    FlushCohorts,
    FlushSchedule,
    Places,
    on_schedule,
)
from fednlp.federated.client import TrainRequest
from fednlp.federated.cohort import Population
from fednlp.federated.communication import broadcast
from fednlp.federated.runtime import MODEL
from fednlp.federated.state import State
from fednlp.federated.transforms import RngKey
from fednlp.simulation.rounds import FederatedTraining
from fednlp.simulation.train import OpenRun

_REMEDY = "then start it again; nothing that was acknowledged is lost"
_KINDS = ("arrived", "removed", "returned")


class Events:
    """What has happened, an event a line; a line is on the disk before it is used.

    Args:
        path: The file; made if missing. A line that a crash cut short is removed.

    Raises:
        RunError: The file is damaged, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path.parent, _REMEDY):
            path.touch()
            whole = path.read_bytes()
            lines = whole[: whole.rfind(b"\n") + 1]
            os.truncate(path, len(lines))
            sync_folder(path.parent)
        self.known = [self._event(line) for line in lines.splitlines()]

    def add(self, kind: str, client: int) -> None:
        """Take note of an event; when this returns, it is on the disk.

        Args:
            kind: ``"arrived"``, for an update or the error in its place; ``"removed"`` or ``"returned"``, for a site.
        """
        with writing(self.path.parent, _REMEDY), self.path.open("ab") as file:
            file.write(json.dumps({kind: client}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _event(self, line: bytes) -> tuple[str, int]:
        try:
            ((kind, client),) = json.loads(line).items()
        except (ValueError, AttributeError):
            kind, client = "", None
        if kind not in _KINDS or not isinstance(client, int):
            raise RunError(f"{self.path} is damaged: start the federation again with another --out")
        return kind, client


class Arrivals:
    """The flushes as they happen (a :class:`fednlp.federated.algorithms.fedbuff.Schedule`).

    Args:
        sites: Where the clients are.
        state: The server, which has the newest model, and those on which clients still train.
        patience: How long a call may be open, whom the server tells, and who no longer takes part.

    Raises:
        ConfigError: There are fewer clients than a buffer holds.
        RunError: The events are not those of this run.
    """

    def __init__(
        self,
        sites: SiteEngine,
        state: State,
        algorithm: Algorithm,
        clients: int,
        seed: int,
        rounds: int,
        events: Events,
        patience: Patience,
    ) -> None:
        self.sites, self.state, self.algorithm = sites, state, algorithm
        self.seed, self.rounds, self.events, self.patience = seed, rounds, events, patience
        assert isinstance(algorithm.sample, FlushCohorts)
        clock = algorithm.sample.schedule
        assert isinstance(clock, FlushSchedule)
        self.clients, self.size = clients, clock.buffer_size
        self.places = Places(seed, clients, clock.concurrency, self.size)
        for kind, client in events.known:
            self._replay(kind, client)
        self._models: dict[int, Offer] = {}
        self._opened: dict[int, tuple[str, float]] = {}

    def flush(self, population: Population, number: int) -> Flush:
        """Return a flush by its number from 1, when it has happened.

        Args:
            number: That of the newest flush, or the next one.

        Raises:
            TooFewClients: So many sites were removed that the buffer cannot be full any more.
        """
        flushes = self.places.flushes
        if len(flushes) < number:
            self._begin()
            self._next()
            while len(flushes) < number:
                for client in self._draw():
                    self._open(client)
                self._next()
            if number == self.rounds:
                for name, _ in self._opened.values():
                    self.sites.hub.withdraw(name)
        return flushes[number - 1]

    def training(self) -> list[int]:
        """Return the clients that train across rounds."""
        return [] if len(self.places.flushes) == self.rounds else self.places.training

    def _replay(self, kind: str, client: int) -> None:
        if kind != "arrived":
            self.places.gone ^= {client}
            return
        self.places.fill()
        if client not in self.places.training:
            raise RunError(
                f"{self.events.path} is of other settings: start the federation again with another --out"
            )
        self.places.arrive(client)

    def _begin(self) -> None:
        """Let go of what the flush before needed, which is saved, and open the calls of all who are to train."""
        hub, began = self.sites.hub, self.places.began
        self._draw()
        wanted = {call_id(self._request(client)) for client in began}
        for name in hub.stored():
            if name not in wanted and round_of(name) <= self.state.round + 1:
                hub.withdraw(name)
        hub.forget(min(began.values(), default=self.state.round))
        training = self.places.training
        needed = {began[client] for client in training}
        for version in [version for version in self._models if version not in needed]:
            self.sites.publisher.drop(self._models.pop(version))
        for client in training:
            self._open(client)

    def _draw(self) -> list[int]:
        """Draw a client for every free place; return those that were drawn."""
        gone = {client for client in self.patience.gone() if client < self.clients}
        for client in sorted(gone ^ self.places.gone):
            self.events.add("removed" if client in gone else "returned", client)
        self.places.gone = gone
        return self.places.fill()

    def _next(self) -> None:
        """Wait until an update has arrived."""
        if not self.places.training:
            raise TooFewClients(
                f"flush {len(self.places.flushes) + 1}: no site is left to train, and {len(self.places.buffer)} "
                f"updates are there of algorithm.buffer_size = {self.size}; the rounds before are saved"
            )
        client = self._arrived()
        del self._opened[client]
        self.events.add("arrived", client)
        self.places.arrive(client)

    def _arrived(self) -> int:
        """Return the client whose reply is stored next, or an error in its place."""
        begun = time.monotonic()
        reminders = Reminders(begun)
        names: Mapping[str, int] = {name: client for client, (name, _) in self._opened.items()}
        self._give_up(begun)
        while True:
            reply: StoredReply | None = self.sites.hub.take(LOOK)
            if reply is not None:
                if reply.id in names:
                    return names[reply.id]
                continue
            now = time.monotonic()
            self._give_up(now)
            if reminders.due(now):
                self.patience.on_waiting(sorted(names.values()), now - begun)

    def _give_up(self, now: float) -> None:
        """Wait no longer for sites that were removed, or whose calls were open for too long."""
        gone, most = self.patience.gone(), self.patience.seconds
        for client, (name, opened) in self._opened.items():
            if client in gone:
                self.sites.hub.give_up(name, "the site was removed from the federation")
            elif most is not None and now - opened > most:
                self.sites.hub.give_up(name, f"no answer within {most:g} seconds (rounds.wait)")

    def _open(self, client: int) -> None:
        request = self._request(client)
        self.sites.open(call_id(request), request, [self._model(request.round - 1)])
        self._opened.setdefault(client, (call_id(request), time.monotonic()))

    def _request(self, client: int) -> TrainRequest:
        number = self.places.began[client] + 1
        return TrainRequest(client, number, 1.0, rate=self.algorithm.client_rate.factor(number))

    def _model(self, version: int) -> Offer:
        """Return the model after so many flushes, as it is offered to those who start from it."""
        if version not in self._models:
            state, algorithm = self.state, self.algorithm
            x = algorithm.server.model(state, state.round - version)
            sent = broadcast(algorithm.downlink, state.layout, x, RngKey(self.seed, version + 1, -1))
            self._models[version] = self.sites.publisher.offer(MODEL, sent.model, sent.message)
        return self._models[version]


def by_arrivals(run: OpenRun, sites: SiteEngine, path: Path, patience: Patience) -> None:
    """Have the flushes of FedBuff be those that happen; a run of another method is left as it is.

    Args:
        run: About to begin.
        patience: How long a call may be open, whom the server tells, and who no longer takes part.

    Raises:
        ConfigError: There are fewer sites than a buffer holds.
        RunError: The file at ``path`` is damaged.
    """
    training, experiment = run.training, run.context.experiment
    if not isinstance(training, FederatedTraining) or not isinstance(
        training.algorithm.server, FedBuffServer
    ):
        return
    arrivals = Arrivals(
        sites,
        run.context.state,
        training.algorithm,
        run.context.partition.num_clients,
        experiment.seed,
        experiment.num_rounds,
        Events(path),
        patience,
    )
    sites.busy, sites.forgets = arrivals.training, False
    sites.hub.eager = False  # what has arrived is written down, and is then expected to be on the disk
    training.algorithm = on_schedule(training.algorithm, arrivals)
