"""Where the time of a run went: parts of a clock, and of the workers of a run, sum to the whole."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fednlp
from fednlp.cli import app
from fednlp.clock import IDLE, OTHER, PARTS, Clock, in_seconds, process_began, running, timed
from fednlp.config import Experiment, dump
from fednlp.reports import read_run
from fednlp.reports.content import build

Make = Callable[..., Experiment]


@given(st.lists(st.sampled_from([*PARTS]), max_size=30), st.data())
def test_parts_sum_to_the_whole(parts: list[str], data: st.DataObject) -> None:
    """Of whatever is switched to, with blocks within blocks, one of which raises."""
    with running(Clock()) as clock:
        for part in parts:
            if data.draw(st.booleans()):
                with pytest.raises(KeyError), timed(part), timed(data.draw(st.sampled_from([*PARTS]))):
                    raise KeyError
            else:
                clock.switch(part)
    until = time.monotonic_ns()
    spent = clock.spent(until)
    assert spent.keys() == PARTS.keys()
    assert all(one >= 0 for one in spent.values())
    assert sum(spent.values()) == until - clock.began


def test_time_goes_to_the_innermost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(ticks))
    with running(Clock()) as clock:
        with timed("sums"), timed("disk"):  # from 1 to 4, and from 2 to 3
            pass
        assert clock.spent(until=5) == dict.fromkeys(PARTS, 0) | {OTHER: 2, "sums": 2, "disk": 1}


def test_without_a_clock_nothing_is_measured() -> None:
    with timed("sums"), running() as clock:
        pass
    assert in_seconds(clock.spent(clock.began)) == {"total": 0.0}
    assert process_began() < time.monotonic_ns()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.variants(1)
def test_the_parts_of_each_worker_sum_to_its_time(experiment: Make, tmp_path: Path, workers: int) -> None:
    settings = experiment({"num_rounds": 2, "runtime.workers": workers, "evaluation.every": 1})
    begun = time.monotonic()
    run = fednlp.run(settings, tmp_path / "run")
    taken = time.monotonic() - begun
    found = json.loads((run.folder / "profile.json").read_text())["workers"]
    assert len(found) == workers
    for worker in found:
        total = worker.pop("total")
        assert worker.keys() <= PARTS.keys()
        assert all(seconds > 0 for seconds in worker.values())
        assert sum(worker.values()) == pytest.approx(total, abs=1e-6)
        assert 0 < total <= taken
    assert {"data", "model", "local steps", "sums", "evaluation", "disk"} <= found[0].keys()
    if workers > 1:
        assert {"imports", "model", IDLE, "messages"} <= found[1].keys()


def test_the_command_shows_it_and_the_report_has_it(experiment: Make, tmp_path: Path) -> None:
    file, out = tmp_path / "short.toml", tmp_path / "run"
    file.write_text(dump(experiment({"num_rounds": 1, "runtime.workers": 1})))
    shown = CliRunner().invoke(app, ["run", str(file), "--out", str(out), "--profile"])
    assert shown.exit_code == 0, shown.output
    table = shown.output.partition("where the time went")[2]
    titles = [line.split("  ")[0] for line in table.splitlines()]
    assert {"Part", "Imports", "Data", "Local steps", "Total"} <= {*titles}
    sections = {section.title: section.blocks for section in build([read_run(out)]).sections}
    grid: Any = sections["Where the time went"][0]
    assert grid.heads == ["Part", "Worker 1", "Share"]
    assert grid.rows[-1][0::2] == ["Total", "100.0 %"]
    again = CliRunner().invoke(app, ["run", "--resume", str(out), "--profile"])
    assert again.output.partition("where the time went")[2] == table


@pytest.mark.whole
def test_a_report_of_a_run_without_a_profile_leaves_the_section_out(experiment: Make, tmp_path: Path) -> None:
    run = fednlp.run(experiment({"num_rounds": 1, "runtime.workers": 1}), tmp_path / "run")
    (run.folder / "profile.json").unlink()
    assert "Where the time went" not in [section.title for section in build([read_run(run.folder)]).sections]
