"""Code of the user's own, by name: what is taken, and what each refusal says."""

import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fednlp
from fednlp.cli import app
from fednlp.cli.console import Console
from fednlp.config import Experiment
from fednlp.errors import ConfigError, FednlpError, PartitionError, RunError
from fednlp.federated.cohort import Cohort
from fednlp.inference.model import open_trained
from fednlp.partition import make_partition
from fednlp.partition.make import check_options
from fednlp.simulation.run_dir import RunDir

pytestmark = pytest.mark.whole

CODE = """
from typing import Annotated

import torch
from pydantic import Field

from fednlp import Algorithm, Result, fedavg
from fednlp.federated.algorithms import method
from fednlp.federated.cohort import uniform_cohort
from fednlp.federated.transforms import PerTensor
from fednlp.partition import Assignment


def equal(clients_per_round, *, first=0, **common):
    return fedavg(clients_per_round, **common)


def nothing(clients_per_round, **common):
    return None


def scaled(clients_per_round, alpha: Annotated[float, Field(gt=0)] = 0.1, steps: int = 1):
    if alpha > 1:
        raise ValueError("alpha must be at most 1")
    return Algorithm(f"scaled by {1 / (steps - 2)}", uniform_cohort(clients_per_round))


def bare(clients_per_round, *, weight=float):
    return Algorithm("bare", uniform_cohort(clients_per_round), weight)


def unsure(clients_per_round, target: "Elsewhere" = None):
    return Algorithm("unsure", uniform_cohort(clients_per_round))


@method("Nothing", refuses=lambda options, experiment: None)
def refusing_nothing(clients_per_round):
    return fedavg(clients_per_round)


def marked(clients_per_round):
    return fedavg(clients_per_round)


marked.about = {"colour": "red"}
number = 3


def counted(clients_per_round, server=3):
    return fedavg(clients_per_round)


def negative(clients_per_round):
    return fedavg(clients_per_round, weight=lambda examples: 2.0 - examples)


def unweighed(clients_per_round):
    return fedavg(clients_per_round, weight=lambda examples: None)


@method("Broken", refuses=lambda options, experiment: [experiment.round_count])
def broken(clients_per_round):
    return fedavg(clients_per_round)


def drifting(clients_per_round, way="whole", **common):
    def client(local, x, server, own):
        h = own.get("h", x * 0)
        if way == "whole":
            y = local.steps(x, lambda g, y, x: g - h + (y - x), x)
        elif way == "none":
            y = local.steps(x, lambda g, y, x: None, x)
        elif way == "few":
            y = local.steps(x, lambda g, y, x, h: g - h, x)
        elif way == "names":
            y = local.steps(x)
            return Result(update={"model": y - x}, metrics={"tau": 1.0})
        else:
            y = local.steps(x, lambda g, y, x, h: g - h + 1 / (local.round - 1) * (y - x), x, h)
        return Result(update={"model": y - x}, keep={"h": h})

    return Algorithm("drifting", uniform_cohort(clients_per_round), client=client, keeps=("h",))


def parts(request, clients: int = 2, shift: float = 0.0):
    owners = [(number + int(shift)) % clients for number in range(len(request.train_labels))]
    return Assignment(owners, clients, request.train_labels, request.test_labels)


def unreadable(request, _clients: int = 1):
    return None


def halves(request):
    assert len(request.train_texts) == len(request.train_labels)
    owners = [number % 2 for number in range(len(request.train_labels))]
    return Assignment(owners, 2, request.train_labels, request.test_labels)


def short(request, clients, alpha):
    return Assignment([0, 1], 2, request.train_labels, request.test_labels)


def gap(request, clients, alpha):
    return Assignment([0] * len(request.train_labels), 2, request.train_labels, request.test_labels)


def no_assignment(request, clients, alpha):
    return [0]


class Whole(PerTensor):
    def parts(self, shape):
        return {"": (shape, torch.float32)}

    def pack(self, tensor, name, key):
        return {"": tensor}

    def unpack(self, parts, shape, name, key):
        return parts[""]
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delitem(sys.modules, "my_own", raising=False)


def weights(run: RunDir) -> bytes:
    return (run.model / "model.safetensors").read_bytes()


def test_own_names_train_as_the_known_ones_do(experiment: Callable[..., Experiment], tmp_path: Path) -> None:
    short = {"num_rounds": 2}
    own = {
        "algorithm.name": "my_own:equal",
        "algorithm.options": {"first": 1},
        "exchange.up": "my_own:Whole",
        "runtime.workers": 2,
    }
    first = fednlp.run(experiment(short), tmp_path / "a")
    second = fednlp.run(experiment(short | own), tmp_path / "b")
    assert weights(first) == weights(second)


def test_an_own_partition_is_what_its_function_says(
    experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    own = {
        "num_rounds": 1,
        "clients_per_round": 2,
        "partition": {"method": "my_own:halves"},
    }
    partition = fednlp.Partition.load(fednlp.run(experiment(own), tmp_path / "run").partition)
    assert partition.num_clients == 2
    assert np.ptp(np.diff(partition.train_offsets)) <= 1


@pytest.mark.parametrize(
    ("partition", "clients"),
    [({}, 2), ({"clients": 5}, 5), ({"options": {"clients": 4, "shift": 1}}, 4)],
)
def test_the_options_of_an_own_partition_are_its_parameters(
    experiment: Callable[..., Experiment], partition: dict[str, Any], clients: int
) -> None:
    settings = experiment({"partition": {"method": "my_own:parts"} | partition, "clients_per_round": 2})
    method, options = check_options(settings.resolved().partition.spec())
    given = {key: value for key, value in partition.items() if key != "options"}
    assert options == given | partition.get("options", {})
    assert method.title == "parts"
    made = make_partition(settings.resolved().partition.spec(), [0] * 9, [0], num_labels=1)
    assert made.num_clients == clients


@pytest.mark.parametrize(
    ("partition", "said"),
    [
        (
            {"method": "my_own:parts", "alpha": 1.0},
            "alpha has no effect with method 'my_own:parts': leave it out, or",
        ),
        ({"method": "my_own:parts", "options": {"shft": 1}}, "partition.options.shft has no effect"),
        (
            {"method": "my_own:parts", "options": {"seed": 1}},
            "seed is no option of a partitioner: say partition.seed",
        ),
        ({"method": "my_own:parts", "options": {"shift": "x"}}, "shift = x: input should be a valid number"),
        ({"method": "my_own:short"}, "needs clients: say partition.clients = ..."),
    ],
)
def test_options_that_an_own_partition_does_not_take(
    experiment: Callable[..., Experiment], partition: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        experiment({"partition": partition}).resolved()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm.name": "nowhere:f"}, "there is no module nowhere; set PYTHONPATH"),
        ({"algorithm.name": "my_own:missing"}, "module my_own has no missing"),
        ({"algorithm.name": "my_own:scalde"}, "module my_own has no scalde; did you mean my_own:scaled?"),
        ({"algorithm.name": "my_own.py:scaled"}, 'a module is named without .py: write "my_own:scaled"'),
        ({"algorithm.name": "my_own.scaled"}, "did you mean my_own:scaled?"),
        ({"partition.method": "my_own.thirds"}, "did you mean 'my_own:thirds'?"),
        (
            {"algorithm.name": "my_own:scaled", "algorithm.zeta": 1},
            "my_own:scaled go into [algorithm.options]",
        ),
        ({"partition.big": 1}, "options of your own function go into [partition.options]"),
        ({"algorithm.name": "fedavgg"}, "did you mean fedavg?"),
        ({"algorithm.options": {"a": 1}}, "algorithm.options are for an algorithm of your own"),
        ({"partition.options": {"a": 1}}, "options are for a partitioner of your own"),
        ({"partition.method": "__main__:cell"}, "say runtime.workers = 1"),
        ({"exchange.up": "my_own:nowhere"}, "module my_own has no nowhere"),
    ],
)
def test_what_cannot_be_named_is_refused_before_anything_runs(
    experiment: Callable[..., Experiment], changes: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        experiment(changes).resolved()


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        ("scaled", {"aplha": 1.0}, "unknown key algorithm.options.aplha; did you mean alpha?"),
        ("scaled", {"colour": 1.0}, "unknown key algorithm.options.colour; your function takes alpha, steps"),
        ("bare", {"weight": 1.0}, "unknown key algorithm.options.weight; your function takes no options"),
        ("scaled", {"alpha": -1.0}, "algorithm.options.alpha = -1.0: input should be greater than 0"),
        ("scaled", {"alpha": "much"}, 'algorithm.options.alpha = "much": input should be a valid number'),
        ("scaled", {"alpha": 2.0}, "your function raised ValueError: alpha must be at most 1 (my_own.py, line LINE)"),
        ("scaled", {"steps": 2}, "your function raised ZeroDivisionError: division by zero (my_own.py, line LINE)"),
        ("equal", {"frist": 1}, "unexpected keyword argument 'frist' (my_own.py, line LINE) (see [algorithm.options])"),
        ("unsure", {"traget": 1}, "did you mean target?"),
        ("broken", {}, "your function raised AttributeError: 'Experiment' object has no attribute 'round_count'"),
        ("nothing", {}, "returned NoneType: return a fednlp.Algorithm"),
    ],
)  # fmt: skip
def test_mistakes_in_a_function_of_one_s_own_are_found_when_the_experiment_is_checked(
    experiment: Callable[..., Experiment], function: str, options: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment({"algorithm.name": f"my_own:{function}", "algorithm.options": options}).resolved()
    assert said in re.sub(r"line \d+", "line LINE", str(caught.value))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("way", "said"),
    [
        (
            "whole",
            r"the gradient function drifting\.client\.<lambda> \(my_own\.py, line \d+\) uses h from outside, whole, "
            r"and it is called with one stretch of the model at a time: say local\.steps\(start, gradient, \.\.\., h\)",
        ),
        ("none", r"returned NoneType: return the gradient, \(\d+,\) as it came"),
        ("few", r"takes g, y, x, h, and 1 vector was passed beside g and y"),
        (
            "names",
            r"the client's function reports tau, and Algorithm\(reports=\.\.\.\) says nothing",
        ),
        ("other", r"ZeroDivisionError: division by zero \(my_own\.py, line \d+\)"),
    ],
)
@pytest.mark.variants(4)
def test_mistakes_in_a_client_of_one_s_own_are_explained(
    experiment: Callable[..., Experiment],
    tmp_path: Path,
    way: str,
    said: str,
    workers: int,
) -> None:
    options = {"algorithm.name": "my_own:drifting", "algorithm.options": {"way": way}}
    with pytest.raises(FednlpError, match=said):  # which error it is depends on the process
        fednlp.run(experiment(options | {"runtime.workers": workers}), tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"algorithm.name": "my_own:nothing"}, ConfigError, "returned NoneType: return a fednlp.Algorithm"),
        ({"algorithm.name": "my_own:equal", "algorithm.options": {"x": 1}}, ConfigError, "algorithm.options"),
        ({"partition.method": "my_own:no_assignment"}, PartitionError, "returned list"),
        ({"partition.method": "my_own:short"}, PartitionError, "whole numbers, one a training example"),
        ({"partition.method": "my_own:gap"}, PartitionError, "client 1 has no example"),
    ],
)
def test_what_returns_something_else_is_refused(
    experiment: Callable[..., Experiment],
    tmp_path: Path,
    changes: dict[str, object],
    error: type[Exception],
    said: str,
) -> None:
    with pytest.raises(error, match=said):
        fednlp.run(experiment(changes), tmp_path / "run")


STOPPED = {"num_rounds": 1, "model.train": {"personal": "head"}}
"""Clients have models of their own, which predict, evaluate and export load one by one."""


@pytest.fixture
def stopped(experiment: Callable[..., Experiment], tmp_path: Path) -> Path:
    """A run directory of known methods, as a run that was stopped leaves it."""
    folder = fednlp.run(experiment(STOPPED), tmp_path / "run").folder
    (folder / "summary.json").unlink()
    return folder


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("algorithm.name", "my_own:equal"),
        ("partition.method", "my_own:halves"),
        ("exchange.up", "my_own:Whole"),
        ("exchange.down", "my_own:Whole"),
        ("cohort.name", "my_own:turns"),
        ("aggregator.name", "my_own:midrange"),
        ("attack.name", "my_own:free_rider"),
        ("runtime.engine", "my_own:Pool"),
    ],
)
def test_nothing_is_imported_that_only_a_run_directory_names(
    experiment: Callable[..., Experiment], stopped: Path, key: str, name: str
) -> None:
    fraction = {"attack.fraction": 0.2} if key == "attack.name" else {}
    changed = experiment(STOPPED | {key: name} | fraction)
    (stopped / "resolved.toml").write_text(fednlp.config.dump(changed))
    assert open_trained(stopped, client=0).model is not None
    said = f'{key} = "{name}", and fednlp runs no code that only a run directory names'
    with pytest.raises(RunError, match=re.escape(said)):
        fednlp.resume(stopped)
    with pytest.raises(ConfigError, match="a resumed run keeps its settings: leave out"):
        fednlp.resume(stopped, overrides=[f"{key}={name}", "seed=9"])
    with pytest.raises(RunError, match=re.escape(said)):  # it is not enough that another setting is typed
        fednlp.resume(stopped, overrides=["num_rounds=1"])
    assert "my_own" not in sys.modules


def test_what_a_refusal_advises_goes_on(
    experiment: Callable[..., Experiment], tmp_path: Path, stopping: Callable[..., Any]
) -> None:
    """Each refusal names the whole command, or the call, that continues a run of own code to the same weights."""
    own = experiment({"num_rounds": 2, "algorithm.name": "my_own:equal", "exchange.up": "my_own:Whole"})
    whole = fednlp.run(own, tmp_path / "whole")
    cut = tmp_path / "a cut"
    with stopping(rounds=1) as callback:
        fednlp.run(own, cut, callback=callback)
    (tmp_path / "plain.toml").write_text(fednlp.config.dump(experiment({"num_rounds": 2})))
    advised = []
    for words in ([], [str(tmp_path / "plain.toml")]):
        refused = CliRunner().invoke(app, ["run", *words, "--resume", str(cut)])
        assert isinstance(refused.exception, RunError)
        advised.append(re.search(r"fednlp (run --resume .*)", str(refused.exception))[1])  # type: ignore[index]
    with pytest.raises(RunError) as caught:
        fednlp.resume(cut)
    call = re.search(r"if you trust it, type (fednlp\.resume\(.*\))$", str(caught.value))
    assert call is not None
    copy = shutil.copytree(cut, tmp_path / "copy")
    assert weights(eval(call[1].replace(str(cut), str(copy)))) == weights(whole)
    assert advised[0] == advised[1]
    typed = CliRunner().invoke(app, shlex.split(advised[0]))
    assert typed.exit_code == 0, typed.exception
    assert weights(RunDir(cut)) == weights(whole)


def test_a_stopped_run_says_how_it_goes_on(
    experiment: Callable[..., Experiment], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line after Ctrl-C names the code that the run names."""
    own = experiment({"cohort.name": "my_own:turns"})
    run = fednlp.run(experiment({"num_rounds": 1}), tmp_path / "run")
    console = Console()
    console.started(run, own, 1, 0)
    with pytest.raises(SystemExit):
        console.__exit__(KeyboardInterrupt, None, None)
    assert (
        f"go on with: fednlp run --resume {run.folder} --set cohort.name=my_own:turns\n"
        in capsys.readouterr().err
    )


