"""The final metric against one setting: found where methods differ in that alone, with the runs' own numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fednlp.reports import write_report
from fednlp.reports.groups import group_runs
from fednlp.reports.read import Run, read_run
from fednlp.reports.sections.sweep import find_sweep, sweep_blocks, sweep_figure

NewRun = Callable[..., Path]


def _split(layer: int) -> dict[str, Any]:
    model = {"name_or_path": "bert-tiny", "max_length": 128, "train": {"critical_layer": layer}}
    return {"variant": f"c{layer}", "model": model}


def _groups(folders: list[Path]) -> dict[str, list[Run]]:
    return group_runs([read_run(folder) for folder in folders])


@pytest.fixture
def split(new_run: NewRun) -> list[Path]:
    return [new_run(f"c{c}-{s}", seed=s, config=_split(c)) for c in (6, 0, 4) for s in range(2)]


def test_critical_layers_are_found_and_drawn_with_the_means_of_the_seeds(
    split: list[Path], new_run: NewRun
) -> None:
    groups = _groups([*split, new_run("l", algorithm="local"), new_run("a", algorithm="fedopt")])
    sweep = find_sweep(groups)
    assert sweep is not None
    assert sweep.key == "model.train.critical_layer"
    assert sweep.values == {"c6": 6, "c0": 0, "c4": 4}
    assert sweep.others == {"Local only": None, "FedOpt": None}
    figure = sweep_figure(groups, sweep)
    assert figure is not None
    axes: Any = figure.axes[0]
    drawn = {box.get_label(): box.lines[0] for box in axes.containers}
    assert set(drawn) == {"Global test", "Personal test"}
    for part, label in (("global", "Global test"), ("personal", "Personal test")):
        expected = [
            100 * np.mean([r.scores(part)["accuracy"] for r in groups[c]]) for c in ("c0", "c4", "c6")
        ]
        assert list(drawn[label].get_xdata()) == [0, 4, 6]
        assert list(drawn[label].get_ydata()) == pytest.approx(expected)
    level = {
        line.get_label(): line.get_ydata()[0]
        for line in axes.get_lines()
        if not line.get_label().startswith("_")
    }
    assert level["Local only, personal test"] == pytest.approx(
        100 * groups["Local only"][0].scores("personal")["accuracy"]
    )


@pytest.mark.parametrize(
    ("one", "two", "key"),
    [
        ({"num_rounds": 5}, {"num_rounds": 50}, "num_rounds"),
        ({"exchange": {"up": ["topk:0.01"]}}, {"exchange": {"up": ["topk:0.1"]}}, "exchange.up topk"),
        (
            {"exchange": {"up": ["topk:0.1", "int8:64"]}},
            {"exchange": {"up": ["topk:0.1", "int8:32"]}},
            "exchange.up 2. int8",
        ),
        ({"pull": {"rule": "low", "share": 0.3}}, {"pull": {"rule": "low", "share": 0.7}}, "pull.share"),
        ({"pull": {"rule": "low", "share": 0.3}}, {"pull": {"rule": "low"}}, "pull.share"),
    ],
)
def test_one_numeric_setting_makes_a_figure(new_run: NewRun, one: Any, two: Any, key: str) -> None:
    sweep = find_sweep(_groups([new_run("one", config=one), new_run("two", config=two)]))
    assert sweep is not None
    assert sweep.key == key


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({}, {"exchange": {"up": ["int8"]}}),
        ({"num_rounds": 5, "clients_per_round": 2}, {"num_rounds": 6, "clients_per_round": 3}),
        ({}, {"algorithm": {"name": "fedavg", "mu": 0.0}}),
        ({}, {"exchange": {"error_feedback": True}}),
        ({}, {"seed": 1}),
    ],
)
def test_words_several_settings_and_seeds_make_none(new_run: NewRun, one: Any, two: Any) -> None:
    assert find_sweep(_groups([new_run("one", config=one), new_run("two", config=two)])) is None


def test_two_families_along_one_setting_make_none(new_run: NewRun) -> None:
    folders = [
        new_run(f"{a}{n}", algorithm=a, config={"num_rounds": n})
        for a in ("fedavg", "fedopt")
        for n in (5, 50)
    ]
    assert find_sweep(_groups(folders)) is None


def test_a_method_with_a_value_of_its_own_is_a_point(new_run: NewRun) -> None:
    folders = [new_run(f"{n}", algorithm="fedavg", config={"num_rounds": n}) for n in (5, 10, 500)]
    groups = _groups([*folders, new_run("prox", algorithm="fedprox", config={"num_rounds": 10})])
    sweep = find_sweep(groups)
    assert sweep is not None
    assert sweep.others == {"FedProx": 10}
    figure = sweep_figure(groups, sweep)
    assert figure is not None
    axes: Any = figure.axes[0]
    assert axes.get_xscale() == "log"
    (point,) = (line for line in axes.get_lines() if line.get_label() == "FedProx, personal test")
    assert point.get_xdata()[0] == 10


@pytest.mark.whole
def test_the_report_has_the_figure(split: list[Path], new_run: NewRun, tmp_path: Path) -> None:
    assert "sweep.png" in {path.name for path in write_report(split[::2], tmp_path / "out")}
    assert list(sweep_blocks(_groups([new_run("x")]))) == []
