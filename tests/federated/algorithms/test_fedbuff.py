"""FedBuff: the clock, the weights of late updates, and the models that are kept for clients that still train."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch import Tensor

import fednlp
from fednlp import ServerOptimizer, config, fedavg, fedbuff, federate
from fednlp.costs import client_seconds, local_examples, make_fleet
from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.algorithms.fedbuff import Flush, FlushSchedule
from fednlp.federated.cohort import Cohort, Population, equally
from fednlp.federated.round import RoundReport
from fednlp.partition import Partition
from fednlp.reports.describe import describe_method
from fednlp.seeds import generator
from fednlp.simulation.callback import Callback, NullCallback

Make = Callable[..., config.Experiment]
Outcome = Callable[[Any], dict[str, Any]]
Stopping = Callable[..., AbstractContextManager[Callback]]

pytestmark = pytest.mark.usefixtures("same_workers")


# The clock


@dataclass
class Place:
    """One of the M places, and who trains in it."""

    client: int
    version: int
    until: float


def simulated(
    seconds: list[float], seed: int, concurrency: int, size: int, flushes: int
) -> list[tuple[float, list[tuple[int, int]], set[int]]]:
    """Return (time, (client, staleness) of the buffer, older versions in use) of each flush: lists, searched whole."""
    rng, clients = generator(seed, "fedbuff"), len(seconds)
    places: list[Place] = []
    arrived: list[Place] = []
    found: list[tuple[float, list[tuple[int, int]], set[int]]] = []
    now = 0.0
    while True:
        while len(places) < concurrency:
            busy = {one.client for one in [*places, *arrived]}
            if len(busy) == clients:
                break
            if 2 * len(busy) < clients:
                client = int(rng.integers(clients))
                while client in busy:
                    client = int(rng.integers(clients))
            else:
                idle = sorted(set(range(clients)) - busy)
                client = idle[rng.integers(len(idle))]
            places.append(Place(client, len(found), now + seconds[client]))
        now = min(one.until for one in places)
        for one in sorted((one for one in places if one.until == now), key=lambda one: one.client):
            places.remove(one)
            arrived.append(one)
            if len(arrived) == size:
                late = sorted((done.client, len(found) - done.version) for done in arrived)
                found.append((now, late, {other.version for other in places}))
                arrived = []
                if len(found) == flushes:
                    return found


@st.composite
def settings_of_a_run(draw: st.DrawFn) -> tuple[list[float], int, int, int]:
    """Seconds of each client, often equal ones; seed; M; K."""
    speeds = st.sampled_from([0.5, 1.0, 2.0, 3.7]) | st.floats(0.1, 30.0)
    seconds = draw(st.lists(speeds, min_size=2, max_size=40))
    size = draw(st.integers(1, min(8, len(seconds))))
    return seconds, draw(st.integers(0, 99)), draw(st.integers(1, len(seconds) + 3)), size


def population(seconds: list[float], seed: int = 0) -> Population:
    return Population(np.full(len(seconds), 5), seed, np.array(seconds))


@given(settings_of_a_run())
def test_the_events_are_those_of_a_simulation_that_searches_whole_lists(
    run: tuple[list[float], int, int, int],
) -> None:
    seconds, seed, concurrency, size = run
    schedule, before = FlushSchedule(concurrency, size), 0.0
    for number, (now, late, versions) in enumerate(simulated(seconds, seed, concurrency, size, 12), 1):
        flush = schedule.flush(population(seconds, seed), number)
        assert list(zip(flush.cohort.clients, flush.cohort.staleness, strict=True)) == late
        assert flush.cohort.seconds == now - before
        assert flush.needed == versions
        before = now


@given(settings_of_a_run())
def test_the_laws_of_flushes(run: tuple[list[float], int, int, int]) -> None:
    seconds, seed, concurrency, size = run
    schedule = FlushSchedule(concurrency, size)
    flushes = [schedule.flush(population(seconds, seed), number) for number in range(1, 21)]
    for number, flush in enumerate(flushes, 1):
        assert len(set(flush.cohort.clients)) == size, "no client is twice in a buffer"
        assert flush.cohort.seconds is not None
        assert flush.cohort.seconds >= 0
        assert min(flush.cohort.staleness) >= 0
        assert len(flush.needed) < concurrency, "the memory bound"
        assert all(version < number for version in flush.needed)
    for newest, (before, flush) in enumerate(pairwise(flushes), 1):
        started = {newest - late for late in flush.cohort.staleness if late}
        assert started <= before.needed, "a model that a client started from is still there"
        assert flush.needed <= before.needed | {newest}


@given(settings_of_a_run(), st.lists(st.integers(1, 15), min_size=1, max_size=5))
def test_a_flush_does_not_depend_on_what_was_asked_before(
    run: tuple[list[float], int, int, int], numbers: list[int]
) -> None:
    seconds, seed, concurrency, size = run
    mixed, other = FlushSchedule(concurrency, size), population(seconds[::-1], seed + 1)

    def fresh(everyone: Population, number: int) -> Flush:
        return FlushSchedule(concurrency, size).flush(everyone, number)

    for number in numbers:
        assert mixed.flush(population(seconds, seed), number) == fresh(population(seconds, seed), number)
        assert mixed.flush(other, number) == fresh(other, number)


def test_seconds_changed_in_place_are_another_population() -> None:
    seconds, schedule = np.array([1.0, 2.0, 3.0, 4.0]), FlushSchedule(2, 2)
    everyone = Population(np.full(4, 5), 0, seconds)
    first = schedule.flush(everyone, 3)
    seconds *= 2
    assert schedule.flush(everyone, 3) == FlushSchedule(2, 2).flush(everyone, 3) != first


def test_slow_clients_come_as_often_as_they_are_drawn_and_late() -> None:
    """10,000 clients, a tenth of which takes ten times as long; a free place is a uniform draw."""
    seconds = [10.0 if client % 10 == 0 else 1.0 for client in range(10_000)]
    schedule = FlushSchedule(100, 10)
    flushes = [schedule.flush(population(seconds), number) for number in range(1, 501)]
    late = {0: [0.0], 1: [0.0]}
    for flush in flushes[100:]:
        for client, staleness in zip(flush.cohort.clients, flush.cohort.staleness, strict=True):
            late[int(client % 10 == 0)].append(staleness)
    slow = len(late[1]) / len(late[0] + late[1])
    assert slow == pytest.approx(0.1, abs=0.02), "whoever is drawn arrives in the end"
    whole = sum(flush.cohort.seconds or 0.0 for flush in flushes)
    assert np.mean(late[0]) < 500 / whole
    assert np.mean(late[1]) == pytest.approx(10 * 500 / whole, rel=0.1), "the flushes of ten seconds"
    assert whole == pytest.approx(500 * 10 / 100 * 1.9, rel=0.1), (
        "mean seconds of a place: 0.9 * 1 + 0.1 * 10"
    )


# The weights


class Half:
    """Moves half-way to its client's mean."""

    def __init__(self) -> None:
        self.weight = 0.0

    def get_model_params(self) -> dict[str, Any]:
        return {"w": self.weight}

    def set_model_params(self, params: dict[str, Tensor]) -> None:
        self.weight = float(params["w"])

    def train(self, data: list[float]) -> float:
        if "broken" in map(str, data):
            raise ValueError("no number")
        self.weight += (sum(data) / len(data) - self.weight) / 2
        return abs(self.weight)

    def test(self, data: Any) -> dict[str, float]:
        return {"weight": self.weight}