def test_own_code_goes_on_where_the_user_gives_its_experiment(
    experiment: Callable[..., Experiment], tmp_path: Path, stopping: Callable[..., Any]
) -> None:
    own = experiment({"num_rounds": 2, "algorithm.name": "my_own:equal", "exchange.up": "my_own:Whole"})
    whole = fednlp.run(own, tmp_path / "whole")
    with stopping(rounds=1) as callback:
        fednlp.run(own, tmp_path / "cut", callback=callback)
    assert weights(fednlp.resume(tmp_path / "cut", expected=own)) == weights(whole)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm": {"name": "my_own:number"}}, "3 is no function with parameters that can be read"),
        ({"algorithm": {"name": "builtins:dict"}}, "is no function with parameters that can be read"),
        ({"algorithm": {"name": "my_own:marked"}}, "its attribute about is not what a decorator"),
        ({"algorithm": {"name": "my_own:refusing_nothing"}}, "its refuses returned None: return a list"),
        (
            {"algorithm": {"name": "my_own:counted"}},
            "the default of server is to be a fednlp.ServerOptimizer",
        ),
        (
            {"algorithm": {"name": "my_own:equal", "options": {"weight": 2}}},
            "weight is given by the run: leave it out of [algorithm.options]",
        ),
        ({"algorithm": {"name": "my_own:negative"}}, "return finite numbers from 0"),
        ({"algorithm": {"name": "my_own:unweighed"}}, "the weight of fedavg raised TypeError"),
        ({"attack": {"name": "my_own:number", "fraction": 0.2}}, "3 is no function"),
        ({"aggregator": {"name": "builtins:min"}}, "is no function"),
    ],
)
def test_what_is_no_method_is_refused_in_one_line(
    experiment: Callable[..., Experiment], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment(changes).resolved()
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"runtime.engine": "my_own:number"}, "making it raised TypeError"),
        ({"runtime.engine": "my_own:parts"}, "making it raised"),
        ({"runtime.engine": "my_own:given"}, "is no engine: it has no start"),
        ({"exchange.up": "my_own:number"}, "making it raised TypeError"),
        ({"exchange.up": "builtins:dict"}, "is no transform: it has no shapes"),
        ({"algorithm.name": "given-in-python"}, "stands for a value that only Python can give"),
    ],
)
def test_what_is_no_engine_and_no_transform_is_refused(
    experiment: Callable[..., Experiment], tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with (tmp_path / "my_own.py").open("a") as file:
        file.write("\n\ndef given(*arguments):\n    return arguments\n")
    with pytest.raises(ConfigError) as caught:
        fednlp.run(experiment(changes), tmp_path / "run")
    assert said in str(caught.value)


def test_an_engine_that_only_the_run_directory_names_is_not_taken_with_the_users_experiment(
    experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    settings = experiment({"num_rounds": 1})
    run: RunDir = fednlp.run(settings, tmp_path / "run")
    whole = weights(run)
    (run.folder / "summary.json").unlink()
    (tmp_path / "strange.py").write_text("class Engine:\n    pass\n")
    path = run.folder / "resolved.toml"
    path.write_text(path.read_text().replace('engine = "pool"', 'engine = "strange:Engine"'))
    with pytest.raises(RunError, match=r"runtime\.engine"):
        fednlp.resume(run.folder)
    assert weights(fednlp.resume(run.folder, expected=settings)) == whole
    assert "strange" not in sys.modules


def of_result(change: Callable[[Any], Any], **traits: Any) -> fednlp.Algorithm:
    """FedAvg whose client returns what a function makes of its change, flat."""

    def client(local: Any, x: Any, server: Any, own: Any) -> fednlp.Result:
        made: fednlp.Result = change((local.steps(x) - x).flat())
        return made

    return replace(fednlp.fedavg(4), client=client, **traits)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (of_result(lambda d: fednlp.Result({"model": d[:7]})), "a vector of shape (7,)"),
        (
            of_result(lambda d: fednlp.Result({"model": d}, {"h": d[:7]}), keeps=("h",)),
            "keeps h, which is no flat",
        ),
        (
            of_result(lambda d: fednlp.Result({"model": d}, metrics={"t": "a"}), reports=("t",)),
            "t = 'a': no number",
        ),
        (
            of_result(lambda d: fednlp.Result({"model": d}, metrics={"t": math.nan}), reports=("t",)),
            "t = nan: no",
        ),
        (replace(fednlp.fedavg(4), receives=("h",)), "receives says h, and the server has no vector"),
        (
            replace(fednlp.fedavg(4), sample=lambda population, number: Cohort([1, 1])),
            "draw distinct ids from 0 to 7",
        ),
        (
            replace(fednlp.fedavg(4), sample=lambda population, number: Cohort([1, 8])),
            "draw distinct ids from 0 to 7",
        ),
        (
            replace(fednlp.fedavg(4), sample=lambda population, number: [1, 2]),
            "sample returned list: return a Cohort",
        ),  # type: ignore[arg-type,return-value]
    ],
)
def test_a_value_that_computes_something_else_is_refused_in_its_first_round(
    experiment: Callable[..., Experiment], tmp_path: Path, algorithm: fednlp.Algorithm, said: str
) -> None:
    with pytest.raises(FednlpError) as caught:
        fednlp.run(experiment({"num_rounds": 1}), tmp_path / "run", algorithm=algorithm)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("trait", "names"),
    [
        ("sends", ("model", "model")),
        ("sends", ("model", "../x")),
        ("sends", ("model", "")),
        ("keeps", "control"),
        ("keeps", ("h", "h")),
        ("keeps", ("\ud800",)),
        ("keeps", (1,)),
        ("keeps", ("h" * 81,)),
        ("reports", None),
        ("receives", ("model",)),
    ],
)
def test_the_names_of_a_method_s_vectors_are_distinct_words(trait: str, names: Any) -> None:
    with pytest.raises(ConfigError, match=trait):
        replace(fednlp.fedavg(4), **{trait: names})
