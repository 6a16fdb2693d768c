"""The section "Clients" of a report: each client's scores, by name where clients are few, and from worst to best."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import capital, is_share, metric_title
from fednlp.reports import plots
from fednlp.reports.charts import draw
from fednlp.reports.document import Block, Grid, Picture
from fednlp.reports.groups import Groups, group_baseline, metric_of
from fednlp.reports.read import ClientTable, Run
from fednlp.reports.render import grid, leaders
from fednlp.reports.table import ColumnKind, Stat, Table, TableColumn, TableRow, stated_notes

MOST_CLIENTS = 20
"""Up to so many clients are shown one by one."""

_SIZES = {"train_examples": "Training", "test_examples": "Test"}
_PARTS = {"scores": "", "finetuned_scores": ", own steps"}


def clients_table(groups: Groups) -> Table | None:
    """Return a row a client: its sizes, and a column a method with its own test, by the model that it would use.

    Args:
        groups: For each algorithm or baseline its runs, one a seed.

    Returns:
        The table of all runs whose clients are those of the first run; a note names the others. None where there are
        no clients, or more than 20.

    Raises:
        RunError: The runs are of tasks with different metrics.
    """
    runs = [run for found in groups.values() for run in found if len(run.clients)]
    if not runs or len(runs[0].clients) > MOST_CLIENTS:
        return None
    first, metric = runs[0].clients, metric_of(groups)
    alike = {label: [run for run in found if same_clients(run, runs[0])] for label, found in groups.items()}
    scores = {title: stats for label, found in alike.items() for title, stats in _scores(label, found)}
    kind: ColumnKind = "share" if is_share(metric) else "plain"
    columns = [
        *(TableColumn(size, heading, "size") for size, heading in _SIZES.items()),
        *(TableColumn(title, title, kind) for title in scores),
    ]
    seeds = max(map(len, alike.values()))
    rows = []
    for place, name in enumerate(client_names(first)):
        counts = {size: float(getattr(first, size)[place]) for size in _SIZES}
        sizes = {size: Stat((count,)) if count >= 0 else None for size, count in counts.items()}
        own = {title: stats[place] for title, stats in scores.items()}
        rows.append(TableRow(name, None, seeds, {**sizes, **own}))
    notes = [*(_extremes(title, rows) for title in scores), _left_out(groups, alike), *stated_notes(groups)]
    caption = _caption(metric, seeds) if scores else "How many examples each client has."
    return Table(tuple(columns), tuple(rows), caption, tuple(filter(None, notes)), head="Client")


def _method_columns(label: str) -> set[str]:
    """Return the keys of a method's columns in the table of clients."""
    return {f"{label}{part}" for part in _PARTS.values()}


def client_names(clients: ClientTable) -> list[str]:
    """Return what each client is called: its name, or its number where it has none."""
    return [name or str(number) for name, number in zip(clients.names, clients.ids, strict=True)]


def same_clients(run: Run, first: Run) -> bool:
    """Return whether two runs have the same clients; without names, those of one draw are not those of another."""
    one, other = run.clients, first.clients
    draws = {each.setting("partition.seed", each.seed) for each in (run, first)}
    return (
        one.names == other.names
        and (any(one.names) or len(draws) == 1)
        and all(np.array_equal(getattr(one, key), getattr(other, key)) for key in ("ids", *_SIZES))
    )


def _scores(label: str, runs: Sequence[Run]) -> Iterator[tuple[str, list[Stat | None]]]:
    """Yield a method's columns: each client's score over the seeds, where any client has one."""
    for part, suffix in _PARTS.items():
        stats = [_stat(values) for values in zip(*(getattr(run.clients, part) for run in runs), strict=True)]
        if any(stats):
            yield f"{label}{suffix}", stats


def _stat(values: Sequence[float]) -> Stat | None:
    known = tuple(float(value) for value in values if np.isfinite(value))
    return Stat(known) if known else None


def _caption(metric: str, seeds: int) -> str:
    unit = " in %" if is_share(metric) else ""
    spread = ", mean ± standard deviation over seeds" if seeds > 1 else ""
    what = f"{capital(metric_title(metric))}{unit} on each client's own test examples"
    return f"{what}, by the model that it would use{spread}."


def _extremes(title: str, rows: Sequence[TableRow]) -> str:
    """Return which clients have the best and the worst score, unless all are equal."""
    known = [(stat.mean, row.label) for row in rows if (stat := row.cells[title])]
    marks = marks_of(np.array([score for score, _ in known]))
    found = []
    for kind in ("best", "worst"):
        names = [clean(name) for (_, name), mark in zip(known, marks, strict=True) if mark == kind]
        found.append(f"{kind} client{'s' if len(names) > 1 else ''} {', '.join(names)}")
    return f"{title}: {', '.join(found)}" if any(marks) else ""


def marks_of(scores: NDArray[np.float64]) -> list[str]:
    """Return ``"best"`` and ``"worst"`` at the places of the highest and lowest of scores that are not all equal.

    >>> marks_of(np.array([0.5, np.nan, 0.25, 0.5]))
    ['best', '', 'worst', 'best']
    """
    known = scores[np.isfinite(scores)]
    if not len(known) or known.min() == known.max():
        return [""] * len(scores)
    return ["best" if s == known.max() else "worst" if s == known.min() else "" for s in scores.tolist()]


def _left_out(groups: Groups, alike: Groups) -> str:
    """Return a note on the runs with other clients: methods by name, of the others the seeds."""
    other = {
        label: [run for run in runs if len(run.clients) and run not in alike[label]]
        for label, runs in groups.items()
    }
    names = [label for label, runs in other.items() if runs and not alike[label]]
    seeds = sorted({run.seed for label, runs in other.items() if alike[label] for run in runs})
    names += [f"runs with seed {', '.join(map(str, seeds))}"] if seeds else []
    return f"Left out, because their clients hold other examples: {'; '.join(names)}." if names else ""


def client_blocks(groups: Groups) -> Iterator[Block]:
    """Yield the table of few clients, the curves from worst to best, and of many clients of one method a histogram."""
    metric = metric_of(groups)
    table = clients_table(groups)
    if table is not None:
        yield _grid(table, groups)
    chart = plots.client_curves(groups, metric)
    if chart is not None:
        caption = (
            "Every client on its own test examples after the last evaluation, sorted from worst to best."
        )
        yield Picture("clients-sorted", caption, draw(chart), chart)
    if len(groups) == 1 and table is None:
        figure = plots.client_histogram(next(iter(groups.values())), metric)
        if figure is not None:
            caption = f"How many clients have which {metric_title(metric)} on their own tests."
            yield Picture("clients-histogram", caption, figure)


def _grid(table: Table, groups: Groups) -> Grid:
    """Return the table of clients as a page shows it, the best method of each client marked."""
    heads, rows = grid(table)
    methods = {
        key
        for label, runs in groups.items()
        if group_baseline(runs) is None
        for key in _method_columns(label)
    }
    best = {(number, place) for number, row in enumerate(table.rows) for place in _best(table, row, methods)}
    return Grid(heads[:-1], [row[:-1] for row in rows], [table.caption, *table.notes], best=best)


def _best(table: Table, row: TableRow, methods: set[str]) -> set[int]:
    """Return the places in a client's row of the methods that serve it best."""
    columns = {place: column for place, column in enumerate(table.columns, start=1) if column.key in methods}
    stats = {place: stat for place, column in columns.items() if (stat := row.cells[column.key])}
    return leaders(table.columns[-1], stats)
