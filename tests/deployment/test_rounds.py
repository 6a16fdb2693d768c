"""Rounds that come to nothing, that close early, and that wait for who is asleep; a killed server goes on with them."""

import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fednlp
from fednlp.config import Experiment
from fednlp.deployment.operate.shards import Shards, split_out
from fednlp.deployment.server import site_engine as remote
from fednlp.deployment.server import waiting
from fednlp.deployment.server.federation import FOLDER, Federation
from fednlp.deployment.server.round_log import RoundLog
from fednlp.deployment.server.run_directory import run_name
from fednlp.deployment.server.site_engine import SiteEngine
from fednlp.deployment.server.waiting import Patience
from fednlp.deployment.session.hub import Hub, StoredReply
from fednlp.deployment.session.messages import Call, Reply
from fednlp.deployment.site.participate import Participant
from fednlp.deployment.site.policy import SitePolicy
from fednlp.errors import RunError, TooFewClients
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.cohort import Cohort
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.configured_algorithm import build_algorithm
from fednlp.simulation.run_dir import RunDir
from fednlp.training.local import LocalTrainer

from .machines import Killed, Machines, Process
from .memory_link import MemoryLink
from .test_federation import quiet, rounds

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
SETTINGS: dict[str, Any] = {
    "num_rounds": 2,
    "clients_per_round": 3,
    "partition.clients": 3,
    "task.name": "text-classification",
}


def weights(run: RunDir) -> bytes:
    return (run.folder / "model" / "model.safetensors").read_bytes()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """How many times each client took its local steps in each round."""
    found: Counter[tuple[int, int]] = Counter()
    steps = LocalTrainer.steps

    def counted(self: LocalTrainer, *arguments: Any, **options: Any) -> Any:
        found[self.round, self.client] += 1
        return steps(self, *arguments, **options)

    monkeypatch.setattr(LocalTrainer, "steps", counted)
    return found


# What came to nothing is asked for again.


class Stubborn(Machines):
    """A federation whose server is started again when too few sites came through."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.stops: list[str] = []
        super().__init__(*arguments, **options)

    def _serve(self, restart: bool) -> RunDir:
        while True:
            try:
                return super()._serve(restart)
            except TooFewClients as error:
                self.stops.append(str(error))
                self.server.die()
                self.hub, self.server = self._open_hub(), Process()


@pytest.mark.parametrize("protocol", ["none", "secagg"])
@pytest.mark.variants(1)
def test_a_round_that_came_to_nothing_is_begun_again(
    protocol: str, experiment: Make, tmp_path: Path, trained: Counter[tuple[int, int]]
) -> None:
    """Who has delivered does not work twice, who failed is asked again, and a killed server goes on with that."""
    few = {"clients_per_round": 4, "partition.clients": 4, "min_clients": 4}
    secure = {} if protocol == "none" else {"protocol": protocol, "dropout": 0.25, "max_colluding": 0.0}
    made = experiment(SETTINGS | few | {"secure": secure})
    simulated = fednlp.run(made, tmp_path / "simulated")
    trained.clear()
    shards = split_out(made.resolved(), tmp_path / "shards", quiet)
    machines = Stubborn(
        shards,
        tmp_path,
        absent=[(1, "train"), (1, "train-2")],
        server_deaths=[(1, "train", 1), (1, "train-3", 1), (2, "train", 2)],
    )
    deployed = machines.run()
    assert len(machines.stops) == 4  # two in each round
    assert all(re.search("3 of 4 clients answered|3 updates arrived", stop) for stop in machines.stops)
    assert trained == Counter((number, client) for number in (1, 2) for client in range(4))
    assert weights(deployed) == weights(simulated)
    assert rounds(deployed) == rounds(simulated)


def test_only_who_failed_is_asked_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a site had done that was late is still wanted: it lies in its outbox under the name of its call."""
    monkeypatch.setattr(remote, "upload_bytes", lambda *arguments, **options: 0)
    monkeypatch.setattr(waiting, "LOOK", 0.0)
    asked: list[str] = []

    class Mail(Hub):
        def ask(self, client: int, call: Call, most_bytes: int = 0) -> None:
            asked.append(call.id)
            super().ask(client, call, most_bytes)
            reasons = {0: None, 1: "its disk is full"}
            if client in reasons and call.id in self.open_calls(client):
                self.store(Reply(call.id, None, error=reasons[client]), None)

    def received(self: SiteEngine, request: TrainRequest, reply: StoredReply) -> ClientResult:
        return ClientResult(request.client, 1.0, error=reply.error)

    monkeypatch.setattr(SiteEngine, "_received", received)
    requests = [TrainRequest(client, 1, 1.0) for client in range(3)]
    for expected in ["1.1.train"], ["1.1.train-2"], ["1.1.train-3"]:
        sites = SiteEngine(Mail(tmp_path, "run"), tmp_path, Patience(0.0))
        sites.worker = SimpleNamespace(algorithm=None, layout=None)
        assert [result.error is None for result in sites.do(requests)] == [True, False, False]
        assert asked == ["1.0.train", *expected, "1.2.train"]
        asked.clear()
        sites.come_to_nothing()
        sites.close()


