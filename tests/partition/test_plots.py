"""The four pictures and their tables."""

import csv
import io
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gaussian_kde

from fednlp.errors import PartitionError
from fednlp.partition import (
    divergence_matrix,
    figures,
    from_owners,
    image,
    overview,
    overview_of_counts,
    save_plots,
    tables,
)
from fednlp.partition.plots import density

pytestmark = pytest.mark.whole

NAMES = {"divergence_matrix", "label_heatmap", "divergence_density", "size_density"}
COUNTS = np.array([[5, 0, 1], [1, 4, 0], [2, 2, 2], [0, 0, 9]])


def rows(text):
    return list(csv.reader(io.StringIO(text)))


def test_a_partition_and_its_counts_show_the_same():
    labels = np.repeat(np.tile([0, 1, 2], 4), COUNTS.ravel())
    partition = from_owners(np.repeat(np.arange(4), COUNTS.sum(axis=1)), np.array([0]), 4)
    assert tables(overview(partition, labels, ["a", "b", "c"])) == tables(
        overview_of_counts(COUNTS, ["a", "b", "c"])
    )


def test_the_tables_hold_what_the_pictures_show():
    found = tables(overview_of_counts(COUNTS, ["a", "b,c", "d"], ["w", "x", "y", "z"]))
    assert set(found) == NAMES
    heat = rows(found["label_heatmap"])
    assert heat[0] == ["client", "a", "b,c", "d"]
    assert heat[1] == ["w", "5", "0", "1"]
    matrix = rows(found["divergence_matrix"])
    assert matrix[0] == ["client", "w", "x", "y", "z"]
    np.testing.assert_allclose(
        [[float(v) for v in row[1:]] for row in matrix[1:]], divergence_matrix(COUNTS), atol=1e-6
    )
    assert {row[0] for row in rows(found["divergence_density"])[1:]} == {"between clients", "from the prior"}
    sizes = np.array(rows(found["size_density"])[1:], dtype=float)
    assert np.trapezoid(sizes[:, 1], sizes[:, 0]) == pytest.approx(1, abs=0.12)


def test_the_pictures_are_files_of_their_kind(tmp_path):
    view = overview_of_counts(COUNTS, ["$x_1", "日本", "c" * 80])
    for name, figure in figures(view).items():
        png, svg = image(figure), image(figures(view)[name], "svg")
        assert png.startswith(b"\x89PNG"), name
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert image(figures(view)[name], "svg") == svg
    paths = save_plots(tmp_path / "new" / "plots", view)
    assert {path.name for path in paths} == {f"{n}.{e}" for n in NAMES for e in ("csv", "png")}
    assert all(path.stat().st_size > 0 for path in paths)


def test_drawing_leaves_no_figure_behind():
    from matplotlib import _pylab_helpers

    figures(overview_of_counts(COUNTS, ["a", "b", "c"]))
    assert not _pylab_helpers.Gcf.figs


def test_many_clients_are_shown_by_a_sample():
    counts = np.random.default_rng(0).integers(1, 9, (5000, 4))
    view = overview_of_counts(counts, list("abcd"), limit=50)
    assert view.counts.shape == (50, 4)
    assert np.array_equal(view.counts, counts[view.clients])
    assert len(view.sizes) == len(view.divergences) == 5000
    picture = figures(view)["label_heatmap"]
    assert picture.axes[0].get_xlabel() == "Client (50 of 5,000)"
    shown = {tick.get_text() for tick in picture.axes[0].get_xticklabels()}
    assert shown <= set(view.names)
    assert str(view.clients[-1]) in shown


@pytest.mark.parametrize("counts", [[[3]], [[1, 1]], [[1000, 1000], [1000, 1000]]])
def test_degenerate_partitions_are_drawn(counts):
    view = overview_of_counts(counts, ["a", "b"][: len(counts[0])])
    assert all(len(image(figure)) > 0 for figure in figures(view).values())
    heights = np.array(rows(tables(view)["size_density"])[1:], dtype=float)[:, 1]
    assert heights.max() > 0


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([[1, 2]], "clients x 3 labels"),
        ([[0, 0, 0]], "hold an example"),
        ([[1, -1, 2]], "0 or more"),
        ([], "labels"),
    ],
)
def test_counts_that_do_not_fit_are_refused(counts, said):
    with pytest.raises(PartitionError, match=said):
        overview_of_counts(counts, ["a", "b", "c"])


@settings(deadline=None)
@given(st.lists(st.floats(0.2, 0.8), min_size=5, max_size=60, unique=True).filter(lambda v: np.ptp(v) > 0.2))
def test_the_density_agrees_with_scipy(values):
    grid, heights = density(values, 0.0, 1.0)
    quartiles = np.quantile(values, [0.25, 0.75])
    width = 0.9 * min(np.std(values), (quartiles[1] - quartiles[0]) / 1.349) * len(values) ** -0.2
    if width < 0.02:
        return
    theirs = gaussian_kde(values, bw_method=width / np.std(values, ddof=1))(grid)
    np.testing.assert_allclose(heights, theirs, atol=0.02 * theirs.max())
