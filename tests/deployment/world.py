"""A federation in one thread: a server and clients whose links, processes and disks fail where a seed says."""

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from fednlp.deployment.session.client_session import ClientSession, ReadyCall
from fednlp.deployment.session.hub import Hub, ServerSession
from fednlp.deployment.session.messages import Call
from fednlp.deployment.session.objects import ObjectCache
from fednlp.deployment.session.replies import Outbox

from .disks import Disk
from .memory_link import MemoryLink
from .slow_disks import Job

MOST = 1000


def bytes_of(name: str, most: int = MOST) -> bytes:
    """Return the bytes that an object of this name has: as many as the name decides."""
    random = Random(name)
    return random.randbytes(random.randrange(most))


class Site:
    """A client: its process may be killed, and is started again from its folder."""

    def __init__(self, world: "World", number: int) -> None:
        self.world, self.number = world, number
        self.folder = world.folder / f"site-{number}"
        self.begun: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.held = set[
            str
        ]()  # calls that a process has answered which ended before the answer was on the disk
        self.start()

    def start(self) -> None:
        """Start the process."""
        self.todo: list[ReadyCall] = []
        self.jobs: list[Job] = []
        self.session = ClientSession(
            Outbox(self.folder / "outbox"),
            ObjectCache(self.folder / "objects"),
            run=None,
            software="1.0",
            on_ready=self.todo.append,
            on_withdrawn=self._withdrawn,
        )
        self.link = MemoryLink(self.session.begin, self._served)

    def _served(self, wake: Callable[[], None]) -> ServerSession:
        return self.world.hub.session(self.number, wake, lambda: 0.0)

    def _withdrawn(self, call_id: str) -> None:
        self.todo[:] = [call for call in self.todo if call.id != call_id]

    def work(self) -> None:
        """Do what is to be done first, and answer it."""
        if not self.todo:
            return
        call = self.todo.pop(0)
        self.begun[call.id] += 1
        for name, path in call.objects.items():
            assert path.read_bytes() == bytes_of(call.request[name])
        body = self.folder / "body"
        body.write_bytes(bytes_of(call.id))
        if call.id.endswith("keys"):
            body.unlink()
        self.done[call.id] += 1
        self._answer(call.id, body if body.exists() else None)

    def _answer(self, call_id: str, body: Path | None) -> None:
        if not self.world.slow:
            self.session.answer(call_id, {"of": call_id}, body)
            return
        job = Job(lambda: self.session.answer(call_id, {"of": call_id}, body), call_id)
        job.step()  # until it would be put on the disk
        self.jobs.append(job)

    def kill(self) -> None:
        """End the process without a word."""
        self.link.cut()
        self.session.close()
        for job in self.jobs:
            job.kill()


