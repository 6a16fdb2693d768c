"""A run directory is the whole truth of a run: made once, written atomically, never overwritten.

resolved.toml      the whole configuration
environment.json   versions and machine, and the fingerprints of the data and of the model that it began with
data.json          how the data were read, and what is odd about them
task.json          the task as it was trained, for evaluate and predict
algorithm.json     what the algorithm's clients keep, and which of it is a client's own model
partition.npz      the examples of each client
rounds.jsonl       one line a round
clients.csv        each client's sizes, last own score, and score after its fine-tuning steps
by_label.json      scores by label on the global test set, and the confusion matrix
labels.json        client x label counts, for small federations
trackers.json      the run that each tracker has for this one, with which a resumed run goes on
profile.json       where the time of each worker went, since the run was started or last resumed
cross_client_evaluation.json        every model's score on every client's tests, if configured
checkpoint/        the state that a resumed run needs
model/             the final model, for ``from_pretrained``
summary.json       written last
"""

import hashlib
import json
import os
import shlex
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fednlp import config
from fednlp.checked_json import damaged, no_run_directory, parse_json, read_json, read_lines, read_toml
from fednlp.checked_json.shapes import SavedRound
from fednlp.config import Experiment
from fednlp.config.renamed import require_new_names
from fednlp.disk import (
    appending,
    atomic,
    cannot_write,
    locked,
    require_inside,
    writing,
    writing_tensors,
)
from fednlp.errors import RunError
from fednlp.federated.params import Layout
from fednlp.federated.state import State
from fednlp.formatting.units import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def saving(folder: Path) -> AbstractContextManager[None]:
    """Turn the errors of a full or read-only disk into one sentence that says how to continue."""
    return writing(folder, remedy(folder))


def remedy(folder: Path) -> str:
    """Return the advice for a run that cannot be written."""
    if (folder / "federation").is_dir():
        return "then start fednlp serve again by the same command"
    return f"choose another place with --out, or go on with: fednlp run --resume {folder}"


def resume_command(folder: str | Path, experiment: Experiment) -> str:
    """Return the command that goes on with a run, and names the code of the user's own that the run names.

    >>> experiment = config.parse({"data": {"name": "20news"}, "exchange": {"up": ["int8", "my:Whole"]}})
    >>> print(resume_command("runs/a", experiment))
    fednlp run --resume runs/a --set 'exchange.up=["int8", "my:Whole"]'
    """
    document, changes = experiment.model_dump(), list[str]()
    for key, name in dict(config.own_code(experiment)).items():
        section, _, setting = key.partition(".")
        value = document[section].get(setting, name)
        changes += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(["fednlp", "run", "--resume", str(folder), *changes])


def start_again(folder: Path) -> str:
    """Return the advice for a run that cannot continue."""
    return f"start again with: fednlp run {folder / 'resolved.toml'} --out {folder}-again"


