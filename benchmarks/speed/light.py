"""Sections ``many`` and ``memory``: a real server, and light clients that send bytes of the right shape.

A light client has no texts and does not train: it answers each call by the model that it was given, as its update. It
connects, fetches and uploads as a site does, over mTLS. All of them are in one process, so that many fit; the server is
in a process of its own, with the rounds, the inbox and the exact sum of ``fednlp serve``.

``many``: clients that stay connected, of which a part is drawn for each round; the server's time for a round, by the
number of clients in it, and its memory. ``memory``: what six clients with a model of 400 MB let the server hold.

Memory is what ``/proc/PID/status`` says is resident: the process' own (RssAnon), and of files that it has mapped
(RssFile), sampled every 10 ms, less what the process had before it loaded the model.
"""

import asyncio
import itertools
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODELS_BOUND = 3.0
_LOOK = 0.01


@dataclass
class Member:
    """A site, as the server's register has it."""

    name: str
    client: int
    state: str = "enrolled"


def serve(
    port: Any, go: Any, marks: Any, folder: Path, experiment: Any, clients: int, pair: Any, root: bytes
) -> None:
    """Be the server: run the rounds with whoever connects; the name in a client's certificate is its number.

    ``marks`` is told what is resident once all are connected, and once all are set up.
    """
    from made_up import experiment as small

    import fednlp
    from fednlp.deployment.links.grpc import server as link
    from fednlp.deployment.operate.serve import DISK_THREADS, background_of
    from fednlp.deployment.server.federation import FOLDER, Federation
    from fednlp.deployment.server.run_directory import open_directory, run_name
    from fednlp.deployment.session.hub import Hub
    from fednlp.simulation.callback import NullCallback
    from tests.deployment.throwaway import name_of

    fednlp.run(
        small(folder / "warm", hidden=16, rounds=1), folder / "warm-run"
    )  # all libraries are loaded by now
    directory = open_directory(experiment, folder / "server")
    disk = ThreadPoolExecutor(DISK_THREADS, "fednlp-disk")
    hub = Hub(directory.folder / FOLDER, run_name(directory), background_of(disk))
    credentials = link.grpc.ssl_server_credentials([pair], root, True)

    def session(peer: Any, wake: Callable[[], None]) -> Any:
        return hub.session(int(name_of(peer.certificate)), wake, time.monotonic)

    port.put(link.serve("127.0.0.1:0", credentials, session, lambda peer, data: data).port)
    go.wait()
    while len(hub.connected()) < clients:
        time.sleep(0.05)
    own = Memory(os.getpid())
    time.sleep(1.0)
    marks.put(own.now())
    members = [Member(f"site-{number}", number) for number in range(clients)]

    def opened(run: Any) -> None:
        marks.put(own.now())

    Federation(directory, hub, lambda: members, NullCallback(), on_open=opened).run()
    time.sleep(0.5)
    disk.shutdown()


class LightClient:
    """A client that answers by what it was given.

    Args:
        folder: Its own.
        number: Of the client.
    """

    def __init__(self, folder: Path, number: int) -> None:
        from fednlp.deployment.session.client_session import ClientSession
        from fednlp.deployment.session.objects import ObjectCache
        from fednlp.deployment.session.replies import Outbox

        self.folder, self.number = folder, number
        self.objects = ObjectCache(folder / "objects")
        self.session = ClientSession(
            Outbox(folder / "outbox"), self.objects, run=None, software=_software(), on_ready=self._work
        )

    def _work(self, call: Any) -> None:
        from fednlp.deployment.session.setup import Ready, is_setup, read_setup
        from fednlp.federated.client import ClientResult, TrainRequest
        from fednlp.runtime.messages import from_json, to_json

        if is_setup(call.id):
            clients = read_setup(call.request).clients
            self.session.answer(call.id, Ready(train=8, test=0, clients=clients).model_dump(), None)
        else:
            request = from_json(call.request["request"])
            assert isinstance(request, TrainRequest)
            body = self.folder / "body"
            os.link(call.objects["model"], body)
            result = ClientResult(self.number, request.weight, examples=8, steps=1, loss=1.0)
            self.session.answer(call.id, to_json(result), body)
        for digest in self.objects.digests():
            self.objects.drop(digest)


def _software() -> str:
    from fednlp.deployment.session.messages import software

    return software()


