"""How each client fares under each method, for federations small enough to be read client by client."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fednlp.reports.groups import Groups, metric_of
from fednlp.reports.read import ClientTable, Run
from fednlp.reports.table import Column, Kind, Row, Stat, Table
from fednlp.reports.units import capital, clean, is_share, metric_title

MOST_CLIENTS = 20
"""Up to so many clients are shown one by one."""


def clients_table(groups: Groups) -> Table | None:
    """Return a row a client and a column a method: the client's own test, by the model that it would use.

    Args:
        groups: For each algorithm or reference its runs, one a seed.

    Returns:
        The table, or None where there are more than 20 clients, no scores, or the runs do not have the same
        clients: the same names, or the same sizes where they have no names.
    """
    tables = {label: [run.clients for run in runs] for label, runs in groups.items()}
    everyone = [table for found in tables.values() for table in found]
    if not everyone or not 0 < len(everyone[0]) <= MOST_CLIENTS or not _alike(groups):
        return None
    metric = metric_of(groups)
    kind: Kind = "share" if is_share(metric) else "plain"
    methods = [
        (label if part == "scores" else f"{label}, own steps", [getattr(table, part) for table in found])
        for label, found in tables.items()
        for part in ("scores", "final_scores")
        if any(np.isfinite(getattr(table, part)).any() for table in found)
    ]
    if not methods:
        return None
    sizes = ("train_examples", "test_examples")
    columns = [Column(sizes[0], "Training", "count"), Column(sizes[1], "Test", "count")]
    columns += [Column(title, title, kind) for title, _ in methods]
    rows = []
    for place, name in enumerate(_names(everyone[0])):
        cells = {size: Stat(tuple(float(getattr(one, size)[place]) for one in everyone)) for size in sizes}
        scores = {title: _stat([values[place] for values in found]) for title, found in methods}
        rows.append(Row(name, None, max(len(runs) for runs in groups.values()), {**cells, **scores}))
    caption = (
        f"{capital(metric_title(metric))}{' in %' if kind == 'share' else ''} on each client's own test examples, by "
        "the model that it would use, mean ± standard deviation over seeds."
    )
    notes = tuple(_extremes(title, rows) for title, _ in methods)
    return Table(tuple(columns), tuple(rows), caption, tuple(filter(None, notes)), head="Client")


def _alike(groups: Groups) -> bool:
    """Tell whether all runs have the same clients; without names, those of one seed are not those of another."""
    runs: list[Run] = [run for found in groups.values() for run in found]
    first = runs[0].clients
    if any(run.clients.names != first.names for run in runs):
        return False
    if any(first.names):
        return True
    fixed = all(run.setting("partition.seed") is not None for run in runs)
    return (fixed or len({run.seed for run in runs}) == 1) and all(
        np.array_equal(getattr(run.clients, size), getattr(first, size))
        for run in runs
        for size in ("train_examples", "test_examples")
    )


def _names(clients: ClientTable) -> list[str]:
    return [name or str(number) for name, number in zip(clients.names, clients.ids, strict=True)]


def _stat(values: Sequence[float]) -> Stat | None:
    known = tuple(float(value) for value in values if np.isfinite(value))
    return Stat(known) if known else None


def _extremes(title: str, rows: Sequence[Row]) -> str:
    """Say who fares best and who worst, unless all fare alike."""
    known = [(stat.mean, row.label) for row in rows if (stat := row.cells[title])]
    marks = marks_of(np.array([score for score, _ in known]))
    best, worst = (
        ", ".join(clean(name) for (_, name), mark in zip(known, marks, strict=True) if mark == wanted)
        for wanted in ("best", "worst")
    )
    return f"{title}: best {best}, worst {worst}" if best else ""


def marks_of(scores: NDArray[np.float64]) -> list[str]:
    """Return ``"best"`` and ``"worst"`` at the places of the highest and lowest of scores that are not all equal.

    >>> marks_of(np.array([0.5, np.nan, 0.25, 0.5]))
    ['best', '', 'worst', 'best']
    """
    known = scores[np.isfinite(scores)]
    if not len(known) or known.min() == known.max():
        return [""] * len(scores)
    return ["best" if s == known.max() else "worst" if s == known.min() else "" for s in scores.tolist()]