def test_a_site_is_set_up_for_the_run_of_its_connection_alone(tmp_path: Path) -> None:
    """A server that invents runs would get the updates of an experiment once for each."""
    hub = Hub(tmp_path / "server", "run")
    hub.ask(0, Call("0.0.setup", {"run": "another"}))
    part = Participant(
        tmp_path / "site", SimpleNamespace(run=None, admits=lambda *call: True), None, lambda line: None
    )  # type: ignore[arg-type]
    link = MemoryLink(part.session.begin, lambda wake: hub.session(0, wake, time.monotonic))
    thread = threading.Thread(target=link.run)
    thread.start()
    with pytest.raises(RunError, match="for another run than that of the connection"):
        part.work()
    part.session.leave("gone")
    thread.join(10)


def test_a_site_that_refuses_ends_with_the_reason_and_is_asked_again(tmp_path: Path) -> None:
    hub, lines = Hub(tmp_path / "server", "run"), list[str]()

    def join(error: RunError | None) -> tuple[Participant, threading.Thread]:
        def answer(name: str, request: Any, objects: Any) -> Any:
            if error is not None:
                raise error
            return {"train": 1, "test": 0}, None

        site = SimpleNamespace(
            answer=answer, end=lambda: None, run=None, lacks_model=False, admits=lambda *call: True
        )
        part = Participant(tmp_path / "site", site, None, lines.append)  # type: ignore[arg-type]
        link = MemoryLink(part.session.begin, lambda wake: hub.session(0, wake, time.monotonic))
        thread = threading.Thread(target=link.run)
        thread.start()
        return part, thread

    hub.ask(0, Call("0.0.setup", {"run": "run"}))
    hub.ask(0, Call("0.0.setup-2", {"run": "run"}))
    part, thread = join(RunError("allow.code = []"))
    with pytest.raises(
        RunError, match=r"this site does not take part: allow\.code = \[\]; mend what is wrong"
    ):
        part.work()
    part.session.leave("gone")
    thread.join(10)
    reply = hub.take(0)
    assert reply is not None
    assert (reply.id, reply.error) == ("0.0.setup", "allow.code = []")
    assert hub.take(0) is None

    part, thread = join(None)
    worker = threading.Thread(target=part.work)
    worker.start()
    reply = hub.take(10)
    assert reply is not None
    assert (reply.id, reply.answer) == ("0.0.setup-2", {"train": 1, "test": 0})
    hub.finish("done")
    for one in (thread, worker):
        one.join(10)
    assert part.session.over


