"""A reproduction whose runs are made several at once: the same figures, and times that sum to those of the clock."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import ConfigError
from fednlp.reproduction import Request, reproduce
from fednlp.reproduction.expecting import slowness
from fednlp.reproduction.folder import Record
from fednlp.reproduction.making import _SharedClock
from fednlp.simulation.callback import NullCallback

Document = Callable[..., dict[str, Any]]


@pytest.fixture
def manifest(here: Path, document: Document) -> Path:
    """A paper with runs that begin with the model of another, one that fails, and a partition."""
    (here / "quick.toml").write_text(tomli_w.dumps(document({"name": "quick", "num_rounds": 2})))
    (here / "slow.toml").write_text(tomli_w.dumps(document({"name": "slow", "num_rounds": 4})))
    broken = {"name": "broken", "partition.clients": 8000}
    (here / "broken.toml").write_text(tomli_w.dumps(document(broken)))
    runs = {
        "first": {"experiment": "quick.toml", "methods": ["fedavg"], "minutes": 0.1},
        "later": {
            "experiment": "slow.toml",
            "methods": ["fedavg", "fedopt"],
            "seeds": 2,
            "model_of": "first",
            "minutes": 0.1,
        },
        "broken": {"experiment": "broken.toml", "methods": ["fedavg"], "minutes": 0.1},
    }
    entries = [
        {"id": "table1", "runs": ["later"]},
        {"id": "table2", "runs": ["broken"]},
        {
            "id": "figure1",
            "partitions": {"even": {"dataset": "20news", "options": {"method": "uniform", "clients": 4}}},
            "rows": [{"name": "even"}],
            "columns": [{"name": "spread", "measure": "size spread"}],
        },
    ]
    named = [{"title": one["id"].capitalize(), "shows": "things", **one} for one in entries]
    paper = {"name": "mine", "title": "t", "source": "somebody", "runs": runs, "entry": named}
    path = here / "mine.toml"
    path.write_text(tomli_w.dumps(paper))
    return path


class Said(NullCallback):
    """A callback that keeps what is logged, and counts the rounds."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.rounds = 0

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Count a round."""
        self.rounds += 1

    def log(self, text: str) -> None:
        """Keep a line."""
        self.lines.append(text)


@pytest.mark.slow
def test_at_once_is_the_same_as_one_by_one(
    manifest: Path, here: Path, outcome: Callable[[Path], dict[str, Any]]
) -> None:
    said, names = Said(), ["quick/fedavg-seed0"]
    names += [f"slow/{method}-seed{seed}" for method in ("fedavg", "fedopt") for seed in (0, 1)]
    for jobs in (1, 2):
        reproduce(Request([str(manifest)], jobs=jobs), 3600, here / str(jobs), said)
    found = {
        jobs: {one["id"]: one for one in json.loads(text)["papers"][0]["entries"]}
        for jobs in (1, 2)
        if (text := (here / str(jobs) / "page/results.json").read_text())
    }
    assert {name: one["state"] for name, one in found[2].items()} == {
        "table1": "made",
        "table2": "not made",
        "figure1": "made",
    }
    for name, one in found[1].items():
        assert one["reason"] == found[2][name]["reason"]
        assert one["columns"] == found[2][name]["columns"]
    assert "8,000 clients" in found[2]["table2"]["reason"]
    first, *others = (outcome(here / "1/runs" / name) for name in names)
    again, *later = (outcome(here / "2/runs" / name) for name in names)
    assert first == again
    for one, other in zip(others, later, strict=True):
        del one["summary"], other["summary"]  # they name the first model by its path
        assert one == other
    record = json.loads((here / "2/reproduction.json").read_text())
    assert record["seconds"].keys() == record["cpu_seconds"].keys()
    assert all(record["cpu_seconds"][f"runs/{name}"] > 0 for name in names)
    assert any("; next: slow/fedavg-seed0" in line for line in said.lines)


@pytest.mark.slow
def test_the_budget_ends_runs_after_a_round_and_they_go_on(manifest: Path, here: Path) -> None:
    """Two at once, by a clock that goes on with each round."""
    said = Said()
    request = Request([str(manifest)], ["table1"], jobs=2)
    reproduce(request, 3600, here / "out", said, lambda: 1000.0 * said.rounds)
    assert any(line.endswith("goes on in the next call: the budget is spent") for line in said.lines)
    done = {one.parent.name for one in (here / "out/runs/slow").glob("*/summary.json")}
    assert len(done) < 4
    reproduce(request, 1e9, here / "out", said)
    (entry,) = [
        one
        for one in json.loads((here / "out/page/results.json").read_text())["papers"][0]["entries"]
        if one["id"] == "table1"
    ]
    assert entry["state"] == "made"


def test_at_least_one_job(manifest: Path, here: Path) -> None:
    with pytest.raises(ConfigError, match="--jobs 0"):
        reproduce(Request([str(manifest)], jobs=0), 0, here / "out")
    assert not (here / "out").exists()


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=30))
def test_the_shares_sum_to_the_time_in_which_something_was_done(events: list[tuple[float, bool]]) -> None:
    now = 0.0
    clock = _SharedClock(lambda: now)
    doing: list[float] = []
    busy = shares = 0.0
    for passed, begins in [*events, *[(1.0, False)] * len(events)]:
        now += passed
        busy += passed if doing else 0.0
        if begins:
            doing.append(clock.begin())
        elif doing:
            shares += clock.end(doing.pop(0))
    assert not doing
    assert shares == pytest.approx(busy)


@given(st.integers(1, 64))
def test_before_the_first_run_each_of_many_is_taken_to_have_a_core(at_once: int) -> None:
    """A run of m minutes on two cores takes 2 m on one, and is charged an nth of that while n are done."""
    assert slowness(Record(), {}, at_once) * at_once == pytest.approx(min(at_once, 2))
