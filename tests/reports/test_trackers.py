"""Trackers get every number, need no account, and never cost a run."""

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fednlp.errors import ConfigError, MissingDependency, RunError
from fednlp.reports.trackers import Tracker, open_trackers, round_numbers

CONFIG = {"seed": 1, "algorithm": {"name": "fedopt", "mu": 0.0}}
LINES = [
    {
        "round": number,
        "cohort": [1, 2],
        "train_loss": 2.0 / number,
        "bytes_up": 100,
        "evaluation": {"global": {"accuracy": 0.1 * number}, "personal": {"clients": 5}},
    }
    for number in (1, 2, 3)
]


def _send(tracker: Tracker) -> None:
    for line in LINES:
        tracker.log(int(str(line["round"])), round_numbers(line))
    tracker.close()


def test_round_numbers_are_flat_and_numbers_only() -> None:
    line = LINES[1] | {"dropped": [{"client": 1}], "late": {"clients": 3}}
    assert round_numbers(line) == {
        "train_loss": 1.0,
        "bytes_up": 100.0,
        "late/clients": 3.0,
        "global/accuracy": 0.2,
        "personal/clients": 5.0,
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_holds_every_number(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tracker,) = open_trackers("tensorboard", tmp_path, CONFIG)
    _send(tracker)
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert set(read.Tags()["scalars"]) == {"train_loss", "bytes_up", "global/accuracy", "personal/clients"}
    points = [(event.step, event.value) for event in read.Scalars("global/accuracy")]
    assert points == [(n, pytest.approx(0.1 * n)) for n in (1, 2, 3)]
    (tag,) = read.Tags()["tensors"]
    assert b"algorithm.name = 'fedopt'" in read.Tensors(tag)[0].tensor_proto.string_val[0]


@pytest.mark.parametrize("names", ["none", [], ["none"]])
def test_none_opens_nothing(tmp_path: Path, names: str | list[str]) -> None:
    assert open_trackers(names, tmp_path, CONFIG) == []
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tracker_gets_its_nearest_match(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='did you mean "tensorboard"'):
        open_trackers(["tensorbord"], tmp_path, CONFIG)
    with pytest.raises(ConfigError, match="known are none, tensorboard, wandb, mlflow"):
        open_trackers("xyz", tmp_path, CONFIG)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [module for module in sys.modules if module.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    with pytest.raises(MissingDependency, match=f"pip install {name}"):
        open_trackers([name], tmp_path, CONFIG)


class FakeRun:
    """Stands in for a Weights & Biases run."""

    id = "abc"

    def __init__(self) -> None:
        self.sent: list[tuple[int, dict[str, float]]] = []
        self.exit_code: int | None = None

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.sent.append((step, numbers))

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


@pytest.mark.parametrize(("asked", "mode"), [(None, "offline"), ("online", None)])
def test_wandb_is_offline_unless_the_user_said_otherwise(
    asked: str | None, mode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, given = FakeRun(), {}

    def init(**options: Any) -> FakeRun:
        given.update(options)
        return run

    fake = ModuleType("wandb")
    fake.__dict__.update(init=init, Settings=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    if asked:
        monkeypatch.setenv("WANDB_MODE", asked)
    else:
        monkeypatch.delenv("WANDB_MODE", raising=False)
    (tracker,) = open_trackers(["wandb", "wandb", "none"], tmp_path / ".", CONFIG)
    _send(tracker)
    assert given["mode"] == mode
    assert given["dir"] == str(tmp_path)
    assert given["config"] == CONFIG
    assert run.sent == [(line["round"], round_numbers(line)) for line in LINES]
    assert run.exit_code == 0
    assert "id" not in given
    (again,) = open_trackers("wandb", tmp_path, CONFIG)
    again.close("interrupted")
    assert (given["id"], given["resume"], run.exit_code) == ("abc", "allow", 130)


class FakeClient:
    """Stands in for MLflow's client."""

    opened: "list[FakeClient]"

    def __init__(self, tracking_uri: str | None) -> None:
        self.uri = tracking_uri
        self.calls: list[str] = []
        self.metrics: list[tuple[str, float, int]] = []
        self.params: dict[str, str] = {}
        self.status: dict[str, str] = {}
        FakeClient.opened.append(self)

    def get_experiment_by_name(self, _name: str) -> None:
        return None

    def create_experiment(self, _name: str) -> str:
        return "7"

    def create_run(self, experiment: str, run_name: str) -> SimpleNamespace:
        return SimpleNamespace(info=SimpleNamespace(run_id=f"{experiment}-{run_name}"))

    def log_batch(
        self, run: str, metrics: Sequence[tuple[Any, ...]] = (), params: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.calls.append(run)
        self.params |= dict(params)
        self.metrics += [(key, value, step) for key, value, _, step in metrics]

    def update_run(self, run: str, status: str) -> None:
        self.status[run] = status

    def set_terminated(self, run: str, status: str) -> None:
        self.status[run] = status


@pytest.mark.parametrize("asked", [None, "http://localhost:5000"])
def test_mlflow_stays_in_the_run_directory_unless_the_user_said_otherwise(
    asked: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeClient.opened = []
    parts: dict[str, dict[str, Any]] = {
        "mlflow": {},
        "mlflow.tracking": {"MlflowClient": FakeClient},
        "mlflow.entities": {"Metric": lambda *given: given, "Param": lambda *given: given},
        "mlflow.exceptions": {"MlflowException": LookupError},
    }
    for name, content in parts.items():
        fake = ModuleType(name)
        fake.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    if asked:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", asked)
    else:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tracker,) = open_trackers("mlflow", tmp_path, CONFIG)
    _send(tracker)
    (client,) = FakeClient.opened
    assert client.uri == (None if asked else f"sqlite:///{tmp_path}/mlflow/mlflow.db")
    assert client.params == {"seed": "1", "algorithm.name": "fedopt", "algorithm.mu": "0.0"}
    assert client.metrics == [
        (key, value, line["round"]) for line in LINES for key, value in round_numbers(line).items()
    ]
    assert client.status == {(run := f"7-{tmp_path.name}"): "FINISHED"}
    assert client.calls == [run] * (1 + len(LINES))
    (again,) = open_trackers("mlflow", tmp_path, CONFIG)
    assert FakeClient.opened[1].status == {run: "RUNNING"}
    again.log(4, {"train_loss": 0.5})
    again.close("interrupted")
    assert FakeClient.opened[1].status == {run: "KILLED"}
    assert FakeClient.opened[1].calls == [run]


def test_a_run_of_a_tracker_that_is_no_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trackers.json").write_text('{"wandb": "../x"}')
    fake = ModuleType("wandb")
    fake.__dict__.update(init=lambda **_: FakeRun(), Settings=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.raises(
        RunError, match=r"trackers.json is damaged .*: remove it: the trackers begin new runs"
    ):
        open_trackers("wandb", tmp_path, CONFIG)


@pytest.mark.filterwarnings("ignore")
def test_the_real_wandb_writes_into_the_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    (tracker,) = open_trackers("wandb", tmp_path, CONFIG)
    _send(tracker)
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"global/accuracy" in written.read_bytes()


@pytest.mark.filterwarnings("ignore")
def test_the_real_mlflow_writes_into_the_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tracker,) = open_trackers("mlflow", tmp_path, CONFIG)
    _send(tracker)
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("fednlp").experiment_id])
    assert run.data.params["algorithm.name"] == "fedopt"
    history = client.get_metric_history(run.info.run_id, "global/accuracy")
    assert [(point.step, point.value) for point in history] == [
        (n, pytest.approx(0.1 * n)) for n in (1, 2, 3)
    ]
    assert run.info.status == "FINISHED"


def _broken(*_: Any) -> None:
    raise OSError("no route")


def test_a_tracker_that_fails_on_the_way_is_reported_once_and_left_alone() -> None:
    sent: list[int] = []

    def send(number: int, _numbers: object) -> None:
        sent.append(number)
        if number == 2:
            _broken()

    tracker = Tracker("MLflow", send, _broken)
    tracker.log(1, {})
    with pytest.warns(
        UserWarning, match=r"MLflow takes no numbers from round 2 on \(no route\); the run goes on"
    ):
        tracker.log(2, {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracker.log(3, {})
        tracker.close()
    assert sent == [1, 2]
    with pytest.warns(UserWarning, match="at the end"):
        Tracker("MLflow", send, _broken).close()


def test_an_interrupt_is_not_a_trackers_failure() -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Tracker("MLflow", interrupted, interrupted).log(1, {})


def test_a_tracker_that_cannot_be_opened_closes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fednlp.reports import trackers

    closed: list[str] = []
    openers: dict[str, Callable[..., Any]] = {
        "tensorboard": lambda *_: Tracker("a", lambda *_: None, closed.append),
        "wandb": _broken,
    }
    monkeypatch.setattr(trackers, "_OPENERS", openers)
    with pytest.raises(RunError, match=r"wandb cannot be opened \(no route\); leave it out of report_to"):
        open_trackers(["tensorboard", "wandb"], tmp_path, CONFIG)
    assert closed == ["failed"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "finished"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(130), "interrupted"),
        (RunError("the disk is full"), "failed"),
    ],
)
def test_a_tracker_is_told_how_the_rounds_ended(
    error: BaseException | None, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fednlp.config import parse
    from fednlp.simulation import train
    from fednlp.simulation.run_dir import RunDir

    ends: list[str] = []
    tracker = Tracker("a", lambda *_: None, ends.append)
    monkeypatch.setattr(train, "open_trackers", lambda *_: [tracker])
    experiment = parse({"data": {"name": "bbc"}, "report": {"report_to": ["mlflow"]}})
    with suppress(KeyboardInterrupt, SystemExit, RunError), train._trackers(RunDir(tmp_path), experiment):
        if error is not None:
            raise error
    assert ends == [outcome]
