"""Scores by label and confusion: what by_label.json says is what the report shows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fednlp.errors import RunError
from fednlp.reports import group_runs, read_run
from fednlp.reports.document import Block, Fold, Grid, Heat
from fednlp.reports.sections.labels import MOST_PAIRS, MOST_ROWS, MOST_SQUARE, label_blocks

NewRun = Callable[..., Path]


def _by_label(folder: Path, count: int = 2, **more: Any) -> Path:
    data: dict[str, Any] = {"labels": [f"l{i}" for i in range(count)], "support": [10] * count}
    data |= {key: [0.5 + i / 2 / count for i in range(count)] for key in ("precision", "recall", "f1")}
    data["confusion"] = [[8 if i == j else i for j in range(count)] for i in range(count)]
    (folder / "by_label.json").write_text(json.dumps(data | more), encoding="utf-8")
    return folder


def _blocks(*folders: Path) -> list[Block]:
    return list(label_blocks(group_runs(map(read_run, folders))))


def test_one_run_has_its_scores_and_its_square(new_run: NewRun) -> None:
    table, heat = _blocks(_by_label(new_run()))
    assert isinstance(table, Grid)
    assert table.heads == ["Label", "Precision", "Recall", "F1", "Support"]
    assert table.rows == [["l0", "50.0", "50.0", "50.0", "10"], ["l1", "75.0", "75.0", "75.0", "10"]]
    assert isinstance(heat, Heat)
    assert heat.counts == [[8, 0], [1, 8]]


def test_seeds_are_averaged_and_their_squares_summed(new_run: NewRun) -> None:
    table, heat = _blocks(*(_by_label(new_run(f"r{s}", seed=s), f1=[s, 1.0]) for s in range(2)))
    assert isinstance(table, Grid)
    assert [row[3] for row in table.rows] == ["50.0 ± 70.7", "100.0 ± 0.0"]
    assert isinstance(heat, Heat)
    assert heat.counts == [[16, 0], [2, 16]]


def test_methods_have_a_column_each_and_the_best_is_marked(new_run: NewRun) -> None:
    runs = [
        _by_label(new_run(name, algorithm=name), f1=f1)
        for name, f1 in (("fedavg", [0.9, 0.4]), ("fedopt", [0.2, 0.4]), ("local", [1.0, 1.0]))
    ]
    table, *folds = _blocks(*runs, new_run("fedprox", algorithm="fedprox"))
    assert isinstance(table, Grid)
    assert table.heads == ["Label", "Support", "FedAvg", "FedOpt", "Local only"]
    assert table.best == {(0, 2)}
    assert all(isinstance(fold, Fold) for fold in folds)
    assert len(folds) == 3


def test_many_labels_are_the_hardest_and_the_most_confused(new_run: NewRun) -> None:
    count = max(MOST_SQUARE, MOST_ROWS) + 1
    table, pairs = _blocks(_by_label(new_run(), count))
    assert isinstance(table, Grid)
    assert [row[0] for row in table.rows] == [f"l{i}" for i in range(MOST_ROWS)]
    assert isinstance(pairs, Grid)
    assert len(pairs.rows) == MOST_PAIRS
    last = count - 1
    assert pairs.rows[0][:3] == [f"l{last}", "l0", str(last)]
    assert pairs.rows[0][3] == f"{100 * last / (last * last + 8):.1f}"


def test_without_a_square_there_is_the_table_alone_and_without_the_file_nothing(new_run: NewRun) -> None:
    assert len(_blocks(_by_label(new_run("a"), confusion=None))) == 1
    assert _blocks(new_run("b", seed=1)) == []


@pytest.mark.parametrize(
    "damage",
    [
        {"labels": 3},
        {"f1": [1.0]},
        {"support": [1]},
        {"confusion": [[1]]},
        {"precision": ["a", "b"]},
        {"labels": []},
    ],
)
def test_a_damaged_file_is_named(new_run: NewRun, damage: dict[str, Any]) -> None:
    with pytest.raises(RunError, match=r"by_label\.json is damaged"):
        _blocks(_by_label(new_run(), **damage))
