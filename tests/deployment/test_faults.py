"""A server and its sites are killed while they work, and the federation ends as the simulation does."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fednlp.config import Experiment

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark as a module that its processes find, too."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("faults", BENCHMARKS / "faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "faults", module)
    spec.loader.exec_module(module)
    return module


def test_a_federation_that_is_killed_ends_as_the_simulation(
    faults: ModuleType, experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    settings = {
        "num_rounds": 3,
        "clients_per_round": 2,
        "partition.clients": 2,
        "task.name": "text-classification",
        "algorithm": {"name": "ditto"},
    }
    found = faults.try_out(experiment(settings), tmp_path, kills=3, seed=4, patience=5, limit=200)
    assert found["same_rounds"]
    assert found["same_weights"]
    assert found["worked_twice"] == []
    assert sum(found["restarts"].values()) >= 3


def test_kills_are_drawn_from_the_seed(faults: ModuleType) -> None:
    drawn = faults.plan(3, 20, 10, ("a", "b"))
    assert drawn == faults.plan(3, 20, 10, ("a", "b")) != faults.plan(4, 20, 10, ("a", "b"))
    assert [kill.after for kill in drawn] == sorted(kill.after for kill in drawn)
    assert {kill.after for kill in drawn} == set(range(10))
    assert {name for kill in drawn for name in kill.victims} == {"a", "b", faults.SERVER}
