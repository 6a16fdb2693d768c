"""The pictures of a page: learning curves, and pictures of what lies in the folders of runs and partitions."""

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fednlp.partition.divergence import divergence_matrix
from fednlp.partition.plots import density
from fednlp.reports.charts import draw
from fednlp.reports.document import Picture
from fednlp.reports.sections.communication import drawn_norms, last_update_norms, read_shared_tensors
from fednlp.reports.style import SERIES, drawing, legend, new_axes
from fednlp.reproduction.curves import charts_of
from fednlp.reproduction.jobs import Work
from fednlp.reproduction.manifest import Entry, Paper, PictureName
from fednlp.reproduction.measures import finished_runs
from fednlp.reproduction.outcomes import Outcomes, Partitioning
from fednlp.reproduction.results import FoundCurve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DENSITIES: Mapping[PictureName, tuple[str, str]] = {
    "divergence_density": ("Density of divergences between clients", "Jensen-Shannon divergence"),
    "size_density": ("Density of sizes", "Training examples of a client"),
}
_MAPS: Mapping[PictureName, tuple[str, str, str]] = {
    "divergence_matrix": ("Jensen-Shannon divergence between clients", "Client", "Client"),
    "label_heatmap": ("Share of each label in a client", "Client", "Label"),
}
_PANEL = (3.4, 2.9)
_FEW_LABELS, _LONGEST = 8, 16


def draw_pictures(work: Work, outcomes: Outcomes) -> Iterator[Picture]:
    """Yield the pictures of an entry but its learning curves: histograms, and all partitions side by side."""
    if "update_norms" in work.entry.pictures:
        yield from _norms(work, outcomes)
    found = {
        row: outcomes.partitions[job.name]
        for row, jobs in work.jobs.items()
        for job in jobs[:1]
        if job.name in outcomes.partitions
    }
    for wanted in work.entry.pictures if found else []:
        densities = wanted in _DENSITIES
        title = (_DENSITIES[wanted] if densities else _MAPS[wanted])[0]
        figure = _densities(wanted, found) if densities else _maps(wanted, found)
        caption = f"{work.entry.title}, here: {title}"
        yield Picture(f"{work.paper.name}-{work.entry.id}-{wanted}", caption, figure)


def draw_curves(paper: Paper, entry: Entry, curves: Mapping[str, FoundCurve]) -> Iterator[Picture]:
    """Yield the pictures of a table's learning curves, of which the points are known."""
    for picture, chart in charts_of(paper, entry, curves):
        yield Picture(picture.name, picture.caption, draw(chart), chart)


def _norms(work: Work, outcomes: Outcomes) -> Iterator[Picture]:
    """Yield histograms of how far tensors moved, of the first method whose runs measured it."""
    runs = (group[0] for group in finished_runs(work, outcomes).values() if last_update_norms(group[0]))
    for run in islice(runs, 1):
        figure, caption = drawn_norms(run, read_shared_tensors(run))
        if figure is not None:
            name = f"{work.paper.name}-{work.entry.id}-update-norms"
            yield Picture(name, f"{work.entry.title}, here: {caption}", figure)


def _maps(wanted: PictureName, found: Mapping[str, Partitioning]) -> "Figure":
    """Draw a matrix or map of each partition, two side by side, from 0 (white) to 1 (dark)."""
    from matplotlib.figure import Figure

    _, xlabel, ylabel = _MAPS[wanted]
    across, down = min(len(found), 2), math.ceil(len(found) / 2)
    with drawing():
        figure = Figure(figsize=(max(across * _PANEL[0], 4.8), down * _PANEL[1]), layout="constrained")
        panels = figure.subplots(down, across, squeeze=False).flat
        for panel, (row, one) in zip(panels, found.items(), strict=False):
            panel.set_title(row, loc="left")
            values = _mapped(wanted, one)
            shown = panel.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
            panel.locator_params(integer=True)
            panel.set(xlabel=xlabel, ylabel=ylabel)
            if wanted == "label_heatmap" and len(values) <= _FEW_LABELS:
                panel.set_yticks(range(len(values)), [name[:_LONGEST] for name in one.view.label_names])
        for panel in panels:
            panel.set_visible(False)
        figure.colorbar(shown, ax=figure.axes)
    return figure


def _mapped(wanted: PictureName, found: Partitioning) -> NDArray[np.float64]:
    counts = found.view.counts
    if wanted == "label_heatmap":
        return np.asarray((counts / counts.sum(axis=1, keepdims=True)).T)
    return np.asarray(divergence_matrix(counts))


def _densities(wanted: PictureName, found: Mapping[str, Partitioning]) -> "Figure":
    title, xlabel = _DENSITIES[wanted]
    values = {row: _measured(wanted, one) for row, one in found.items()}
    high = 1.0 if wanted == "divergence_density" else 1.15 * max(float(v.max()) for v in values.values()) + 2
    with drawing():
        figure, axes = new_axes(title, xlabel, (7.2, 3.6))
        for number, (row, measured) in enumerate(values.items()):
            style = "-" if number < len(SERIES) else "--"
            axes.plot(*density(measured, 0.0, high), style, color=SERIES[number % len(SERIES)], label=row)
        axes.set_xlim(0, high)
        axes.set_ylim(bottom=0)
        legend(figure, axes)
    return figure


def _measured(wanted: PictureName, found: Partitioning) -> NDArray[np.float64]:
    if wanted == "size_density":
        return found.sizes.astype(np.float64)
    matrix = divergence_matrix(found.view.counts)
    return np.asarray(matrix[np.triu_indices(len(matrix), 1)], dtype=np.float64)
