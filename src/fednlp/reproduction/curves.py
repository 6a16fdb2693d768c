"""The learning curves of a table: the points of its runs, and the charts that are drawn of them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import ValidationError

from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import plural
from fednlp.reports.charts import Chart
from fednlp.reports.hub_metadata import data_name
from fednlp.reports.plots import against_simulated_seconds, learning_curves
from fednlp.reports.read import ClientTable, Run, curve, running_total
from fednlp.reproduction.agreement import LARGEST
from fednlp.reproduction.manifest import Curves, Entry, Paper
from fednlp.reproduction.naming import group, group_of, seed_of
from fednlp.reproduction.results import LONGEST_NAME, MOST_POINTS, FoundCurve, FoundPicture

_TIME = "simulated_seconds"
_ONE_SEED = "one seed"
_SEVERAL_SEEDS = re.compile(r"\b[0-9]{1,3}( to [0-9]{1,3})? seeds$")
_NAME = re.compile(r".*-curves-[0-9]+", re.DOTALL)


def is_of_curves(picture: str) -> bool:
    """Return whether a picture of this name shows learning curves.

    >>> is_of_curves("fes-figure3-curves-0"), is_of_curves("pulling-figure1-update-norms")
    (True, False)
    """
    return _NAME.fullmatch(picture) is not None


def found_curves(paper: Paper, entry: Entry, runs: Mapping[str, Run]) -> dict[str, FoundCurve]:
    """Return the points of the curves of an entry's finished runs; none where it shows no curves."""
    if entry.curves is None:
        return {}
    every = {name: _points(run, entry.curves) for name, run in runs.items()}
    return fitting(paper, entry, every)


def fitting(paper: Paper, entry: Entry, curves: Mapping[str, FoundCurve]) -> dict[str, FoundCurve]:
    """Return the curves of what the entry shows and of its own runs, in the order of the manifest.

    Args:
        curves: By name of the run.
    """
    by_group: dict[str, list[str]] = {}
    for name in sorted(curves, key=seed_of):
        by_group.setdefault(group_of(name), []).append(name)
    names = (name for _, _, of in _groups(paper, entry) for name in by_group.get(of, []))
    return {name: curves[name] for name in names if curves[name].of == entry.curves}


def charts_of(
    paper: Paper, entry: Entry, curves: Mapping[str, FoundCurve]
) -> Iterator[tuple[FoundPicture, Chart]]:
    """Yield the pictures of a table's curves with what they show: one for each data set and metric.

    Args:
        curves: Those that are :func:`fitting`.
    """
    if entry.curves is None:
        return
    several = len({paper.runs[key].data for key in entry.runs}) > 1
    chart_of = learning_curves if entry.curves_by == "round" else against_simulated_seconds
    for number, ((data, metric), groups) in enumerate(_panels(paper, entry, curves).items()):
        chart = chart_of(groups, _measured(entry.curves, metric))
        if chart is not None:
            of = f" of {data}" if several else ""
            caption = f"{entry.title}, here: {chart.title}{of} by {entry.curves_by}, {_seeds(groups)}"
            name, count = f"{paper.name}-{entry.id}-curves-{number}", sum(map(len, groups.values()))
            yield FoundPicture(name=name, caption=caption, curves=count), chart


def seeds_in(caption: str) -> float | None:
    """Return the number of seeds that the caption of a picture states, on average; None where it states none.

    >>> seeds_in("Figure 3, here: Loss by round, one seed"), seeds_in("mean ... over 1 to 3 seeds")
    (1.0, 2.0)
    """
    if caption.endswith(_ONE_SEED):
        return 1.0
    found = _SEVERAL_SEEDS.search(caption)
    return fmean(map(int, found[0].removesuffix(" seeds").split(" to "))) if found else None


def groups_of_curves(paper: Paper, entry: Entry) -> set[str]:
    """Return the groups of the runs whose curves the entry shows; one that gives a first model is not among them."""
    return {of for _, _, of in _groups(paper, entry)}


def _points(run: Run, of: Curves) -> FoundCurve:
    """Return the points of a run's curve that are finite numbers; none if its lines are such as no run writes."""
    metric = run.metric[:LONGEST_NAME]
    data = clean(data_name(run.summary or {}, run.config))[:LONGEST_NAME]
    rounds, values = curve(run, _measured(of, run.metric))
    spent = running_total(run, _TIME) if run.counted(_TIME) else {}
    every = dict(sorted(zip(rounds.tolist(), values.tolist(), strict=True)))
    points = [(number, value) for number, value in _spread(list(every.items())) if abs(value) <= LARGEST]
    with suppress(ValidationError):
        return FoundCurve(
            of=of,
            metric=metric,
            data=data,
            rounds=[number for number, _ in points],
            values=[_short(value) for _, value in points],
            seconds=[_short(spent[number]) for number, _ in points] if spent else [],
        )
    return FoundCurve(of=of, metric=metric, data=data, rounds=[], values=[])


def _spread(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """Return as many points as may be stored, the first and the last among them."""
    if len(points) <= MOST_POINTS:
        return points
    return [points[round(i * (len(points) - 1) / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _measured(of: Curves, metric: str) -> str:
    """Return what :func:`fednlp.reports.read.curve` calls it."""
    return of if of == "train_loss" else f"{of}.{metric}"


def _groups(paper: Paper, entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Yield a label for each method of an entry's runs, its name if it is a baseline, and the group of its runs."""
    for key in entry.runs:
        runs = paper.runs[key]
        for method in (*runs.methods, *runs.baselines):
            label = method if len(entry.runs) == 1 else f"{key}: {method}"
            yield label, method if method in runs.baselines else "", group(runs, method)


def _panels(
    paper: Paper, entry: Entry, curves: Mapping[str, FoundCurve]
) -> dict[tuple[str, str], dict[str, list[Run]]]:
    """Return runs with the points of the curves by data set and metric, and by method."""
    panels: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for label, baseline, of in _groups(paper, entry):
        for name, one in curves.items():
            if group_of(name) == of and one.rounds:
                panel = panels.setdefault((one.data, one.metric), {})
                panel.setdefault(label, []).append(_run(one, seed_of(name), baseline))
    return panels


def _run(of: FoundCurve, seed: int, baseline: str) -> Run:
    """Return a run as far as its curve is known."""
    spent = [0.0, *of.seconds]
    lines: list[dict[str, Any]] = []
    for place, (number, value) in enumerate(zip(of.rounds, of.values, strict=True)):
        line: dict[str, Any] = {"round": number}
        line |= (
            {"train_loss": value} if of.of == "train_loss" else {"evaluation": {of.of: {of.metric: value}}}
        )
        line |= {_TIME: spent[place + 1] - spent[place]} if of.seconds else {}
        lines.append(line)
    config = {"seed": seed, "algorithm": {"name": baseline}}
    none, no_score = np.empty(0, np.int64), np.empty(0, np.float64)
    nobody = ClientTable(none, (), none, none, no_score, no_score)
    return Run(Path(), config, {"data": {"metric": of.metric}}, tuple(lines), None, nobody)


def _seeds(groups: Mapping[str, Sequence[Run]]) -> str:
    """Return in words how many seeds the lines of a picture are of."""
    counts = sorted({len(runs) for runs in groups.values()})
    if counts == [1]:
        return _ONE_SEED
    several = plural(counts[-1], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    return f"mean and standard deviation over {several}"
