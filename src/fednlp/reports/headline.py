"""Who gains by federating: each client's score with the others, alone, and with all texts in one place, in words."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fednlp.formatting.units import capital, is_share, metric_title, plural
from fednlp.reports.document import Block, Grid, Text
from fednlp.reports.groups import Groups, group_baseline, metric_of
from fednlp.reports.read import Run
from fednlp.reports.sections.clients import client_names, same_clients
from fednlp.tasks.intervals import difference, wilson

_MOST_CLIENTS = 50
_MOST_NAMES = 6
_PLACES = {"local": "alone", "centralised": "pooled"}


def headline_blocks(groups: Groups, best: str) -> list[Block]:
    """Return who gains and who loses by federating, then a table of the clients; empty without runs of clients alone.

    Intervals are of 95 %, and of shares of test examples alone; the mean over seeds is on the same examples.

    Args:
        groups: The runs of the report.
        best: Name of the method that stands for federated learning.
    """
    metric = metric_of(groups)
    first = groups[best][0]
    found = {"federated": _scores(groups[best], first)} | {
        _PLACES[kind]: _scores(runs, first)
        for runs in groups.values()
        if (kind := group_baseline(runs)) in _PLACES
    }
    known = {place: scores for place, scores in found.items() if np.isfinite(scores).any()}
    clients = first.clients
    if not {"federated", "alone"} <= known.keys():
        return []
    if not is_share(metric) or group_baseline(groups[best]) is not None:
        return []
    tests, names = clients.test_examples, list(client_names(clients))
    scored = np.isfinite(known["federated"]) & np.isfinite(known["alone"]) & (tests > 0)
    if not scored.any():
        return []
    total = int(tests[scored].sum())
    means = {place: _mean(scores, tests, scored) for place, scores in known.items()}
    shown = ", ".join(f"{place} {_interval(mean, total)}" for place, mean in means.items())
    sides: dict[str, list[str]] = {"gain": [], "lose": [], "level": []}
    rows = []
    for place in np.flatnonzero(scored).tolist():
        with_others, alone, count = (
            float(known["federated"][place]),
            float(known["alone"][place]),
            int(tests[place]),
        )
        low, high = difference(with_others, count, alone, count)
        side = "gain" if low > 0 else "lose" if high < 0 else "level"
        sides[side].append(names[place])
        cells = [_interval(float(scores[place]), count) for scores in known.values()]
        word = {"gain": "gains", "lose": "loses", "level": "within chance"}[side]
        rows.append([names[place], f"{count:,}", *cells, f"{word} ({100 * low:+.1f} to {100 * high:+.1f})"])
    low, high = difference(means["federated"], total, means["alone"], total)
    verdict = (
        "the clients together gain by federating"
        if low > 0
        else "the clients together are better off alone"
        if high < 0
        else "between federated and alone the tests do not decide"
    )
    text = (
        f"{capital(metric_title(metric))} on the clients' own {plural(total, 'test example')}, in %, with 95 % "
        f"intervals: {shown}. So {verdict} (difference {100 * low:+.1f} to {100 * high:+.1f} points). "
        f"By federating gain: {_listed(sides['gain'])}; lose: {_listed(sides['lose'])}; within chance: "
        f"{_listed(sides['level'])}."
    )
    if len(rows) > _MOST_CLIENTS:
        return [Text(text)]
    heads = ["Client", "Tests", *(place.capitalize() for place in known), f"By federating ({best}), points"]
    return [Text(text), Grid(heads, rows)]


def _scores(runs: Sequence[Run], first: Run) -> NDArray[np.float64]:
    """Return each client's score, mean over the seeds with the clients of the first run; NaN where it has none."""
    tables = [run.clients.scores for run in runs if same_clients(run, first)]
    found: NDArray[np.float64] = np.mean(tables, axis=0) if tables else np.full(len(first.clients), np.nan)
    return found


def _mean(scores: NDArray[np.float64], tests: NDArray[np.int64], scored: NDArray[np.bool_]) -> float:
    known = scored & np.isfinite(scores)
    return float(np.average(scores[known], weights=tests[known])) if known.any() else float("nan")


def _interval(share: float, tests: int) -> str:
    if not 0 <= share <= 1:
        return "–"
    low, high = wilson(share, tests)
    return f"{100 * share:.1f} ({100 * low:.0f}–{100 * high:.0f})"


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "nobody"
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
