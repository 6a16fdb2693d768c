"""The figures of a page: learning curves of runs, and pictures of partitions, from what lies in their folders."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fednlp.checked_json import damaged
from fednlp.formatting.safe_text import text_of_csv
from fednlp.partition.divergence import divergence_matrix
from fednlp.partition.plot_data import Overview, overview_of_counts
from fednlp.partition.plots import density, figures
from fednlp.reports.charts import draw
from fednlp.reports.document import Picture
from fednlp.reports.plots import learning_curves
from fednlp.reports.read import Run
from fednlp.reports.style import SERIES, drawing, legend, new_axes
from fednlp.reproduction.jobs import Job, Work
from fednlp.reproduction.manifest import PictureName

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DENSITIES: Mapping[PictureName, tuple[str, str]] = {
    "divergence_density": ("Density of divergences between clients", "Jensen-Shannon divergence"),
    "size_density": ("Density of sizes", "Training examples of a client"),
}
_TITLES: Mapping[PictureName, str] = {
    "divergence_matrix": "Jensen-Shannon divergence between clients",
    "label_heatmap": "share of each label in a client",
}


def curve_pictures(work: Work, runs: Mapping[str, Sequence[Run]]) -> Iterator[Picture]:
    """Yield the learning curves of an entry, one for each metric, if it has some."""
    wanted = work.entry.curves
    if wanted is None:
        return
    by_metric: dict[str, dict[str, Sequence[Run]]] = {}
    for label, group in runs.items():
        by_metric.setdefault(group[0].metric, {})[label] = group
    for number, (metric, groups) in enumerate(by_metric.items()):
        chart = learning_curves(groups, wanted if wanted == "train_loss" else f"{wanted}.{metric}")
        if chart is not None:
            name = f"{work.paper.name}-{work.entry.id}-curves-{number}"
            yield Picture(name, f"{work.entry.title}, here: {chart.title} by round", draw(chart), chart)


def partition_pictures(work: Work) -> Iterator[Picture]:
    """Yield the pictures of an entry's partitions: matrices and maps one each, densities in one figure."""
    views = {
        row: _view(job)
        for row, jobs in work.jobs.items()
        for job in jobs
        if job.done and work.entry.partitions
    }
    for wanted in work.entry.pictures if views else []:
        stem = f"{work.paper.name}-{work.entry.id}-{wanted}"
        if wanted in _DENSITIES:
            yield Picture(
                stem, f"{work.entry.title}, here: {_DENSITIES[wanted][0]}", _densities(wanted, views)
            )
            continue
        for number, (row, view) in enumerate(views.items()):
            caption = f"{work.entry.title}, here: {row}, {_TITLES[wanted]}"
            yield Picture(f"{stem}-{number}", caption, figures(view)[wanted])


def _view(job: Job) -> Overview:
    """Return what a partition's pictures show, from the table of its label map."""
    path = job.folder / "label_heatmap.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            (_, *labels), *rows = csv.reader(file)
        counts = np.array([[int(cell) for cell in row[1:]] for row in rows], dtype=np.int64)
    except (OSError, ValueError, csv.Error) as error:
        raise damaged(path, error, "remove the folder and run the command again") from error
    names = [text_of_csv(row[0]) for row in rows]
    return overview_of_counts(counts, [text_of_csv(label) for label in labels], names)


def _densities(wanted: PictureName, views: Mapping[str, Overview]) -> "Figure":
    title, xlabel = _DENSITIES[wanted]
    values = {row: _measured(wanted, view) for row, view in views.items()}
    high = 1.0 if wanted == "divergence_density" else 1.15 * max(float(v.max()) for v in values.values()) + 2
    with drawing():
        figure, axes = new_axes(title, xlabel, (7.2, 3.6))
        for number, (row, found) in enumerate(values.items()):
            style = "-" if number < len(SERIES) else "--"
            axes.plot(*density(found, 0.0, high), style, color=SERIES[number % len(SERIES)], label=row)
        axes.set_xlim(0, high)
        axes.set_ylim(bottom=0)
        legend(figure, axes)
    return figure


def _measured(wanted: PictureName, view: Overview) -> NDArray[np.float64]:
    if wanted == "size_density":
        return view.sizes.astype(np.float64)
    matrix = divergence_matrix(view.counts)
    return np.asarray(matrix[np.triu_indices(len(matrix), 1)], dtype=np.float64)