def test_a_site_says_which_rounds_it_has_trained_in(tmp_path: Path) -> None:
    """A failed call has no update, and other calls are not told."""
    hub, lines, update = Hub(tmp_path / "server", "run"), list[str](), tmp_path / "update"

    def answer(name: str, request: dict[str, Any], objects: Any) -> Any:
        if request["fails"]:
            return {"error": "no memory"}, None
        update.write_bytes(b"update")
        return {}, update

    calls = {"1.0.train": True, "1.0.train-2": False, "2.0.train": False, "2.0.tests": False}
    for call_id, fails in calls.items():
        hub.ask(0, Call(call_id, {"fails": fails}), 100)
    site = SimpleNamespace(
        answer=answer,
        end=lambda: None,
        policy=SitePolicy(),
        run="run",
        lacks_model=False,
        admits=lambda *call: True,
    )
    site.opened, site.loss = SimpleNamespace(experiment=SimpleNamespace(num_rounds=2)), 0.5
    part = Participant(tmp_path / "site", site, None, lines.append)  # type: ignore[arg-type]
    link = MemoryLink(part.session.begin, lambda wake: hub.session(0, wake, time.monotonic))
    threads = [threading.Thread(target=link.run), threading.Thread(target=part.work)]
    for thread in threads:
        thread.start()
    for _ in calls:
        assert hub.take(10) is not None
    hub.finish("done")
    for thread in threads:
        thread.join(10)
    trained = [line for line in lines if "trained in" in line]
    assert [line.partition(":")[0] for line in trained] == ["round 1 of 2", "round 2 of 2"]
    assert all("loss 0.500; the server gets 6 B" in line for line in trained)
    assert ["left" in line for line in trained] == [True, False]


# Who is asleep is waited for.


class Sleepers(Machines):
    """A federation whose sites sleep for a while before they are started again."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.asleep: set[int] = set()
        self.started: set[int] = set()
        super().__init__(*arguments, **options)

    def _participant(self, client: int) -> Participant:
        if client in self.started:
            self.asleep.add(client)
        self.started.add(client)
        return super()._participant(client)

    def _dialling(self, client: int, wake: Any) -> Any:
        while client in self.asleep:
            time.sleep(0.01)
        return super()._dialling(client, wake)


def test_a_site_that_is_asleep_for_a_day_comes_back(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Counter[tuple[int, int]]
) -> None:
    made = experiment(SETTINGS)
    simulated = fednlp.run(made, tmp_path / "simulated")
    trained.clear()
    machines = Sleepers(
        split_out(made.resolved(), tmp_path / "shards", quiet), tmp_path, site_deaths=[(1, "train", False)]
    )
    hours = itertools.count()

    def clock() -> float:
        """An hour goes by at each look while somebody sleeps; after a day it wakes up."""
        if machines.asleep:
            hour = next(hours)
            if hour == 24:
                machines.asleep.clear()
            return hour * 3600.0
        return 0.0

    monkeypatch.setattr(waiting, "LOOK", 0.02)
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=clock))
    deployed = machines.run()
    assert next(hours) > 24
    assert weights(deployed) == weights(simulated)
    assert set(trained.values()) == {1}


# Over-selection.

OVER = {
    "clients_per_round": 2,
    "partition.clients": 4,
    "rounds.over_selection": 1.5,
    "evaluation.personal": False,
}


MIX = {"jetson-tx2": 0.5, "raspberry-pi-4b": 0.5}
COMPARED = ("cohort", "train_loss", "steps", "examples", "bytes_up", "bytes_down")


class Slow(Machines):
    """A federation in which some sites do not come to an end of their training while their updates are wanted.

    Args:
        shards: What each site has.
        folder: Of the server and all sites.
        slow: (round, client).
    """

    def __init__(self, shards: Shards, folder: Path, slow: Iterable[tuple[int, int]]) -> None:
        self.slow, self.over = set(slow), threading.Event()
        super().__init__(shards, folder)

    def _serve(self, restart: bool) -> RunDir:
        try:
            return super()._serve(restart)
        finally:
            self.over.set()

    def _participant(self, client: int) -> Participant:
        part = super()._participant(client)
        answer = part.site.answer

        def slowly(name: str, request: Any, objects: Any) -> Any:
            number = request["request"]["round"] if name == "train" else 0
            while (number, client) in self.slow and f"{number}.{client}.train" not in part._withdrawn:
                if self.over.wait(0.01):
                    break
            return answer(name, request, objects)

        part.site.answer = slowly  # type: ignore[method-assign]
        return part


class Closing(RoundLog):
    """Kills the server once it has settled which updates of a round count."""

    on_close: Callable[[], object] | None = None

    def close(self, round_number: int, clients: Iterable[int]) -> None:
        super().close(round_number, clients)
        on_close, Closing.on_close = Closing.on_close, None
        if on_close is not None:
            on_close()
            raise Killed


@pytest.mark.slow
def test_the_first_to_deliver_count_and_a_killed_server_keeps_to_that(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where those are slow that are slow by the simulated clock, it is the simulation."""
    monkeypatch.setattr(remote, "RoundLog", Closing)
    made = experiment(SETTINGS | OVER | {"costs.device": MIX})
    simulated = fednlp.run(made, tmp_path / "simulated")
    slow = [(line["round"], one["client"]) for line in rounds(simulated) for one in line["dropped"]]
    assert len(slow) == 2
    shards = split_out(made.resolved(), tmp_path / "shards", quiet)
    runs = [simulated]
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
        machines = Slow(shards, tmp_path / name, slow)
        if name == "killed":  # whoever was slow in the first round is quick from then on
            monkeypatch.setattr(Closing, "on_close", partial(machines.slow.discard, slow[0]))
        runs.append(machines.run())
    assert Closing.on_close is None
    assert all(weights(run) == weights(simulated) for run in runs)
    for line in (line for run in runs for line in rounds(run)):
        reason = "late: 2 clients had delivered before it (rounds.over_selection)"
        assert line["dropped"] == [{"client": dict(slow)[line["round"]], "reason": reason}]
        assert len(line["cohort"]) == 3
    told = [[{key: line[key] for key in COMPARED} for line in rounds(run)] for run in runs]
    assert told[0] == told[1] == told[2]


