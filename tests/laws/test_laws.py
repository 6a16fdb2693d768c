"""The laws of a run, each on every configuration: who trains, where, and what is interrupted leaves no trace."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import fednlp
from fednlp.config import Experiment, differences, parse
from fednlp.deployment.operate.shards import split_out
from fednlp.deployment.session.servable import require_servable
from fednlp.errors import ConfigError
from fednlp.inference.score import evaluate_run
from fednlp.simulation.callback import Callback
from fednlp.simulation.run_dir import RunDir
from tests.deployment.test_federation import deploy, quiet, rounds
from tests.laws.compare import FACTS, facts_of
from tests.laws.configurations import CONFIGURATIONS, Configuration
from tests.laws.killed import run_killed
from tests.laws.material import Material

Outcome = Callable[[Path | RunDir], dict[str, Any]]
Stopping = Callable[..., AbstractContextManager[Callback]]

_SIMULATED = ("hidden_truth", "cross_client_evaluation")
"""Keys of a round's line that no federation has."""

pytestmark = [pytest.mark.usefixtures("same_workers"), pytest.mark.whole]


@dataclass
class Case:
    """A configuration and its undisturbed run with one worker."""

    name: str
    configuration: Configuration
    document: dict[str, Any]
    folder: Path

    def made(self, **runtime: Any) -> Experiment:
        """Return the experiment, with other settings of ``[runtime]``."""
        return parse(self.document | {"runtime": self.document["runtime"] | runtime})

    @cached_property
    def run(self) -> RunDir:
        """The undisturbed run."""
        return fednlp.run(self.made(), self.folder / "run")


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    """The files of all configurations."""
    return Material(tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def case(
    request: pytest.FixtureRequest, material: Material, tmp_path_factory: pytest.TempPathFactory
) -> Case:
    """A line of the table."""
    configuration = CONFIGURATIONS[request.param]
    return Case(
        request.param, configuration, material.document(configuration), tmp_path_factory.mktemp("case")
    )


def test_who_takes_part_and_what_is_sent_is_what_it_was(case: Case) -> None:
    """By facts that no processor changes."""
    assert facts_of(case.run) == json.loads(FACTS.read_text(encoding="utf-8"))[case.name]


def test_two_workers_do_what_one_does(case: Case, outcome: Outcome, tmp_path: Path) -> None:
    two = fednlp.run(case.made(workers=2), tmp_path / "two")
    assert outcome(two) == outcome(case.run)


def test_workers_without_shared_memory_do_what_those_with_it_do(
    case: Case, outcome: Outcome, tmp_path: Path
) -> None:
    apart = fednlp.run(case.made(engine="tests.laws.bytes_only:BytesOnly"), tmp_path / "apart")
    assert outcome(apart) == outcome(case.run)


def test_stopped_within_a_round_and_resumed_is_never_stopped(
    case: Case, outcome: Outcome, stopping: Stopping, tmp_path: Path
) -> None:
    with stopping(rounds=1, pieces=2) as callback:
        fednlp.run(case.made(), tmp_path / "run", callback=callback)
    assert outcome(fednlp.resume(tmp_path / "run")) == outcome(case.run)


def test_killed_within_a_round_and_resumed_is_never_killed(
    case: Case, outcome: Outcome, tmp_path: Path
) -> None:
    run_killed(case.document, tmp_path / "run", rounds=1, pieces=1)
    assert outcome(fednlp.resume(tmp_path / "run")) == outcome(case.run)


def test_a_deployment_is_the_simulation(case: Case, tmp_path: Path) -> None:
    resolved = case.made().resolved()
    if case.configuration.deployed == "refused":
        with pytest.raises(ConfigError):
            require_servable(split_out(resolved, tmp_path / "shards", quiet).experiment)
        return
    if case.configuration.deployed == "another":
        return
    deployed = deploy(split_out(resolved, tmp_path / "shards", quiet), tmp_path)
    expected = [
        {key: value for key, value in line.items() if key not in _SIMULATED} for line in rounds(case.run)
    ]
    if case.configuration.at_sites and not case.made().evaluation.server_model:
        assert expected[-1]["evaluation"].pop("global")
    lines = rounds(deployed)
    if case.configuration.deployed == "rounded":
        for line in (*lines, *expected):
            del line["evaluation"]["personal"]
    assert lines == expected
    weights = [sorted(run.model.glob("**/*.safetensors")) for run in (deployed, case.run)]
    assert [path.read_bytes() for path in weights[0]] == [path.read_bytes() for path in weights[1]]


def test_a_run_directory_reads_back(case: Case) -> None:
    """Its experiment is the one that was run, and its model scores what the run says."""
    assert differences(case.run.experiment(), case.made().resolved()) == []
    found = case.run.read_json("summary.json")["evaluation"]
    if "global" in found and case.run.model.is_dir() and not case.configuration.at_sites:
        known = {key: value for key, value in found["global"].items() if isinstance(value, float)}
        scored = evaluate_run(case.run.folder).metrics
        assert {key: scored[key] for key in known} == pytest.approx(known, rel=1e-4)
