"""Several runs at once are those that are made one after the other, bit for bit, also after a stop."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

import fednlp
from fednlp import config
from fednlp.cli import main
from fednlp.config import Experiment
from fednlp.errors import ConfigError, RunError
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.run_dir import RunDir
from fednlp.studies.compare import Planned, compare
from fednlp.studies.hyperparameters import tune
from fednlp.studies.runs_callback import RunsCallback

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
EXPERIMENTS = sorted((Path(fednlp.__file__).parent / "experiments").glob("*.toml"))
Outcome = Callable[[Path], dict[str, Any]]
SHORT = {"num_rounds": 3}


class Heard(NullCallback):
    """A callback that keeps what it is told."""

    def __init__(self, until: tuple[str, int] = ("never", 0)) -> None:
        self.rounds: list[tuple[str, int]] = []
        self.logged: list[str] = []
        self.begun: list[tuple[str, str, int, int]] = []
        self.ended: list[tuple[str, int]] = []
        self.progress: list[tuple[int, int, str]] = []
        self._until = until

    def log(self, text: str) -> None:
        """Keep a text."""
        self.logged.append(text)

    def of_run(self, name: str) -> "HeardOfOne":
        """Return the callback of a run."""
        return HeardOfOne(self, name)

    def round_of(self, name: str, number: int) -> None:
        """Keep a round; end all where it is the one that was asked for."""
        self.rounds.append((name, number))
        if (name, number) == self._until:
            raise KeyboardInterrupt

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        """Keep which run began."""
        self.begun.append((run.folder.name, experiment.algorithm.name, rounds, done))

    def on_progress(self, done: int, of: int, what: str) -> None:
        """Keep how many are done."""
        self.progress.append((done, of, what))

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Keep which run ended."""
        self.ended.append((run.folder.name, summary["rounds"]))


class HeardOfOne(Heard):
    """The callback of one run."""

    def __init__(self, to: Heard, name: str) -> None:
        super().__init__()
        self._to, self._name = to, name
        self.started, self.finished = to.started, to.finished  # type: ignore[method-assign]

    def on_progress(self, done: int, of: int, what: str) -> None:
        """Refuse: the bar is that of all runs."""
        raise AssertionError

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Keep a round."""
        self._to.round_of(self._name, line["round"])


class Stop(Exception):
    """What a callback raises."""


class EarlyStop(NullCallback):
    """A user's callback, which knows nothing of runs at once: it stops each run after its first round."""

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Stop it."""
        raise Stop


@pytest.fixture(scope="module")
def one_by_one(
    experiment: Make, tmp_path_factory: pytest.TempPathFactory, outcome: Outcome
) -> dict[str, dict[str, Any]]:
    """The outcome of each run, by its name."""
    runs = compare(experiment(SHORT), ["fedavg"], ["local"], 2, tmp_path_factory.mktemp("one") / "cmp")
    return {one.folder.name: outcome(one.folder) for one in runs}


def outcomes(runs: list[Planned], outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Return what came out, by run."""
    return {one.folder.name: outcome(one.folder) for one in runs}


def test_runs_at_once_are_those_one_by_one(
    one_by_one: dict[str, dict[str, Any]], experiment: Make, tmp_path: Path, outcome: Outcome
) -> None:
    heard = Heard()
    runs = compare(experiment(SHORT), ["fedavg"], ["local"], 2, tmp_path / "cmp", heard, jobs=2)
    assert outcomes(runs, outcome) == one_by_one
    begun = sorted((name, algorithm, done) for name, algorithm, _, done in heard.begun)
    assert begun == sorted((one.folder.name, one.experiment.algorithm.name, 0) for one in runs)
    assert sorted(name for name, _ in heard.ended) == sorted(one_by_one)
    assert heard.progress[-1] == (4, 4, "runs")
    for name in one_by_one:
        own = [number for run, number in heard.rounds if run == f"tiny/{name}"]
        assert own == [line["round"] for line in RunDir(tmp_path / "cmp" / name).round_lines()]
    assert len([text for text in heard.logged if text.startswith("lengths: ")]) == 1, "the data are told once"
    assert len([text for text in heard.logged if " of 4 runs done; about " in text]) == 3


@pytest.mark.slow
def test_a_stop_keeps_the_rounds_and_the_next_call_goes_on(
    one_by_one: dict[str, dict[str, Any]], experiment: Make, tmp_path: Path, outcome: Outcome
) -> None:
    heard = Heard(until=("tiny/fedavg-seed0", 2))
    with pytest.raises(KeyboardInterrupt):
        compare(experiment(SHORT), ["fedavg"], ["local"], 2, tmp_path / "cmp", heard, jobs=2)
    stopped = RunDir(tmp_path / "cmp" / "fedavg-seed0")
    assert len(stopped.round_lines()) == 2
    assert not stopped.finished
    runs = compare(experiment(SHORT), ["fedavg"], ["local"], 2, tmp_path / "cmp", jobs=2)
    assert outcomes(runs, outcome) == one_by_one


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.variants(1)
def test_what_a_callback_raises_stops_a_run_after_its_round(
    jobs: int, experiment: Make, tmp_path: Path
) -> None:
    with pytest.raises(Stop):
        compare(experiment(), ["fedavg", "fedopt"], out=str(tmp_path), callback=EarlyStop(), jobs=jobs)
    lines = [RunDir(tmp_path / f"{name}-seed0").round_lines() for name in ("fedavg", "fedopt")]
    assert max(map(len, lines)) == 1


