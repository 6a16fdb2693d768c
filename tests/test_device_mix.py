"""Runs whose clients have different devices: the time of a round is that of its slowest client on its own."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fednlp
from fednlp import config
from fednlp.costs import assign_kinds
from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.cohort import Cohort, Population
from fednlp.partition import Partition
from fednlp.reports import group_runs, read_run
from fednlp.reports.document import Grid
from fednlp.reports.sections.costs import cost_blocks

pytestmark = pytest.mark.whole

Make = Callable[..., config.Experiment]
MIX = {"slow.toml": 0.25, "jetson-tx2": 0.75}
SLOW = """
name = "slow"
source = "made up"
latency = 3.0
[training]
per_million_parameters = 100.0
[inference]
per_million_parameters = 40.0
[watts]
computing = 2.0
"""


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the profile of a slow device into the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "slow.toml"
    path.write_text(SLOW)
    return path


def _lines(run: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]


def test_a_round_takes_as_long_as_its_slowest_client_by_its_own_device(
    experiment: Make, slow: Path, tmp_path: Path
) -> None:
    """The same run on each device alone says what its clients take, and the devices change nothing else."""
    changes: dict[str, Any] = {"costs": {"bandwidth_up": 1.0, "bandwidth_down": 1.0}, "clients_per_round": 1}
    runs = {}
    for name, device in (("mixed", MIX), ("slow", "slow.toml"), ("fast", "jetson-tx2")):
        wanted = changes | {"costs": changes["costs"] | {"device": device}, "num_rounds": 8}
        runs[name] = fednlp.run(experiment(wanted), tmp_path / name)
    partition = Partition.load(tmp_path / "mixed" / "partition.npz")
    kinds = assign_kinds([0.75, 0.25], partition.num_clients, experiment().seed)  # by name: jetson-tx2, slow
    lines = {name: _lines(run) for name, run in runs.items()}
    seen = set()
    for number, line in enumerate(lines["mixed"]):
        (client,) = line["cohort"]
        device = ("fast", "slow")[kinds[client]]
        seen.add(device)
        for key in ("cohort", "train_loss", "bytes_up", "bytes_down", "evaluation"):
            assert line[key] == lines[device][number][key]
        for key in ("simulated_seconds", "energy_joules"):
            assert line[key] == lines[device][number][key]
    assert seen == {"fast", "slow"}
    assert runs["mixed"].read_json("summary.json")["simulated_seconds"] == pytest.approx(
        sum(line["simulated_seconds"] for line in lines["mixed"])
    )


@pytest.mark.parametrize(
    "more",
    [{}, {"exchange.up": ["int8"], "exchange.down": ["float16"]}, {"client.num_train_epochs": 2}],
    ids=["plain", "compressed", "two epochs"],
)
def test_an_algorithm_is_told_what_a_round_takes_each_client(
    more: dict[str, Any], experiment: Make, slow: Path, tmp_path: Path
) -> None:
    """The clock that algorithms go by is the one that rounds are charged by, and a round's seconds may be theirs."""
    given = experiment(more | {"costs": {"bandwidth_up": 1.0, "bandwidth_down": 1.0, "device": MIX}})
    told: dict[int, float] = {}

    def alone(population: Population, round_number: int, stated: bool) -> Cohort:
        client = (3 * round_number) % len(population)
        assert population.seconds is not None
        told[round_number] = round(float(population.seconds[client]), 6)
        return Cohort([client], seconds=1.25 if stated else None)

    charged, given_seconds = (
        fednlp.run(
            given,
            tmp_path / str(stated),
            algorithm=Algorithm("alone", lambda all_, number, stated=stated: alone(all_, number, stated)),
        )
        for stated in (False, True)
    )
    lines = _lines(charged)
    assert len({line["simulated_seconds"] for line in lines}) > 1
    assert [line["simulated_seconds"] for line in lines] == [told[line["round"]] for line in lines]
    assert [line["simulated_seconds"] for line in _lines(given_seconds)] == [1.25] * len(lines)


