"""Leaves out figures that others show of other runs than the manifest here has, or of none that they finished."""

from collections.abc import Callable, Collection, Mapping

from fednlp.reproduction.curves import fitting
from fednlp.reproduction.manifest import Column, Entry, Paper, Row
from fednlp.reproduction.naming import cells_of, group_of, group_of_target, groups_of, name_of, name_of_cell
from fednlp.reproduction.parts import FoundColumn
from fednlp.reproduction.results import Finding, Results


def with_backed_figures(results: Results, papers: Mapping[str, Paper]) -> tuple[Results, list[str]]:
    """Return what others found without the figures of other runs, and the tables that had such ones.

    A figure stays if its run or partition, as the manifest here has it, is finished there, and if it was measured as
    here; so do the points of a curve. The pictures of a table go with its figures and curves, and where they show runs
    that it does not have here. What the manifests here do not have stays as it is.

    Args:
        results: What others found.
        papers: The papers by name.
    """
    entries = {(paper.name, entry.id): entry for paper in papers.values() for entry in paper.entries}
    finished = {name for name, run in results.runs.items() if run.finished}
    left_out, kept = [], []
    for paper in results.papers:
        found = []
        for one in paper.entries:
            entry = entries.get((paper.name, one.id))
            if entry and entry.by_runs:
                backed = _backed(papers[paper.name], entry, one, finished & set(one.runs))
                if backed != one:
                    left_out.append(f"{paper.name} {one.id}")
                one = backed
            found.append(one)
        kept.append(paper.model_copy(update={"entries": found}))
    return results.model_copy(update={"papers": kept}), left_out


def with_runs_of(results: Results, names: Collection[str]) -> Results:
    """Return what others found without further seeds of runs.

    Args:
        results: What others found.
        names: The runs and partitions that the manifests here have, with all their seeds. Of others the seeds are not
            known, so all of them stay.
    """
    groups = set(map(group_of, names))
    return with_runs(results, lambda name: name in names or group_of(name) not in groups)


def with_runs(results: Results, stays: Callable[[str], bool]) -> Results:
    """Return what others found as if they had begun only some of the runs; figures and curves stay, pictures do not."""
    papers = []
    for paper in results.papers:
        entries = [_with_runs(one, stays) for one in paper.entries]
        papers.append(paper.model_copy(update={"entries": entries}))
    runs = {name: run for name, run in results.runs.items() if stays(name)}
    return results.model_copy(update={"runs": runs, "papers": papers})


def _with_runs(found: Finding, stays: Callable[[str], bool]) -> Finding:
    if all(map(stays, found.runs)):
        return found
    left = {"runs": [*filter(stays, found.runs)], "lacks": [*filter(stays, found.lacks)]}
    return found.model_copy(update={**left, "pictures": []})


def _backed(paper: Paper, entry: Entry, found: Finding, finished: set[str]) -> Finding:
    """Return what was found of a table without the figures of other runs than these."""
    now = {column.name: column for column in entry.columns}
    columns = [
        _column(paper, entry, now[one.name], one, finished) if one.name in now else one
        for one in found.columns
    ]
    groups, there = groups_of(paper, entry), set(map(group_of, finished))
    fits = fitting(paper, entry, found.curves)
    curves = {name: curve for name, curve in fits.items() if name in finished}
    drawn = bool(there) and there <= groups and (columns, curves) == (found.columns, found.curves)
    changes = {
        "columns": columns,
        "pictures": found.pictures if drawn else [],
        "data": found.data if there & groups else [],
        "curves": curves,
    }
    return found.model_copy(update=changes)


def _column(
    paper: Paper, entry: Entry, column: Column, found: FoundColumn, finished: set[str]
) -> FoundColumn:
    rows, cells = {row.name: row for row in entry.rows}, cells_of(paper, entry, column)

    def backed(name: str, seed: int) -> bool:
        if name not in rows:
            return True
        same = found.cells.get(name, cells.get(name)) == cells.get(name)
        return same and _names(paper, entry, rows[name], column, seed) <= finished

    figures = {
        name: {seed: value for seed, value in values.items() if backed(name, seed)}
        for name, values in found.figures.items()
    }
    unreached = {
        name: [seed for seed in seeds if backed(name, seed)] for name, seeds in found.unreached.items()
    }
    changes = {
        "figures": {name: values for name, values in figures.items() if values},
        "errors": {name: error for name, error in found.errors.items() if figures.get(name)},
        "unreached": {name: seeds for name, seeds in unreached.items() if seeds},
    }
    return found.model_copy(update=changes)


def _names(paper: Paper, entry: Entry, row: Row, column: Column, seed: int) -> set[str]:
    """Return the names of the runs that a figure is of: the one of its cell, and the one that it is measured by."""
    target = group_of_target(paper, entry, row, column)
    return {name_of_cell(paper, entry, row, column, seed), *([name_of(target, seed)] if target else [])}