@pytest.mark.slow
def test_the_first_mistake_is_said_and_what_is_done_is_kept(experiment: Make, tmp_path: Path) -> None:
    """One of the variants has fewer clients than it needs, which only its run finds out."""
    sites = {"min_clients": 6, "clients_per_round": 6, "partition": {"method": "natural", "field": "site"}}
    tables = experiment({"partition": None}).model_dump(exclude_none=True)
    del tables["partition"]
    made = config.parse({**tables, "variants": {"good": {}, "bad": sites}}, "tiny")
    found, heard = [], Heard()
    for jobs in (1, 2):
        with pytest.raises(ConfigError) as caught:
            compare(made, ["good", "bad"], out=tmp_path / str(jobs), callback=heard, jobs=jobs)
        found.append((str(caught.value), caught.value.problems))
    assert found[0] == found[1]
    assert found[0][0].startswith("bad: min_clients = 6, but the partition has 5 clients")
    assert RunDir(tmp_path / "1" / "good-seed0").finished
    assert "tiny/bad-seed0 failed; the other runs are stopped, and go on with the next call" in heard.logged


def test_an_error_in_own_code_says_where(
    document: Callable[..., dict[str, Any]],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "mistaken.py").write_text(
        "from dataclasses import replace\nimport fednlp\n\n"
        "def sample(*given):\n    raise ValueError('my mistake')\n\n"
        "def method(clients_per_round):\n    return replace(fednlp.fedavg(clients_per_round), sample=sample)\n"
    )
    (here / "tiny.toml").write_text(tomli_w.dumps(document({"runtime.workers": 1})))
    monkeypatch.setenv("PYTHONPATH", str(here))
    monkeypatch.syspath_prepend(here)
    said = []
    for jobs in ("1", "2"):
        arguments = ["compare", "tiny.toml", "--algorithms", "mistaken:method", "--seeds", "2"]
        monkeypatch.setattr("sys.argv", ["fednlp", *arguments, "--jobs", jobs, "--out", jobs])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 1
        said.append(capsys.readouterr().err)
    assert said[0] == said[1]
    assert "ValueError: my mistake: raised by your own code (mistaken.py, line 5)" in said[1]


def test_a_method_that_lies_in_this_process_alone_is_refused(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("__main__.mine", fednlp.fedavg, raising=False)
    made = experiment({"algorithm.name": "__main__:mine", "runtime.workers": 1})
    with pytest.raises(ConfigError, match="leave out --jobs"):
        compare(made, ["__main__:mine"], out=tmp_path / "cmp", seeds=2, jobs=2)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_on_the_command_line(
    document: Callable[..., dict[str, Any]],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "tiny.toml").write_text(tomli_w.dumps(document({"num_rounds": 2})))
    arguments = ["compare", "tiny.toml", "--algorithms", "fedavg,fedprox", "--jobs", "2", "--out", "2"]
    arguments.append("--verbose")
    monkeypatch.setattr("sys.argv", ["fednlp", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    printed = capsys.readouterr().out
    assert "starting 2 processes" in printed
    assert "tiny/fedavg-seed0: tiny: fedavg on " in printed
    assert "tiny/fedavg-seed0: round 1/2" in printed
    assert "tiny/fedavg-seed0: finished, accuracy 0." in printed
    assert "1 of 2 runs done; about " in printed
    assert all(RunDir(here / "2" / f"{name}-seed0").finished for name in ("fedavg", "fedprox"))
    monkeypatch.setattr("sys.argv", ["fednlp", "compare", "tiny.toml", "--jobs", "0", "--out", "0"])
    with pytest.raises(SystemExit):
        main()
    assert "--jobs 0: at least 1 is needed" in capsys.readouterr().err
    assert not (here / "0").exists()


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.floats(0.1, 100))
def test_the_time_left_is_that_of_the_rounds_left(
    at_once: int, turns: int, rounds: int, seconds: float
) -> None:
    """Runs of equal rounds, all of which begin and end together: what is said after each turn is exact."""
    now, heard = 0.0, Heard()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fednlp.studies.runs_callback.time.monotonic", lambda: now)
        told = RunsCallback(heard, at_once * turns, 0, at_once)
        for turn in range(turns):
            for number in range(at_once):
                told.began(f"{turn}-{number}", rounds, 0)
            for done in range(1, rounds + 1):
                now += seconds
                for number in range(at_once):
                    told.went_on(f"{turn}-{number}", done, seconds * (rounds - done))
            for number in range(at_once):
                told.done(f"{turn}-{number}")
            assert told._left() == pytest.approx(seconds * rounds * (turns - turn - 1))
            told.log_what_is_left()
    total = at_once * turns
    assert [text.split(";")[0] for text in heard.logged] == [
        f"{at_once * turn} of {total} runs done" for turn in range(1, turns)
    ]


def test_no_time_left_is_less_than_that_of_a_run_in_progress() -> None:
    told = RunsCallback(NullCallback(), 2, 0, 2)
    for name in "ab":
        told.began(name, 4, 0)
    told.went_on("a", 4, 0.0)
    told.went_on("b", 1, 1e6)
    told.done("a")
    assert told._left() == 1e6
