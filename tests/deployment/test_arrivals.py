"""FedBuff between machines: flushes are what arrives, and a server that is killed goes on with the same ones."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fednlp
from fednlp import fedbuff
from fednlp.config import Experiment
from fednlp.deployment.operate.shards import Shards, split_out
from fednlp.deployment.server import arrivals
from fednlp.deployment.server.arrivals import Arrivals, Events
from fednlp.deployment.server.federation import FOLDER, Federation
from fednlp.deployment.server.run_directory import open_directory, run_name
from fednlp.deployment.server.waiting import Patience
from fednlp.deployment.session.hub import Hub, StoredReply
from fednlp.deployment.session.servable import require_servable
from fednlp.deployment.session.site_kinds import call_id
from fednlp.deployment.site.participate import Participant
from fednlp.errors import RunError, TooFewClients
from fednlp.federated.algorithms.fedbuff import Flush, FlushSchedule, Places
from fednlp.federated.client import TrainRequest
from fednlp.federated.cohort import Population
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.run_dir import RunDir

from .memory_link import MemoryLink
from .test_federation import Member, OneAtATime, allows, quiet, rounds

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
CLIENTS, M, K, FLUSHES = 5, 3, 2, 6
RATES = (300, 430, 710, 1130, 2900)


class Gate:
    """Called at a site with the round and client of a call when its work is done; it answers once this returns.

    A site that still waits when the server is over is killed.
    """

    def __init__(self) -> None:
        self.over = False
        self.worked: list[tuple[int, int]] = []
        self.fails: tuple[int, int] | None = None

    def is_open(self, call: tuple[int, int]) -> bool:
        """Return whether the site may answer."""
        return True

    def __call__(self, round_number: int, client: int) -> None:
        call = round_number, client
        self.worked.append(call)
        while not self.is_open(call):
            if self.over:
                raise SystemExit
            time.sleep(0.005)
        if call == self.fails:
            raise RunError("the site's disk is full")


class Gated(OneAtATime):
    """A site that does not answer before it may."""

    def __init__(self, *arguments: Any, gate: Gate) -> None:
        super().__init__(*arguments)
        self.gate = gate

    def answer(self, name: str, request: Any, objects: Any) -> Any:
        answer = super().answer(name, request, objects)
        if name == "train":
            self.gate(request["request"]["round"], request["request"]["client"])
        return answer


def work(part: Participant) -> None:
    """Take part until the federation ends, or the site is killed."""
    with suppress(SystemExit):
        part.work()


def serve(shards: Shards, folder: Path, gate: Gate, members: list[Member] | None = None) -> RunDir:
    """Run a federation, whose sites are threads, to its end."""
    directory = open_directory(shards.experiment, folder / "server")
    hub = Hub(directory.folder / FOLDER, run_name(directory))
    parts = []
    for client, name in enumerate(shards.names):
        own = folder / f"site-{client}"
        own.mkdir(exist_ok=True)
        site = Gated(own, name, allows(*shards.files(name)), quiet, gate=gate)
        part = Participant(own, site, None, quiet)
        link = MemoryLink(
            part.session.begin, lambda wake, client=client: hub.session(client, wake, time.monotonic)
        )
        parts.append((part, threading.Thread(target=link.run), threading.Thread(target=work, args=[part])))
    for _, driver, worker in parts:
        driver.start()
        worker.start()
    present = members or [Member(name, client) for client, name in enumerate(shards.names)]
    try:
        Federation(directory, hub, lambda: present, NullCallback()).run()
    finally:
        gate.over = True
        hub.finish("done")
        for _, driver, worker in parts:
            driver.join(10)
            worker.join(10)
            assert not driver.is_alive()
            assert not worker.is_alive()
        hub.close()
    return directory


def events(folder: Path) -> list[dict[str, int]]:
    """Return what has happened."""
    path = folder / "server" / FOLDER / "arrivals.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


class Clock(Gate):
    """Lets sites answer in the order of a simulated clock."""

    def __init__(self, population: Population, folder: Path) -> None:
        super().__init__()
        assert population.seconds is not None
        self.folder, self.order = folder, list[tuple[int, int]]()
        places, training, now = Places(population.seed, CLIENTS, M, K), list[tuple[float, int]](), 0.0
        times = [0.0]
        while len(places.flushes) < FLUSHES:
            for client in places.fill():
                heappush(training, (now + float(population.seconds[client]), client))
            now, client = heappop(training)
            times.append(now)
            self.order.append((places.began[client] + 1, client))
            places.arrive(client)
        self.flushes = places.flushes
        assert all(first < second for first, second in pairwise(times)), "a tie has no order between machines"

    def is_open(self, call: tuple[int, int]) -> bool:
        before = self.order.index(call) if call in self.order else len(self.order)
        return len(events(self.folder)) >= before


@pytest.fixture
def buffered(experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return experiments with FedBuff on as many kinds of devices as there are clients."""
    folder = tmp_path / "devices"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for rate in RATES:
        (folder / f"device-{rate}.toml").write_text(
            f'name = "device-{rate}"\nsource = "made up"\n[training]\nper_million_parameters = {rate}.0\n'
        )
    mix = {f"device-{rate}.toml": 1 / CLIENTS for rate in RATES}

    def make(changes: dict[str, Any] | None = None) -> Experiment:
        asked: dict[str, Any] = {
            "num_rounds": FLUSHES,
            "clients_per_round": M,
            "partition.clients": CLIENTS,
            "task.name": "text-classification",
            "algorithm": {"name": "fedbuff", "buffer_size": K},
            "costs": {"device": mix},
            "evaluation.every": FLUSHES,
        }
        return experiment(asked | (changes or {}))

    return make


