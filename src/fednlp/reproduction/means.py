"""Tables whose figures are means over other tables of the paper, computed from what was found of these."""

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from fednlp.reproduction.agreement import Values
from fednlp.reproduction.finding import found_claims, found_column, state_of
from fednlp.reproduction.manifest import Column, Entry, Paper
from fednlp.reproduction.naming import group_of, group_of_cell
from fednlp.reproduction.parts import FoundColumn
from fednlp.reproduction.results import Finding


def with_means(paper: Paper, findings: Sequence[Finding]) -> list[Finding]:
    """Return what was found of a paper's tables, with the figures of those that are means over others.

    Args:
        paper: The paper.
        findings: Of all of its tables, as they are joined.
    """
    found = {one.id: one for one in findings}
    means = {entry.id: entry for entry in paper.entries if entry.mean_of}
    return [_mean(paper, means[one.id], one, found) if one.id in means else one for one in findings]


def _mean(paper: Paper, entry: Entry, own: Finding, found: Mapping[str, Finding]) -> Finding:
    """Return a table whose columns are means of other tables' first columns."""
    parts = {column.name: [found[name] for name in column.mean_of] for column in entry.columns}
    columns = [_column(paper, entry, column, parts[column.name]) for column in entry.columns]
    reasons = (
        why for one in columns for why in _reasons(entry, parts[one.name], {*one.figures, *one.unreached})
    )
    reason = "; ".join(dict.fromkeys(reasons))
    groups, every = _groups(paper, entry), [found[name] for name in entry.mean_of]
    changes = {
        "state": state_of(any(one.figures or one.unreached for one in columns), not reason),
        "reason": reason,
        "runs": _of_groups(groups, (name for part in every for name in part.runs)),
        "lacks": _of_groups(groups, (name for part in every for name in part.lacks)),
        "columns": columns,
        "claims": found_claims(entry, columns),
    }
    return own.model_copy(update=changes)


def _column(paper: Paper, entry: Entry, column: Column, parts: Sequence[Finding]) -> FoundColumn:
    """Return the mean of some tables' first columns, by row and by those seeds that all of the tables have.

    A seed that never reached the target in one of the tables has no mean, as it never reached that of all.
    """
    figures: dict[str, Values] = {}
    errors: dict[str, float] = {}
    unreached: dict[str, list[int]] = {}
    for name in (row.name for row in entry.rows):
        never = {seed for part in parts for seed in part.columns[0].unreached.get(name, [])}
        shared = set.intersection(*(_seeds(part, name) for part in parts))
        seeds = sorted(shared - never)
        if shared & never:
            unreached[name] = sorted(shared & never)
        if seeds:
            every = [part.columns[0].figures[name] for part in parts]
            figures[name] = {seed: statistics.fmean(one[seed] for one in every) for seed in seeds}
        known = [error for part in parts if (error := part.columns[0].errors.get(name)) is not None]
        if seeds and len(known) == len(parts):
            errors[name] = math.hypot(*known) / len(known)
    return found_column(paper, entry, column, figures, errors, unreached)


def _groups(paper: Paper, entry: Entry) -> set[str]:
    """Return the groups of the runs of a mean's rows in the tables that it is of."""
    names = {row.name for row in entry.rows}
    parts = [one for one in paper.entries if one.id in entry.mean_of]
    return {
        group_of_cell(paper, part, row, part.columns[0])
        for part in parts
        for row in part.rows
        if row.name in names
    }


def _of_groups(groups: Collection[str], names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for name in names if group_of(name) in groups))


def _reasons(entry: Entry, parts: Sequence[Finding], having: Collection[str]) -> Iterator[str]:
    """Yield why rows have no mean, together where the same tables lack them, and which tables have fewer seeds."""
    rows: dict[str, list[str]] = {}
    for name in (row.name for row in entry.rows if row.name not in having):
        lacking = [part.title for part in parts if not _seeds(part, name)]
        why = f"no figure in {'; '.join(lacking)}" if lacking else "no seed that all tables have"
        rows.setdefault(why, []).append(name)
    yield from (f"{'; '.join(names)}: {why}" for why, names in rows.items())
    fewer = [
        part.title for part in parts if any(_seeds(part, name) < _every_seed(parts, name) for name in having)
    ]
    if fewer:
        yield f"fewer seeds in {'; '.join(fewer)}"


def _seeds(part: Finding, row: str) -> set[int]:
    """Return the seeds of a row that have a figure, or never reached the target."""
    column = part.columns[0]
    return {*column.figures.get(row, {}), *column.unreached.get(row, [])}


def _every_seed(parts: Sequence[Finding], row: str) -> set[int]:
    return set().union(*(_seeds(part, row) for part in parts))