def weights_of(algorithm: Algorithm, clients: list[Any], seconds: list[float], rounds: int) -> list[float]:
    done = federate(Half(), clients, algorithm, num_rounds=rounds, seconds=seconds, test_data=0)
    return [done.tests[number]["weight"] for number in range(1, rounds + 1)]


@pytest.mark.parametrize(
    ("options", "factor"),
    [({}, 3**-0.5), ({"staleness_exponent": 2.0}, 1 / 9), ({"staleness": "constant"}, 1.0)],
)
def test_a_late_update_starts_from_the_old_model_and_counts_less(
    options: dict[str, Any], factor: float
) -> None:
    """By hand: client 0 arrives after 1 and 2 seconds, client 1 after 2.5, two flushes late."""
    found = weights_of(fedbuff(2, buffer_size=1, **options), [[8.0], [-4.0]], [1.0, 2.5], 3)
    assert found == pytest.approx([4.0, 6.0, 6.0 + factor * -2.0])


def test_the_denominator_is_the_weight_without_staleness() -> None:
    """By hand: the third flush has client 0, one flush late, and client 2, two late."""
    clients, seconds = [[8.0], [8.0] * 3, [-4.0] * 2], [1.0, 1.0, 2.5]
    schedule = FlushSchedule(3, 2)
    everyone = Population(np.array([1, 3, 2]), 0, np.array(seconds))
    cohorts = [schedule.flush(everyone, number).cohort for number in (1, 2, 3)]
    assert [list(cohort.clients) for cohort in cohorts] == [[0, 1], [0, 1], [1, 2]] or [
        list(cohort.clients) for cohort in cohorts
    ] == [[0, 1], [0, 1], [0, 2]]
    assert list(cohorts[2].staleness) == [0, 2]
    sizes = [len(clients[client]) for client in cohorts[2].clients]
    found = weights_of(fedbuff(3, buffer_size=2), clients, seconds, 3)
    now, late = (8.0 - 6.0) / 2, (-4.0 - 0.0) / 2
    assert found[:2] == pytest.approx([4.0, 6.0])
    assert found[2] == pytest.approx(6.0 + (sizes[0] * now + sizes[1] * 3**-0.5 * late) / sum(sizes))
    alike = weights_of(fedbuff(3, buffer_size=2, weight=equally), clients, seconds, 3)
    assert alike[2] == pytest.approx(6.0 + (now + 3**-0.5 * late) / 2), "the paper's: over K"


