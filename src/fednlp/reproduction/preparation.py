"""Which jobs make the tables and figures that are asked for, and why others cannot be made."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fednlp import config
from fednlp.config import Experiment
from fednlp.config.tables import flatten
from fednlp.errors import ConfigError, DamagedError, FednlpError, RunError
from fednlp.reproduction.jobs import REMEDY, Job, Work, one_line
from fednlp.reproduction.joining import known
from fednlp.reproduction.manifest import Entry, Paper, Partitioned, Runs
from fednlp.reproduction.naming import (
    digest,
    folder_name,
    group_of,
    group_of_cell,
    group_of_target,
    groups_of_part,
    partition_name,
    run_name,
)
from fednlp.reproduction.needs import PARTITION_SECONDS, data_of_parts, needed_data
from fednlp.reproduction.results import Results
from fednlp.simulation.run_dir import RunDir
from fednlp.studies.compare import Planned, plan
from fednlp.studies.same_data import SameData

_PLACES = ("data.path", "data.test_path", "data.validation_path")


class Preparation:
    """Plans the jobs of tables and figures in one folder; those that use the same runs share them.

    Args:
        out: Folder of the reproduction.
        data: Folders of data sets by name.
        overrides: Settings over those of the manifests.
        most_seeds: At most so many seeds.
    """

    def __init__(
        self,
        out: Path,
        data: Mapping[str, str],
        overrides: Sequence[str] = (),
        most_seeds: int = 100,
    ) -> None:
        self._out, self._data, self._overrides, self._most_seeds = out, data, overrides, most_seeds
        self._planned: dict[tuple[str, str], list[Job]] = {}
        self._same_data = SameData()

    def settings(self, papers: Iterable[Paper]) -> dict[str, str]:
        """Return digests of the settings of all runs of papers by name, also of those whose data are missing."""
        jobs: list[Job] = []
        for paper, key in ((of, key) for of in papers for key in of.runs):
            with suppress(FednlpError):  # what is wrong is said where it is to be made
                jobs += self._every_seed(paper, key)
        return {job.label: job.settings for job in jobs}

    def prepare(self, paper: Paper, entry: Entry, joined: Sequence[Results] = ()) -> Work:
        """Return the jobs of a table or figure whose data are there, and why others are not among them.

        Args:
            joined: What others found, who share the work.

        Raises:
            RunError: A folder holds a run of other settings.
        """
        if entry.impossible:
            return Work(paper, entry, reason=entry.impossible)
        if entry.benchmark:
            return Work(paper, entry)
        others = known(paper, entry, joined)
        parts = data_of_parts(paper, entry)
        here = [part for part, names in parts.items() if names <= self._data.keys()]
        left = [part for part in parts if not self._is_known(paper, entry, part, others)]
        needed = set().union(*(parts[part] for part in left)) - self._data.keys()
        missing = [name for name in needed_data(paper, entry) if name in needed]
        reason = _lacking(missing, bool(here or others)) if missing else ""
        try:
            if entry.partitions:
                jobs = {row: self._partitions(entry.partitions[row]) for row in here}
                return _shared(Work(paper, entry, jobs, reason=reason), others)
            first = {paper.runs[key].model_of for key in here} - {""}
            before = tuple(self._runs(paper, key)[0] for key in sorted(first))
            jobs = {key: self._runs(paper, key) for key in here}
            return _shared(Work(paper, entry, jobs, before, reason), others)
        except ConfigError as error:
            return Work(paper, entry, reason=" ".join(error.problems[0].split(";")[0].split()), wrong=True)

    def _is_known(self, paper: Paper, entry: Entry, part: str, others: Collection[str]) -> bool:
        """Return whether others have all runs of a key, or the partition of a row."""
        wanted = entry.partitions[part].seeds if entry.partitions else paper.runs[part].seeds
        seeds, found = min(wanted, self._most_seeds), Counter(map(group_of, others))
        return all(found[one] >= seeds for one in groups_of_part(paper, entry, part))

    def _runs(self, paper: Paper, key: str) -> list[Job]:
        """Return the jobs of one key of a paper's runs that are asked for."""
        return [job for job in self._every_seed(paper, key) if job.seed < self._most_seeds]

    def _every_seed(self, paper: Paper, key: str) -> list[Job]:
        """Return the jobs of one key of a paper's runs."""
        if (paper.name, key) not in self._planned:
            self._planned[paper.name, key] = self._plan(paper, key)
        return self._planned[paper.name, key]

    def _plan(self, paper: Paper, key: str) -> list[Job]:
        runs = paper.runs[key]
        settings = [*runs.set, *self._overrides]
        begins_with = ""
        if runs.model_of:
            first = self._every_seed(paper, runs.model_of)[0]
            begins_with = first.settings
            settings.append(f"model.name_or_path={json.dumps(str(RunDir(first.folder).model.absolute()))}")
        if runs.data in self._data:
            settings.append(f"data.path={json.dumps(self._data[runs.data])}")
        experiment = config.load(paper.experiment_of(key), settings)
        folder = self._out / "runs" / folder_name(experiment.name, runs.set)
        planned = plan(experiment, runs.methods, runs.baselines, runs.seeds, folder, checked=False)
        return [self._run(runs, one, one.seed - experiment.seed, begins_with) for one in planned]

    def _run(self, runs: Runs, planned: Planned, seed: int, begins_with: str) -> Job:
        return Job(
            str(planned.folder.relative_to(self._out)),
            run_name(runs, planned.method, planned.seed),
            seed,
            60 * runs.minutes,
            planned.folder,
            planned,
            self._damage(runs, planned),
            settings_digest(planned.experiment, begins_with),
            self._same_data,
        )

    def _damage(self, runs: Runs, planned: Planned) -> str:
        """Return what is wrong with a run that lies in its folder; empty where nothing is, or where there is none.

        Raises:
            RunError: There is a run of other settings.
        """
        try:
            if runs.model_of:
                _follow(planned, self._out)
            planned.require_same_settings()
        except (DamagedError, ConfigError) as error:
            return one_line(error)
        except OSError as error:
            return f"{planned.folder} cannot be read ({error.strerror}): mend that, or {REMEDY}"
        try:
            self._same_data.add(planned.experiment, planned.folder)
        except RunError as error:
            return one_line(error)
        return ""

    def _partitions(self, made: Partitioned) -> list[Job]:
        """Return the jobs of a partition that are asked for, one a seed."""
        return [self._partition(made, seed) for seed in range(min(made.seeds, self._most_seeds))]

    def _partition(self, made: Partitioned, seed: int) -> Job:
        document: dict[str, Any] = {
            "clients_per_round": 1,
            "data": {"name": made.dataset}
            | ({"path": self._data[made.data]} if made.data in self._data else {}),
            "partition": made.options | ({"seed": seed} if seed else {}),
        }
        settings = config.parse(document, f"the partition of {made.dataset}")
        folder = self._out / "partitions" / f"{made.dataset}-{digest(document)}"
        name = str(folder.relative_to(self._out))
        return Job(name, partition_name(made, seed), seed, PARTITION_SECONDS, folder, settings)