@pytest.fixture
def populations(monkeypatch: pytest.MonkeyPatch) -> list[Population]:
    """The populations that simulations have had."""
    found: list[Population] = []
    flush = FlushSchedule.flush

    def noting(self: FlushSchedule, population: Population, number: int) -> Any:
        found.append(population)
        return flush(self, population, number)

    monkeypatch.setattr(FlushSchedule, "flush", noting)
    return found


METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"server": {"learning_rate": 0.5, "momentum": 0.9}, "client.round_schedule": "linear"},
    "8 bits": {"exchange.up": ["int8"], "exchange.down": ["bfloat16"], "exchange.error_feedback": True},
    "personal": {"model.train": {"personal": ["head"]}, "client.finetune_steps": 2},
}


def weights(run: RunDir) -> bytes:
    return (run.folder / "model" / "model.safetensors").read_bytes()


def untimed(run: RunDir) -> list[dict[str, Any]]:
    """Return a run's lines without the simulated seconds."""
    lines = rounds(run)
    for line in lines:
        line.pop("simulated_seconds", None)
    return lines


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.variants(2)
def test_sites_that_answer_by_the_simulated_clock_end_in_its_weights(
    method: str, buffered: Make, populations: list[Population], tmp_path: Path
) -> None:
    made = buffered(METHODS[method])
    simulated = fednlp.run(made, tmp_path / "simulated")
    clock = Clock(populations[0], tmp_path)
    assert max(late for flush in clock.flushes for late in flush.cohort.staleness) > 1
    deployed = serve(split_out(made.resolved(), tmp_path / "shards", quiet), tmp_path, clock)
    expected = untimed(simulated)
    if method == "personal":  # a global test of the sites' own models needs the test set at the sites
        assert expected[-1]["evaluation"].pop("global")
    assert untimed(deployed) == expected
    assert weights(deployed) == weights(simulated)
    assert not any("dropped" in line for line in expected), "late updates are used"
    assert [one["arrived"] for one in events(tmp_path)] == [client for _, client in clock.order]


def test_a_flush_that_came_to_nothing_is_begun_again(
    buffered: Make, populations: list[Population], tmp_path: Path
) -> None:
    """Its sites that failed are asked once more, with the models from which they started."""
    made = buffered({"min_clients": K, "evaluation.personal": False})
    simulated = fednlp.run(made, tmp_path / "simulated")
    shards, clock = split_out(made.resolved(), tmp_path / "shards", quiet), Clock(populations[0], tmp_path)
    number, late = next((n, f.cohort) for n, f in enumerate(clock.flushes, 1) if max(f.cohort.staleness))
    client, staleness = max(zip(late.clients, late.staleness, strict=True), key=lambda one: one[1])
    clock.fails = number - staleness, client
    with pytest.raises(TooFewClients, match="disk is full"):
        serve(shards, tmp_path, clock)
    again = Clock(populations[0], tmp_path)
    deployed = serve(shards, tmp_path, again)
    assert untimed(deployed) == untimed(simulated)
    assert weights(deployed) == weights(simulated)
    assert not {*clock.order[: number * K]} & {*again.worked}