@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=4, max_size=9),
    server=st.sampled_from([ServerOptimizer(), ServerOptimizer("sgd", 0.7, momentum=0.5)]),
)
def test_equal_speeds_and_a_buffer_of_all_who_train_are_synchronous_rounds(
    sizes: list[int], server: ServerOptimizer
) -> None:
    clients = [[float(number)] * size for number, size in enumerate(sizes)]
    speeds, schedule = [0.3] * len(sizes), FlushSchedule(4, 4)

    def same(everyone: Population, round_number: int) -> Cohort:
        told = replace(everyone, seconds=np.array(speeds))
        return Cohort(schedule.flush(told, round_number).cohort.clients)

    buffered = weights_of(fedbuff(4, buffer_size=4, server=server), clients, speeds, 5)
    assert buffered == weights_of(replace(fedavg(4), sample=same, server=server), clients, speeds, 5)
    assert schedule.flush(population(speeds), 5).needed == frozenset()


def test_a_client_that_fails_is_no_part_of_the_denominator() -> None:
    clients: list[Any] = [[8.0], ["broken"], [4.0]]
    assert weights_of(fedbuff(3, buffer_size=3), clients, [1.0] * 3, 1) == pytest.approx([3.0])


def test_a_convex_problem_converges_and_staleness_weights_are_a_smaller_step() -> None:
    """Least squares with one solution for all clients, on clients of very different speeds."""
    rng = torch.Generator().manual_seed(0)
    solution = torch.tensor([1.0, -2.0, 0.5])
    inputs = [torch.randn(6, 3, generator=rng) for _ in range(12)]

    class Squares:
        w = torch.zeros(3)

        def get_model_params(self) -> dict[str, Tensor]:
            return {"w": self.w.clone()}

        def set_model_params(self, params: dict[str, Tensor]) -> None:
            self.w = params["w"].clone()

        def train(self, data: Tensor) -> float:
            for _ in range(3):
                self.w = self.w - 0.1 * data.T @ (data @ (self.w - solution)) / len(data)
            return float(((data @ (self.w - solution)) ** 2).mean())

        def test(self, data: Any) -> dict[str, float]:
            return {"distance": float((self.w - solution).norm())}

    speeds = [1.0 + client**2 for client in range(12)]
    done = federate(Squares(), inputs, fedbuff(6, buffer_size=2), num_rounds=120, seconds=speeds, test_data=0)
    assert max(late_of(done.rounds, fedbuff(6, buffer_size=2), speeds)) > 3
    assert done.tests[1]["distance"] > 1
    assert done.tests[120]["distance"] < 1e-3