def _follow(planned: Planned, out: Path) -> None:
    """Have a run that was begun name the model that it begins with where it lies now.

    Args:
        planned: Begins with a model in the reproduction's folder.
        out: This folder.

    Raises:
        DamagedError: The run's configuration cannot be read.
        RunError: It cannot be written.
    """
    if planned.state == "new":
        return
    directory = RunDir(planned.folder)
    experiment = directory.experiment()
    here, there = (Path(one.model.name_or_path) for one in (planned.experiment, experiment))
    inside = here.relative_to(out.absolute()).parts
    if there != here and there.parts[-len(inside) :] == inside:
        model = experiment.model.model_copy(update={"name_or_path": str(here)})
        directory.write_experiment(experiment.model_copy(update={"model": model}))


def settings_digest(experiment: Experiment, begins_with: str = "") -> str:
    """Return eight hex digits that identify what decides a run's result, the same on every machine.

    Workers, threads and places do not count: of a model or a partition in a file only the name of the file does.

    Args:
        experiment: Resolved.
        begins_with: The same of the run with whose model it begins; empty where there is none.
    """
    document = config.canonical(experiment)
    del document["runtime"]
    settings = {key: _without_place(value) for key, value in flatten(document) if key not in _PLACES}
    return digest([settings, begins_with])


def _without_place(value: Any) -> Any:
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _shared(work: Work, others: frozenset[str]) -> Work:
    """Return a work with what others have of it.

    A run that is left needs the one with whose model it begins. A run that only this folder has or makes needs those
    by whose score its cells are measured. These are left too.
    """
    paper, entry = work.paper, work.entry
    own = [job for job in work.every if job.label not in others]
    targets = {
        (group_of_cell(paper, entry, row, column), group_of_target(paper, entry, row, column))
        for row in entry.rows
        for column in entry.columns
    }
    needed = {(to, job.seed) for job in own for of, to in targets if of == group_of(job.label)}
    names = {
        job.label
        for job in work.every
        if job.label in others and (group_of(job.label), job.seed) not in needed
    }
    begun = {
        paper.runs[key].model_of
        for key in entry.runs
        if any(not job.done and job.label not in names for job in work.jobs.get(key, []))
    }
    first = sorted({paper.runs[key].model_of for key in work.jobs if key in entry.runs} - {""})
    names -= {job.label for key, job in zip(first, work.before, strict=True) if key in begun}
    return replace(work, known=frozenset(names))


def _lacking(missing: Sequence[str], in_part: bool) -> str:
    """Return in words that data are missing, and what to type."""
    flags = " ".join(f"--data {name}=DIR" for name in missing)
    if in_part:
        return f"made without {', '.join(missing)}: no folder of published files was given (`{flags}`)"
    return f"needs the folder of published files: `{flags}`"
