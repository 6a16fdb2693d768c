"""Compare algorithms and baselines over seeds; finished runs are not repeated."""

from collections.abc import Mapping
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any

from fednlp import config
from fednlp.config import Experiment
from fednlp.config.sections import BASELINES, Data
from fednlp.data.catalogue import CATALOGUE
from fednlp.disk import expanded
from fednlp.errors import ConfigError, DataError, FednlpError, RunError
from fednlp.formatting.units import plural
from fednlp.runtime.jobs import JobProcess
from fednlp.runtime.worker_process import kept_workers
from fednlp.simulation.callback import Callback, default_callback
from fednlp.simulation.run_dir import RunDir, settings_hash
from fednlp.studies.run_or_resume import jobs_of, run_or_resume
from fednlp.studies.runs_callback import RunsCallback
from fednlp.studies.same_data import SameData
from fednlp.studies.trial_plan import Settings


@dataclass(frozen=True)
class Planned:
    """One run of a comparison.

    Attributes:
        method: Name of the algorithm, the baseline or the variant.
        experiment: The run's configuration, resolved.
    """

    method: str
    seed: int
    experiment: Experiment
    folder: Path

    @property
    def state(self) -> str:
        """``"done"``, ``"begun"`` or ``"new"``."""
        if RunDir(self.folder).finished:
            return "done"
        return "begun" if (self.folder / "resolved.toml").is_file() else "new"

    def require_same_settings(self) -> None:
        """Check that the folder holds no run of other settings.

        Raises:
            DamagedError: A file of the run there cannot be used.
            RunError: There is a run of other settings.
        """
        if self.state == "new":
            return
        changed = config.differences(RunDir(self.folder).experiment(), self.experiment)
        if changed:
            raise RunError(
                f"{self.folder} holds a run of other settings ({'; '.join(changed[:3])}): remove it, or choose "
                "another --out"
            )


def plan(
    experiment: Experiment,
    algorithms: list[str],
    baselines: list[str],
    seeds: int,
    out: Path | None = None,
    settings: Mapping[str, Settings] | None = None,
    checked: bool = True,
) -> list[Planned]:
    """List the runs of a comparison, seed by seed, and check all of them before the first begins.

    Args:
        experiment: The common settings; its seed is the first.
        algorithms: Names of federated algorithms, or of variants of the experiment.
        baselines: Names of baselines: ``centralised``, ``chained``, ``local``, ``majority``.
        seeds: Number of seeds, from the experiment's own upwards.
        out: Folder of the comparison; by default ``runs/compare-<name>``.
        settings: Settings of single methods over the common ones, such as those that :func:`fednlp.tune` chose.
        checked: Whether the folders, and the files of the data, are checked too; else the caller checks the folders
            one by one.

    Raises:
        ConfigError: An unknown name, no seed, or settings that do not go together.
        DataError: There are no files of the data.
        RunError: A folder of the comparison holds a run of other settings.
    """
    methods = _check_methods(algorithms, baselines)
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: at least 1 is needed")
    folder = out or Path("runs") / f"compare-{experiment.name}"
    runs = []
    for number in range(seeds):
        for method in methods:
            seed = experiment.seed + number
            chosen = config.with_method(experiment, method, seed)
            resolved = config.with_settings(chosen, (settings or {}).get(method, {})).resolved()
            stem = f"{method.replace(' ', '-').replace(':', '.')}-seed{seed}"
            name = stem if out else f"{stem}-{settings_hash(resolved)}"
            runs.append(Planned(method, seed, resolved, folder / name))
    for planned in runs if checked else []:
        planned.require_same_settings()
        if planned.state != "done":
            _require_files(planned.experiment.data)
    return runs


def _require_files(data: Data) -> None:
    """Check that the files that an experiment names exist, and that what it does not name can be had.

    Raises:
        DataError: They do not, or it cannot.
    """
    known = CATALOGUE.get(data.name) if data.name is not None else None
    if data.path is None and known is not None:
        known.require_source()
    given = [data.path] if isinstance(data.path, str) else data.path or []
    for path in [*given, *([data.test_path] if data.test_path else [])]:
        if not has_magic(path) and not expanded(path).exists():
            raise DataError(f"there is no {path}: give the files of {data.name or 'the experiment'}")


