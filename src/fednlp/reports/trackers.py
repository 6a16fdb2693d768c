"""The numbers of a run sent on to TensorBoard, Weights & Biases or MLflow, with no account and no network.

Everything lands in the run directory; only ``WANDB_MODE`` and ``MLFLOW_TRACKING_URI``, set by the user,
send it elsewhere.
"""

import difflib
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from fednlp.checked_json import read_json
from fednlp.config.tables import flatten
from fednlp.disk import atomic
from fednlp.errors import ConfigError, FednlpError, MissingDependency, RunError

Metrics = Mapping[str, float]
Outcome = Literal["finished", "interrupted", "failed"]


@dataclass
class Tracker:
    """Where numbers go. One that fails on the way is reported once and left alone: the run goes on.

    Attributes:
        send: Sends the numbers of a round.
        finish: Ends its run, which is given: ``"finished"``, ``"interrupted"`` by the user, or ``"failed"``.
        failed: It takes no more numbers.
    """

    name: str
    send: Callable[[int, Metrics], None]
    finish: Callable[[Outcome], None]
    failed: bool = False

    def log(self, round_number: int, numbers: Metrics) -> None:
        """Send the numbers of one round (see :func:`round_numbers`)."""
        if not self.failed:
            self._try(lambda: self.send(round_number, numbers), f"from round {round_number} on")

    def close(self, outcome: Outcome = "finished") -> None:
        """Finish: nothing is sent afterwards."""
        if not self.failed:
            self._try(lambda: self.finish(outcome), "at the end")
            self.failed = True

    def _try(self, act: Callable[[], None], when: str) -> None:
        try:
            act()
        except Exception as error:
            self.failed = True
            warnings.warn(f"{self.name} takes no numbers {when} ({error}); the run goes on", stacklevel=3)


def open_trackers(
    names: str | Iterable[str], run_folder: str | Path, config: Mapping[str, Any]
) -> list[Tracker]:
    """Open the trackers of ``[report] report_to``; one that the run had before it was stopped goes on.

    Args:
        names: ``"none"``, one name, or several of ``"tensorboard"``, ``"wandb"``, ``"mlflow"``.
        run_folder: The run directory, which exists.
        config: The resolved configuration, stored with the numbers.

    Raises:
        ConfigError: A name is unknown.
        MissingDependency: A tracker's library is not installed.
        RunError: A tracker cannot be opened, e.g. because its server does not answer.
    """
    names_once = dict.fromkeys([names] if isinstance(names, str) else names)
    names_once.pop("none", None)
    for name in names_once:
        if name not in _OPENERS:
            raise ConfigError(f"report_to = {name!r} is unknown; {_nearest(name)}")
    trackers: list[Tracker] = []
    for name in names_once:
        try:
            trackers.append(_OPENERS[name](Path(run_folder).resolve(), config))
        except Exception as error:
            for tracker in trackers:
                tracker.close("failed")
            if isinstance(error, FednlpError):
                raise
            raise RunError(
                f"{name} cannot be opened ({error}); leave it out of report_to to run without"
            ) from error
    return trackers


def require_trackers(names: Iterable[str]) -> None:
    """Check that the libraries of trackers are installed, before any work is done.

    Raises:
        MissingDependency: One is not; the message names the command that installs it.
    """
    for name in names:
        if find_spec(name) is None:
            raise _missing(name)


