"""The four pictures of a partition, each also as a table.

divergence_matrix    between clients          (FedNLP benchmark, Fig. 2)
label_heatmap        clients and labels       (Fig. 3)
divergence_density   between clients, and from the prior
size_density         training examples a client (Fig. 8)
"""

import csv
import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fednlp.formatting.figures import new_figure
from fednlp.formatting.safe_text import csv_text
from fednlp.partition.divergence import divergence_matrix
from fednlp.partition.index import FloatArray
from fednlp.partition.plot_data import Overview

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Rows = Iterable[Sequence[object]]
_GRID = 256
_MOST_TICKS = 40


def figures(view: Overview) -> "dict[str, Figure]":
    """Return the four pictures by name, as matplotlib figures that belong to no window."""
    return {name: draw(view) for name, (draw, _) in _PICTURES.items()}


def tables(view: Overview) -> dict[str, str]:
    """Return what the four pictures show by name, as CSV text."""
    return {name: _csv(rows(view)) for name, (_, rows) in _PICTURES.items()}


def image(figure: "Figure", form: str = "png") -> bytes:
    """Return a figure as the bytes of a PNG or SVG file; the same bytes for a partition each time.

    Args:
        figure: One of :func:`figures`, not drawn before.
        form: ``"png"`` or ``"svg"``.
    """
    import matplotlib as mpl

    data = io.BytesIO()
    metadata = {"Date": None} if form == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "fednlp"}), warnings.catch_warnings():
        # a name in a script without a font
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(data, format=form, dpi=150, metadata=metadata)
    return data.getvalue()


def save_plots(folder: str | PathLike[str], view: Overview, form: str = "png") -> list[Path]:
    """Write the four pictures and their tables into a folder; return the paths.

    Raises:
        RunError: The disk is full, or the folder cannot be written.
    """
    from fednlp.disk import write

    target = Path(folder)
    files = {f"{name}.csv": text.encode() for name, text in tables(view).items()}
    files |= {f"{name}.{form}": image(figure, form) for name, figure in figures(view).items()}
    for name, content in files.items():
        write(target / name, content, "choose another folder")
    return [target / name for name in sorted(files)]


def density(values: ArrayLike, low: float, high: float) -> tuple[FloatArray, FloatArray]:
    """Return a grid and the Gaussian kernel density of some values on it (Silverman's bandwidth).

    Args:
        values: At least one number.
        low: Where the grid begins, at most the least value.
        high: Where it ends, at least the greatest value.
    """
    data = np.asarray(values, dtype=np.float64)
    quartiles = np.quantile(data, [0.25, 0.75])
    spread = min(data.std(), (quartiles[1] - quartiles[0]) / 1.349) or data.std()
    grid = np.linspace(low, high, _GRID)
    # Values that are all alike would fall between the points of the grid.
    width = max(0.9 * spread * len(data) ** -0.2, grid[1] - grid[0])
    # Counted into fine bins first: a million clients cost as much as a hundred.
    heights, edges = np.histogram(data, bins=4 * _GRID, range=(low, high))
    middles = (edges[1:] + edges[:-1]) / 2
    kernels = np.exp(-0.5 * ((grid[:, None] - middles) / width) ** 2) / (width * np.sqrt(2 * np.pi))
    return grid, np.asarray(kernels @ heights / len(data))


def _axes(title: str, xlabel: str, ylabel: str, size: tuple[float, float]) -> "tuple[Figure, Axes]":
    figure = new_figure(size)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return figure, axes


def _clients_word(view: Overview) -> str:
    return (
        "Client"
        if len(view.clients) == len(view.sizes)
        else f"Client ({len(view.clients)} of {len(view.sizes):,})"
    )


