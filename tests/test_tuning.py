"""The search for a machine's fastest workers and threads: what is tried, and what it says."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fednlp.cli import app
from fednlp.config import Experiment, dump
from fednlp.errors import RunError
from fednlp.simulation import precision
from fednlp.studies import tuning
from fednlp.studies.tuning import Trial, as_toml, choices, fastest


@given(st.integers(1, 256), st.integers(1, 1000))
def test_choices_fit_the_machine_and_the_round(cores: int, clients: int) -> None:
    found = [(one["runtime.workers"], one["runtime.threads"]) for one in choices(cores, clients)]
    assert len(found) == len(set(found))
    assert found[0] == (min(cores, clients), 1)
    assert (1, 1) in found
    for workers, threads in found:
        assert 1 <= workers <= clients
        assert workers * threads <= cores


def test_the_fastest_is_the_shortest_round_that_was_run() -> None:
    trials = [Trial({"a.b": 1}, 2.0), Trial({"a.b": 2}, None, "no memory"), Trial({"a.b": 3}, 1.0)]
    assert fastest(trials).changes == {"a.b": 3}
    with pytest.raises(RunError, match="no trial ran to its end: no memory"):
        fastest(trials[1:2])


def test_the_lines_are_those_of_an_experiment_file() -> None:
    lines = as_toml({"runtime.workers": 4, "runtime.threads": 2, "client.max_steps": 3})
    assert tomllib.loads(lines) == {"runtime": {"workers": 4, "threads": 2}, "client": {"max_steps": 3}}


def test_onednn_and_bfloat16_are_tried_last_with_the_fastest_of_the_others(
    experiment: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trial(_: Experiment, changes: dict[str, Any]) -> Trial:
        return Trial(changes, 1.0 / changes["runtime.workers"])

    monkeypatch.setattr(tuning, "_trial", trial)
    monkeypatch.setattr(precision, "onednn_is_faster", lambda: False)
    trials = [*tuning.tried(experiment({}), 60)]
    usual = trials[:-2]
    assert trials[-2].changes == {**fastest(usual).changes, "runtime.onednn": True}
    assert trials[-1].changes == {**fastest(usual).changes, "client.bf16": True}
    assert all({*one.changes} == {"runtime.workers", "runtime.threads"} for one in usual)
    again = [*tuning.tried(experiment({"runtime.onednn": True}), 60)]
    assert [one.changes for one in again] == [one.changes for one in (*usual, trials[-1])]
    monkeypatch.setattr(precision, "onednn_is_faster", lambda: True)
    taken = [*tuning.tried(experiment({}), 60)]
    assert [one.changes for one in taken] == [one.changes for one in again]
    low = [*tuning.tried(experiment({"client.bf16": True}), 60)]
    assert all("client.bf16" not in one.changes for one in low)


def test_one_trial_on_the_tiny_model(experiment: Callable[..., Experiment], tmp_path: Path) -> None:
    """The time is over after the first trial; nothing of it stays, neither here nor in the run folder."""
    file = tmp_path / "short.toml"
    file.write_text(dump(experiment({"num_rounds": 1, "clients_per_round": 1})))
    shown = CliRunner().invoke(app, ["tune-machine", str(file), "--seconds", "0"])
    assert shown.exit_code == 0, shown.output
    first, *_, section, workers, threads = shown.output.strip().splitlines()
    assert first.startswith("workers = 1, threads = 1")
    assert first.endswith(" s a round")
    assert (section, workers, threads) == ("[runtime]", "workers = 1", "threads = 1")
    assert [*tmp_path.iterdir()] == [file]
