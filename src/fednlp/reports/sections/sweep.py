"""The final metric against one setting, where methods differ in that alone (FedSplitBERT, Table IV and Figure 5)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fednlp.config.tables import lookup
from fednlp.formatting.units import capital, is_share, metric_title
from fednlp.reports.document import Block, Picture
from fednlp.reports.groups import Groups, differing, group_baseline, metric_of, settings, without_seeds
from fednlp.reports.read import Run
from fednlp.reports.style import MUTED, SERIES, drawing, legend, new_axes
from fednlp.reports.table import Stat, stat_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTS = {"global": "Global test", "personal": "Personal test", "finetuned": "Personal test after own steps"}
_WIDE = 50

Flat = Mapping[str, Any]


@dataclass(frozen=True)
class Sweep:
    """A setting, its value in each of the groups that differ in it alone, and the other groups.

    Of these, some have a value of the setting too, and differ in something else.
    """

    key: str
    values: Mapping[str, float]
    others: Mapping[str, float | None]


def find_sweep(groups: Groups) -> Sweep | None:
    """Return the one numeric setting that most groups differ in alone; None where there is no such setting."""
    flats = {
        label: _numbered(without_seeds(settings(runs[0])))
        for label, runs in groups.items()
        if not group_baseline(runs)
    }
    sweeps = [sweep for key in differing(list(flats.values())) if (sweep := _along(key, flats, groups))]
    most = max((len(sweep.values) for sweep in sweeps), default=0)
    found = [sweep for sweep in sweeps if len(sweep.values) == most]
    return found[0] if len(found) == 1 else None


def sweep_blocks(groups: Groups) -> Iterator[Block]:
    """Yield the figure, if the groups make one."""
    sweep = find_sweep(groups)
    figure = sweep_figure(groups, sweep) if sweep else None
    if sweep and figure is not None:
        caption = f"{capital(metric_title(metric_of(groups)))} after the last round against {sweep.key}"
        seeds = max(len(runs) for runs in groups.values())
        bars = ", mean over the seeds; the bars are one standard deviation." if seeds > 1 else "."
        yield Picture("sweep", caption + bars, figure)


def sweep_figure(groups: Groups, sweep: Sweep) -> "Figure | None":
    """Draw the final metric against a setting; groups without it are level lines, others single points."""
    metric = metric_of(groups)
    parts = [part for part in PARTS if any(_final(groups[label], part, metric) for label in sweep.values)]
    if not parts:
        return None
    scale, unit = (100.0, " (%)") if is_share(metric) else (1.0, "")
    with drawing():
        figure, axes = new_axes(f"{capital(metric_title(metric))}{unit}", sweep.key)
        for number, part in enumerate(parts):
            stats = {label: _final(groups[label], part, metric) for label in groups}
            _line(axes, sweep.values, stats, scale, {"color": SERIES[number], "label": PARTS[part]})
        last = parts[-1]
        rest = {label: _final(groups[label], last, metric) for label in sweep.others}
        _others(axes, sweep.others, rest, scale, PARTS[last].lower())
        values = list(sweep.values.values())
        if min(values) > 0 and max(values) / min(values) >= _WIDE:
            axes.set_xscale("log")
        elif all(value == int(value) for value in values):
            axes.locator_params(axis="x", integer=True)
        axes.margins(y=0.1)
        legend(figure, axes)
    return figure


def _line(
    axes: "Axes",
    at: Mapping[str, float],
    stats: Mapping[str, Stat | None],
    scale: float,
    look: dict[str, Any],
) -> None:
    points = sorted(
        ((value, stat) for label, value in at.items() if (stat := stats[label]) is not None),
        key=lambda point: point[0],
    )
    x = [value for value, _ in points]
    y = np.array([scale * stat.mean for _, stat in points])
    bars = np.array([scale * (stat.std or 0.0) for _, stat in points])
    axes.errorbar(x, y, yerr=bars if bars.any() else None, marker="o", linewidth=2.0, capsize=3, **look)


def _others(
    axes: "Axes",
    others: Mapping[str, float | None],
    stats: Mapping[str, Stat | None],
    scale: float,
    part: str,
) -> None:
    """Draw the rest, in one part."""
    dashes = [(0, (6, 3)), (0, (2, 2)), (0, (6, 2, 1, 2)), (0, (1, 1))]
    for number, (label, value) in enumerate(others.items()):
        stat, name = stats[label], f"{label}, {part}"
        if stat is None:
            continue
        if value is None:
            style: Any = dashes[number % len(dashes)]
            axes.axhline(scale * stat.mean, color=MUTED, linestyle=style, linewidth=1.6, label=name)
        else:
            axes.plot([value], [scale * stat.mean], "sD^vP"[number % 5], color=MUTED, label=name)


def _final(runs: Sequence[Run], part: str, metric: str) -> Stat | None:
    return stat_of(runs, lambda run: lookup(run.evaluation, f"{part}.{metric}"))


def _along(key: str, flats: Mapping[str, Flat], groups: Groups) -> Sweep | None:
    """Return the groups that differ in this setting alone, if there is exactly one such family."""
    families: dict[str, dict[str, float]] = {}
    for label, flat in flats.items():
        if _is_number(flat.get(key)):
            rest = sorted((k, repr(v)) for k, v in flat.items() if k != key)
            families.setdefault(repr(rest), {})[label] = flat[key]
    wide = [family for family in families.values() if len(set(family.values())) > 1]
    if len(wide) != 1:
        return None
    others = {label: flats.get(label, {}).get(key) for label in groups if label not in wide[0]}
    return Sweep(key, wide[0], {k: v if _is_number(v) else None for k, v in others.items()})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def _numbered(flat: Flat) -> dict[str, Any]:
    """Take the words of an exchange apart: ``["topk:0.1"]`` is a setting ``exchange.up topk`` of 0.1."""
    found: dict[str, Any] = {}
    for key, value in flat.items():
        if key not in ("exchange.up", "exchange.down") or not isinstance(value, list):
            found[key] = value
            continue
        for number, word in enumerate(map(str, value)):
            name, _, argument = word.partition(":")
            found[f"{key} {name}" if number == 0 else f"{key} {number + 1}. {name}"] = _number(argument)
    return found


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