def _matrix(view: Overview) -> "Figure":
    word = _clients_word(view)
    figure, axes = _axes("Jensen-Shannon divergence between clients", word, word, (5.6, 4.8))
    shown = axes.imshow(divergence_matrix(view.counts), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    _ticks(axes, view.names, "xy")
    figure.colorbar(shown, ax=axes)
    return figure


def _matrix_rows(view: Overview) -> _Rows:
    yield ["client", *map(csv_text, view.names)]
    for name, row in zip(view.names, divergence_matrix(view.counts), strict=True):
        yield [csv_text(name), *(f"{value:.6f}" for value in row)]


def _heatmap(view: Overview) -> "Figure":
    height = min(9.0, max(2.8, 1.4 + 0.2 * len(view.label_names)))
    figure, axes = _axes("Share of each label in a client", _clients_word(view), "Label", (7.2, height))
    shares = view.counts / view.counts.sum(axis=1, keepdims=True)
    shown = axes.imshow(shares.T, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    _ticks(axes, view.names, "x")
    _ticks(axes, view.label_names, "y")
    figure.colorbar(shown, ax=axes)
    return figure


def _heatmap_rows(view: Overview) -> _Rows:
    yield ["client", *map(csv_text, view.label_names)]
    for name, row in zip(view.names, view.counts.tolist(), strict=True):
        yield [csv_text(name), *row]


def _divergence_density(view: Overview) -> "Figure":
    figure, axes = _axes("Density of divergences", "Jensen-Shannon divergence", "Density", (6.4, 3.6))
    for label, values, style in _divergences(view):
        axes.plot(*density(values, 0.0, 1.0), style, label=label)
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure


def _divergences(view: Overview) -> list[tuple[str, FloatArray, str]]:
    """Return the divergences between clients (where there are two), and from the prior."""
    between = divergence_matrix(view.counts)[np.triu_indices(len(view.counts), 1)]
    pairs = [("between clients", between, "-")] if len(between) else []
    return [*pairs, ("from the prior", view.divergences, "--")]


def _divergence_density_rows(view: Overview) -> _Rows:
    yield ["which", "divergence", "density"]
    for label, values, _ in _divergences(view):
        for point, height in zip(*density(values, 0.0, 1.0), strict=True):
            yield [label, f"{point:.6f}", f"{height:.6f}"]


def _size_density(view: Overview) -> "Figure":
    figure, axes = _axes("Density of sizes", "Training examples of a client", "Density", (6.4, 3.6))
    axes.plot(*_sizes(view))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    return figure


def _sizes(view: Overview) -> tuple[FloatArray, FloatArray]:
    return density(view.sizes, 0.0, 1.15 * float(view.sizes.max()) + 2)


def _size_density_rows(view: Overview) -> _Rows:
    yield ["examples", "density"]
    for point, height in zip(*_sizes(view), strict=True):
        yield [f"{point:.3f}", f"{height:.8f}"]


def _ticks(axes: "Axes", names: Sequence[str], sides: str) -> None:
    """Name the rows or columns, as many as there is room for; a name is text, never a formula."""
    places = np.arange(len(names))
    if len(names) > _MOST_TICKS or all(name.isdigit() for name in names):
        places = np.unique(np.linspace(0, len(names) - 1, 6).astype(int))
    short = [name if len(name) <= 24 else f"{name[:23]}…" for name in (names[int(place)] for place in places)]
    upright = len(short) <= 8 and all(len(name) <= 7 for name in short)
    if "x" in sides:
        axes.set_xticks(places, short, rotation=0 if upright else 90, fontsize=8, parse_math=False)
    if "y" in sides:
        axes.set_yticks(places, short, fontsize=8, parse_math=False)


def _csv(rows: _Rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


_PICTURES: "dict[str, tuple[Callable[[Overview], Figure], Callable[[Overview], _Rows]]]" = {
    "divergence_matrix": (_matrix, _matrix_rows),
    "label_heatmap": (_heatmap, _heatmap_rows),
    "divergence_density": (_divergence_density, _divergence_density_rows),
    "size_density": (_size_density, _size_density_rows),
}