@dataclass
class Memory:
    """The memory of a process, sampled.

    Attributes:
        base: Before the model was loaded, by kind.
        connected: When all clients were connected, and none was asked for anything.
        set_up: When all were set up, before the first round.
        peak: The most of each kind, and of their sum.
    """

    process: int
    base: dict[str, int] = field(default_factory=dict)
    connected: dict[str, int] = field(default_factory=dict)
    set_up: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin to sample, in another thread, until the process ends."""
        self.base = self.now()
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while now := self.now():
            self.peak = {kind: max(self.peak.get(kind, 0), value) for kind, value in now.items()}
            time.sleep(_LOOK)

    def now(self) -> dict[str, int]:
        """Return what is resident, by kind; nothing once the process has ended."""
        try:
            text = Path(f"/proc/{self.process}/status").read_text()
        except OSError:
            return {}
        lines = dict(line.split(":", 1) for line in text.splitlines())
        if "RssAnon" not in lines:
            return {}
        kinds = {"own": "RssAnon", "mapped": "RssFile", "shared": "RssShmem", "all": "VmRSS"}
        return {kind: int(lines[name].split()[0]) * 1024 for kind, name in kinds.items()}

    def grown(self) -> dict[str, int]:
        """Return by how much each kind grew at most."""
        return {kind: value - self.base.get(kind, 0) for kind, value in self.peak.items()}

    def phases(self) -> dict[str, int]:
        """Return by how much the process grew while clients connected, were set up, and did rounds."""
        marks = [one["all"] for one in (self.base, self.connected, self.set_up, self.peak)]
        grown = [later - earlier for earlier, later in itertools.pairwise(marks)]
        return dict(zip(("connecting", "setting_up", "rounds"), grown, strict=True))


def federation(experiment: Any, folder: Path, clients: int) -> tuple[list[dict[str, Any]], Memory]:
    """Run a federation of light clients; return the lines of its rounds, and the memory of its server.

    Args:
        experiment: As the server has it: its data are at the sites.
        folder: New or empty.
        clients: How many.
    """
    from fednlp.deployment.links.grpc.client import connect
    from fednlp.deployment.links.system import allow_many_files
    from fednlp.simulation.run_dir import RunDir
    from tests.deployment.throwaway import Authority

    allow_many_files()
    authority, context = Authority(), multiprocessing.get_context("spawn")
    port, marks, go = context.Queue(), context.Queue(), context.Event()
    arguments = (port, go, marks, folder, experiment, clients, authority.server_pair(), authority.pem)
    server = context.Process(target=serve, args=arguments)
    server.start()
    address = f"127.0.0.1:{port.get(timeout=300)}"
    memory = Memory(server.pid or 0)
    memory.begin()
    go.set()
    lights = [LightClient(folder / f"light-{number}", number) for number in range(clients)]

    async def connected() -> None:
        async def one(light: LightClient) -> None:
            own = authority.site(str(light.number))
            await connect(address, lambda: own, light.session.begin, server_name="fednlp-server")

        await asyncio.gather(*map(one, lights))

    threading.Thread(target=lambda: asyncio.run(connected()), daemon=True).start()
    memory.connected, memory.set_up = marks.get(), marks.get()
    server.join()
    for light in lights:
        light.session.leave("it is over")
    if server.exitcode:
        raise RuntimeError(f"the server ended with {server.exitcode}")
    return RunDir(folder / "server").round_lines(), memory


def served(folder: Path, hidden: int, layers: int, rounds: int, per_round: int) -> tuple[Any, int]:
    """Return an experiment as a server of sites has it, and the bytes of its model."""
    from made_up import LABELS, experiment

    from fednlp import config

    made = experiment(folder, hidden=hidden, layers=layers, rounds=rounds)
    sections = made.model_dump(exclude_none=True)
    sections |= {"data": {"name": "sites", "labels": list(LABELS)}, "clients_per_round": per_round}
    sections["evaluation"] = {"every": rounds, "personal": False}
    del sections["partition"]
    size = (folder / "model" / "model.safetensors").stat().st_size
    return config.parse(sections, "light").resolved(), size


def many(connected: int, cohorts: Sequence[int], rounds: int) -> dict[str, Any]:
    """Return the figures of the section ``many``.

    Args:
        connected: Clients.
        cohorts: How many are drawn for a round, a run for each.
        rounds: Of a run.
    """
    found: dict[str, Any] = {"connected": connected}
    for per_round in cohorts:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
            folder = Path(name)
            experiment, size = served(folder / "made", 96, 2, rounds, per_round)
            lines, memory = federation(experiment, folder, connected)
        seconds = [line["seconds"] for line in lines]
        found[f"{per_round} a round"] = {
            "update_bytes": size,
            "seconds": [round(one, 3) for one in seconds],
            "seconds_a_client": round(sorted(seconds)[len(seconds) // 2] / per_round, 5),
            "memory_grew_by": memory.grown(),
            "memory_by_phase": memory.phases(),
        }
    a_client = [found[f"{one} a round"]["seconds_a_client"] for one in cohorts]
    found["growth"] = [
        round(later / earlier, 3) for earlier, later in itertools.pairwise(a_client)
    ]  # 1 where the time is linear in the cohort
    return found


def memory(hidden: int, layers: int, clients: int, rounds: int) -> dict[str, Any]:
    """Return the figures of the section ``memory``.

    Args:
        hidden: Of the model; 1024 with eight layers makes it 400 MB.
        layers: Of the model.
        clients: All take part in each round.
        rounds: Of the run.
    """
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        experiment, size = served(folder / "made", hidden, layers, rounds, clients)
        _, found = federation(experiment, folder, clients)
    models = {kind: round(value / size, 3) for kind, value in found.grown().items()}
    return {
        "model_bytes": size,
        "clients": clients,
        "process_before_bytes": found.base,
        "peak_bytes": found.peak,
        "models_resident": models,
        "bound": MODELS_BOUND,
        "held": models["all"] <= MODELS_BOUND,
    }