def _check_methods(algorithms: list[str], baselines: list[str]) -> list[str]:
    """Return the methods of a comparison, each once.

    Raises:
        ConfigError: A baseline is unknown, or is named as an algorithm, or nothing is named.
    """
    unknown = [name for name in baselines if name not in BASELINES]
    if unknown:
        raise ConfigError(f"--baselines {unknown[0]}: choose from {', '.join(BASELINES)}")
    misplaced = [name for name in algorithms if name in BASELINES]
    if misplaced:
        raise ConfigError(f"--algorithms {misplaced[0]}: that is a baseline; say --baselines {misplaced[0]}")
    methods = list(dict.fromkeys([*algorithms, *baselines]))
    if not methods:
        raise ConfigError("nothing to compare: say --algorithms fedavg,fedopt or --baselines centralised")
    return methods


@kept_workers()
def compare(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    algorithms: list[str],
    baselines: list[str] | None = None,
    seeds: int = 1,
    out: str | Path | None = None,
    callback: Callback | None = None,
    settings: Mapping[str, Settings] | None = None,
    same_data: SameData | None = None,
    jobs: int = 1,
) -> list[Planned]:
    """Run the unfinished runs of a comparison; return all of its runs.

    Args:
        experiment: The common settings, the same as a dictionary, or the path of their TOML file.
        algorithms: Names of federated algorithms, or of variants of the experiment.
        baselines: Names of baselines: ``centralised``, ``chained``, ``local``, ``majority``.
        seeds: Number of seeds, from the experiment's own upwards.
        out: Folder of the comparison; by default ``runs/compare-<name>``.
        callback: Reports progress; by default as for :func:`fednlp.run`.
        settings: Settings of single methods over the common ones, such as those that :func:`fednlp.tune` chose.
        same_data: Checks the data against those of other runs too, such as the trials of a search.
        jobs: How many runs are done at once, each in a process of its own with its share of the cores and GPUs. It
            changes the speed, never the result. With several, the callback is called in other threads, in one at a
            time, and ``on_progress`` with how many runs are done. If it has a method ``of_run(name)``, this gives the
            callback of each run. What ``on_round`` raises stops its run after that round, and then the others.

    Raises:
        FednlpError: As for :func:`plan` and :func:`fednlp.run`, or the data have changed since an earlier run;
            finished runs are kept.
    """
    experiment = config.as_experiment(experiment)
    callback = callback or default_callback()
    runs = plan(experiment, algorithms, baselines or [], seeds, None if out is None else Path(out), settings)
    left = [planned for planned in runs if planned.state != "done"]
    if len(left) < len(runs):
        callback.log(f"{len(runs) - len(left)} of {plural(len(runs), 'run')} done already")
    same_data = same_data or SameData()
    for planned in runs:
        same_data.add(planned.experiment, planned.folder)
    waiting = iter(left)
    with jobs_of([planned.experiment for planned in left], jobs) as at_once:
        told = RunsCallback(callback, len(runs), len(runs) - len(left), at_once.number)
        told.log_start()

        def do(planned: Planned, process: JobProcess | None) -> None:
            name = f"{planned.experiment.name}/{planned.folder.name}"
            try:
                complete(planned, told.of(name), same_data, process)
            except FednlpError as error:
                if process is not None:
                    told.log(f"{name} failed; the other runs are stopped, and go on with the next call")
                if isinstance(error, ConfigError):
                    raise ConfigError(f"{planned.method}: {error}", error.problems) from None
                raise
            told.done(name)
            told.log_what_is_left()

        at_once.each(lambda: next(waiting, None), do)
    return runs


def complete(
    planned: Planned, callback: Callback, same_data: SameData, process: JobProcess | None = None
) -> None:
    """Do what is left of one run of a comparison: all of it, the rest, or nothing.

    Args:
        process: Where it is done; None for this process.

    Raises:
        FednlpError: As for :func:`fednlp.run`; or the data have changed since an earlier run.
    """
    if planned.state != "done" and not RunDir(planned.folder).state.is_file():  # else resume checks them
        same_data.require(planned.experiment, callback.log)
    run_or_resume(planned.experiment, planned.folder, callback, process)
    same_data.add(planned.experiment, planned.folder)
