"""Several runs at once are those that are made one after the other, bit for bit, also after a stop."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import fednlp
from fednlp import config
from fednlp.cli import main
from fednlp.config import Experiment
from fednlp.errors import ConfigError, RunError
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.compare import Planned, compare
from fednlp.simulation.hyperparameters import tune
from fednlp.simulation.run_dir import RunDir

Make = Callable[..., Experiment]
EXPERIMENTS = sorted((Path(fednlp.__file__).parent / "experiments").glob("*.toml"))
Outcome = Callable[[Path], dict[str, Any]]


class Heard(NullCallback):
    """A callback that keeps what it is told."""

    def __init__(self, until: str = "never") -> None:
        self.logged: list[str] = []
        self.begun: list[tuple[str, str, int, int]] = []
        self.ended: list[tuple[str, int]] = []
        self.progress: list[tuple[int, int, str]] = []
        self._until = until

    def log(self, text: str) -> None:
        """Keep a text; end all where it is the one that was asked for."""
        self.logged.append(text)
        if self._until in text:
            raise KeyboardInterrupt

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        """Keep which run began."""
        self.begun.append((run.folder.name, experiment.algorithm.name, rounds, done))

    def on_progress(self, done: int, of: int, what: str) -> None:
        """Keep how many are done."""
        self.progress.append((done, of, what))

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Refuse: nobody could say of which run it is."""
        raise AssertionError

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Keep which run ended."""
        self.ended.append((run.folder.name, summary["rounds"]))


@pytest.fixture(scope="module")
def one_by_one(
    experiment: Make, tmp_path_factory: pytest.TempPathFactory, outcome: Outcome
) -> dict[str, dict[str, Any]]:
    """The outcome of each run, by its name."""
    runs = compare(experiment(), ["fedavg", "fedopt"], ["local"], 2, tmp_path_factory.mktemp("one") / "cmp")
    return {one.folder.name: outcome(one.folder) for one in runs}


def outcomes(runs: list[Planned], outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Return what came out, by run."""
    return {one.folder.name: outcome(one.folder) for one in runs}


def test_runs_at_once_are_those_one_by_one(
    one_by_one: dict[str, dict[str, Any]], experiment: Make, tmp_path: Path, outcome: Outcome
) -> None:
    heard = Heard()
    runs = compare(experiment(), ["fedavg", "fedopt"], ["local"], 2, tmp_path / "cmp", heard, jobs=2)
    assert outcomes(runs, outcome) == one_by_one
    begun = sorted((name, algorithm, done) for name, algorithm, _, done in heard.begun)
    assert begun == sorted((one.folder.name, one.experiment.algorithm.name, 0) for one in runs)
    assert sorted(name for name, _ in heard.ended) == sorted(one_by_one)
    assert heard.progress[-1] == (6, 6, "runs")
    for name in one_by_one:
        own = [text for text in heard.logged if text.startswith(f"{name}: round ")]
        assert len(own) == len(RunDir(tmp_path / "cmp" / name).round_lines())
    assert len([text for text in heard.logged if text.startswith("lengths: ")]) == 1, "the data are told once"
    assert len([text for text in heard.logged if " of 6 runs done; about " in text]) == 5


def test_a_stop_keeps_the_rounds_and_the_next_call_goes_on(
    one_by_one: dict[str, dict[str, Any]], experiment: Make, tmp_path: Path, outcome: Outcome
) -> None:
    heard = Heard(until="fedavg-seed0: round 2/")
    with pytest.raises(KeyboardInterrupt):
        compare(experiment(), ["fedavg", "fedopt"], ["local"], 2, tmp_path / "cmp", heard, jobs=2)
    stopped = RunDir(tmp_path / "cmp" / "fedavg-seed0")
    assert len(stopped.round_lines()) == 2
    assert not stopped.finished
    runs = compare(experiment(), ["fedavg", "fedopt"], ["local"], 2, tmp_path / "cmp", jobs=2)
    assert outcomes(runs, outcome) == one_by_one


