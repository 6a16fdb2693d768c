"""What makes a table or figure: runs and partitions, each in a folder of its own that several entries may share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fednlp.config import Experiment
from fednlp.errors import DamagedError
from fednlp.reproduction.manifest import Entry, Paper
from fednlp.runtime.job import Say
from fednlp.runtime.jobs import JobProcess
from fednlp.simulation.callback import Callback
from fednlp.simulation.components import Log
from fednlp.simulation.partitioning import partition_source
from fednlp.simulation.run_dir import RunDir
from fednlp.studies.compare import Planned, complete
from fednlp.studies.same_data import SameData

REMEDY = "remove the folder, and run the command again"
FIGURES = "figures.json"
"""The file of a partition's figures; written last."""


@dataclass(frozen=True)
class Job:
    """One run, or one partition.

    Attributes:
        name: Its folder below that of the reproduction.
        label: Its name in ``results.json``, the same on every machine.
        seed: Number of the seed, from 0.
        expected: Seconds that the manifest expects of the whole job.
        folder: Where it lies.
        work: What is to be done: a run of a comparison, or the settings of a partition.
        damage: What is wrong with a run that lies there already; empty where nothing is.
        settings: A digest of what decides a run's result; empty for partitions, whose names say it.
        same_data: Checks the data of a run against those of others.
    """

    name: str
    label: str
    seed: int
    expected: float
    folder: Path
    work: Planned | Experiment
    damage: str = ""
    settings: str = ""
    same_data: SameData = field(default_factory=SameData)

    @property
    def shown(self) -> str:
        """Its name for people."""
        return self.name.removeprefix("runs/")

    @property
    def kind(self) -> str:
        """``"run"`` or ``"partition"``."""
        return "run" if isinstance(self.work, Planned) else "partition"

    @property
    def experiment(self) -> Experiment:
        """The settings of the run or the partition."""
        return self.work.experiment if isinstance(self.work, Planned) else self.work

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        if isinstance(self.work, Planned):
            return not self.damage and self.work.state == "done"
        return (self.folder / FIGURES).is_file()

    @property
    def left(self) -> float:
        """The share of the job that is not done, 0 to 1."""
        if self.done:
            return 0.0
        if not isinstance(self.work, Planned) or self.damage or self.work.state == "new":
            return 1.0
        rounds = self.work.experiment.num_rounds
        return max(1 - len(RunDir(self.folder).round_lines()) / rounds, 0.5 / rounds)

    @property
    def seconds_in_rounds(self) -> float:
        """The seconds that the rounds took that are done; 0 for a partition."""
        if not isinstance(self.work, Planned):
            return 0.0
        return float(sum(line.get("seconds", 0) for line in RunDir(self.folder).round_lines()))

    def carry_out(self, callback: Callback, process: JobProcess | None = None) -> None:
        """Do what is left.

        Args:
            process: Where it is done; None for this process.

        Raises:
            FednlpError: As for :func:`fednlp.run` and ``fednlp partition``; what is done is kept.
        """
        if isinstance(self.work, Planned):
            complete(self.work, callback, self.same_data, process)
        elif process is None:
            _make_partition(self.work, self.folder, callback.log)
        else:
            arguments = {"experiment": self.work.model_dump(mode="json"), "folder": str(self.folder)}
            process.do(f"{__name__}:_partition_here", arguments, lambda said: callback.log(said["log"]))


def _partition_here(experiment: dict[str, Any], folder: str, say: Say) -> None:
    """Make a partition, as a function for a process for jobs.

    Args:
        experiment: The sections of its settings.
        folder: Where it lies.
    """
    _make_partition(Experiment(**experiment), Path(folder), lambda text: say({"log": text}))


def _make_partition(experiment: Experiment, folder: Path, log: Log) -> None:
    found = partition_source(experiment, folder / "partition.npz", folder, log)
    RunDir(folder).write_json(FIGURES, found)


@dataclass(frozen=True)
class Work:
    """A table or figure and its jobs.

    Attributes:
        jobs: Jobs by key of the runs, or by row for partitions; those whose data are missing are left out.
        before: Jobs that have to be finished before the others.
        reason: Why nothing, or not all of it, can be made; empty otherwise.
        known: Labels of the jobs that need not be done here, since others have what they give.
        wrong: Whether the reason is a mistake in the manifest or its experiments.
    """

    paper: Paper
    entry: Entry
    jobs: Mapping[str, list[Job]] = field(default_factory=dict)
    before: tuple[Job, ...] = ()
    reason: str = ""
    known: frozenset[str] = frozenset()
    wrong: bool = False

    @property
    def every(self) -> list[Job]:
        """All jobs, those first that others need, then seed by seed."""
        own = [job for jobs in self.jobs.values() for job in jobs]
        return [*self.before, *sorted(own, key=lambda job: job.seed)]

    @property
    def left(self) -> list[Job]:
        """The jobs that neither are done here nor are known from others."""
        return [job for job in self.every if not job.done and job.label not in self.known]

    @property
    def id(self) -> tuple[str, str]:
        """The paper's name and the entry's id."""
        return self.paper.name, self.entry.id


def one_line(error: Exception) -> str:
    """Return an error's message without line breaks; of a damaged file, with the advice that helps here."""
    text = f"{error.what}: {REMEDY}" if isinstance(error, DamagedError) and error.what else str(error)
    return " ".join(text.split())