@dataclass(frozen=True)
class RunDir:
    """The paths of one run, and the ways to write them."""

    folder: Path

    def __fspath__(self) -> str:
        """Return the folder: a run is given to functions that take its folder."""
        return str(self.folder)

    @property
    def partition(self) -> Path:
        """The partition's file."""
        return self.folder / "partition.npz"

    @property
    def test_numbers(self) -> Path:
        """The file of the global test set's example numbers, int64."""
        return self.folder / "checkpoint" / "test.npy"

    @property
    def records(self) -> Path:
        """The file of the clients' states between rounds, for methods with client state."""
        return self.folder / "checkpoint" / "clients.bin"

    @property
    def client_models(self) -> Path:
        """The file of the clients' models after their fine-tuning steps, where these are kept."""
        return self.folder / "checkpoint" / "models.bin"

    @property
    def model(self) -> Path:
        """The folder of the final model."""
        return self.folder / "model"

    @property
    def is_at_site(self) -> bool:
        """Whether this is the folder of a federation at one of its sites, with models and little else."""
        return not self.partition.exists() and (self.model.is_dir() or self.own_model.is_dir())

    @property
    def start(self) -> Path:
        """The folder of the model that came to a site, where this is the folder of a federation that it joined."""
        return self.folder / "start"

    @property
    def own_model(self) -> Path:
        """The folder of a site's own model, where this is the folder of a federation that the machine has joined."""
        return self.folder / "own"

    @property
    def state(self) -> Path:
        """The file of the server's state after the last round."""
        return self.folder / "checkpoint" / "state.safetensors"

    @property
    def finished(self) -> bool:
        """True if the run is complete, False if it is under way or was stopped."""
        return (self.folder / "summary.json").is_file() and bool(self.read_json("summary.json")["finished"])

    @property
    def rounds(self) -> "DataFrame":
        """rounds.jsonl as a pandas frame, a row a round (:mod:`fednlp.reports.notebook`)."""
        from fednlp.reports.notebook import rounds_frame

        return rounds_frame(self.folder)

    @property
    def clients(self) -> "DataFrame":
        """clients.csv as a pandas frame, a row a client."""
        from fednlp.reports.notebook import clients_frame

        return clients_frame(self.folder)

    @property
    def summary(self) -> "DataFrame":
        """summary.json as a pandas frame of one row."""
        from fednlp.reports.notebook import summary_frame

        return summary_frame(self.folder)

    def plot(self) -> "Figure":
        """Return the learning curve as a matplotlib figure."""
        from fednlp.reports.notebook import curve_figure

        return curve_figure(self.folder)

    def _repr_html_(self) -> str | None:
        """Return the run as HTML for a notebook; None, which selects plain text, where no files exist yet."""
        from fednlp.reports.notebook import run_page

        try:
            return run_page(self.folder)
        except RunError:
            return None

    def experiment(self) -> Experiment:
        """Read back the configuration.

        Raises:
            RunError: The folder is no run directory, or the file is damaged.
        """
        path = self.folder / "resolved.toml"
        if not path.exists():
            if (self.folder / "summary.json").is_file():
                raise damaged(path, FileNotFoundError("it is missing"), "put it back, or remove the folder")
            raise no_run_directory(self.folder)
        try:
            document = read_toml(path)
            require_new_names(path, document)
            return config.parse(document, str(path))
        except (OSError, ValueError) as error:
            raise damaged(path, error) from None

    def write_experiment(self, experiment: Experiment) -> None:
        """Write the configuration again, where the run has been told more of it, or lies elsewhere.

        Raises:
            RunError: The disk is full, or the folder cannot be written.
        """
        with saving(self.folder), atomic(self.folder / "resolved.toml", remedy(self.folder)) as file:
            file.write(config.dump(experiment).encode())

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file."""
        with atomic(self.folder / name, remedy(self.folder)) as file:
            file.write(json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file of :data:`fednlp.checked_json.SHAPES`.

        Raises:
            RunError: The file is missing, cut short, or does not fit its shape.
        """
        return read_json(self.folder / name, start_again(self.folder))

    def append_round(self, line: dict[str, Any]) -> None:
        """Add one line to rounds.jsonl and flush it to the disk.

        Raises:
            RunError: The disk is full, or cannot be written.
        """
        with appending(self.folder / "rounds.jsonl", remedy(self.folder)) as file:
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def round_lines(self, upto: int | None = None) -> list[dict[str, Any]]:
        """Return the lines of rounds.jsonl up to a round; reading stops at a line that was cut short."""
        lines: list[dict[str, Any]] = []
        for text in read_lines(self.folder / "rounds.jsonl").splitlines():
            try:
                line = parse_json(text, SavedRound)
            except ValueError:
                break
            if line["round"] != len(lines) + 1:
                break
            lines.append(line)
        return [line for line in lines if upto is None or line["round"] <= upto]

    def keep_rounds(self, upto: int) -> list[dict[str, Any]]:
        """Drop the lines of rounds after the checkpoint, and return the others.

        Raises:
            RunError: A line of a round that the checkpoint holds is missing.
        """
        lines = self.round_lines(upto)
        if [line["round"] for line in lines] != list(range(1, upto + 1)):
            raise RunError(
                f"{self.folder / 'rounds.jsonl'} has {plural(len(lines), 'whole line')} of {plural(upto, 'round')} "
                f"done: {start_again(self.folder)}"
            )
        self.write_rounds(lines)
        return lines

    def write_rounds(self, lines: list[dict[str, Any]]) -> None:
        """Replace rounds.jsonl."""
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        with atomic(self.folder / "rounds.jsonl", remedy(self.folder)) as file:
            file.write(text.encode())

    def save_state(self, state: State) -> None:
        """Write the checkpoint, so that a crash at any moment leaves the old one or the new one.

        Raises:
            OSError: The disk is full, or the folder cannot be written.
        """
        temporary = self.state.with_name(".state.part")
        with writing_tensors():
            state.save(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, self.state)

    def load_state(self, layout: Layout) -> State | None:
        """Read the checkpoint; None before the first round.

        Raises:
            RunError: The checkpoint cannot be used; the message says how to start again.
        """
        try:
            return State.load(self.state, layout) if self.state.is_file() else None
        except RunError as error:
            raise RunError(f"{error}: {start_again(self.folder)}") from None

    def alone(self) -> AbstractContextManager[None]:
        """Lock the folder for the time of a block.

        Raises:
            RunError: Another process has locked it, or a link in it leads elsewhere.
        """
        require_inside(self.folder)
        taken = f"another process is at work in {self.folder}: wait for it, or stop it first"
        return locked(self.folder / "checkpoint" / "lock", remedy(self.folder), taken)