def round_numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of one round's line under flat names.

    >>> round_numbers({"round": 1, "train_loss": 2.5, "evaluation": {"global": {"accuracy": 0.3}}})
    {'train_loss': 2.5, 'global/accuracy': 0.3}
    """
    evaluation = line.get("evaluation") or {}
    own = {key: value for key, value in line.items() if key not in ("round", "evaluation")}
    named = {key.replace(".", "/"): value for key, value in [*flatten(own), *flatten(evaluation)]}
    return {key: float(value) for key, value in named.items() if isinstance(value, int | float)}


def _tensorboard(folder: Path, config: Mapping[str, Any]) -> Tracker:
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise _missing("tensorboard") from error
    writer = SummaryWriter(str(folder / "tensorboard"))
    rows = [f"{key} = {value!r}" for key, value in flatten(config)]
    writer.add_text("configuration", "\n".join(f"    {row}" for row in rows))

    def send(round_number: int, numbers: Metrics) -> None:
        for key, value in numbers.items():
            writer.add_scalar(key, value, round_number)
        writer.flush()

    return Tracker("TensorBoard", send, lambda _: writer.close())


def _wandb(folder: Path, config: Mapping[str, Any]) -> Tracker:
    asked = "WANDB_MODE" in os.environ
    if not asked:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        import wandb
    except ImportError as error:
        raise _missing("wandb") from error
    known = _known_run(folder, "wandb")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "fednlp"),
        name=os.environ.get("WANDB_NAME", folder.name),
        dir=str(folder),
        config=dict(config),
        mode=None if asked else "offline",
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        **({} if known is None else {"id": known, "resume": "allow"}),
    )
    _keep_run(folder, "wandb", str(run.id))
    return Tracker(
        "Weights & Biases",
        lambda number, numbers: run.log(dict(numbers), step=number),
        lambda outcome: run.finish(exit_code=_EXIT_CODES[outcome]),
    )


def _mlflow(folder: Path, config: Mapping[str, Any]) -> Tracker:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise _missing("mlflow") from error
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    client = MlflowClient(tracking_uri=_mlflow_store(folder))
    run = _known_run(folder, "mlflow")
    try:
        if run is not None:
            client.update_run(run, status="RUNNING")
    except MlflowException:  # another store is set, or it was removed there
        run = None
    if run is None:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fednlp")
        known = client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else client.create_experiment(name)
        run = str(client.create_run(experiment, run_name=folder.name).info.run_id)
        params = [Param(key, str(value)[:500]) for key, value in flatten(config)]
        for first in range(0, len(params), _MLFLOW_PARAMS):
            client.log_batch(run, params=params[first : first + _MLFLOW_PARAMS])
        _keep_run(folder, "mlflow", run)

    def send(round_number: int, numbers: Metrics) -> None:
        now = int(1000 * time.time())
        client.log_batch(run, [Metric(key, value, now, round_number) for key, value in numbers.items()])

    return Tracker("MLflow", send, lambda outcome: client.set_terminated(run, _MLFLOW_STATUS[outcome]))


_MLFLOW_PARAMS = 100
"""Parameters of one request at most, a limit of MLflow."""
_MLFLOW_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_EXIT_CODES = {"finished": 0, "interrupted": 130, "failed": 1}


def _known_run(folder: Path, tracker: str) -> str | None:
    """Return the run that a tracker had for this run directory; None where there is none."""
    path = folder / _KEPT
    found = read_json(path, "remove it: the trackers begin new runs").get(tracker) if path.is_file() else None
    return None if found is None else str(found)


def _keep_run(folder: Path, tracker: str, run: str) -> None:
    """Note the run that a tracker has, so that a resumed run goes on in it."""
    path = folder / _KEPT
    known = read_json(path, "remove it: the trackers begin new runs") if path.is_file() else {}
    with atomic(path, "choose another place with --out") as file:
        file.write(json.dumps({**known, tracker: run}).encode() + b"\n")


_KEPT = "trackers.json"


def _mlflow_store(folder: Path) -> str | None:
    """Return a store inside the run directory, or None for the one that the user has set."""
    if "MLFLOW_TRACKING_URI" in os.environ:
        return None
    (folder / "mlflow").mkdir(exist_ok=True)
    return f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}"


_OPENERS: dict[str, Callable[[Path, Mapping[str, Any]], Tracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}


def _missing(package: str) -> MissingDependency:
    return MissingDependency(f'report_to = "{package}" needs {package}: pip install {package}')


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(str(name), _OPENERS, n=1)
    return f'did you mean "{close[0]}"?' if close else f"known are none, {', '.join(_OPENERS)}"
