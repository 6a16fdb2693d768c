"""Figures show the numbers of the runs, one colour an algorithm, whatever the names."""

import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednlp.reports import plots, style
from fednlp.reports.charts import Chart, draw
from fednlp.reports.read import Run, curve, read_run

NewRun = Callable[..., Path]
ALL = ("fedavg", "fedopt", "centralised", "local")


@pytest.fixture
def groups(new_run: NewRun) -> dict[str, list[Run]]:
    return {
        name: [read_run(new_run(f"{name}{s}", algorithm=name, seed=s, rounds=6)) for s in range(3)]
        for name in ALL
    }


def _lines(chart: Chart | None) -> dict[str, Any]:
    assert chart is not None
    (axes,) = draw(chart).axes
    return {line.get_label(): line for line in axes.get_lines()}


def test_the_band_is_mean_and_sample_deviation_over_the_rounds_all_seeds_measured(new_run: NewRun) -> None:
    runs = [read_run(new_run(f"r{s}", seed=s, rounds=rounds)) for s, rounds in enumerate((4, 6, 5))]
    found = plots.band(runs, "global.accuracy")
    assert found is not None
    assert found.rounds.tolist() == [1, 2, 3, 4]
    for i in range(4):
        values = [float(curve(run, "global.accuracy")[1][i]) for run in runs]
        assert found.mean[i] == pytest.approx(statistics.mean(values))
        assert found.std is not None
        assert found.std[i] == pytest.approx(statistics.stdev(values))
    alone = plots.band(runs[:1], "global.accuracy")
    assert alone is not None
    assert alone.std is None
    assert plots.band(runs, "global.rouge") is None
    assert plots.band([], "global.accuracy") is None


def test_learning_curves_draw_the_means_in_percent(groups: dict[str, list[Run]]) -> None:
    lines = _lines(plots.learning_curves(groups, "global.accuracy"))
    for name in ("fedavg", "fedopt", "centralised"):
        found = plots.band(groups[name], "global.accuracy")
        assert found is not None
        np.testing.assert_allclose(lines[name].get_xdata(), found.rounds.astype(float))
        np.testing.assert_allclose(lines[name].get_ydata(), 100 * found.mean)
    # Local training is a level line across the axes, at its end.
    last = plots.band(groups["local"], "global.accuracy")
    assert last is not None
    assert lines["local"].get_ydata() == pytest.approx([100 * last.mean[-1]] * 2)
    assert list(lines["local"].get_xdata()) == [0, 1]


def test_each_algorithm_has_one_colour_in_every_figure_and_baselines_are_dashed(
    groups: dict[str, list[Run]],
) -> None:
    drawn = [
        plots.learning_curves(groups, "global.accuracy"),
        plots.learning_curves(groups, "personal.accuracy"),
        plots.against_bytes(groups, "global.accuracy"),
        plots.against_seconds(groups, "global.accuracy"),
        plots.client_curves(groups, "accuracy"),
    ]
    for chart in drawn:
        lines = _lines(chart)
        colours = {name: line.get_color() for name, line in lines.items()}
        assert colours["fedavg"] == style.SERIES[0]
        assert colours["fedopt"] == style.SERIES[1]
        dashed = {name for name, line in lines.items() if line.is_dashed()}
        assert dashed == {"centralised", "local"}


def test_the_training_loss_has_no_curve_of_local_training(groups: dict[str, list[Run]]) -> None:
    assert set(_lines(plots.learning_curves(groups, "train_loss"))) == {"fedavg", "fedopt", "centralised"}


def test_a_baseline_that_sends_nothing_is_a_level_line_against_bytes(groups: dict[str, list[Run]]) -> None:
    lines = _lines(plots.against_bytes(groups, "global.accuracy"))
    assert list(lines["centralised"].get_xdata()) == [0, 1]
    assert len(lines["fedavg"].get_xdata()) == 6


def test_a_curve_against_bytes_ends_at_what_the_run_sent(groups: dict[str, list[Run]]) -> None:
    chart = plots.against_bytes({"fedavg": groups["fedavg"]}, "global.accuracy")
    assert chart is not None
    (line,) = _lines(chart).values()
    run = groups["fedavg"][0]
    assert chart.xlabel.endswith("(GB)")
    assert line.get_xdata()[-1] == pytest.approx((run.total("bytes_up") + run.total("bytes_down")) / 1e9)


def test_a_curve_against_seconds_uses_the_mean_time_of_the_seeds(groups: dict[str, list[Run]]) -> None:
    chart = plots.against_seconds({"fedopt": groups["fedopt"]}, "global.accuracy")
    assert chart is not None
    (line,) = _lines(chart).values()
    assert line.get_xdata()[-1] == pytest.approx(
        statistics.mean(r.total("seconds") for r in groups["fedopt"])
    )