class World:
    """A server and its clients, which do some rounds.

    Each round asks every client twice: for keys, which are an answer alone, and for an update. Both need objects.

    Args:
        folder: For everything.
        seed: Of all that happens.
        disk: The disk, if power may be lost.
        clients: How many.
        rounds: How many.
        slow: Whether what is done in the background takes its time, so that much may happen meanwhile; see
            :func:`tests.deployment.slow_disks.make_slow`.

    Attributes:
        lost: The calls whose answers may have been lost with a site's power, before they were on a disk.
    """

    def __init__(
        self, folder: Path, seed: int, disk: Disk, clients: int = 2, rounds: int = 2, slow: bool = False
    ) -> None:
        self.slow, self.lost = slow, set[str]()
        self.jobs: list[Job] = []
        self.folder, self.random, self.disk = folder, Random(seed), disk
        self.rounds, self.saved = rounds, 0
        self.withdrawn: set[str] = set()
        self.generation = 0
        self.server = folder / "server"
        (folder / "files").mkdir(parents=True)
        self.sites: list[Site] = []
        self._number = clients
        self.start()
        self.sites = [Site(self, number) for number in range(clients)]

    @property
    def over(self) -> bool:
        return self.saved == self.rounds

    def start(self) -> None:
        """Start the server from what is on its disk, and the round that is not saved."""
        self.hub = Hub(self.server, "run", self._later if self.slow else lambda job: job())
        self.hub.forget(self.saved)
        self.begin()

    def _later(self, job: Callable[[], None]) -> None:
        self.jobs.append(Job(job))

    def begin(self) -> None:
        """Begin the round after the last one that is saved."""
        self.taken: Counter[str] = Counter()
        self.files: list[Path] = []
        if self.over:
            return
        number = self.saved + 1
        names = {"model": f"model-{number}", "shared": "shared"}
        refs = {}
        for key, name in names.items():
            path = self.folder / "files" / name
            path.write_bytes(bytes_of(name))
            refs[key] = self.hub.add_object(path)
        self.expected = set()
        for client in range(self._number):
            for kind in ("keys", "train"):
                call_id = f"{number}.{client}.{kind}"
                if call_id not in self.withdrawn:
                    self.expected.add(call_id)
                    self.hub.ask(client, Call(call_id, dict(names), refs), MOST)

    def take(self) -> None:
        """Take a reply if there is one, and save the round after the last."""
        reply = self.hub.take(0)
        if reply is None:
            return
        self.taken[reply.id] += 1
        assert self.taken[reply.id] == 1, f"{reply.id} came twice"
        assert reply.error is None, reply.error
        assert reply.answer == {"of": reply.id}
        if reply.id.endswith("keys"):
            assert reply.path is None
        else:
            assert reply.path is not None
            assert reply.path.read_bytes() == bytes_of(reply.id)
            assert reply.size == len(bytes_of(reply.id))
        self._save_if_whole()

    def withdraw(self) -> None:
        """Want a reply of this round no longer."""
        waiting = sorted(self.expected - set(self.taken))
        if waiting:
            call_id = self.random.choice(waiting)
            self.withdrawn.add(call_id)
            self.expected.discard(call_id)
            self.hub.withdraw(call_id)
            self._save_if_whole()

    def _save_if_whole(self) -> None:
        if self.expected == set(self.taken):
            self.saved += 1
            self.hub.forget(self.saved)
            self.hub.drop_object(hashlib.sha256(bytes_of(f"model-{self.saved}")).hexdigest())
            self.begin()

    def kill_server(self, power: bool = False) -> None:
        """End the server's process without a word, or take away its power, and start it again."""
        for site in self.sites:
            site.link.cut()
        self.hub.close()
        while self.jobs:
            self.jobs.pop().kill()
        if power:
            self.generation += 1
            left = self.folder / f"server-{self.generation}"
            self.disk.after_a_crash(self.server, left, self.random)
            self.server = left
        self.start()

    def kill_site(self, site: Site, power: bool = False) -> None:
        """End a client's process without a word, or take away its power, and start it again."""
        site.held |= {job.name for job in site.jobs}
        if power:
            self.lost |= site.held
        site.kill()
        if power:
            self.generation += 1
            left = self.folder / f"site-{site.number}-{self.generation}"
            self.disk.after_a_crash(site.folder, left, self.random)
            site.folder = left
        site.start()

    def step(self, faults: bool) -> None:
        """Do one thing: mostly move a frame."""
        random = self.random
        site = random.choice(self.sites)
        draw = random.random()
        if faults and draw < 0.12:
            fault = random.choice(
                [
                    site.link.cut,
                    lambda: site.link.cut(half_open=True),
                    lambda: site.link.replay(random.randrange(2), random),
                    lambda: self.kill_site(site),
                    self.kill_server,
                    lambda: self.kill_site(site, power=True),
                    lambda: self.kill_server(power=True),
                    lambda: self.withdraw() if random.random() < 0.2 else None,
                ]
            )
            fault()
        elif draw < 0.2:
            site.link.haunt()
        elif draw < 0.3:
            self.work_in_background(site.jobs if random.random() < 0.5 else self.jobs)
            site.work()
        elif draw < 0.4:
            self.take()
        else:
            site.link.step(random)

    def work_in_background(self, jobs: list[Job]) -> None:
        """Let one of some jobs go on."""
        if jobs:
            job = self.random.choice(jobs)
            job.step()
            if job.done:
                jobs.remove(job)

    def close(self) -> None:
        """End everything."""
        while self.jobs:
            self.jobs.pop().kill()
        for site in self.sites:
            site.kill()
            site.link.haunt()
        self.hub.close()
        self.disk.close()