def test_without_costs_no_seconds_are_told(experiment: Make, tmp_path: Path) -> None:
    seen: list[Any] = []

    def sample(population: Population, round_number: int) -> Cohort:
        seen.append(population.seconds)
        return Cohort([0])

    fednlp.run(experiment({"num_rounds": 1}), tmp_path / "run", algorithm=Algorithm("first", sample))
    assert seen
    assert set(seen) == {None}


def test_a_mix_is_kept_with_the_run_and_named_in_its_report(
    experiment: Make, slow: Path, tmp_path: Path
) -> None:
    given = experiment({"costs": {"device": MIX, "bandwidth_up": 1.0}, "num_rounds": 1})
    assert config.parse(tomllib.loads(config.dump(given))) == given
    fednlp.run(given, tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.setting("costs.device") == {str(slow): 0.25, "jetson-tx2": 0.75}
    notes = [
        note for block in cost_blocks(group_runs([run])) if isinstance(block, Grid) for note in block.notes
    ]
    assert any(f"1 MB/s up, devices jetson-tx2 (75 %) and {slow.name} (25 %)." in note for note in notes)


def test_a_pace_is_searched_for_with_the_mean_over_the_mix(
    experiment: Make, slow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fednlp.fewshot.simulation import pace_search

    told: list[tuple[float | None, float | None]] = []
    original = pace_search.tell

    def spied(search: Any, accuracy: float, labelling: Any, batch: Any, seconds: float) -> Any:
        told.append((labelling, batch))
        return original(search, accuracy, labelling, batch, seconds)

    monkeypatch.setattr("fednlp.fewshot.simulation.pace_search.tell", spied)
    few = {"gold": 24, "pacing": "search", "trials": "sequential", "trial_rounds": 2, "validation": 20}
    few |= {"candidates": 2, "window": 2, "max_searches": 1}
    changes = {"fewshot": few, "costs": {"device": MIX}, "num_rounds": 20, "partition": {"clients": 8}}
    run = fednlp.run(experiment(changes), tmp_path / "run")
    parameters = run.read_json("summary.json")["parameters"] / 1e6
    (batch,) = {batch for _, batch in told}
    size = experiment().client.per_device_train_batch_size
    assert batch == pytest.approx(size * parameters * (2 * 100.0 + 6 * 0.0056) / 8)
    assert all(labelling is None or labelling > 0 for labelling, _ in told)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ({"jetson-tx2": 0.5, "slow.toml": 0.4}, "costs.device: the shares of the devices sum to 0.9"),
        ({"jetson-tx2": 0.5, "jetson": 0.5}, "costs.device: there is no device profile jetson"),
        ({"jetson-tx2": "half"}, "costs.device = .*: give a profile, or a mix with its shares"),
        ({}, "costs.device = {}: give a profile, or a mix"),
        ({"jetson-tx2": 10**400}, "give a profile, or a mix"),
        ({"jetson-tx2": True}, "give a profile, or a mix"),
        (3, "costs.device = 3: give a profile, or a mix"),
        ({"jetson-tx2": 0.5, "pixel-4": 0.5}, "pixel-4 does not say how long .* takes in training"),
    ],
)
def test_a_mix_that_cannot_be_is_refused(
    device: Any, message: str, experiment: Make, slow: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        fednlp.run(experiment({"costs": {"device": device}}), tmp_path / "run")


def test_two_names_of_one_profile_are_one_device(experiment: Make, slow: Path) -> None:
    mix = {"slow.toml": 0.25, "./slow.toml": 0.25, "jetson-tx2": 0.5}
    resolved = experiment({"costs": {"device": mix}}).resolved()
    assert resolved.costs.device == {str(slow): 0.5, "jetson-tx2": 0.5}
    assert np.isclose(sum(resolved.costs.device.values()), 1)