def test_the_first_mistake_is_said_and_what_is_done_is_kept(experiment: Make, tmp_path: Path) -> None:
    """One of the variants has fewer clients than it needs, which only its run finds out."""
    sites = {"min_clients": 6, "clients_per_round": 6, "partition": {"method": "natural", "field": "site"}}
    tables = experiment({"partition": None}).model_dump(exclude_none=True)
    del tables["partition"]
    made = config.parse({**tables, "variants": {"good": {}, "bad": sites}}, "tiny")
    found = []
    for jobs in (1, 2):
        with pytest.raises(ConfigError) as caught:
            compare(made, ["good", "bad"], out=tmp_path / str(jobs), jobs=jobs)
        found.append((str(caught.value), caught.value.problems))
    assert found[0] == found[1]
    assert found[0][0].startswith("bad: min_clients = 6, but the partition has 5 clients")
    assert RunDir(tmp_path / "1" / "good-seed0").finished


def test_a_method_that_lies_in_this_process_alone_is_refused(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("__main__.mine", fednlp.fedavg, raising=False)
    made = experiment({"algorithm.name": "__main__:mine", "runtime.workers": 1})
    with pytest.raises(ConfigError, match="leave out --jobs"):
        compare(made, ["__main__:mine"], out=tmp_path / "cmp", seeds=2, jobs=2)


def test_trials_at_once_are_those_one_by_one(experiment: Make, tmp_path: Path) -> None:
    grid = {
        "client.learning_rate": [1e-3, 1e-2, 3e-2],
        "centralised:client.learning_rate": [1e-3, 1e-2, 3e-2],
    }
    found = {}
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        results = tune(experiment(), ["fedavg", "fedopt", "centralised"], grid, folder, rounds=4, jobs=jobs)
        lines = {
            path.parent.name: [{**json.loads(line), "seconds": 0} for line in path.read_text().splitlines()]
            for path in folder.glob("*/rounds.jsonl")
        }
        found[jobs] = {name: (one.scores, one.chosen, one.metric) for name, one in results.items()}, lines
        assert not list(folder.glob("*/checkpoint")), "weights of trials are not kept"
    assert found[1] == found[2]


def test_trials_that_all_fail_are_said_so(experiment: Make, tmp_path: Path) -> None:
    said = []
    for jobs in (1, 2):
        with pytest.raises(RunError) as caught:
            tune(
                experiment({"client.optimizer": "sgd"}),
                ["fedavg"],
                {"client.learning_rate": [1e29, 1e30]},
                tmp_path / str(jobs),
                rounds=2,
                jobs=jobs,
            )
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert said[0].startswith("every trial of fedavg failed")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_is_the_same_in_another_process(path: Path) -> None:
    """What is sent to a process for jobs is JSON."""
    loaded = config.load(path)
    for method in [None, *loaded.variants]:
        one = loaded if method is None else config.with_method(loaded, method, loaded.seed)
        assert Experiment(**json.loads(json.dumps(one.model_dump(mode="json")))) == one


def test_on_the_command_line(
    document: Callable[..., dict[str, Any]],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "tiny.toml").write_text(tomli_w.dumps(document({"num_rounds": 2})))
    arguments = ["compare", "tiny.toml", "--algorithms", "fedavg,fedprox", "--jobs", "2", "--out", "2"]
    monkeypatch.setattr("sys.argv", ["fednlp", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    printed = capsys.readouterr().out
    assert "fedavg-seed0: round 1/2" in printed
    assert "1 of 2 runs done; about " in printed
    assert all(RunDir(here / "2" / f"{name}-seed0").finished for name in ("fedavg", "fedprox"))
    monkeypatch.setattr("sys.argv", ["fednlp", "compare", "tiny.toml", "--jobs", "0", "--out", "0"])
    with pytest.raises(SystemExit):
        main()
    assert "--jobs 0: at least 1 is needed" in capsys.readouterr().err
    assert not (here / "0").exists()
