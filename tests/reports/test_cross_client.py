"""Every model on every client's test: the numbers of the file, and means over tests, models and seeds."""

import csv
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fednlp.errors import RunError
from fednlp.reports import write_report
from fednlp.reports.groups import group_runs
from fednlp.reports.read import read_run
from fednlp.reports.sections.cross_client import (
    cross_client_blocks,
    cross_client_tables,
    mean_of,
    read_cross_client,
)

NewRun = Callable[..., Path]
Rows = list[tuple[str, list[float | None]]]

# Passban et al. 2022, Table 4, the server and two clients on the first three tests; averages by hand.
PAPER: Rows = [
    ("server", [33.97, 19.17, 30.8]),
    ("WMT", [32.07, 18.28, 29.55]),
    ("OS", [19.05, 23.39, 27.85]),
]


def _write(
    folder: Path, rows: Rows, tests: tuple[str, ...] = ("WMT", "OS", "TED"), metric: str = "bleu"
) -> Path:
    data = {
        "metric": metric,
        "tests": tests,
        "rows": [{"model": model, "scores": scores} for model, scores in rows],
    }
    (folder / "cross_client_evaluation.json").write_text(json.dumps(data))
    return folder


def _groups(*folders: Path) -> dict[str, Any]:
    return group_runs([read_run(folder) for folder in folders])


def test_one_run_has_a_row_a_model_with_its_mean_over_the_tests(new_run: NewRun) -> None:
    tables = cross_client_tables(_groups(_write(new_run(), PAPER)))
    assert list(tables) == ["cross-client-evaluation"]
    table = tables["cross-client-evaluation"]
    assert [column.heading for column in table.columns] == ["WMT", "OS", "TED", "Mean"]
    assert [row.label for row in table.rows] == ["Server", "WMT", "OS"]
    for row, (_, scores) in zip(table.rows, PAPER, strict=True):
        known = [score for score in scores if score is not None]
        values = [stat.values for stat in row.cells.values() if stat]
        assert values == [*((score,) for score in known), (statistics.fmean(known),)]


def test_seeds_are_mean_and_spread(new_run: NewRun) -> None:
    other: Rows = [(model, [score and score + 1 for score in scores]) for model, scores in PAPER]
    groups = _groups(*(_write(new_run(f"s{s}", seed=s), rows) for s, rows in enumerate((PAPER, other))))
    cell = cross_client_tables(groups)["cross-client-evaluation"].rows[0].cells["test_OS"]
    assert cell is not None
    assert cell.values == (19.17, 20.17)


def test_methods_have_the_servers_row_or_the_mean_of_their_clients(new_run: NewRun) -> None:
    own: Rows = [("WMT", [30.0, 10.0, None]), ("OS", [20.0, None, None])]
    common = _write(new_run("a", algorithm="fedavg"), PAPER)
    split = _write(new_run("b", config={"variant": "split"}), own)
    none = new_run("c", algorithm="fedprox")
    tables = cross_client_tables(_groups(common, split, none))
    short = tables["cross-client-evaluation-methods"]
    shown = {row.label: {k: c and c.mean for k, c in row.cells.items()} for row in short.rows}
    assert shown == {
        "FedAvg": {"test_WMT": 33.97, "test_OS": 19.17, "test_TED": 30.8, "mean": pytest.approx(83.94 / 3)},
        "split": {"test_WMT": 25.0, "test_OS": 10.0, "test_TED": None, "mean": 17.5},
    }
    assert short.notes == ("split: no common model; the mean of the clients' models",)
    labels = [row.label for row in tables["cross-client-evaluation"].rows]
    assert labels == [
        *("FedAvg, server", "FedAvg, WMT", "FedAvg, OS"),
        *("split, WMT", "split, OS", "split, mean of the clients' models"),
    ]


def test_runs_with_other_clients_are_not_averaged_but_said_to_be_left_out(new_run: NewRun) -> None:
    one = _write(new_run("one"), PAPER)
    two = _write(new_run("two", seed=1), [("server", [1.0])], ("other",))
    table = cross_client_tables(_groups(one, two))["cross-client-evaluation"]
    assert {row.seeds for row in table.rows} == {1}
    assert table.notes == ("FedOpt: 1 left out, with other clients",)


def test_clients_of_one_name_keep_their_columns(new_run: NewRun) -> None:
    table = cross_client_tables(
        _groups(_write(new_run(), [("server", [0.1, 0.2, 0.3])], ("x", "x", "mean")))
    )["cross-client-evaluation"]
    assert [cell and cell.mean for cell in table.rows[0].cells.values()] == [
        0.1,
        0.2,
        0.3,
        mean_of([0.1, 0.2, 0.3]),
    ]


@pytest.mark.whole
def test_the_report_shows_it_and_writes_csv_unrounded(new_run: NewRun, tmp_path: Path) -> None:
    folder = _write(new_run(), [("server", [0.123456, None])], ("a", "b"), "accuracy")
    paths = write_report([folder], tmp_path / "out")
    (page,) = (path for path in paths if path.name == "report.md")
    assert "| Server | 12.3 | – | 12.3 | 1 |" in page.read_text()
    with (tmp_path / "out" / "cross-client-evaluation.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["model"], row["test_a_mean"], row["test_b_mean"], row["mean_mean"]) == (
        "Server",
        "0.123456",
        "",
        "0.123456",
    )


def test_of_many_clients_a_page_shows_the_means_alone(new_run: NewRun) -> None:
    rows: Rows = [(str(i), [0.5] * 80) for i in range(80)]
    groups = _groups(_write(new_run(), rows, tuple(map(str, range(80))), "accuracy"))
    (block,) = cross_client_blocks(groups)
    assert getattr(block, "heads", None) == ["Model", "Mean", "Seeds"]
    assert len(getattr(block, "rows", [])) == 60
    assert len(cross_client_tables(groups)["cross-client-evaluation"].rows) == 81


def test_a_run_without_a_matrix_has_none(new_run: NewRun) -> None:
    assert cross_client_tables(_groups(new_run())) == {}
    assert list(cross_client_blocks(_groups(read_run_folder := new_run("other")))) == []
    assert read_cross_client(read_run(read_run_folder)) is None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"metric": "bleu", "tests": ["a"]}',
        '{"metric": "bleu", "tests": ["a"], "rows": [{"model": "m", "scores": [1, 2]}]}',
        '{"metric": "bleu", "tests": ["a"], "rows": [{"model": "m", "scores": ["1"]}]}',
        '{"metric": "bleu", "tests": ["a"], "rows": [{"model": "m", "scores": 3}]}',
    ],
)
def test_a_damaged_matrix_is_named(new_run: NewRun, text: str) -> None:
    folder = new_run()
    (folder / "cross_client_evaluation.json").write_text(text)
    with pytest.raises(RunError, match=r"cross_client_evaluation\.json is damaged"):
        cross_client_tables(_groups(folder))