def test_in_a_simulation_the_fastest_count(experiment: Make, tmp_path: Path) -> None:
    """It is the run of an algorithm that draws the fastest alone."""
    made = experiment(SETTINGS | OVER | {"costs.device": MIX})
    run = fednlp.run(made, tmp_path / "over")
    lines = rounds(run)
    assert [len(line["cohort"]) for line in lines] == [3, 3]
    assert [len(line["dropped"]) for line in lines] == [1, 1]
    counted = [
        [client for client in line["cohort"] if client != line["dropped"][0]["client"]] for line in lines
    ]
    plain = experiment(SETTINGS | OVER | {"costs.device": MIX, "rounds.over_selection": 1.0})
    value = replace(build_algorithm(plain), sample=lambda population, number: Cohort(counted[number - 1]))
    again = fednlp.run(plain, tmp_path / "again", algorithm=value)
    assert weights(again) == weights(run)
    assert [line["train_loss"] for line in rounds(again)] == [line["train_loss"] for line in lines]


# The end.


def test_a_run_that_is_over_asks_nothing_more(experiment: Make, tmp_path: Path) -> None:
    made = experiment(SETTINGS | {"num_rounds": 1})
    deployed = Machines(split_out(made.resolved(), tmp_path / "shards", quiet), tmp_path).run()
    before = {path: path.read_bytes() for path in deployed.folder.rglob("*") if path.is_file()}
    hub = Hub(deployed.folder / FOLDER, run_name(deployed))
    assert Federation(deployed, hub, list, NullCallback()).run() == deployed
    assert hub.ended == "the federation's last round is done"
    assert {path: path.read_bytes() for path in deployed.folder.rglob("*") if path.is_file()} == before