def test_a_server_of_sites_needs_no_simulated_clock(buffered: Make) -> None:
    changes = {"costs": {}, "data": {"name": "sites", "labels": ["a", "b"]}, "partition": {}}
    require_servable(buffered(changes).resolved())


class Stuck(Gate):
    """One site never answers, and is removed when some updates have arrived."""

    def __init__(self, folder: Path, member: Member) -> None:
        super().__init__()
        self.folder, self.member = folder, member

    def is_open(self, call: tuple[int, int]) -> bool:
        if call[1] == self.member.client:
            return False
        if len(events(self.folder)) >= 3 and any(client == self.member.client for _, client in self.worked):
            self.member.state = "removed"
        return True


@pytest.mark.slow
def test_a_site_that_is_removed_gives_its_place_to_others(buffered: Make, tmp_path: Path) -> None:
    made = buffered({"clients_per_round": 4, "evaluation.every": 1, "num_rounds": 8})
    shards = split_out(made.resolved(), tmp_path / "shards", quiet)
    members = [Member(name, client) for client, name in enumerate(shards.names)]
    gate = Stuck(tmp_path, members[3])
    deployed = serve(shards, tmp_path, gate, members)
    dropped = [one for line in rounds(deployed) for one in line.get("dropped", ())]
    assert dropped == [{"client": 3, "reason": "RunError: the site was removed from the federation"}]
    assert [client for _, client in gate.worked].count(3) == 1
    assert {"removed": 3} in events(tmp_path)
    scores = [line["evaluation"]["personal"]["clients"] for line in rounds(deployed)]
    assert scores[0] <= 2, "an evaluation does not wait for those who train"
    assert scores[-1] == 4, "the last one is of all who are there"


# The record, by itself


class Script:
    """An engine, its hub and a clock, in one: who answers depends on a seed, and on how much has happened."""

    def __init__(self, seed: int, path: Path, silent: int | None = None) -> None:
        self.seed, self.path, self.silent = seed, path, silent
        self.hub = self.publisher = self
        self.opened: dict[str, int] = {}
        self.given_up: dict[str, str] = {}
        self.now = 0.0

    def open(self, name: str, request: TrainRequest, offers: list[int]) -> None:
        assert offers == [request.round - 1], "a call has the model of its round"
        assert name == call_id(request)
        self.opened.setdefault(name, request.client)

    def take(self, timeout: float) -> Any:
        self.now += timeout
        able = sorted(n for n, c in self.opened.items() if c != self.silent or n in self.given_up)
        if not able:
            return None
        name = Random(f"{self.seed} {self.path.read_bytes().count(bytes([10]))}").choice(able)
        return StoredReply(name, self.opened.pop(name), None, None, 0, None)

    def monotonic(self) -> float:
        return self.now

    def give_up(self, name: str, error: str) -> None:
        self.given_up.setdefault(name, error)

    def stored(self) -> list[str]:
        return []

    def withdraw(self, name: str) -> None:
        del self.opened[name]

    def forget(self, round_number: int) -> None:
        assert all(int(name.split(".")[0]) > round_number for name in self.opened), "an open call is kept"

    def drop(self, offer: int) -> None:
        assert all(int(name.split(".")[0]) != offer + 1 for name in self.opened), "an open call has its model"


def scripted(
    script: Script, clients: int, places: int, size: int, state: Any, wait: float | None
) -> Arrivals:
    """Return flushes of sites that answer by a script."""
    algorithm, patience = fedbuff(places, buffer_size=size), Patience(wait)
    return Arrivals(script, state, algorithm, clients, 0, 12, Events(script.path), patience)  # type: ignore[arg-type]


