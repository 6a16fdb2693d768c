"""Which method is best, and by what."""

import math
from collections.abc import Mapping, Sequence

from fednlp.formatting.units import is_share, metric_title
from fednlp.reports.groups import Groups, metric_of
from fednlp.reports.render import cell_text
from fednlp.reports.table import Column, Row, Stat, Table
from fednlp.reports.travel import own_models

_HIGHEST = ("global", "personal", "personal_worst_decile", "finetuned")
_LEAST = ("bytes", "simulated_seconds")


def best_row(groups: Groups, table: Table) -> tuple[Row, str]:
    """Return the row of the best method, and in words why it is: by which score, among how many.

    References count only where nothing else was measured. Clients' own models are compared on their own tests.
    """
    personal = any(own_models(run) for runs in groups.values() for run in runs)
    part = "personal" if personal and any(row.cells["personal"] for row in table.rows) else "global"
    scored = [row for row in table.rows if row.cells[part]]
    rivals = [row for row in scored if not row.reference] or scored or list(table.rows)
    best = max(rivals, key=lambda row: _mean(row, part))
    if len(table.rows) == 1:
        return best, ""
    if len(rivals) == 1:
        return best, f"{best.label}: the only method of this comparison that is not a reference."
    return best, _why(best, rivals, part, metric_of(groups))


def _why(best: Row, rivals: Sequence[Row], part: str, metric: str) -> str:
    score = Column(part, "", "share" if is_share(metric) else "plain")
    shown = [cell_text(score, Stat((_mean(row, part),))) for row in rivals]
    level = [row.label for row, said in zip(rivals, shown, strict=True) if said == shown[rivals.index(best)]]
    others = ", ".join(label for label in level if label != best.label)
    seeds = f", mean over {best.seeds} seeds" if best.seeds > 1 else ""
    of = f"best of {len(rivals)} methods by {part} test {metric_title(metric)} after the last round{seeds}"
    return f"{best.label}: {of}{f'; level with it: {others}' if others else ''}."


def best_cells(table: Table) -> set[tuple[int, int]]:
    """Return the cells (row, column) of the grid that show the best figure of the methods; none where all are level.

    What is shown as the same figure is as good. References are left out.
    """
    rivals = [number for number, row in enumerate(table.rows) if not row.reference]
    found: set[tuple[int, int]] = set()
    for place, column in enumerate(table.columns, start=1):
        stats = {n: stat for n in rivals if (stat := table.rows[n].cells[column.key])}
        if column.key not in _HIGHEST + _LEAST:
            continue
        found |= {(number, place) for number in leaders(column, stats, least=column.key in _LEAST)}
    return found


def leaders(column: Column, stats: Mapping[int, Stat], least: bool = False) -> set[int]:
    """Return which of several figures are the highest (or ``least``) as shown; none where all are level.

    >>> leaders(Column("", "", "share"), {0: Stat((0.5,)), 1: Stat((0.9,)), 4: Stat((0.9,))})
    {1, 4}
    """
    known = {place: stat.mean for place, stat in stats.items() if math.isfinite(stat.mean)}
    if len(known) < 2:
        return set()
    shown = {place: cell_text(column, Stat((mean,))) for place, mean in known.items()}
    top = shown[(min if least else max)(known, key=lambda place: known[place])]
    level = {place for place in known if shown[place] == top}
    return level if len(level) < len(known) else set()


def _mean(row: Row, part: str) -> float:
    stat = row.cells[part]
    return stat.mean if stat else -1.0