def test_the_histogram_counts_every_client_with_test_examples(groups: dict[str, list[Run]]) -> None:
    figure = plots.client_histogram(groups["fedopt"], "accuracy")
    assert figure is not None
    patches: Any = figure.axes[0].patches
    heights = [patch.get_height() for patch in patches]
    assert sum(heights) == sum(int(np.isfinite(run.clients.scores).sum()) for run in groups["fedopt"])


def test_sorted_clients_are_the_quantiles(groups: dict[str, list[Run]]) -> None:
    chart = plots.client_curves({"fedopt": groups["fedopt"][:1]}, "accuracy")
    assert chart is not None
    (line,) = _lines(chart).values()
    accuracy = 100 * groups["fedopt"][0].clients.scores
    assert [line.get_ydata()[i] for i in (0, 100, 200)] == pytest.approx(
        [accuracy.min(), np.median(accuracy), accuracy.max()]
    )


def test_nothing_measured_is_no_figure(new_run: NewRun) -> None:
    folder = new_run(rounds=1, finished=False)
    (folder / "rounds.jsonl").write_text("")
    (folder / "clients.csv").unlink()
    runs = {"A": [read_run(folder)]}
    for chart_of in (
        plots.learning_curves,
        plots.against_bytes,
        plots.against_seconds,
        plots.client_curves,
    ):
        assert chart_of(runs, "accuracy") is None
    assert plots.client_histogram(runs["A"], "accuracy") is None
    assert plots.client_histogram([], "accuracy") is None


def test_a_loss_that_is_not_finite_is_drawn_as_far_as_it_is(new_run: NewRun) -> None:
    folder = new_run(rounds=3)
    text = '{"round": 1, "train_loss": 2.0}\n{"round": 2, "train_loss": NaN}\n{"round": 3, "train_loss": Infinity}\n'
    (folder / "rounds.jsonl").write_text(text)
    chart = plots.learning_curves({"A": [read_run(folder)]}, "train_loss")
    assert chart is not None
    assert "<svg" in style.svg(draw(chart), "loss", "Loss")


def test_more_algorithms_than_colours_still_look_different(new_run: NewRun) -> None:
    run = read_run(new_run())
    looks = style.looks({str(i): [run] for i in range(20)})
    assert len({(look["color"], look["marker"]) for look in looks.values()}) == 20


@given(name=st.text(min_size=1, max_size=30))
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_any_name_is_drawn_as_it_is(name: str) -> None:
    with style.drawing():
        figure, axes = style.new_axes("title", "x")
        axes.plot([0, 1], [0, 1], label=f"line {name}")
        axes.plot([0, 1], [1, 0], label="other")
        style.legend(figure, axes)
    root = ElementTree.fromstring(style.svg(figure, "f", "alt"))
    texts = [element.text for element in root.iter("text")]
    assert any(text and text.startswith("line") for text in texts)


@pytest.mark.parametrize("name", ["$x^2$", "$", r"\$a_b", "a & b <c>", "你好", "_x"])
def test_names_are_never_mathematics(name: str) -> None:
    with style.drawing():
        figure, axes = style.new_axes(name, "x")
        axes.plot([0, 1])
    root = ElementTree.fromstring(style.svg(figure, "f", name))
    assert name in [element.text for element in root.iter("text")]
    assert root.attrib["aria-label"] == name


def test_an_svg_keeps_its_ids_to_itself_and_follows_the_page(groups: dict[str, list[Run]]) -> None:
    chart = plots.learning_curves(groups, "global.accuracy")
    assert chart is not None
    figure = draw(chart)
    one, two = style.svg(figure, "one", "a"), style.svg(figure, "two", "b")
    ids = [set(re.findall(r' id="([^"]*)"', markup)) for markup in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for markup, known in zip((one, two), ids, strict=True):
        used = set(re.findall(r'(?:url\(#|href="#)([^")]*)', markup))
        assert used
        assert used <= known
    assert f"var(--s0, {style.SERIES[0]})" in one
    assert "http" not in one
    assert "<style" not in one
    assert style.svg(figure, "one", "a") == one


def test_png_files_are_of_the_size_asked_for(groups: dict[str, list[Run]]) -> None:
    chart = plots.learning_curves(groups, "global.accuracy")
    assert chart is not None
    data = style.image(draw(chart), dpi=100)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")) == (720, 420)


@pytest.mark.whole
def test_reports_start_light_and_never_touch_the_state_of_pyplot() -> None:
    code = (
        "import sys, fednlp.reports\n"
        "assert not {'matplotlib', 'torch', 'transformers', 'rich', 'pyarrow'} & set(sys.modules), sys.modules\n"
        "from fednlp.reports.style import new_axes, drawing, svg\n"
        "with drawing(): figure, axes = new_axes('t', 'x')\n"
        "svg(figure, 'a', 'b')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
