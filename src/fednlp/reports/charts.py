"""Line charts as data: drawn as a figure for paper, and by the page's script for the screen."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fednlp.formatting.safe_text import clean
from fednlp.reports.style import THEME, drawing, legend, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEW = 12
"""Points are marked on a line of at most so many."""

_LABELLED = 8
_LABEL_LENGTH = 22
_LETTER = 0.08
"""How wide a letter of a label is taken to be, in inches."""

_GAP = 0.055
"""Between two labels at the right edge, as a share of the axis: a line of text."""


@dataclass(frozen=True)
class Line:
    """One method: points with what each belongs to (a round), or a level line without points along x.

    Attributes:
        look: How it is drawn, in matplotlib's terms: colour, width, marker or dashes.
        y: The values, in the chart's unit; one for a level line.
        x: Where they stand; empty for a level line.
        keys: The round of each point, or another number that points of several lines have in common.
        spread: The standard deviation over the seeds at each point, or None.
    """

    label: str
    look: Mapping[str, Any]
    y: Sequence[float]
    x: Sequence[float] = ()
    keys: Sequence[float] = ()
    spread: Sequence[float] | None = None


@dataclass(frozen=True)
class Chart:
    """Lines on common axes; the title says what the y axis shows.

    Attributes:
        title: What the y axis shows, with its unit.
        xlabel: What the x axis shows, with its unit.
        lines: The lines, in the order of the legend.
        unit: What follows a value: ``" %"`` or nothing.
        step: What the keys count, ``"Round"``.
        whole: The x axis has ticks at whole numbers only.
        y_range: The ends of the y axis where they are given; None where they follow the lines.
        x_range: The same of the x axis.
    """

    title: str
    xlabel: str
    lines: Sequence[Line]
    unit: str = ""
    step: str = "Round"
    whole: bool = False
    x_range: tuple[float | None, float | None] = (0, None)
    y_range: tuple[float | None, float | None] = (None, None)


def draw(chart: Chart) -> "Figure":
    """Draw a chart for paper and for pages whose script does not run."""
    with drawing():
        figure, axes = new_axes(chart.title, chart.xlabel)
        for line in chart.lines:
            _draw_line(axes, line)
        if chart.whole:
            axes.locator_params(axis="x", integer=True)
        axes.margins(y=0.08)
        axes.set_xlim(*chart.x_range)
        axes.set_ylim(*chart.y_range)
        if not _label_ends(figure, axes, chart.lines):
            legend(figure, axes)
    return figure


def _draw_line(axes: "Axes", line: Line) -> None:
    if not line.x:
        axes.axhline(line.y[-1], label=line.label, **{**line.look, "marker": None})
        return
    few: dict[str, Any] = {"markersize": 2 + line.look["linewidth"]}
    look = {**line.look, **(few if len(line.x) <= _FEW else {"marker": None})}
    axes.plot(line.x, line.y, label=line.label, **look)
    if line.spread is not None:
        low, high = zip(*((y - s, y + s) for y, s in zip(line.y, line.spread, strict=True)), strict=True)
        axes.fill_between(line.x, low, high, color=line.look["color"], alpha=0.08, linewidth=0)


def _label_ends(figure: "Figure", axes: "Axes", lines: Sequence[Line]) -> bool:
    """Write each line's name at its end if all find room there; say whether they did."""
    ends = [(line, line.y[-1]) for line in lines if math.isfinite(line.y[-1])]
    longest = max((len(line.label) for line, _ in ends), default=0)
    if not 1 < len(ends) <= _LABELLED or len(ends) < len(lines) or longest > _LABEL_LENGTH:
        return False
    low, high = axes.get_ylim()
    places = apart([(y - low) / (high - low) for _, y in ends], _GAP)
    for (line, _), place in zip(ends, places, strict=True):
        colour = line.look["color"]
        text = axes.text(
            1.015, place, line.label, color=colour, fontsize=9, va="center", transform=axes.transAxes
        )
        text.set_in_layout(False)
    room = (_LETTER * longest + 2 * _LETTER) / figure.get_figwidth()
    figure.set_layout_engine("constrained", rect=(0, 0, 1 - room, 1))
    return True


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Move places on a line from each other until none is nearer to the next than ``gap``, in their order.

    >>> [round(place, 2) for place in apart([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    groups: list[tuple[float, list[int]]] = []
    for index in sorted(range(len(places)), key=lambda i: places[i]):
        centre, members = places[index], [index]
        while groups and centre - groups[-1][0] < gap * (len(members) + len(groups[-1][1])) / 2:
            before, others = groups.pop()
            whole = len(others) + len(members)
            centre = (before * len(others) + centre * len(members)) / whole
            members = others + members
        groups.append((centre, members))
    moved = list(places)
    for centre, members in groups:
        for number, index in enumerate(members):
            moved[index] = centre + gap * (number - (len(members) - 1) / 2)
    return moved


def chart_json(chart: Chart) -> str:
    """Return a chart as JSON that can stand inside a ``<script>``: no text in it can end the element."""
    data = {
        "title": clean(chart.title),
        "xlabel": clean(chart.xlabel),
        "unit": chart.unit,
        "step": chart.step,
        "whole": chart.whole,
        "xRange": chart.x_range,
        "yRange": chart.y_range,
        "lines": [_line_data(line) for line in chart.lines],
    }
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _line_data(line: Line) -> dict[str, Any]:
    dashes = line.look.get("linestyle")
    data = {
        "label": clean(line.label),
        "color": THEME[line.look["color"]],
        "width": line.look["linewidth"],
        "dash": list(dashes[1]) if dashes else None,
        "marker": line.look.get("marker"),
        "y": _short(line.y),
    }
    if line.x:
        same = list(line.x) == list(line.keys)
        data |= {"keys": _short(line.keys)} | ({} if same else {"x": _short(line.x)})
    return data if line.spread is None else data | {"spread": _short(line.spread)}


def _short(values: Sequence[float]) -> list[float | None]:
    """Return values with six digits, which no screen resolves; what is not finite is None."""
    short = (float(f"{value:.6g}") if math.isfinite(value) else None for value in values)
    return [int(value) if value is not None and value == int(value) else value for value in short]
