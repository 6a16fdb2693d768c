"""A site that joins while the rounds go on takes part from the next on; a killed server draws the same cohorts."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import fednlp
from fednlp.config import Experiment
from fednlp.deployment.operate.shards import split_out
from fednlp.deployment.server import federation
from fednlp.deployment.server.federation import FOLDER, Federation
from fednlp.deployment.server.gathering import sites_partition
from fednlp.deployment.server.newcomers import Newcomers, PopulationChanged, fixed_population
from fednlp.deployment.server.run_directory import open_directory
from fednlp.deployment.session.setup import Ready
from fednlp.errors import RunError
from fednlp.federated.cohort import Cohort, Population, uniform_cohort
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.configured_algorithm import build_algorithm
from fednlp.simulation.facts import example_counts
from fednlp.simulation.run_dir import RunDir

from .machines import _GUARDED, Killed, Machines, Process
from .test_federation import Member, quiet, rounds

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]


class Growing(Machines):
    """A federation whose last site enrols once a round is saved; the next one begins when it is ready.

    Args:
        after: The round.
    """

    def __init__(self, *arguments: Any, after: int, **options: Any) -> None:
        self.after, self.lines = after, list[str]()
        super().__init__(*arguments, **options)
        self.members = [Member(name, client) for client, name in enumerate(self.names)]
        self.members[-1].state = "invited"

    def _serve(self, restart: bool) -> RunDir:
        while True:
            directory = open_directory(self.shards.experiment, self.folder / "server")
            try:
                with patch.multiple(federation, **_GUARDED):
                    return Federation(directory, self.hub, self._known, _Watch(self)).run()
            except Killed:
                self.server.die()
                self.hub, self.server = self._open_hub(), Process()

    def _known(self) -> list[Member]:
        """Return who is in the register: the last site is not invited before the first round."""
        last = self.members[-1]
        return self.members[:-1] if last.state == "invited" else self.members


class _Watch(NullCallback):
    def __init__(self, machines: Growing) -> None:
        self.machines = machines

    def log(self, text: str) -> None:
        self.machines.lines.append(text)

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        if line["round"] == self.machines.after:
            self.machines.members[-1].state = "enrolled"


@pytest.mark.parametrize("kills", [[], [(2, "train", 1), (3, "train", 1), (4, "train", 2)]])
@pytest.mark.variants(1)
def test_the_population_grows_and_the_rounds_are_those_of_a_simulation(
    kills: list[tuple[int, str, int]], experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "num_rounds": 4,
        "clients_per_round": 2,
        "partition.clients": 3,
        "task.name": "text-classification",
    }
    made = experiment(settings)
    machines = Growing(
        split_out(made.resolved(), tmp_path / "shards", quiet), tmp_path, after=1, server_deaths=kills
    )
    settle = Newcomers.settle

    def settling(self: Newcomers, round_number: int) -> None:
        """Before the third round the site has had the time to be set up."""
        until = time.monotonic() + 60
        while round_number == 3 and self._late() and not self._gathering.ready and time.monotonic() < until:
            self.look()
            time.sleep(0.02)
        if round_number != 2:
            settle(self, round_number)

    monkeypatch.setattr(Newcomers, "settle", settling)
    deployed = machines.run()
    record = json.loads((deployed.folder / FOLDER / "population.json").read_text())
    assert record == {"begun": 4, "since": [{"round": 1, "sites": 2}, {"round": 3, "sites": 3}]}
    assert f"from round 3 on {machines.names[2]} take part, too: 3 sites" in machines.lines
    sizes = np.load(deployed.partition)["train_offsets"]
    assert len(sizes) == 4
    assert deployed.read_json("summary.json")["data"]["train"] == sizes[-1]

    def sample(population: Population, number: int) -> Cohort:
        there = replace(population, sizes=population.sizes[: 2 if number < 3 else 3])
        return uniform_cohort(2)(there, number)

    value = replace(build_algorithm(made.resolved()), sample=sample)
    simulated = fednlp.run(made, tmp_path / "simulated", algorithm=value)
    assert [line["cohort"] for line in rounds(deployed)] == [line["cohort"] for line in rounds(simulated)]
    weights = [(run.folder / "model" / "model.safetensors").read_bytes() for run in (simulated, deployed)]
    assert weights[0] == weights[1]


def opened(folder: Path, members: list[Member], fixed: str | None = None, log: Any = quiet) -> Newcomers:
    ready = {client: Ready(train=5 + client, test=1) for client in (2, 4)}
    gathering: Any = SimpleNamespace(ready=ready, since={}, look=lambda missing: None)
    return Newcomers(
        folder / "population.json", folder / "partition.npz", lambda: members, lambda: gathering, fixed, log
    )


def test_sites_take_part_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """One that was removed keeps its place, one that has not joined holds up those after it."""
    first = {0: Ready(train=3, test=0, hidden=["test"]), 1: Ready(train=4, test=2)}
    sites_partition(first, ["a", "b"]).save(tmp_path / "partition.npz")
    members = [Member(name, number) for number, name in enumerate("abcde")]
    members[3].state = "invited"
    newcomers = opened(tmp_path, members)
    newcomers.look()
    with pytest.raises(PopulationChanged):
        newcomers.settle(5)
    assert np.diff(newcomers.partition.train_offsets).tolist() == [3, 4, 7]
    newcomers.settle(5)
    members[3].state = "removed"
    again = opened(tmp_path, members)
    again.settle(5)  # it has begun: whoever is ready now comes in the round after it
    assert again.partition.num_clients == 3
    with pytest.raises(PopulationChanged):
        again.settle(6)
    assert np.diff(again.partition.train_offsets).tolist() == [3, 4, 7, 1, 9]
    assert again.partition.client_names == ("a", "b", "c", "d", "e")
    assert [again.partition.hidden_of(client) for client in (0, 1, 3)] == [["test"], [], ["train", "test"]]
    nothing: Any = SimpleNamespace(train_numbers=(), test_numbers=())
    counts = {"train": 23, "test": 4, "not_told": {"train": 1, "test": 2}}
    assert example_counts(nothing, again.partition) == counts


def test_a_site_that_cannot_take_part_is_told_of_once(tmp_path: Path) -> None:
    sites_partition({0: Ready(train=3, test=0)}, ["a"]).save(tmp_path / "partition.npz")
    lines: list[str] = []
    newcomers = opened(tmp_path, [Member("a", 0), Member("b", 1)], "the number is agreed", lines.append)
    for _ in range(2):
        newcomers.look()
        newcomers.settle(1)
    assert lines == ["site b takes no part in this run: the number is agreed"]
    assert not (tmp_path / "population.json").exists()


def test_a_damaged_record_is_said(tmp_path: Path) -> None:
    sites_partition({0: Ready(train=3, test=0)}, ["a"]).save(tmp_path / "partition.npz")
    (tmp_path / "population.json").write_text("{")
    with pytest.raises(RunError, match=r"population\.json is damaged"):
        opened(tmp_path, [Member("a", 0)])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"algorithm": {"name": "fedadam"}}, None),
        (
            {"algorithm": {"name": "scaffold"}, "client.optimizer": "sgd"},
            "scaffold keeps sums over all sites",
        ),
        ({"secure.protocol": "secagg+"}, "[secure] has had every site check the number of sites"),
        (
            {"privacy": {"clip": 1.0, "noise": 1.0}, "algorithm.weighting": "uniform"},
            "[privacy] states its guarantee for a number of sites",
        ),
    ],
)
def test_where_the_number_of_sites_is_agreed_it_stays(
    experiment: Make, changes: dict[str, Any], reason: str | None
) -> None:
    made = experiment(changes).resolved()
    found = fixed_population(made, build_algorithm(made))
    assert found == reason or (found is not None and reason is not None and found.startswith(reason))
