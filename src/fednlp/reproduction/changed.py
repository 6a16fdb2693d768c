"""Leaves out what others found with other settings, such as by ``--set``, or on other data."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednlp import config
from fednlp.config import Experiment
from fednlp.config.tables import flatten
from fednlp.reproduction.backed import with_backed_figures, with_runs
from fednlp.reproduction.manifest import Paper
from fednlp.reproduction.naming import digest
from fednlp.reproduction.results import Results
from fednlp.simulation.same_data import SameData

_PLACES = ("data.path", "data.test_path", "data.validation_path")


@dataclass(frozen=True)
class Expected:
    """What the runs of the papers have here.

    Attributes:
        settings: Digests of their settings (:func:`settings_digest`), by name of the run.
        files: What names the files of their data (:func:`fednlp.simulation.same_data.files_of`), by name of the run.
        same_data: Knows the data of the runs that were trained here, and of those that were joined before.
    """

    settings: Mapping[str, str]
    files: Mapping[str, str]
    same_data: SameData


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


def with_same_settings(
    results: Results, papers: Mapping[str, Paper], expected: Mapping[str, str]
) -> tuple[Results, list[str]]:
    """Return what others found without the runs that had other settings, and the names of these.

    Without a run go its figures and those that are measured by its score, and the pictures of its table. A run whose
    settings are not known on both sides stays.

    Args:
        results: What others found.
        papers: The papers by name.
        expected: Digests of the settings here by name of the run.
    """
    other = {
        name
        for name, run in results.runs.items()
        if run.settings and expected.get(name) not in (None, run.settings)
    }
    return with_backed_figures(with_runs(results, lambda name: name not in other), papers)[0], sorted(other)


def with_same_data(
    results: Results, papers: Mapping[str, Paper], expected: Expected, where: str
) -> tuple[Results, list[str]]:
    """Return what others found without the runs on other data than those here, and the names of these.

    The data of runs that nobody had before are noted. A run of which they are not known stays (:func:`unchecked`).

    Args:
        results: What others found.
        papers: The papers by name.
        expected: What the runs have here.
        where: The place of the results, for people.
    """
    other = {
        name
        for name, run in results.runs.items()
        if run.data and name in expected.files
        if not expected.same_data.agrees(expected.files[name], run.data, f"{name} of {where}")
    }
    return with_backed_figures(with_runs(results, lambda name: name not in other), papers)[0], sorted(other)


def unchecked(results: Results, expected: Expected) -> list[str]:
    """Return the finished runs and partitions of which nobody wrote down on which data they were made."""
    return sorted(
        name for name, run in results.runs.items() if run.finished and not run.data and name in expected.files
    )


def _without_place(value: Any) -> Any:
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
