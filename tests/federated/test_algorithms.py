"""Methods: one file each, found by name; and methods of the user's own, by name, as a function or as a value."""

import inspect
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.torch import load_file

import fednlp
from fednlp.config import Experiment
from fednlp.errors import ConfigError, RunError
from fednlp.federated import algorithms
from fednlp.federated.algorithms.fedprox import fedprox
from fednlp.federated.client import Result
from fednlp.federated.cohort import Population, equally
from fednlp.federated.schedules import RateSchedule
from fednlp.federated.server import ServerOptimizer, default_server
from fednlp.simulation.run_dir import RunDir

Make = Callable[..., Experiment]
NAMES = algorithms.ALGORITHMS.names()
COMMON = {
    "weight": equally,
    "min_clients": 2,
    "client_rate": RateSchedule("linear", 5),
    "server": default_server("sgd", momentum=0.5),
}
SHORT = {"num_rounds": 2}


def test_every_file_is_a_method() -> None:
    files = {path.stem for path in Path(algorithms.__file__).parent.glob("*.py") if path.stem != "__init__"}
    assert {*NAMES} - files == {"fedadagrad", "fedadam", "fedavgm", "fedyogi"}, "FedOpt's file has these too"
    assert files <= {*NAMES}
    assert all(getattr(fednlp, name) is algorithms.ALGORITHMS.find(name).build for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_made_with_what_a_run_gives(name: str) -> None:
    """Its title, its options with their defaults, and of what all runs have, what it takes."""
    found = algorithms.ALGORITHMS.find(name)
    assert found.name == name
    assert found.title.lower().replace("-", "").replace(" ", "") == name
    options = found.options()()
    made = found.make(3, COMMON, options.model_dump())
    assert (made.name, made.weight, made.min_clients) == (name, equally, 2)
    assert made.client_rate == COMMON["client_rate"]
    if found.server is not None:  # its own, or one that it is the optimiser of
        assert COMMON["server"] in (made.server, *vars(made.server).values())
    assert set(found.parameters) - set(found.options().model_fields) <= {*algorithms.COMMON, "common"}
    assert inspect.getdoc(found.build)
    population = Population(np.ones(20, dtype=np.int64), seconds=np.ones(20))
    assert len(made.sample(population, 1).clients) == getattr(options, "buffer_size", 3)


@pytest.mark.parametrize("name", NAMES)
def test_options_are_checked_strictly(name: str) -> None:
    model = algorithms.ALGORITHMS.find(name).options()
    with pytest.raises(ValidationError):
        model(no_such_option=1)
    for key in model.model_fields:
        with pytest.raises(ValidationError):
            model(**{key: "much"})


@pytest.mark.parametrize("mu", [-0.1, float("nan"), float("inf"), "0.1", True])
def test_an_option_s_range_is_that_of_its_annotation(mu: Any) -> None:
    with pytest.raises(ValidationError):
        algorithms.ALGORITHMS.find("fedprox").options()(mu=mu)


def test_a_server_optimiser_is_the_method_s_own() -> None:
    servers = {name: algorithms.ALGORITHMS.find(name).server for name in NAMES}
    assert servers["fedavg"] is servers["fedprox"] is None
    assert servers["fedopt"] == ServerOptimizer("sgd", 1.0, momentum=0.9)
    for name in ("adagrad", "adam", "yogi"):
        assert servers[f"fed{name}"] == default_server(name)
        assert algorithms.ALGORITHMS.find(f"fed{name}").fixed_server


def test_what_a_method_refuses_stops_an_experiment_before_it_begins(
    experiment: Make, own_module: None
) -> None:
    with pytest.raises(ConfigError, match="picky goes with two rounds or fewer"):
        experiment({"algorithm.name": "own_methods:picky", "num_rounds": 3}).resolved()
    experiment({"algorithm.name": "own_methods:picky", "num_rounds": 2}).resolved()


def test_names_that_are_no_method_are_refused(own_module: None) -> None:
    for name, said in (
        ("fedavgg", "no module fednlp.federated.algorithms.fedavgg|fedavgg"),
        ("own_methods:missing", "module own_methods has no missing"),
        ("nowhere:method", "there is no module nowhere"),
    ):
        with pytest.raises(ConfigError, match=said):
            algorithms.ALGORITHMS.find(name)


def test_a_function_that_returns_something_else_is_refused(own_module: None) -> None:
    with pytest.raises(ConfigError, match=r"returned int: return a fednlp\.Algorithm"):
        algorithms.ALGORITHMS.find("own_methods:number").make(3, COMMON, {})
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'beta'.*\[algorithm\.options\]"):
        algorithms.ALGORITHMS.find("own_methods:pulled").make(3, COMMON, {"beta": 1.0})


def test_what_is_not_taken_is_not_given(own_module: None) -> None:
    """A function takes what it names; ``**common`` takes all but the server optimiser."""
    bare = algorithms.ALGORITHMS.find("own_methods:bare").make(3, COMMON, {})
    assert (bare.min_clients, bare.client_rate) == (1, RateSchedule())
    common = algorithms.ALGORITHMS.find("own_methods:pulled").make(3, COMMON, {})
    assert (common.min_clients, common.client_rate) == (2, COMMON["client_rate"])


OWN = """
from fednlp import Algorithm, fedavg, fedprox
from fednlp.federated.algorithms import method
from fednlp.federated.cohort import uniform_cohort


def pulled(clients_per_round, mu: float = 0.3, **common):
    return fedprox(clients_per_round, mu, **common)


def bare(clients_per_round):
    return Algorithm("bare", uniform_cohort(clients_per_round))


def number(clients_per_round):
    return 3


@method("Picky", refuses=lambda options, experiment:
        ["picky goes with two rounds or fewer"] if experiment.num_rounds > 2 else [])
def picky(clients_per_round, **common):
    return fedavg(clients_per_round, **common)
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_methods.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delitem(sys.modules, "own_methods", raising=False)


def params(run: RunDir) -> bytes:
    """Return the server's model at the end of a run, to the bit."""
    found: bytes = load_file(run.state)["params"].numpy().tobytes()
    return found


@pytest.fixture(scope="module")
def by_hand(experiment: Make, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """FedProx with mu = 0.3, as an experiment names it."""
    named = experiment({**SHORT, "algorithm": {"name": "fedprox", "mu": 0.3}})
    return params(fednlp.run(named, tmp_path_factory.mktemp("prox") / "run"))


@pytest.mark.whole
def test_a_method_is_the_same_by_name_as_a_function_and_as_a_value(
    experiment: Make, tmp_path: Path, own_module: None, by_hand: bytes
) -> None:
    """Bit for bit; what the directory says of it is what was given."""
    import own_methods  # type: ignore[import-not-found]

    plain = experiment(SHORT)
    given: list[tuple[Any, str]] = [
        ("own_methods:pulled", "own_methods:pulled"),
        (own_methods.pulled, "own_methods:pulled"),
        (own_methods.pulled(4), "given-in-python"),
    ]
    for number, (algorithm, name) in enumerate(given):
        run = fednlp.run(plain, tmp_path / str(number), algorithm=algorithm)
        assert params(run) == by_hand
        assert run.experiment().algorithm.name == name
    named = experiment(SHORT | {"algorithm.name": "own_methods:pulled", "algorithm.options": {"mu": 0.0}})
    assert params(fednlp.run(named, tmp_path / "none")) != by_hand


def test_a_function_without_a_name_is_refused(experiment: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no name to find it by"):
        fednlp.run(experiment(SHORT), tmp_path / "run", algorithm=lambda clients: fedprox(clients))


@pytest.mark.whole
def test_a_value_is_trained_by_one_worker_and_resumed_with_itself(
    experiment: Make, tmp_path: Path, stopping: Callable[..., Any], by_hand: bytes
) -> None:
    """It lies in one process: no name says what it was, so that a run goes on only where it is given again."""
    value, plain = fedprox(4, 0.3), experiment(SHORT | {"runtime": {}})
    with pytest.raises(ConfigError, match=r"runtime\.workers = 2: what a notebook or a script defines"):
        fednlp.run(experiment(SHORT | {"runtime.workers": 2}), tmp_path / "two", algorithm=value)
    with stopping(rounds=1) as callback:
        fednlp.run(plain, tmp_path / "run", algorithm=value, callback=callback)
    with pytest.raises(RunError, match=r"was given its algorithm in Python: go on with fednlp\.resume\("):
        fednlp.resume(tmp_path / "run")
    assert params(fednlp.resume(tmp_path / "run", algorithm=value)) == by_hand


def test_a_run_of_a_named_method_takes_no_value(experiment: Make, tmp_path: Path) -> None:
    run = fednlp.run(experiment(SHORT), tmp_path / "run")
    with pytest.raises(RunError, match=r"is a run of fedavg: resume it without algorithm="):
        fednlp.resume(run.folder, algorithm=fedprox(4))


@pytest.mark.whole
def test_vectors_of_a_method_outlive_a_stop(
    experiment: Make, tmp_path: Path, stopping: Callable[..., Any]
) -> None:
    """What clients keep comes back after a stop within a round, as if there had been none."""

    def drifting(local: Any, x: Any, server: Any, own: Any) -> Result:
        drift = own.get("drift", x * 0)
        y = local.steps(x, lambda g, y, d: g + d, drift)
        return Result(
            {"model": y - x}, {"drift": 0.5 * drift + 0.1 * (x - y)}, {"kept": float("drift" in own)}
        )

    value = replace(fedprox(4), name="drifting", client=drifting, keeps=("drift",), reports=("kept",))
    settings = experiment({"num_rounds": 3})
    whole = fednlp.run(settings, tmp_path / "whole", algorithm=value)
    with stopping(rounds=1, pieces=2) as callback:
        fednlp.run(settings, tmp_path / "run", algorithm=value, callback=callback)
    assert params(fednlp.resume(tmp_path / "run", algorithm=value)) == params(whole)
    assert params(whole) != params(fednlp.run(settings, tmp_path / "plain", algorithm=fedprox(4)))


@pytest.mark.whole
def test_six_calls_from_a_run_to_an_optimiser_s_step(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader finds the way: run, train, run_round, the pool, the worker, the method's client, its steps.

    ``called`` puts the errors of a function that was called into the words of Python.
    """
    stacks: list[list[str]] = []
    import torch

    original = torch.optim.AdamW.step

    def step(self: Any, *arguments: Any, **named: Any) -> Any:
        inside = str(Path(fednlp.__file__).parent)
        stacks.append([one.name for one in traceback.extract_stack() if one.filename.startswith(inside)])
        return original(self, *arguments, **named)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    fednlp.run(experiment({**SHORT, "algorithm": {"name": "fedprox", "mu": 0.3}}), tmp_path / "run")
    assert stacks
    way = ["called", "run", "train", "run_round", "do", "train", "client", "steps"]
    assert all(stack == way for stack in stacks), stacks[0]
