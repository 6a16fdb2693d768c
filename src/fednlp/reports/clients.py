"""The section "Clients" of a report: from worst to best, and by name where they are few."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fednlp.reports import plots
from fednlp.reports.best import leaders
from fednlp.reports.charts import draw
from fednlp.reports.document import Block, Grid, Picture
from fednlp.reports.groups import Groups, group_reference, metric_of
from fednlp.reports.read import ClientTable
from fednlp.reports.render import cell_text
from fednlp.reports.table import Column, Stat
from fednlp.reports.units import capital, is_share, metric_title

MOST_NAMED = 20
"""So many clients at most have a row each."""


def client_blocks(groups: Groups) -> Iterator[Block]:
    """Yield the table of few clients, the curves from worst to best, and of many clients of one method a histogram."""
    metric = metric_of(groups)
    table = client_grid(groups)
    if table is not None:
        yield table
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


def client_grid(groups: Groups) -> Grid | None:
    """Return a table with a row a client, its sizes and its score in each method; None of very many or no clients.

    Runs count where their clients hold as many examples as those of the first run.
    """
    first = next((run.clients for runs in groups.values() for run in runs if len(run.clients)), None)
    if first is None or len(first) > MOST_NAMED:
        return None
    alike = {label: [run for run in runs if _same(run.clients, first)] for label, runs in groups.items()}
    columns = list(_columns(alike, metric_of(groups)))
    shown = Column("own", "", "share" if is_share(metric_of(groups)) else "plain")
    rows = [
        [name, f"{first.train_examples[i]:,}", f"{first.test_examples[i]:,}"]
        + [cell_text(shown, column.stats[i]) for column in columns]
        for i, name in enumerate(_names(first))
    ]
    heads = ["Client", "Training examples", "Test examples", *(column.head for column in columns)]
    best = {(i, place) for i in range(len(first)) for place in leaders(shown, _rivals(columns, i))}
    return Grid(heads, rows, list(_notes(groups, alike)), best=best)


@dataclass(frozen=True)
class _Own:
    """A column: each client's score over the seeds; whether it is a method's, and not a reference's."""

    head: str
    stats: Sequence[Stat | None]
    method: bool


def _columns(alike: Groups, metric: str) -> Iterator[_Own]:
    for label, runs in alike.items():
        title = (
            label
            if len(alike) > 1
            else f"Own test {metric_title(metric)}{' (%)' if is_share(metric) else ''}"
        )
        for head, scores in (
            (title, [run.clients.scores for run in runs]),
            (f"{title}, after own steps", [run.clients.final_scores for run in runs]),
        ):
            stats = [_stat(values) for values in zip(*scores, strict=True)]
            if any(stats):
                yield _Own(head, stats, group_reference(runs) is None)


def _rivals(columns: Sequence[_Own], client: int) -> dict[int, Stat]:
    """Return a client's score in each method by its place in a row of the table."""
    found = {place: column.stats[client] for place, column in enumerate(columns, start=3) if column.method}
    return {place: stat for place, stat in found.items() if stat}


def _stat(values: Sequence[float]) -> Stat | None:
    known = tuple(float(value) for value in values if np.isfinite(value))
    return Stat(known) if known else None


def _same(one: ClientTable, other: ClientTable) -> bool:
    return one.names == other.names and all(
        np.array_equal(getattr(one, key), getattr(other, key))
        for key in ("ids", "train_examples", "test_examples")
    )


def _names(clients: ClientTable) -> list[str]:
    return [
        name or f"Client {number}" for number, name in zip(clients.ids.tolist(), clients.names, strict=True)
    ]


def _notes(groups: Groups, alike: Groups) -> Iterator[str]:
    metric = metric_of(groups)
    unit = " in %" if is_share(metric) else ""
    seeds = max(len(runs) for runs in alike.values())
    spread = ", mean ± standard deviation over seeds" if seeds > 1 else ""
    what = f"{capital(metric_title(metric))}{unit} of each client on its own test examples"
    yield f"{what}, after the last round{spread}."
    left = sorted({run.seed for label, runs in groups.items() for run in runs if run not in alike[label]})
    if left:
        yield f"Left out, because their clients hold other examples: runs with seed {', '.join(map(str, left))}."
