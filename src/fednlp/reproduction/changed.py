"""Leaves out what others found with other settings: by an experiment file that was changed since, or with ``--set``."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fednlp import config
from fednlp.config import Experiment
from fednlp.config.tables import flatten
from fednlp.reproduction.manifest import Column, Entry, Paper, Row
from fednlp.reproduction.naming import digest, group_of, group_of_cell, group_of_target, name_of
from fednlp.reproduction.results import Finding, FoundColumn, Results

_PLACES = ("data.path", "data.test_path", "data.validation_path")


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
    if not other:
        return results, []
    kept = []
    for paper in results.papers:
        known = {entry.id: entry for entry in papers[paper.name].entries} if paper.name in papers else {}
        entries = [
            _without(papers[paper.name], known[one.id], one, other) if one.id in known else one
            for one in paper.entries
        ]
        kept.append(paper.model_copy(update={"entries": entries}))
    runs = {name: run for name, run in results.runs.items() if name not in other}
    return results.model_copy(update={"runs": runs, "papers": kept}), sorted(other)


def _without(paper: Paper, entry: Entry, found: Finding, other: Collection[str]) -> Finding:
    """Return what was found of a table without some of its runs."""
    if not any(name in other for name in found.runs):
        return found
    rows = {row.name: row for row in entry.rows}
    columns = {column.name: column for column in entry.columns}
    left = [
        _column(paper, entry, rows, columns[one.name], one, other) if one.name in columns else one
        for one in found.columns
    ]
    runs = [name for name in found.runs if name not in other]
    lacks = [name for name in found.lacks if name not in other]
    changes = {"runs": runs, "lacks": lacks, "columns": left, "pictures": []}
    return found.model_copy(update=changes)


def _column(
    paper: Paper,
    entry: Entry,
    rows: Mapping[str, Row],
    column: Column,
    found: FoundColumn,
    other: Collection[str],
) -> FoundColumn:
    """Return a column without the figures of some runs, and without those that are measured by their scores."""
    groups = {group_of(name) for name in other}
    figures = {}
    for name, values in found.figures.items():
        if name not in rows:
            figures[name] = values
            continue
        of = group_of_cell(paper, entry, rows[name], column)
        measured_by = group_of_target(paper, entry, rows[name], column)
        left = {seed: value for seed, value in values.items() if name_of(of, seed) not in other}
        if left and measured_by not in groups:
            figures[name] = left
    errors = {name: error for name, error in found.errors.items() if name in figures}
    return found.model_copy(update={"figures": figures, "errors": errors})


def _without_place(value: Any) -> Any:
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
