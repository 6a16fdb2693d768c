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
from fednlp.errors import ConfigError, DataError, RunError
from fednlp.formatting.units import plural
from fednlp.runtime.worker_process import kept_workers
from fednlp.simulation.callback import Callback, default_callback
from fednlp.simulation.new_run_dir import settings_hash
from fednlp.simulation.run import resume, run
from fednlp.simulation.run_dir import RunDir
from fednlp.simulation.same_data import SameData
from fednlp.simulation.trial_plan import Settings


class _LogOnce:
    """A callback of several runs: data and partition, logged before the first run, are not logged again."""

    def __init__(self, callback: Callback) -> None:
        self._to = callback
        self._logged: set[str] = set()
        self._begun = False
        self.on_progress, self.on_round = callback.on_progress, callback.on_round

    def log(self, text: str) -> None:
        """Log a text, unless it was logged before another run began."""
        if self._begun or text not in self._logged:
            self._to.log(text)
        if not self._begun:
            self._logged.add(text)

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        """Report that the rounds begin; from here on everything is logged."""
        self._begun = True
        self._to.started(run, experiment, rounds, done)

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Report that the run is finished."""
        self._begun = False
        self._to.finished(run, summary)


@dataclass(frozen=True)
class Planned:
    """One run of a comparison.

    Attributes:
        method: Name of the algorithm, the baseline or the variant.
        seed: The run's seed.
        experiment: The run's configuration, resolved.
        folder: The run directory.
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
    methods = check_methods(algorithms, baselines)
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


def check_methods(algorithms: list[str], baselines: list[str]) -> list[str]:
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
    out: Path | None = None,
    callback: Callback | None = None,
    settings: Mapping[str, Settings] | None = None,
    same_data: SameData | None = None,
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

    Raises:
        FednlpError: As for :func:`plan` and :func:`fednlp.run`, or the data have changed since an earlier run;
            finished runs are kept.
    """
    experiment = config.as_experiment(experiment)
    callback = _LogOnce(callback or default_callback())
    runs = plan(experiment, algorithms, baselines or [], seeds, out, settings)
    done = sum(planned.state == "done" for planned in runs)
    if done:
        callback.log(f"{done} of {plural(len(runs), 'run')} done already")
    same_data = same_data or SameData()
    for planned in runs:
        same_data.add(planned.experiment, planned.folder)
    for planned in runs:
        try:
            complete(planned, callback, same_data)
        except ConfigError as error:
            raise ConfigError(f"{planned.method}: {error}", error.problems) from None
    return runs


def complete(planned: Planned, callback: Callback, same_data: SameData) -> None:
    """Do what is left of one run of a comparison: all of it, the rest, or nothing.

    Args:
        planned: The run.
        callback: Reports progress.
        same_data: Of the comparison.

    Raises:
        FednlpError: As for :func:`fednlp.run`; or the data have changed since an earlier run.
    """
    if planned.state != "done" and not RunDir(planned.folder).state.is_file():  # else resume checks them
        same_data.require(planned.experiment, callback.log)
    if planned.state == "begun":
        resume(planned.folder, expected=planned.experiment, callback=callback)
    elif planned.state == "new":
        run(planned.experiment, planned.folder, callback=callback)
    same_data.add(planned.experiment, planned.folder)