def late_of(reports: list[RoundReport], algorithm: Algorithm, speeds: list[float]) -> list[int]:
    cohorts = [algorithm.sample(population(speeds), report.round) for report in reports]
    return [late for cohort in cohorts for late in cohort.staleness]


# Runs


@pytest.fixture
def buffered(experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return experiments with FedBuff on three kinds of devices."""
    folder = tmp_path / "devices"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, rate in (("middling", 300.0), ("slow", 1000.0)):
        (folder / f"{name}.toml").write_text(
            f'name = "{name}"\nsource = "made up"\n[training]\nper_million_parameters = {rate}\n'
            "[watts]\ncomputing = 2.0\n"
        )

    def make(changes: dict[str, Any] | None = None) -> config.Experiment:
        mix = {"jetson-tx2": 0.5, "middling.toml": 0.25, "slow.toml": 0.25}
        asked: dict[str, Any] = {
            "num_rounds": 6,
            "algorithm": {"name": "fedbuff", "buffer_size": 2},
            "costs": {"bandwidth_up": 1.0, "bandwidth_down": 1.0, "device": mix},
        }
        return experiment(asked | (changes or {}))

    return make


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def versions_in(folder: Path) -> set[int]:
    names = load_file(folder / "checkpoint" / "state.safetensors")
    return {int(name.rpartition(".")[2]) for name in names if name.startswith("vector.version.")}


@pytest.mark.whole
def test_a_run_is_what_the_clock_says(buffered: Make, experiment: Make, tmp_path: Path) -> None:
    given = buffered()
    run = fednlp.run(given, tmp_path / "run")
    partition, lines = Partition.load(run.folder / "partition.npz"), lines_of(run.folder)
    plain = lines_of(
        fednlp.run(experiment({"num_rounds": 1, "clients_per_round": 1}), tmp_path / "one").folder
    )
    bytes_each = plain[0]["bytes_up"]
    sizes = np.diff(partition.train_offsets)
    fleet = make_fleet(
        1.0,
        1.0,
        given.costs.device,
        model="tiny",
        parameters=run.read_json("summary.json")["parameters"],
        num_clients=len(sizes),
        seed=0,
    )
    assert fleet is not None
    examples = local_examples(sizes, epochs=1, batch_size=8)
    seconds = client_seconds(fleet, examples, bytes_each, bytes_each)
    before = 0.0
    for line, (now, late, _) in zip(lines, simulated(seconds.tolist(), 0, 4, 2, 6), strict=True):
        assert line["cohort"] == [client for client, _ in late]
        assert line["simulated_seconds"] == pytest.approx(now - before, abs=1e-5)
        assert line["examples"] == sum(sizes[client] for client, _ in late)
        assert line["bytes_up"] == line["bytes_down"] == 2 * bytes_each
        flushes = [flushes_late for _, flushes_late in late]
        assert line["staleness"] == {"mean": np.mean(flushes), "largest": max(flushes)}
        before = now
    assert max(late for _, _, versions in simulated(seconds.tolist(), 0, 4, 2, 6) for late in versions) > 0
    everyone = [late for _, one, _ in simulated(seconds.tolist(), 0, 4, 2, 6) for _, late in one]
    assert run.read_json("summary.json")["staleness"] == {
        "mean": pytest.approx(np.mean(everyone), abs=1e-6),
        "largest": max(everyone),
    }
    assert run.read_json("summary.json")["simulated_seconds"] == pytest.approx(before, abs=1e-4)
    assert versions_in(run.folder) == simulated(seconds.tolist(), 0, 4, 2, 6)[-1][2]


@pytest.mark.parametrize("rounds", [1, 3, 4])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "algorithm": {"name": "fedbuff", "buffer_size": 3},
            "server": {"learning_rate": 0.5, "momentum": 0.9},
        },
    ],
    ids=["two", "three with momentum"],
)
@pytest.mark.slow
def test_stopped_and_resumed_equals_never_stopped(
    changes: dict[str, Any],
    rounds: int,
    buffered: Make,
    outcome: Outcome,
    stopping: Stopping,
    tmp_path: Path,
) -> None:
    """Stopped while several older models are alive."""
    whole = fednlp.run(buffered(changes), tmp_path / "whole")
    with stopping(rounds=rounds) as callback:
        fednlp.run(buffered(changes), tmp_path / "run", callback=callback)
    assert len(versions_in(tmp_path / "run")) >= min(rounds, 2)
    fednlp.resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"exchange": {"up": ["topk:0.2", "int8"], "down": ["float16"], "error_feedback": True}},
        {"model.train": {"critical_layer": 1, "embeddings": "shared"}, "client.keep_optimizer": True},
    ],
    ids=["plain", "compressed", "personal layers"],
)
@pytest.mark.slow
def test_two_workers_give_what_one_gives(
    changes: dict[str, Any], buffered: Make, outcome: Outcome, tmp_path: Path
) -> None:
    one = fednlp.run(buffered(changes), tmp_path / "one")
    two = fednlp.run(buffered(changes | {"runtime.workers": 2}), tmp_path / "two")
    assert outcome(one) == outcome(two)


def test_every_client_that_trains_is_counted_in_the_progress(buffered: Make, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    class Watching(NullCallback):
        def on_progress(self, done: int, of: int, what: str) -> None:
            if what == "clients":
                told.append((done, of))

    fednlp.run(buffered({"num_rounds": 2}), tmp_path / "run", callback=Watching())
    assert told == [(1, 2), (2, 2)] * 2


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"costs": {"bandwidth_up": 1.0}}, "set costs.device to a profile, or to a mix"),
        ({"algorithm.buffer_size": 9}, "algorithm.buffer_size = 9 is more than the 8 clients"),
        ({"algorithm.buffer_size": 0}, "algorithm.buffer_size = 0"),
        ({"algorithm.staleness_exponent": -1.0}, "algorithm.staleness_exponent = -1"),
        ({"algorithm.staleness": "linear"}, "algorithm.staleness = .*linear"),
        (
            {"algorithm.staleness": "constant", "algorithm.staleness_exponent": 1.0},
            "algorithm.staleness_exponent is for",
        ),
        ({"min_clients": 3}, "min_clients = 3 is more than algorithm.buffer_size = 2"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str, buffered: Make) -> None:
    with pytest.raises(ConfigError, match=message):
        buffered(changes).resolved()


def test_a_report_says_who_trains_and_who_is_in_a_round(buffered: Make) -> None:
    said = describe_method(buffered().resolved().model_dump())
    assert "4 clients at any time, 2 a round, 6 rounds asked for" in said


def test_the_resolved_experiment_is_sound(buffered: Make) -> None:
    resolved = buffered({"algorithm.staleness": "constant"}).resolved()
    assert resolved.algorithm.model_extra == {
        "buffer_size": 2,
        "staleness": "constant",
        "staleness_exponent": 0.5,
    }
    assert resolved.resolved() == resolved


def test_without_a_clock_a_trainer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"or give seconds to federate\(\)"):
        federate(Half(), [[1.0], [2.0]], fedbuff(2, buffer_size=1), num_rounds=1)
    with pytest.raises(ConfigError, match="buffer_size = 3 is more than the 2 clients"):
        federate(Half(), [[1.0], [2.0]], fedbuff(2, buffer_size=3), num_rounds=1, seconds=[1.0, 1.0])
    with pytest.raises(ConfigError, match="seconds has 1 number for 2 clients"):
        federate(Half(), [[1.0], [2.0]], fedbuff(2, buffer_size=1), num_rounds=1, seconds=[1.0])


def test_a_profile_that_does_not_know_the_model_is_no_clock(buffered: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a profile that says how long the model takes"):
        fednlp.run(buffered({"costs": {"device": "pixel-4"}}), tmp_path / "run")
