"""Real runs of a tiny model: laws of the run, of stopping and resuming, and of the run directory."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from torch import Tensor

import fednlp
from fednlp import config
from fednlp.config import Experiment
from fednlp.errors import ConfigError, MissingDependency, ModelError, RunError
from fednlp.federated.aggregators.base import AggregatedUpdate
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.cohort import Cohort, Population, uniform_cohort
from fednlp.federated.server import ServerOptimizer
from fednlp.federated.state import State
from fednlp.inference.model import open_trained
from fednlp.inference.predict import predict_texts
from fednlp.models.pretrained import load_tokenizer, longest_text
from fednlp.partition import Partition
from fednlp.simulation.callback import Callback, NullCallback
from fednlp.simulation.run_dir import RunDir

POISON = "poison"
"""The last word of the tiny model's vocabulary, in no text of the data sets."""

Make = Callable[..., Experiment]
Outcome = Callable[[Path | RunDir], dict[str, Any]]
Stopping = Callable[..., AbstractContextManager[Callback]]

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("same_workers")]

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm.name": "fedavg", "client.optimizer": "sgd", "client.learning_rate": 0.1},
    "fedprox": {"algorithm.name": "fedprox", "algorithm.mu": 0.5},
    "fedopt": {"algorithm.name": "fedopt", "client.max_grad_norm": 1.0},
    "fedadam": {"algorithm.name": "fedadam", "client.lr_scheduler_type": "linear"},
    "fedyogi": {
        "algorithm.name": "fedyogi",
        "client.weight_decay": 0.01,
        "partition": {"method": "quantity", "clients": 8, "beta": 1.0},
    },
    "centralised": {"algorithm.name": "centralised", "client.lr_scheduler_type": "linear"},
    "chained": {"algorithm.name": "chained", "client.lr_scheduler_type": "linear"},
    "local": {"algorithm.name": "local", "clients_per_round": 2, "evaluation.local_models": 3},
}
"""One set of settings a method; between them they use most of what a client can do."""
LEARNED: dict[str, Any] = {
    "partition": {"method": "uniform", "clients": 8},
    "num_rounds": 12,
    "client.num_train_epochs": 2,
}
"""Long enough for the tiny model to find out what it is about."""


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, experiment: Make) -> Callable[[str], RunDir]:
    """Return the uninterrupted run of a method, one worker, made once."""
    made: dict[str, RunDir] = {}

    def run(method: str) -> RunDir:
        if method not in made:
            folder = tmp_path_factory.mktemp("whole") / method
            made[method] = fednlp.run(experiment((METHODS | {"learned": LEARNED})[method]), folder)
        return made[method]

    return run