@settings(max_examples=10)
@given(
    seed=st.integers(0, 999),
    clients=st.integers(2, 12),
    places=st.integers(1, 14),
    size=st.integers(1, 5),
    stops=st.sets(st.integers(2, 12), max_size=4),
)
def test_a_server_that_is_started_again_goes_on_by_its_record(
    seed: int, clients: int, places: int, size: int, stops: set[int]
) -> None:
    size = min(size, clients)
    everyone = Population(np.full(clients, 5))

    def run(folder: Path, stops: set[int]) -> list[Flush]:
        state, found = SimpleNamespace(round=0), list[Flush]()
        schedule = scripted(Script(seed, folder / "record"), clients, places, size, state, None)
        for number in range(1, 13):
            if number in stops:
                schedule = scripted(Script(seed, folder / "record"), clients, places, size, state, None)
            found.append(schedule.flush(everyone, number))
            assert schedule.flush(everyone, number) == found[-1], "asked again, it is the same"
            state.round = number
        replayed = scripted(Script(seed, folder / "record"), clients, places, size, state, None)
        assert replayed.places.flushes == found
        return found

    with TemporaryDirectory() as one, TemporaryDirectory() as other, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arrivals, "_model", lambda self, version: self._models.setdefault(version, version))
        whole = run(Path(one), set())
        assert run(Path(other), stops) == whole
    for flush in whole:
        assert len({*flush.cohort.clients}) == size
        assert len(flush.needed) < places


def test_a_site_that_does_not_answer_in_time_is_an_update_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(1, tmp_path / "record", silent=2)
    monkeypatch.setattr(Arrivals, "_model", lambda self, version: self._models.setdefault(version, version))
    monkeypatch.setattr(arrivals, "time", script)
    state = SimpleNamespace(round=0)
    schedule, everyone = scripted(script, 4, 3, 2, state, 10.0), Population(np.full(4, 5))
    for number in range(1, 13):
        state.round = number - 1
        flush = schedule.flush(everyone, number)
        if 2 in flush.cohort.clients:
            break
    (reason,) = script.given_up.values()
    assert reason == "no answer within 10 seconds (rounds.wait)"
    assert script.now > 10


def test_a_line_that_was_cut_short_did_not_happen(tmp_path: Path) -> None:
    path = tmp_path / "arrivals"
    for client in (3, 1):
        Events(path).add("arrived", client)
    path.write_bytes(path.read_bytes() + b'{"arr')
    assert Events(path).known == [("arrived", 3), ("arrived", 1)]
    Events(path).add("removed", 2)
    assert Events(path).known == [("arrived", 3), ("arrived", 1), ("removed", 2)]
    path.write_bytes(b'{"arrived": "north"}\n')
    with pytest.raises(RunError, match="damaged"):
        Events(path)


class Killed(Exception):
    """The server is gone."""


@pytest.mark.parametrize("moment", ["noted", "saved"])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.variants(1)
def test_a_server_that_is_killed_goes_on_with_the_same_flushes(
    moment: str,
    count: int,
    buffered: Make,
    populations: list[Population],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed when an arrival was just written down, and when a flush is done and not yet saved."""
    made = buffered({"evaluation.personal": False})
    simulated = fednlp.run(made, tmp_path / "simulated")
    shards, first = split_out(made.resolved(), tmp_path / "shards", quiet), Clock(populations[0], tmp_path)
    with monkeypatch.context() as patch:
        killing(patch, *((Events, "add") if moment == "noted" else (RunDir, "save_state")), count)
        with pytest.raises(Killed):
            serve(shards, tmp_path, first)
    before = events(tmp_path)
    assert len(before) == (count if moment == "noted" else K * count)
    second = Clock(populations[0], tmp_path)
    deployed = serve(shards, tmp_path, second)
    assert untimed(deployed) == untimed(simulated)
    assert weights(deployed) == weights(simulated)
    assert events(tmp_path)[: len(before)] == before
    arrived = first.order[: len(before)]
    assert not {*arrived} & {*second.worked}, "who has answered does not work twice"


def killing(patch: pytest.MonkeyPatch, kind: type, name: str, count: int) -> None:
    """Have the server killed after some calls of a method."""
    original, done = getattr(kind, name), []

    def method(self: Any, *arguments: Any) -> Any:
        if name == "save_state" and len(done) == count - 1:
            raise Killed
        result = original(self, *arguments)
        done.append(arguments)
        if len(done) == count:
            raise Killed
        return result

    patch.setattr(kind, name, method)