def require_space(folder: Path, needed: int) -> None:
    """Check that a disk has so many bytes left.

    Raises:
        RunError: The disk has less space.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise RunError(
            f"{folder} needs {needed / 2**20:.0f} MB and its disk has {free / 2**20:.0f} MB left: free some, "
            "or choose another place with --out"
        )


def settings_hash(experiment: Experiment) -> str:
    """Return eight hex digits that identify the settings which affect the result.

    >>> from fednlp.config import parse
    >>> a = parse({"data": {"name": "20news"}, "runtime": {"workers": 1}})
    >>> b = parse({"data": {"name": "20news"}, "runtime": {"workers": 2}})
    >>> settings_hash(a) == settings_hash(b)
    True
    """
    document = config.canonical(experiment)
    document["runtime"].pop("onednn", None)  # a machine decides it, and a run has one name on all machines
    text = json.dumps(document, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def new_run_dir(experiment: Experiment, out: Path | None) -> RunDir:
    """Make a new run directory with its configuration.

    Args:
        experiment: Resolved.
        out: The folder; by default ``runs/<name>-<hash>``, with a number appended if it exists.

    Raises:
        RunError: ``out`` is not empty, or cannot be written.
    """
    refuse_taken(out)
    if out is None:
        stem = Path("runs") / f"{experiment.name}-{settings_hash(experiment)}"
        candidates = (stem if n == 1 else stem.with_name(f"{stem.name}-{n}") for n in range(1, 1_000_000))
        out = next(path for path in candidates if not path.exists())
    with writing(out, "choose another place with --out"):
        with atomic(out / "resolved.toml", "choose another place with --out") as file:
            file.write(config.dump(experiment).encode())
        (out / "checkpoint").mkdir(exist_ok=True)
    return RunDir(out)


def refuse_taken(out: Path | None) -> None:
    """Check that a folder is free for a run.

    Raises:
        RunError: The folder is not empty, is a file, or cannot be read.
    """
    try:
        if out is None or not out.exists():
            return
        if not out.is_dir():
            raise RunError(f"{out} is a file: give a folder to --out")
        taken = any(out.iterdir())
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise cannot_write(
            Path(str(out)[:80]), error.strerror or str(error), "choose another --out"
        ) from None
    if not taken:
        return
    if not (out / "resolved.toml").is_file():
        raise RunError(f"{out} holds files of something else: choose another --out")
    finished = (out / "summary.json").is_file()
    hint = "choose another --out" if finished else f"go on with: fednlp run --resume {out}"
    raise RunError(f"{out} holds a run already and is never overwritten: {hint}")
