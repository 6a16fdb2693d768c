"""A server and its sites in threads, each of which can be killed as kill -9 does, and started again on its own disk."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fednlp.deployment.operate.shards import Shards
from fednlp.deployment.server import federation
from fednlp.deployment.server.federation import FOLDER, Federation
from fednlp.deployment.server.run_directory import open_directory, run_name
from fednlp.deployment.session.driver import Session, Wake
from fednlp.deployment.session.hub import Hub, StoredReply
from fednlp.deployment.site.participate import Participant
from fednlp.errors import RunError
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.run_dir import RunDir

from .memory_link import MemoryLink
from .test_federation import Member, OneAtATime, allows, quiet


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the server's that does not run while a site works: they share torch's generator."""

    def call(*arguments: Any) -> Any:
        with OneAtATime.lock:
            return function(*arguments)

    return call


_GUARDED = {
    name: _guarded(getattr(federation, name)) for name in ("server_components", "start_model", "open_run")
}


class Killed(BaseException):
    """What ends a process: nothing catches it."""


class Process:
    """Sessions of a process, which break off once it is dead."""

    def __init__(self) -> None:
        self.dead = False
        self.lock = threading.RLock()
        self.wakes: list[Wake] = []

    def session(self, begin: Callable[[Wake], Session], wake: Wake) -> Session:
        """Return the session of a new connection."""
        self.wakes.append(wake)
        return Mortal(begin(wake), self)

    def die(self) -> None:
        """End; when this returns, no session does anything any more."""
        with self.lock:
            self.dead = True
        for wake in self.wakes:
            wake()


class Mortal:
    """A session that lives as long as its process."""

    def __init__(self, session: Session, process: Process) -> None:
        self.session, self.process = session, process

    def receive(self, data: bytes) -> None:
        with self._alive():
            self.session.receive(data)

    def next_frame(self) -> bytes | None:
        with self._alive():
            return self.session.next_frame()

    @property
    def finished(self) -> bool:
        return not self.process.dead and self.session.finished

    def close(self) -> None:
        with self.process.lock:
            if not self.process.dead:
                self.session.close()

    @contextmanager
    def _alive(self) -> Iterator[None]:
        with self.process.lock:
            if self.process.dead:
                raise RunError("the process was killed")
            yield


class MortalHub(Hub):
    """A hub whose server is killed once it has taken the last of some replies of a step of a round."""

    deaths: list[tuple[int, str, int]]

    def take(self, timeout: float | None = None) -> StoredReply | None:
        reply = super().take(timeout)
        if reply is not None and self.deaths:
            number, step, count = self.deaths[0]
            name = reply.id.split(".")
            if (int(name[0]), name[2]) == (number, step):
                self.deaths[0] = number, step, count - 1
                if count == 1:
                    self.deaths.pop(0)
                    raise Killed
        return reply


class Machines:
    """A federation over memory links.

    Args:
        shards: What each site has.
        folder: Of the server and all sites.
        server_deaths: Round, step and number of replies after which the server is killed, in their order.
        site_deaths: (client, name of a call, whether its work was done) -> the site is killed once.
        absent: (client, name of a call): a site fails there.
    """

    def __init__(
        self,
        shards: Shards,
        folder: Path,
        *,
        server_deaths: Iterable[tuple[int, str, int]] = (),
        site_deaths: Iterable[tuple[int, str, bool]] = (),
        absent: Iterable[tuple[int, str]] = (),
    ) -> None:
        self.shards, self.folder = shards, folder
        self.server_deaths, self.site_deaths = list(server_deaths), set(site_deaths)
        self.absent = set(absent)
        self.names = list(shards.names)
        self.frames: list[bytes] = []
        self.server, self.hub = Process(), self._open_hub()
        self.sites = [Process() for _ in self.names]
        self.parts = [self._participant(client) for client in range(len(self.names))]

    def run(self, restart: bool = True) -> RunDir:
        """Run the federation to its end, with a new server each time that it is killed; or once, without."""
        threads = []
        for client in range(len(self.names)):
            link = MemoryLink(
                lambda wake, client=client: self._dialling(client, wake),
                lambda wake, client=client: self._connection(client, wake),
            )
            threads += [
                threading.Thread(target=link.run),
                threading.Thread(target=self._live, args=(client,)),
            ]
        for thread in threads:
            thread.start()
        try:
            return self._serve(restart)
        finally:
            self.hub.finish("done")
            for thread in threads:
                thread.join(60)
            assert not any(thread.is_alive() for thread in threads)

    def _serve(self, restart: bool) -> RunDir:
        members = [Member(name, client) for client, name in enumerate(self.names)]
        while True:
            directory = open_directory(self.shards.experiment, self.folder / "server")
            try:
                with patch.multiple(federation, **_GUARDED):
                    return Federation(directory, self.hub, lambda: members, NullCallback()).run()
            except Killed:
                self.server.die()
                self.hub, self.server = self._open_hub(), Process()
                if not restart:
                    return directory

    def _open_hub(self) -> MortalHub:
        directory = open_directory(self.shards.experiment, self.folder / "server")
        hub = MortalHub(directory.folder / FOLDER, run_name(directory))
        hub.deaths = self.server_deaths
        return hub

    def _dialling(self, client: int, wake: Wake) -> Session:
        while self.sites[client].dead:
            time.sleep(0.01)
        return self.sites[client].session(self.parts[client].session.begin, wake)

    def _connection(self, client: int, wake: Wake) -> Session:
        while self.server.dead:
            time.sleep(0.01)
        hub = self.hub
        session = self.server.session(lambda wake: hub.session(client, wake, time.monotonic), wake)
        receive = session.receive

        def heard(data: bytes) -> None:
            self.frames.append(bytes(data))
            receive(data)

        session.receive = heard  # type: ignore[method-assign]
        return session

    def _live(self, client: int) -> None:
        """Do a site's work, in a new process each time that it is killed."""
        while True:
            try:
                self.parts[client].work()
                return
            except Killed:
                self.sites[client].die()
                self.parts[client], self.sites[client] = self._participant(client), Process()

    def _participant(self, client: int) -> Participant:
        own, name = self.folder / f"site-{client}", self.names[client]
        own.mkdir(exist_ok=True)
        part = Participant(own, OneAtATime(own, name, allows(*self.shards.files(name)), quiet), None, quiet)
        answer = part.site.answer

        def mortal(name: str, request: Any, objects: Any) -> Any:
            if (client, name) in self.absent:
                raise RunError("gone")
            for done in (False, True):
                found = answer(name, request, objects) if done else None
                if (client, name, done) in self.site_deaths:
                    self.site_deaths.remove((client, name, done))
                    raise Killed
            return found

        part.site.answer = mortal  # type: ignore[method-assign]
        return part