def lines_of(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def summary_of(run: RunDir) -> dict[str, Any]:
    return json.loads((run.folder / "summary.json").read_text())


@pytest.mark.parametrize("method", ["fedopt", "centralised", "local"])
@pytest.mark.variants(1)
def test_two_runs_of_one_seed_are_equal_bit_for_bit(
    method: str, whole: Callable[[str], RunDir], experiment: Make, outcome: Outcome, tmp_path: Path
) -> None:
    again = fednlp.run(experiment(METHODS[method]), tmp_path / "again")
    assert outcome(again) == outcome(whole(method))


def test_another_seed_is_another_run(
    whole: Callable[[str], RunDir], experiment: Make, outcome: Outcome, tmp_path: Path
) -> None:
    """Partition, cohorts, head and order all follow the seed."""
    other = outcome(fednlp.run(experiment(METHODS["fedopt"] | {"seed": 1}), tmp_path / "other"))
    first = outcome(whole("fedopt"))
    assert other["partition"] != first["partition"]
    assert other["weights"] != first["weights"]
    assert [line["cohort"] for line in other["rounds"]] != [line["cohort"] for line in first["rounds"]]


@pytest.mark.parametrize("method", ["fedopt", "centralised", "local"])
@pytest.mark.slow
def test_two_workers_give_what_one_gives(
    method: str, whole: Callable[[str], RunDir], experiment: Make, outcome: Outcome, tmp_path: Path
) -> None:
    """Bit for bit: dropout, order and sums do not depend on who did which piece."""
    two = fednlp.run(experiment(METHODS[method] | {"runtime.workers": 2}), tmp_path / "two")
    assert outcome(two) == outcome(whole(method))


def test_an_older_model_is_published_without_harm_to_the_newest(
    experiment: Make, outcome: Outcome, tmp_path: Path
) -> None:
    """A client that counts nothing changes nothing, whichever model it starts from."""

    class Keeping(ServerOptimizer):
        def step(self, state: State, update: AggregatedUpdate) -> None:
            state.vectors["before"] = state.params.clone()
            super().step(state, update)

        def model(self, state: State, staleness: int) -> Tensor:
            return state.vectors["before"] if staleness else state.params

    def method(late: int) -> Algorithm:
        def sample(population: Population, round_number: int) -> Cohort:
            return Cohort([1, 2, 5], [0, 0, late * (round_number > 1)], scale=[1.0, 1.0, 0.0])

        return Algorithm("stale", sample, server=Keeping())

    latest, older = (
        fednlp.run(experiment(), tmp_path / str(late), algorithm=method(late)) for late in (0, 1)
    )
    assert outcome(older)["state"] == outcome(latest)["state"]
    assert outcome(older)["weights"] == outcome(latest)["weights"]
    assert [line["train_loss"] for line in lines_of(older)] != [
        line["train_loss"] for line in lines_of(latest)
    ]


def test_more_workers_than_clients(experiment: Make, outcome: Outcome, tmp_path: Path) -> None:
    changes = {"clients_per_round": 1, "num_rounds": 1, "partition.clients": 2}
    one = fednlp.run(experiment(changes), tmp_path / "one")
    two = fednlp.run(experiment(changes | {"runtime.workers": 2}), tmp_path / "two")
    assert outcome(two) == outcome(one)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.slow
def test_stopped_and_resumed_equals_never_stopped(
    method: str,
    rounds: int,
    whole: Callable[[str], RunDir],
    experiment: Make,
    outcome: Outcome,
    stopping: Stopping,
    tmp_path: Path,
) -> None:
    with stopping(rounds=rounds) as callback:
        fednlp.run(experiment(METHODS[method]), tmp_path / "run", callback=callback)
    begun = RunDir(tmp_path / "run")
    assert not begun.finished
    assert len(lines_of(begun)) == rounds
    fednlp.resume(begun.folder)
    assert outcome(begun) == outcome(whole(method))


@pytest.mark.parametrize(("method", "pieces"), [("fedopt", 7), ("centralised", 15), ("local", 3)])
@pytest.mark.variants(1)
def test_stopped_within_a_round_loses_that_round_alone(
    method: str,
    pieces: int,
    whole: Callable[[str], RunDir],
    experiment: Make,
    outcome: Outcome,
    stopping: Stopping,
    tmp_path: Path,
) -> None:
    """Stopped again and again, somewhere in the second round from there, and resumed each time."""
    folder = tmp_path / "run"
    with stopping(pieces=pieces) as callback:
        fednlp.run(experiment(METHODS[method]), folder, callback=callback)
    for done in range(1, 4):
        assert [line["round"] for line in lines_of(RunDir(folder))] == list(range(1, done + 1))
        with stopping(pieces=pieces, early=done < 3) as callback:
            fednlp.resume(folder, callback=callback)
    assert outcome(folder) == outcome(whole(method))


@pytest.mark.slow
def test_killed_and_resumed_equals_never_stopped(
    whole: Callable[[str], RunDir], experiment: Make, outcome: Outcome, tmp_path: Path
) -> None:
    """kill -9 of the whole command with a worker beside it; then the last line is torn, as a crash may leave it."""
    changes = METHODS["fedopt"] | {"num_rounds": 40, "evaluation.every": 20}
    never = fednlp.run(experiment(changes), tmp_path / "never")
    file = tmp_path / "e.toml"
    file.write_text(config.dump(experiment(changes | {"runtime.workers": 2})))
    folder = tmp_path / "killed"
    command = [
        sys.executable,
        "-c",
        "from fednlp.cli import main; main()",
        "run",
        str(file),
        "--out",
        str(folder),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        rounds = folder / "rounds.jsonl"
        deadline = time.monotonic() + 120
        while not (rounds.is_file() and rounds.read_bytes().count(b"\n") >= 2):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not RunDir(folder).finished
    done = len(RunDir(folder).round_lines())
    assert 2 <= done < 40
    with rounds.open("ab") as torn:
        torn.write(b'{"round": 41, "cohort": [1, 2')
    fednlp.resume(folder, workers=1)
    assert outcome(folder) == outcome(never)


def test_rounds_after_the_checkpoint_are_done_again(
    whole: Callable[[str], RunDir], experiment: Make, outcome: Outcome, stopping: Stopping, tmp_path: Path
) -> None:
    """The line is written before the checkpoint: killed between the two, the line must not stand twice."""
    folder = tmp_path / "run"
    with stopping(rounds=2) as callback:
        fednlp.run(experiment(METHODS["fedopt"]), folder, callback=callback)
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(lines_of(whole("fedopt"))[2] | {"train_loss": 99.0}) + "\n")
    fednlp.resume(folder)
    assert outcome(folder) == outcome(whole("fedopt"))


def test_a_checkpoint_that_is_gone_loses_no_rounds_silently(
    experiment: Make, stopping: Stopping, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with stopping(rounds=2) as callback:
        fednlp.run(experiment(METHODS["fedopt"]), folder, callback=callback)
    RunDir(folder).state.unlink()
    with pytest.raises(
        RunError, match=r"state.safetensors is gone, and with it the rounds done: start again with"
    ):
        fednlp.resume(folder)
    assert len(RunDir(folder).round_lines()) == 2


def test_stopped_while_the_model_is_written(
    whole: Callable[[str], RunDir],
    experiment: Make,
    outcome: Outcome,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("fednlp.simulation.train.save_model", broken)
        with pytest.raises(RuntimeError, match="stopped"):
            fednlp.run(experiment(METHODS["fedopt"]), tmp_path / "run")
    assert not RunDir(tmp_path / "run").finished
    fednlp.resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole("fedopt"))


def test_a_run_directory_copied_elsewhere_goes_on(
    whole: Callable[[str], RunDir], experiment: Make, outcome: Outcome, stopping: Stopping, tmp_path: Path
) -> None:
    with stopping(rounds=2) as callback:
        fednlp.run(experiment(METHODS["fedopt"]), tmp_path / "run", callback=callback)
    shutil.copytree(tmp_path / "run", tmp_path / "elsewhere" / "copy")
    shutil.rmtree(tmp_path / "run")
    fednlp.resume(tmp_path / "elsewhere" / "copy")
    assert outcome(tmp_path / "elsewhere" / "copy") == outcome(whole("fedopt"))


def test_a_run_of_relative_paths_goes_on_from_another_folder(
    document: Callable[..., dict[str, Any]],
    outcome: Outcome,
    stopping: Stopping,
    here: Path,
    texts: Path,
    tiny_model: Path,
) -> None:
    shutil.copy(texts, "texts.csv")
    shutil.copytree(tiny_model, "model")
    changes = {"data.path": "texts.csv", "model.name_or_path": "model", "num_rounds": 2}
    relative = config.parse(document(changes))
    whole = fednlp.run(relative, here / "whole")
    with stopping(rounds=1) as callback:
        fednlp.run(relative, here / "run", callback=callback)
    (here / "elsewhere").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here / "elsewhere")
        fednlp.resume(here / "run")
    assert outcome(here / "run") == outcome(whole)


def test_a_known_model_is_meant_whatever_lies_in_the_folder(experiment: Make, here: Path) -> None:
    (here / "minilm").mkdir()
    (here / "own").mkdir()
    assert experiment({"model.name_or_path": "minilm"}).resolved().model.name_or_path == "minilm"
    assert experiment({"model.name_or_path": "own"}).resolved().model.name_or_path == str(here / "own")


def test_fewer_clients_than_min_clients(experiment: Make, tmp_path: Path) -> None:
    """The field says how many clients there are: it is known before anything is written."""
    changes = {"partition": {"method": "natural", "field": "site"}, "clients_per_round": 8, "min_clients": 6}
    with pytest.raises(
        ConfigError, match=r"min_clients = 6, but the partition has 5 clients.*lower min_clients"
    ):
        fednlp.run(experiment(changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_is_not_installed(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before anything is written."""
    monkeypatch.setattr("fednlp.reports.trackers.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="pip install wandb"):
        fednlp.run(experiment({"report.report_to": ["wandb"]}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_clients_alone_without_their_own_tests(experiment: Make, tmp_path: Path) -> None:
    run = fednlp.run(experiment({"algorithm.name": "local", "evaluation.personal": False}), tmp_path / "run")
    assert all(one["own"] is None for line in lines_of(run) for one in line["alone"])
    assert set(summary_of(run)["evaluation"]) == {"global"}
    assert not (run.folder / "clients.csv").exists()


class ResumesItself(NullCallback):
    """Has another process go on with the run that is under way here."""

    def __init__(self) -> None:
        self.said = ""

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        code = "import sys, fednlp; fednlp.resume(sys.argv[1])"
        command = [sys.executable, "-c", code, str(run.folder)]
        self.said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
        self.lines = (run.folder / "rounds.jsonl").read_text()


def test_nobody_else_works_in_a_run_under_way(experiment: Make, tmp_path: Path) -> None:
    callback = ResumesItself()
    fednlp.run(experiment({"num_rounds": 1}), tmp_path / "run", callback=callback)
    assert f"another process is at work in {tmp_path / 'run'}" in callback.said
    assert callback.lines == ""


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_finished_run_is_left_alone(whole: Callable[[str], RunDir]) -> None:
    before = snapshot(whole("fedavg").folder)
    fednlp.resume(whole("fedavg").folder)
    assert snapshot(whole("fedavg").folder) == before


def test_a_run_directory_is_never_overwritten(whole: Callable[[str], RunDir], experiment: Make) -> None:
    before = snapshot(whole("fedavg").folder)
    with pytest.raises(RunError, match="never overwritten"):
        fednlp.run(experiment(METHODS["fedopt"]), whole("fedavg").folder)
    assert snapshot(whole("fedavg").folder) == before


def test_a_folder_of_something_else_is_no_run(experiment: Make, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("text,label\n")
    with pytest.raises(RunError, match=r"holds files of something else: choose another out=$"):
        fednlp.run(experiment(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_other_settings_are_refused(whole: Callable[[str], RunDir], experiment: Make) -> None:
    """The message names what is other; another number of workers is not."""
    changes = METHODS["fedavg"] | {"client.learning_rate": 0.2}
    with pytest.raises(RunError) as caught:
        fednlp.resume(whole("fedavg").folder, expected=experiment(changes))
    assert "client.learning_rate: 0.1 -> 0.2" in str(caught.value)
    fednlp.resume(whole("fedavg").folder, expected=experiment(METHODS["fedavg"] | {"runtime.workers": 2}))


def test_changed_data_are_refused(
    document: Callable[..., dict[str, Any]],
    make_csv: Callable[..., Path],
    make_rows: Callable[..., list[tuple[str, str, str]]],
    stopping: Stopping,
    tmp_path: Path,
) -> None:
    path = make_csv(tmp_path / "own.csv", make_rows(60))
    settings = config.parse(document({"data.path": str(path)}))
    with stopping(rounds=1) as callback:
        fednlp.run(settings, tmp_path / "run", callback=callback)
    make_csv(path, make_rows(60, seed=1))
    with pytest.raises(RunError, match="have changed"):
        fednlp.resume(tmp_path / "run")


@pytest.mark.parametrize(
    "name",
    [
        "resolved.toml",
        "environment.json",
        "partition.npz",
        "checkpoint/state.safetensors",
    ],
)
@pytest.mark.parametrize("damage", ["cut short", "emptied", "garbage"])
def test_a_file_of_the_run_directory_that_was_damaged(
    name: str, damage: str, experiment: Make, stopping: Stopping, tmp_path: Path
) -> None:
    """One sentence that names the file."""
    with stopping(rounds=1) as callback:
        fednlp.run(experiment({"num_rounds": 2}), tmp_path / "run", callback=callback)
    path = tmp_path / "run" / name
    content = path.read_bytes()
    path.write_bytes({"cut short": content[:-9], "emptied": b"", "garbage": b"\xff{\0" * 50}[damage])
    with pytest.raises(fednlp.FednlpError) as caught:
        fednlp.resume(tmp_path / "run")
    assert name.rpartition("/")[2] in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_lines_that_are_lost_are_not_made_up(experiment: Make, stopping: Stopping, tmp_path: Path) -> None:
    """A checkpoint after round 2 with the line of round 1 alone: refused, for the record would have a hole."""
    with stopping(rounds=2) as callback:
        fednlp.run(experiment({"num_rounds": 3}), tmp_path / "run", callback=callback)
    path = tmp_path / "run" / "rounds.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(RunError, match=r"rounds\.jsonl"):
        fednlp.resume(tmp_path / "run")


@pytest.mark.parametrize("garbage", [b"\xff\xfe\0{", b"3\n", b"{}\n"])
def test_garbage_behind_the_last_line_is_dropped(
    garbage: bytes,
    whole: Callable[[str], RunDir],
    experiment: Make,
    outcome: Outcome,
    stopping: Stopping,
    tmp_path: Path,
) -> None:
    """What a crash leaves of a file that was being written is not always text."""
    with stopping(rounds=2) as callback:
        fednlp.run(experiment(METHODS["fedopt"]), tmp_path / "run", callback=callback)
    with (tmp_path / "run" / "rounds.jsonl").open("ab") as file:
        file.write(garbage)
    fednlp.resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole("fedopt"))


@pytest.mark.slow
def test_killed_before_the_first_round(
    whole: Callable[[str], RunDir], experiment: Make, outcome: Outcome, tmp_path: Path
) -> None:
    """Of a run that was killed at any moment of its start, resume makes the whole run."""
    whole_folder = whole("fedopt").folder
    first = [
        "resolved.toml",
        "partition.npz",
        "data.json",
        "checkpoint/test.npy",
        "environment.json",
        "labels.json",
    ]
    for count in range(1, len(first) + 1):
        folder = tmp_path / str(count)
        (folder / "checkpoint").mkdir(parents=True)
        for name in first[:count]:
            shutil.copy(whole_folder / name, folder / name)
        fednlp.resume(folder)
        assert outcome(folder) == outcome(whole("fedopt"))


FILES = {
    "resolved.toml",
    "algorithm.json",
    "environment.json",
    "data.json",
    "task.json",
    "partition.npz",
    "rounds.jsonl",
    "clients.csv",
    "by_label.json",
    "labels.json",
    "summary.json",
    "profile.json",
    "checkpoint/lock",
    "checkpoint/state.safetensors",
    "checkpoint/test.npy",
    "model/config.json",
    "model/model.safetensors",
    "model/tokenizer.json",
    "model/tokenizer_config.json",
    "model/README.md",
}


@pytest.mark.parametrize("method", ["fedopt", "centralised", "local"])
def test_a_run_directory_holds_what_is_promised(method: str, whole: Callable[[str], RunDir]) -> None:
    run = whole(method)
    found = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
    # Clients alone end in as many models as there are clients, none of which is the run's.
    assert found == {
        name for name in FILES if method != "local" or not name.startswith(("model/", "by_label"))
    }
    if method == "local":
        with pytest.raises(RunError, match=r"resolved\.toml --set algorithm\.name=centralised --set 'alg"):
            open_trained(run.folder)
    lines, summary = lines_of(run), summary_of(run)
    keys = {"round", "cohort", "train_loss", "steps", "examples", "bytes_up", "bytes_down", "seconds"}
    federated = {"tensors_up", "tensors_down", "parameters_up"}
    extra = {"local": {"alone"}, "centralised": set()}.get(method, federated)
    assert [line["round"] for line in lines] == list(range(1, len(lines) + 1))
    for line in lines:
        of_last = {"interval"} if line is lines[-1] and method != "local" else set()
        assert set(line) == keys | {"evaluation"} | extra | of_last
    last = lines[-1]["evaluation"]
    assert set(last["global"]) == {"accuracy", "macro_f1", "mcc", "loss"}
    spread = {"accuracy_client_mean", "accuracy_worst_decile", "accuracy_std"}
    assert set(last["personal"]) == {"accuracy", "clients"} | spread
    assert summary["evaluation"] == last
    if method != "local":
        confusion = np.array(run.read_json("by_label.json")["confusion"])
        assert np.trace(confusion) / confusion.sum() == pytest.approx(last["global"]["accuracy"])
    assert summary["rounds"] == len(lines)
    assert summary["finished"] is True
    assert (summary["algorithm"], summary["seed"], summary["name"]) == (method, 0, "tiny")
    assert summary["reference"] == (None if method == "fedopt" else method)
    assert summary["bytes_up"] == sum(line["bytes_up"] for line in lines)
    assert summary["bytes_down"] == sum(line["bytes_down"] for line in lines)
    assert (summary["data"]["train"], summary["data"]["test"], summary["data"]["labels"]) == (160, 40, 4)
    best = max(
        lines, key=lambda line: (line["evaluation"].get("global", {}).get("accuracy", -1), -line["round"])
    )
    assert summary["best"] == {
        "round": best["round"],
        "accuracy": best["evaluation"]["global"]["accuracy"],
    }


def test_the_configuration_is_written_out(whole: Callable[[str], RunDir], experiment: Make) -> None:
    said = tomllib.loads((whole("fedadam").folder / "resolved.toml").read_text())
    assert said["runtime"].pop("onednn") in (True, False)
    assert config.parse(said) == experiment(METHODS["fedadam"]).resolved()
    assert said["server"] == {
        "round_schedule": "constant",
        "warmup_rounds": 0,
        "minimum_rate": 0.0,
        "optimizer": "adam",
        "learning_rate": 0.01,
        "beta1": 0.9,
        "beta2": 0.99,
        "tau": 1e-3,
    }
    environment = json.loads((whole("fedadam").folder / "environment.json").read_text())
    assert {"fednlp", "python", "torch", "transformers", "platform", "cpu_count", "time"} <= set(environment)


def test_every_client_is_counted(whole: Callable[[str], RunDir]) -> None:
    """Partition, clients.csv and labels.json tell the same story."""
    run = whole("fedopt")
    partition = Partition.load(run.partition)
    counts = json.loads((run.folder / "labels.json").read_text())
    rows = csv_rows(run.folder / "clients.csv")
    assert [int(row["client"]) for row in rows] == list(range(8))
    assert [int(row["train_examples"]) for row in rows] == np.diff(partition.train_offsets).tolist()
    assert [int(row["test_examples"]) for row in rows] == np.diff(partition.test_offsets).tolist()
    assert np.sum(counts["train"], axis=1).tolist() == np.diff(partition.train_offsets).tolist()
    assert np.sum(counts["test"], axis=1).tolist() == np.diff(partition.test_offsets).tolist()
    assert np.sum(counts["train"], axis=0).tolist() == [40, 40, 40, 40]
    everyone = np.concatenate([partition.train_indices, partition.test_indices])
    assert np.sort(everyone).tolist() == list(range(200))


def test_personal_scores_are_those_of_the_clients(whole: Callable[[str], RunDir]) -> None:
    """The means, worst decile and spread, from clients.csv; a partition of the test set keeps its accuracy."""
    run = whole("fedyogi")
    rows = [row for row in csv_rows(run.folder / "clients.csv") if row["accuracy"]]
    scores = np.array([float(row["accuracy"]) for row in rows])
    weights = np.array([int(row["test_examples"]) for row in rows])
    assert len(set(weights)) > 1
    said = summary_of(run)["evaluation"]
    assert said["personal"]["accuracy"] == pytest.approx(np.average(scores, weights=weights), abs=1e-6)
    assert said["personal"]["accuracy"] == pytest.approx(said["global"]["accuracy"], abs=1e-9)
    assert said["personal"]["accuracy_client_mean"] == pytest.approx(scores.mean(), abs=1e-6)
    assert said["personal"]["accuracy_worst_decile"] == pytest.approx(scores.min(), abs=1e-6)
    assert said["personal"]["accuracy_std"] == pytest.approx(scores.std(), abs=1e-6)
    assert said["personal"]["clients"] == len(rows)


def test_bytes_are_those_of_a_message(whole: Callable[[str], RunDir]) -> None:
    """What travels is every floating-point tensor, as one safetensors message a client and direction."""
    from safetensors.torch import save
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(whole("fedopt").model)
    tensors = {
        name: tensor.contiguous() for name, tensor in model.state_dict().items() if tensor.is_floating_point()
    }
    message = len(save(tensors))
    for line in lines_of(whole("fedopt")):
        assert line["bytes_up"] == line["bytes_down"] == message * len(line["cohort"])
    assert summary_of(whole("fedopt"))["parameters"] == sum(tensor.numel() for tensor in tensors.values())


def test_the_model_is_the_one_that_was_evaluated(whole: Callable[[str], RunDir], texts: Path) -> None:
    """Loaded with nothing but transformers, on padded batches with their mask, it scores what the summary says."""
    import torch
    from sklearn.metrics import f1_score, matthews_corrcoef
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    run = whole("learned")
    model = AutoModelForSequenceClassification.from_pretrained(run.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.model)
    rows = csv_rows(texts)
    held_out = np.sort(Partition.load(run.partition).test_indices)
    examples = [rows[number] for number in held_out]
    batch = tokenizer(
        [row["text"] for row in examples], padding=True, truncation=True, max_length=32, return_tensors="pt"
    )
    with torch.inference_mode():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    truth = [row["label"] for row in examples]
    guess = [model.config.id2label[int(number)] for number in logits.argmax(1)]
    ids = torch.tensor([model.config.label2id[label] for label in truth])
    said = summary_of(run)["evaluation"]["global"]
    assert said["accuracy"] == pytest.approx(np.mean([a == b for a, b in zip(truth, guess, strict=True)]))
    assert said["macro_f1"] == pytest.approx(f1_score(truth, guess, average="macro", zero_division=0))
    assert said["mcc"] == pytest.approx(matthews_corrcoef(truth, guess))
    assert said["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, ids).item(), rel=1e-5)
    assert len(set(guess)) > 1, "a model that always says the same would pass whatever it is given"


def test_padding_a_batch_changes_no_prediction(whole: Callable[[str], RunDir], tiny_model: Path) -> None:
    """The mask is passed: a text alone and the same text beside a longer one get the same logits."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from fednlp.data.features import Features
    from fednlp.tasks.text_classification import TextClassification

    model = AutoModelForSequenceClassification.from_pretrained(whole("learned").model).eval()
    task = TextClassification(("arts", "economy", "science", "sports"))
    long = " ".join(f"word{i % 30}" for i in range(28))
    rows = [{"text": text, "label": "arts"} for text in ("word1 arts1", "science2", long)]
    features = Features.in_memory(task.encode(rows, AutoTokenizer.from_pretrained(tiny_model), 32))

    def loss(numbers: list[int]) -> float:
        batch = task.collate(features, np.array(numbers), torch.device("cpu"))
        assert batch["input_ids"].shape[1] == max(features.lengths(np.array(numbers)))
        with torch.inference_mode():
            return task.predict(model, features, np.array(numbers), torch.device("cpu")).loss

    assert loss([0, 1, 2]) == pytest.approx(sum(loss([number]) for number in range(3)), rel=1e-6)
    # Without the mask the padding would count: the same batch with a mask of ones gives another loss.
    batch = task.collate(features, np.array([0, 1, 2]), torch.device("cpu"))
    batch["attention_mask"].fill_(1)
    with torch.inference_mode():
        blind = 3 * float(task.loss(model, batch))
    assert blind != pytest.approx(loss([0, 1, 2]), rel=1e-4)


def test_label_ids_are_sorted(whole: Callable[[str], RunDir]) -> None:
    """The file names sports first; the ids are alphabetical all the same, in every file."""
    names = ["arts", "economy", "science", "sports"]
    settings = json.loads((whole("fedavg").model / "config.json").read_text())
    assert settings["id2label"] == {str(i): name for i, name in enumerate(names)}
    assert json.loads((whole("fedavg").folder / "labels.json").read_text())["labels"] == names


def test_learning_happens(whole: Callable[[str], RunDir]) -> None:
    """The texts give their labels away, and a tiny model finds out."""
    run = whole("learned")
    assert summary_of(run)["evaluation"]["global"]["accuracy"] > 0.7
    assert lines_of(run)[-1]["train_loss"] < 0.5 * lines_of(run)[0]["train_loss"]


@pytest.mark.parametrize(
    "same",
    [
        {"algorithm.name": "fedprox", "algorithm.mu": 0.0},
        {"algorithm.name": "fedopt", "server.momentum": 0.0, "server.learning_rate": 1.0},
    ],
)
def test_special_cases_are_fedavg(
    same: dict[str, Any], whole: Callable[[str], RunDir], experiment: Make, outcome: Outcome, tmp_path: Path
) -> None:
    """FedProx(0) = FedAvg; FedOpt(SGD, lr 1, no momentum) = FedAvg."""
    twin = fednlp.run(experiment(METHODS["fedavg"] | same), tmp_path / "twin")
    one, other = outcome(twin), outcome(whole("fedavg"))
    assert one["weights"] == other["weights"]
    assert one["rounds"] == other["rounds"]


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm.name": "fedprox", "algorithm.mu": 1.0},
        {"algorithm.name": "fedopt"},
        {"algorithm.weighting": "uniform"},
        {"client.momentum": 0.9},
        {"client.weight_decay": 0.1},
        {"client.max_grad_norm": 0.01},
        {"client.max_steps": 2},
        {"client.num_train_epochs": 2},
        {"client.lr_scheduler_type": "cosine"},
        {"client.optimizer": "adagrad"},
        {"client.per_device_train_batch_size": 5},
        {"client.group_by_length": False},
        {"model.config.hidden_dropout_prob": 0.0},
        {"model.max_length": 8},
        {"partition.seed": 4},
    ],
)
def test_every_setting_does_something(
    change: dict[str, Any], whole: Callable[[str], RunDir], experiment: Make, outcome: Outcome, tmp_path: Path
) -> None:
    unequal = {"partition.method": "quantity", "partition.alpha": None, "partition.beta": 1.0}
    base = METHODS["fedavg"] | {"num_rounds": 1} | unequal
    plain = whole_of(experiment(base), tmp_path / "plain", outcome)
    other = whole_of(experiment(base | change), tmp_path / "other", outcome)
    # Momentum of the server shows from the second round on.
    assert (other["weights"] == plain["weights"]) == (change == {"algorithm.name": "fedopt"})


def whole_of(settings: Experiment, folder: Path, outcome: Outcome) -> dict[str, Any]:
    return outcome(fednlp.run(settings, folder))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adagrad"])
@pytest.mark.parametrize(
    "schedule", ["constant", "constant_with_warmup", "linear", "cosine", "polynomial", "inverse_sqrt"]
)
@pytest.mark.variants(6)
def test_every_optimiser_with_every_schedule(
    optimizer: str, schedule: str, experiment: Make, tmp_path: Path
) -> None:
    """No warning, no client dropped, and the loss is a number; in the federation and on the union."""
    changes = {
        "num_rounds": 2,
        "clients_per_round": 2,
        "client.optimizer": optimizer,
        "client.lr_scheduler_type": schedule,
        "client.max_steps": 3,
        "client.warmup_steps": 0.4 if schedule != "constant" else None,
        "client.weight_decay": 0.01,
        "client.max_grad_norm": 0.5,
    }
    for algorithm in ("fedavg", "centralised"):
        run = fednlp.run(experiment(changes | {"algorithm.name": algorithm}), tmp_path / algorithm)
        for line in lines_of(run):
            assert "dropped" not in line
            assert 0 < line["train_loss"] < 10


def poisoned(
    poisoned_model: Path,
    tmp_path: Path,
    make_csv: Callable[..., Path],
    make_rows: Callable[..., list[tuple[str, str, str]]],
    with_poison: bool = True,
) -> dict[str, Any]:
    """Return settings of five natural clients, the last of which has texts that make the loss NaN."""
    rows = make_rows(100)
    spoiled = [("poison " + text, label, site) for text, label, site in rows if site == "site4"]
    clean = [row for row in rows if row[2] != "site4"]
    name = "poison" if with_poison else "clean"
    return {
        "data.path": str(make_csv(tmp_path / f"{name}.csv", clean + (spoiled if with_poison else []))),
        "data.test_path": str(make_csv(tmp_path / "test.csv", make_rows(40, sites=4, seed=1))),
        "partition": {"method": "natural", "field": "site"},
        "model.name_or_path": str(poisoned_model),
        "clients_per_round": 5,
        "min_clients": 4,
        "num_rounds": 2,
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_gives_nan_is_dropped(
    workers: int,
    poisoned_model: Path,
    tmp_path: Path,
    make_csv: Callable[..., Path],
    make_rows: Callable[..., list[tuple[str, str, str]]],
    experiment: Make,
) -> None:
    """It is named with the reason, and the rest goes on as if it had not been there."""
    from safetensors.numpy import load_file

    changes = poisoned(poisoned_model, tmp_path, make_csv, make_rows) | {"runtime.workers": workers}
    run = fednlp.run(experiment(changes), tmp_path / "run")
    clean = poisoned(poisoned_model, tmp_path, make_csv, make_rows, with_poison=False)
    without = fednlp.run(experiment(clean), tmp_path / "without")
    for line, other in zip(lines_of(run), lines_of(without), strict=True):
        assert line["cohort"] == [0, 1, 2, 3, 4]
        assert [entry["client"] for entry in line["dropped"]] == [4]
        assert "NaN" in line["dropped"][0]["reason"]
        assert "dropped" not in other
        assert line["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
        assert (line["steps"], line["examples"]) == (other["steps"], other["examples"])
        assert line["bytes_up"] * 5 == line["bytes_down"] * 4
    assert summary_of(run)["dropped"] == 2
    mine, theirs = (load_file(one.model / "model.safetensors") for one in (run, without))
    for name, tensor in mine.items():
        np.testing.assert_allclose(tensor, theirs[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_client_that_gives_nan_is_dropped_alone_too(
    poisoned_model: Path,
    tmp_path: Path,
    make_csv: Callable[..., Path],
    make_rows: Callable[..., list[tuple[str, str, str]]],
    experiment: Make,
) -> None:
    """The local reference drops it likewise, and its scores are not counted."""
    changes = poisoned(poisoned_model, tmp_path, make_csv, make_rows) | {"algorithm.name": "local"}
    run = fednlp.run(experiment(changes), tmp_path / "run")
    (line,) = lines_of(run)
    assert [entry["client"] for entry in line["dropped"]] == [4]
    assert "NaN" in line["dropped"][0]["reason"]
    assert 0 < line["train_loss"] < 10
    assert line["evaluation"]["personal"]["clients"] == 4
    assert summary_of(run)["dropped"] == 1
    assert 0 < summary_of(run)["evaluation"]["global"]["loss"] < 10


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_client_that_raises_is_dropped(
    method: str, experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fednlp.training.local import LocalTrainer

    steps = LocalTrainer.steps

    def fail_once(local: LocalTrainer, *arguments: Any, **options: Any) -> Any:
        if local.client == 1 and local.round in {0, 2}:
            raise OSError("the disk is on fire\nand more")
        return steps(local, *arguments, **options)

    monkeypatch.setattr(LocalTrainer, "steps", fail_once)
    changes = {"algorithm.name": method, "clients_per_round": 8 if method == "fedavg" else 2, "num_rounds": 3}
    run = fednlp.run(experiment(changes), tmp_path / "run")
    dropped = {line["round"]: line["dropped"] for line in lines_of(run) if "dropped" in line}
    turn = 2 if method == "fedavg" else 1
    assert [(turn, client["client"]) for turn, clients in dropped.items() for client in clients] == [
        (turn, 1)
    ]
    assert dropped[turn][0]["reason"].startswith("OSError: the disk is on fire (test_run.py, line ")
    assert 0 < lines_of(run)[turn - 1]["train_loss"] < 10


def test_a_round_below_min_clients_stops_and_keeps_what_is_done(
    poisoned_model: Path,
    tmp_path: Path,
    make_csv: Callable[..., Path],
    make_rows: Callable[..., list[tuple[str, str, str]]],
    experiment: Make,
) -> None:
    """The rounds before the poisoned client's turn are on the disk; the run says which client and why."""
    cohort = uniform_cohort(2)

    def drawn(seed: int) -> list[bool]:
        everyone = Population(np.ones(5, dtype=np.int64), seed)
        return [4 in cohort(everyone, number).clients for number in (1, 2, 3)]

    seed = next(s for s in range(100) if drawn(s) == [False, False, True])
    changes = poisoned(poisoned_model, tmp_path, make_csv, make_rows)
    changes |= {"clients_per_round": 2, "min_clients": 2, "num_rounds": 5, "seed": seed}
    with pytest.raises(RunError) as caught:
        fednlp.run(experiment(changes), tmp_path / "run")
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    for part in ("round 3", "1 of 2 clients", "min_clients is 2", "client 4"):
        assert part in message
    run = RunDir(tmp_path / "run")
    assert [line["round"] for line in lines_of(run)] == [1, 2]
    assert summary_of(run)["stopped"] == message
    assert summary_of(run)["finished"] is False
    assert (run.model / "model.safetensors").is_file()
    assert not run.finished, "it may be resumed, with the client back"
    with pytest.raises(RunError, match="round 3"):
        fednlp.resume(run.folder)
    assert [line["round"] for line in lines_of(run)] == [1, 2]


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm.name": "fedavg", "client.optimizer": "sgd", "client.learning_rate": 1e30},
        {"algorithm.name": "local", "client.optimizer": "sgd", "client.learning_rate": 1e30},
        {"algorithm.name": "centralised", "client.optimizer": "sgd", "client.learning_rate": 1e30},
        {"algorithm.name": "fedopt", "server.learning_rate": 1e38},
        {"algorithm.name": "fedadam", "server.learning_rate": 1e38},
    ],
    ids=lambda changes: changes["algorithm.name"],
)
def test_a_learning_rate_that_bursts_everything(
    changes: dict[str, Any], experiment: Make, tmp_path: Path
) -> None:
    """NaN everywhere ends in one sentence, never in a result; and nothing that is written is not JSON."""
    with pytest.raises(RunError) as caught:
        fednlp.run(experiment(changes), tmp_path / "run")
    assert "NaN" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run" / "summary.json").exists()
    assert "NaN" not in (tmp_path / "run" / "rounds.jsonl").read_text()


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize("method", ["fedopt", "centralised", "local"])
def test_what_is_written_is_json(method: str, whole: Callable[[str], RunDir]) -> None:
    """Strict JSON, that any language reads."""
    folder = whole(method).folder
    for line in (folder / "rounds.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=no_constant)
    for name in ("summary.json", "environment.json", "labels.json"):
        json.loads((folder / name).read_text(), parse_constant=no_constant)


def test_the_smallest_federation(experiment: Make, tmp_path: Path) -> None:
    """One client, one round, and evaluation rarer than the rounds: it is tried at the end all the same."""
    changes = {
        "partition": {"method": "uniform", "clients": 1},
        "clients_per_round": 1,
        "num_rounds": 1,
        "evaluation.every": 100,
    }
    run = fednlp.run(experiment(changes), tmp_path / "run")
    (line,) = lines_of(run)
    assert line["cohort"] == [0]
    assert line["examples"] == 160
    assert line["evaluation"]["personal"]["clients"] == 1


def test_evaluation_comes_when_it_is_due(experiment: Make, tmp_path: Path) -> None:
    changes = {"num_rounds": 5, "evaluation.every": 2, "evaluation.personal": False}
    run = fednlp.run(experiment(changes), tmp_path / "run")
    assert ["evaluation" in line for line in lines_of(run)] == [False, True, False, True, True]
    assert all(set(line["evaluation"]) == {"global"} for line in lines_of(run) if "evaluation" in line)


def test_evaluating_changes_nothing(experiment: Make, outcome: Outcome, tmp_path: Path) -> None:
    """With every round tried or none but the last, the weights are the same."""
    weights = [
        outcome(fednlp.run(experiment({"evaluation.every": every}), tmp_path / str(every)))["weights"]
        for every in (1, 4)
    ]
    assert weights[0] == weights[1]


def test_natural_clients_have_names_and_may_lack_test_examples(
    make_csv: Callable[..., Path],
    make_rows: Callable[..., list[tuple[str, str, str]]],
    experiment: Make,
    tmp_path: Path,
) -> None:
    """Names of any script; a client of one example, without a test example, has no score and does no harm."""
    names = {
        "site0": "Zürich",
        "site1": "東京",
        "site2": "São, Paulo",
        "site3": 'the "north"',
        "site4": "Łódź",
    }
    rows = [(text, label, names[site]) for text, label, site in make_rows(100)]
    changes = {
        "data.path": str(make_csv(tmp_path / "own.csv", [*rows, ("word1 arts1", "arts", "lonely")])),
        "data.test_path": str(
            make_csv(tmp_path / "test.csv", [*rows[:40], ("word1 arts1", "arts", "unknown")])
        ),
        "partition": {"method": "natural", "field": "site"},
        "clients_per_round": 6,
        "num_rounds": 1,
    }
    run = fednlp.run(experiment(changes), tmp_path / "run")
    rows_written = csv_rows(run.folder / "clients.csv")
    assert sorted(row["name"] for row in rows_written) == sorted([*names.values(), "lonely"])
    lonely = next(row for row in rows_written if row["name"] == "lonely")
    assert (lonely["train_examples"], lonely["test_examples"], lonely["accuracy"]) == ("1", "0", "")
    assert lines_of(run)[0]["evaluation"]["personal"]["clients"] == 5
    assert summary_of(run)["data"]["test"] == 41


def test_labels_of_any_script(
    make_csv: Callable[..., Path],
    make_rows: Callable[..., list[tuple[str, str, str]]],
    experiment: Make,
    tmp_path: Path,
) -> None:
    names = {"arts": "искусство", "economy": "経済", "science": "naïve “science”", "sports": "⚽\u2028"}
    rows = [(text, names[label], site) for text, label, site in make_rows(80)]
    path = make_csv(tmp_path / "own.csv", rows)
    run = fednlp.run(experiment({"data.path": str(path), "num_rounds": 2}), tmp_path / "run")
    ids = json.loads((run.model / "config.json").read_text())["id2label"]
    assert list(ids.values()) == sorted(names.values())
    assert json.loads((run.folder / "labels.json").read_text())["labels"] == sorted(names.values())


def test_features_are_made_once(
    experiment: Make, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run tokenises nothing, also where the tokenizer's file pads and cuts, which its first call undoes."""
    monkeypatch.setenv("FEDNLP_CACHE", str(tmp_path / "cache"))
    shutil.copy(experiment().data.path or "", tmp_path / "test.csv")
    shutil.copytree(tiny_model, tmp_path / "model")
    file = tmp_path / "model" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_padding(length=20)
    tokenizer.enable_truncation(20)
    tokenizer.save(str(file))
    changes = {
        "data.test_path": str(tmp_path / "test.csv"),
        "model.name_or_path": str(tmp_path / "model"),
        "num_rounds": 1,
    }
    said: list[str] = []

    class Heard(NullCallback):
        def log(self, text: str) -> None:
            said.append(text)

    fednlp.run(experiment(changes), tmp_path / "one", callback=Heard())
    found = [" ".join(text.split()[:4]) for text in said if "tokenising" in text]
    assert found == ["tokenising 200 training examples", "tokenising 200 test examples"]
    said.clear()
    fednlp.run(experiment(changes), tmp_path / "two", callback=Heard())
    assert not any("tokenising" in text for text in said)
    fednlp.run(experiment({"num_rounds": 1, "model.max_length": 31}), tmp_path / "held-out", callback=Heard())
    assert any(text.startswith("tokenising 200 training and test examples") for text in said)


def test_a_pipeline_cuts_texts_as_the_run_did(experiment: Make, tmp_path: Path) -> None:
    """And a run that begins from this run's model may read longer texts again."""
    from transformers import pipeline

    first = experiment({"num_rounds": 1, "model.max_length": 6})
    run = fednlp.run(first, tmp_path / "run")
    texts = ["word1 " * 4 + f"{label}1 " * 30 for label in ("arts", "economy", "science", "sports")]
    classify = pipeline("text-classification", model=str(run.model), device="cpu")
    found = [said["label"] for said in classify(texts, truncation=True)]
    assert len(classify.tokenizer(texts[0], truncation=True)["input_ids"]) == 6
    assert found == predict_texts(run.folder, texts, {})
    assert longest_text(str(run.model), load_tokenizer(str(run.model))) == 64


def save_decoder(folder: Path, tiny_model: Path, padding: str | None) -> Path:
    """Save a GPT-2 of the tiny model's vocabulary; its tokenizer adds nothing to a text, as GPT-2's own."""
    import torch
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer, GPT2Config, GPT2Model

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.eos_token, tokenizer.pad_token = "[SEP]", padding
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        GPT2Model(
            GPT2Config(
                vocab_size=len(tokenizer),
                n_embd=16,
                n_layer=2,
                n_head=2,
                n_positions=64,
                bos_token_id=2,
                eos_token_id=3,
                pad_token_id=tokenizer.pad_token_id,
            )
        ).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("padding", [POISON, None])
def test_a_decoder_is_trained_by_rows_as_by_the_whole_table(
    padding: str | None,
    experiment: Make,
    tiny_model: Path,
    make_csv: Callable[..., Path],
    make_rows: Callable[..., list[tuple[str, str, str]]],
    tmp_path: Path,
) -> None:
    """GPT-2 reads its answer off the last token that is no padding: loading few words must not blind it to that.

    One client alone, the first and richest in words, has the padding token in its texts. The word table is
    loaded as a whole when weights decay; a decay of nearly nothing changes nothing else.
    """
    from safetensors.numpy import load_file

    rows = make_rows(60) + [(f"{POISON} {text}", label, "big") for text, label, _ in make_rows(40, seed=1)]
    changes = {
        "data.path": str(make_csv(tmp_path / "own.csv", rows)),
        "partition": {"method": "natural", "field": "site"},
        "model.name_or_path": str(save_decoder(tmp_path / "model", tiny_model, padding)),
        "clients_per_round": 6,
        "num_rounds": 2,
    }
    by_rows = fednlp.run(experiment(changes), tmp_path / "rows")
    as_a_whole = fednlp.run(experiment(changes | {"client.weight_decay": 1e-30}), tmp_path / "whole")
    for one, other in zip(lines_of(by_rows), lines_of(as_a_whole), strict=True):
        assert "dropped" not in one
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)
    mine, theirs = (load_file(run.model / "model.safetensors") for run in (by_rows, as_a_whole))
    for name, tensor in mine.items():
        np.testing.assert_allclose(tensor, theirs[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_an_empty_text_of_a_decoder(
    experiment: Make, tiny_model: Path, make_csv: Callable[..., Path], tmp_path: Path
) -> None:
    """Where the tokenizer adds no token of its own, a text without words has none at all."""
    rows = [("", label, "site") for label in ("arts", "sports") * 20]
    changes = {
        "data.path": str(make_csv(tmp_path / "own.csv", rows)),
        "model.name_or_path": str(save_decoder(tmp_path / "model", tiny_model, None)),
        "num_rounds": 1,
    }
    run = fednlp.run(experiment(changes), tmp_path / "run")
    assert "dropped" not in lines_of(run)[0]


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_a_model_without_a_usable_part(file: str, experiment: Make, tiny_model: Path, tmp_path: Path) -> None:
    """A configuration that is none, a tokenizer that knows no word: one sentence, not a run on unknown words."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    if file == "config.json":
        (folder / file).write_text("[]")
    else:
        (folder / file).unlink()
        (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError) as caught:
        fednlp.run(experiment({"model.name_or_path": str(folder)}), tmp_path / "run")
    assert str(folder) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("method", ["fedavg", "centralised"])
def test_texts_longer_than_the_model_reads(
    method: str, experiment: Make, tiny_model: Path, make_csv: Callable[..., Path], tmp_path: Path
) -> None:
    """Cut at the model's own length where the tokenizer does not know it and max_length says more."""
    shutil.copytree(tiny_model, tmp_path / "model")
    path = tmp_path / "model" / "tokenizer_config.json"
    said = json.loads(path.read_text())
    del said["model_max_length"]
    path.write_text(json.dumps(said))
    rows = [("word1 " * 100, label, "site") for label in ("arts", "sports") * 20]
    changes = {
        "data.path": str(make_csv(tmp_path / "own.csv", rows)),
        "model": {"name_or_path": str(tmp_path / "model"), "max_length": 512},
        "algorithm.name": method,
        "num_rounds": 1,
    }
    run = fednlp.run(experiment(changes), tmp_path / "run")
    assert "dropped" not in lines_of(run)[0]


def test_a_worker_does_not_import_from_the_working_directory(
    experiment: Make, here: Path, outcome: Outcome
) -> None:
    """A file random.py of the user's beside the experiment is nobody's business."""
    (here / "random.py").write_text("raise RuntimeError('imported')")
    run = fednlp.run(experiment({"num_rounds": 1, "runtime.workers": 2}), here / "run")
    assert run.finished


def test_a_client_alone_has_the_steps_of_the_federation(experiment: Make, tmp_path: Path) -> None:
    """With local steps instead of epochs, the local reference gets as many as the federation gave on average."""
    changes = {"algorithm.name": "local", "num_rounds": 6, "clients_per_round": 4, "client.max_steps": 2}
    run = fednlp.run(experiment(changes), tmp_path / "run")
    federated = fednlp.run(experiment(changes | {"algorithm.name": "fedavg"}), tmp_path / "federated")
    alone, together = (sum(line["steps"] for line in lines_of(one)) for one in (run, federated))
    assert alone == together == 6 * 4 * 2
