"""Which runs need not be made, since other reproductions have finished them, as their ``results.json`` says."""

from collections.abc import Sequence

from fednlp.reproduction.manifest import TO_TARGET, Entry, Paper
from fednlp.reproduction.naming import (
    cells_of,
    group_of,
    group_of_cell,
    group_of_target,
    groups_of,
    name_of_cell,
    seed_of,
)
from fednlp.reproduction.results import Finding, Results


def known(paper: Paper, entry: Entry, joined: Sequence[Results]) -> frozenset[str]:
    """Return the names of a table's runs or partitions that need not be made, since others have what they give it.

    A run counts where it is finished, all of its cells are there, and one of them has its figure. So it does not count
    if the table has got a row, column or measure of it since, or if a column measures it by the score of a method
    without finished runs there.

    Args:
        paper: The paper.
        entry: Its table or figure.
        joined: What the others found.
    """
    return frozenset(
        name
        for results in joined
        if (finding := results.finding(paper.name, entry.id))
        for name in _whole(paper, entry, finding, results.finished(finding))
    )


def _whole(paper: Paper, entry: Entry, finding: Finding, finished: Sequence[str]) -> list[str]:
    """Return those of the finished runs of which the table has every figure that it shows."""
    rows = {row.name for row in finding.rows}
    columns = {(column.name, column.measure): column.cells for column in finding.columns}
    now = {column.name: cells_of(paper, entry, column) for column in entry.columns}
    groups = {"", *map(group_of, finished)}
    lacking = {
        group_of_cell(paper, entry, row, column)
        for row in entry.rows
        for column in entry.columns
        if row.name not in rows
        or (cells := columns.get((column.name, column.measure or entry.measure))) is None
        or cells.get(row.name, now[column.name].get(row.name)) != now[column.name].get(row.name)
        or group_of_target(paper, entry, row, column) not in groups
    }
    whole = groups_of(paper, entry) - lacking
    return [name for name in finished if group_of(name) in whole and _shows(paper, entry, finding, name)]


def _shows(paper: Paper, entry: Entry, finding: Finding, name: str) -> bool:
    """Return whether a table shows a figure of a run, unless none of its cells must have one.

    A run may never reach a target, so a measure of that may lack its figure.
    """
    figures = {column.name: column.figures for column in finding.columns}
    seed = seed_of(name)
    own = [
        (row.name, column.name)
        for row in entry.rows
        for column in entry.columns
        if (column.measure or entry.measure) not in TO_TARGET
        and name_of_cell(paper, entry, row, column, seed) == name
    ]
    return not own or any(seed in figures.get(column, {}).get(row, {}) for row, column in own)
