"""What a quality cost: totals that agree to the byte, and the first evaluation that reached a target."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fednlp.costs import COUNTED, totals
from fednlp.errors import RunError
from fednlp.reports import compare_table, group_runs, plots, read_run, write_report
from fednlp.reports.document import Grid, Picture
from fednlp.reports.read import Run, running_total
from fednlp.reports.sections.costs import Reached, cost_blocks, first_reached, targets
from fednlp.reports.style import SERIES

NewRun = Callable[..., Path]
GB = 1_000_000_000


def _lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def _written(folder: Path, *lines: Mapping[str, Any]) -> Run:
    """Give a run these lines in place of its own, and read it."""
    text = "".join(json.dumps({"round": number, **line}) + "\n" for number, line in enumerate(lines, start=1))
    (folder / "rounds.jsonl").write_text(text)
    (folder / "summary.json").unlink(missing_ok=True)
    return read_run(folder)


def _scored(score: float, up: int = 1, down: int = 1, **more: Any) -> dict[str, Any]:
    scores = {"global": {"accuracy": score}, "personal": {"accuracy": score}}
    return {"bytes_up": up, "bytes_down": down, "evaluation": scores, **more}


def _grids(groups: Mapping[str, list[Run]], target: float | None = None) -> list[Grid]:
    return [block for block in cost_blocks(groups, target) if isinstance(block, Grid)]


def _column(table: Grid, head: str) -> list[str]:
    return [row[list(table.heads).index(head)] for row in table.rows]


def test_summary_lines_ledger_and_report_agree_to_the_byte(new_run: NewRun) -> None:
    folder = new_run(counted=True, rounds=7)
    run, lines = read_run(folder), _lines_of(folder)
    summary = json.loads((folder / "summary.json").read_text())
    for key in COUNTED:
        whole = sum(line[key] for line in lines)
        assert whole % 1000 or key.startswith("tensors")
        assert summary[key] == totals(lines)[key] == whole == run.total(key)
        assert running_total(run, key)[7] == whole
    both = sum(line["bytes_up"] + line["bytes_down"] for line in lines)
    assert running_total(run, "bytes_up", "bytes_down")[7] == both
    sent = compare_table({"A": [run]}).rows[0].cells["bytes"]
    assert sent is not None
    assert sent.values == (both,)
    assert run.total("simulated_seconds") == pytest.approx(sum(line["simulated_seconds"] for line in lines))
    (folder / "summary.json").unlink()
    under_way = read_run(folder)
    assert all(under_way.total(key) == run.total(key) for key in COUNTED)
    assert under_way.total("simulated_seconds") == pytest.approx(run.total("simulated_seconds"))
    table = _grids({"A": [run]})[0]
    assert _column(table, "Parameters up") == [f"{summary['parameters_up']:,}"]
    assert _column(table, "Tensors up") == [f"{7 * 10 * 19:,}"]
    assert _column(table, "Tensors down") == [f"{7 * 10 * 38:,}"]


def test_what_no_run_counted_has_no_column_and_an_older_run_beside_a_new_one_a_dash(new_run: NewRun) -> None:
    old, new = read_run(new_run("old")), read_run(new_run("new", counted=True))
    assert {"Tensors up", "Simulated time", "Parameters up"}.isdisjoint(_grids({"A": [old]})[0].heads)
    assert "simulated_seconds" not in [column.key for column in compare_table({"A": [old]}).columns]
    table = _grids({"A": [old], "B": [new]})[0]
    assert _column(table, "Tensors up")[0] == _column(table, "Simulated time")[0] == "–"
    assert _column(table, "Tensors up")[1] == "1,140"
    compared = compare_table({"A": [old], "B": [new]})
    assert compared.rows[0].cells["simulated_seconds"] is None
    assert compared.rows[1].cells["simulated_seconds"] is not None


def test_memory_has_a_column_where_a_run_knows_it(new_run: NewRun) -> None:
    old = read_run(new_run("old"))
    new = read_run(new_run("new", summary={"client_memory_bytes": 412_000_000}))
    begun = read_run(new_run("begun", finished=False))
    table = _grids({"A": [old], "B": [new], "C": [begun]})[0]
    assert _column(table, "Memory") == ["–", "412 MB", "–"]
    assert any("predicted" in note for note in table.notes)
    without = _grids({"A": [old], "C": [begun]})[0]
    assert "Memory" not in without.heads
    assert without.notes == []


def test_the_first_evaluation_that_reached_a_target_counts_with_all_rounds_before_it(new_run: NewRun) -> None:
    lines = [
        _scored(0.3, 5, 7, simulated_seconds=1.5),
        {"bytes_up": 11, "bytes_down": 13, "simulated_seconds": 2.5},
        _scored(0.8, 17, 19, simulated_seconds=4.0),
        _scored(0.7, 23, 29, simulated_seconds=8.0),
    ]
    run = _written(new_run(), *lines)
    assert first_reached(run, "global.accuracy", 0.2) == Reached(1, 12, 1.5)
    assert first_reached(run, "global.accuracy", 0.75) == Reached(3, 72, 8.0)
    assert first_reached(run, "global.accuracy", 0.8) == Reached(3, 72, 8.0)
    assert first_reached(run, "global.accuracy", 0.81) is None
    assert first_reached(run, "personal.macro_f1", 0.1) is None


def test_targets_are_shares_of_the_best_final_figure_of_the_algorithms(new_run: NewRun) -> None:
    groups = {
        "A": [
            _written(new_run(f"a{s}", seed=s), _scored(0.9), _scored(last))
            for s, last in enumerate((0.4, 0.6))
        ],
        "B": [_written(new_run("b", algorithm="fedavg"), _scored(0.8), _scored(0.2))],
        "C": [_written(new_run("c", algorithm="centralised"), _scored(1.0))],
    }
    assert targets(groups, "global.accuracy") == pytest.approx([0.25, 0.4, 0.45, 0.475])
    assert targets({"C": groups["C"]}, "global.accuracy") == []
    assert targets({"Z": [_written(new_run("z"), _scored(-0.1))]}, "global.accuracy") == []


def test_the_costs_of_84_percent_on_mrpc_in_fedsplitbert_come_out(new_run: NewRun) -> None:
    """FedSplitBERT, Table VI: the size of a round, the bytes to reach 84 %, and the gain over FedAvg."""
    published = {
        "FedAvg": (1_030_000_000, 6, "6.18 GB", "1"),
        "FedAdam": (1_700_000_000, 2, "3.40 GB", "1.82"),
        "FedSplitBERT": (510_000_000, 2, "1.02 GB", "6.06"),
        "FedSplitBERT+qat": (260_000_000, 2, "520 MB", "11.9"),
    }
    groups = {}
    for label, (size, rounds, _, _) in published.items():
        scores = [*np.linspace(0.6, 0.83, rounds - 1), 0.841, 0.87]
        lines = [_scored(score, size // 2, size // 2) for score in scores]
        groups[label] = [_written(new_run(label, algorithm=label.lower()), *lines)]
    _, table = _grids(groups, 0.84)
    assert _column(table, "Sent") == [sent for _, _, sent, _ in published.values()]
    assert _column(table, "Gain") == [gain for _, _, _, gain in published.values()]
    assert _column(table, "Rounds") == [str(rounds) for _, rounds, _, _ in published.values()]
    assert set(_column(table, "Accuracy reached")) == {"84.0 %"}
    assert "Simulated time" not in table.heads


def test_one_algorithm_alone_has_no_gain(new_run: NewRun) -> None:
    _, table = _grids({"A": [_written(new_run(), _scored(0.5), _scored(0.9))]}, 0.8)
    assert "Gain" not in table.heads
    assert not any("Gain" in note for note in table.notes)
    assert all(len(row) == len(table.heads) for row in table.rows)


def test_seeds_that_did_not_reach_a_target_are_told_and_baselines_left_out(new_run: NewRun) -> None:
    groups = {
        "A": [
            _written(
                new_run(f"a{s}", seed=s),
                _scored(0.1, GB, simulated_seconds=60.0),
                _scored(last, GB + s * 10**7),
            )
            for s, last in enumerate((0.5, 0.7, 0.9))
        ],
        "B": [_written(new_run("b", algorithm="fedavg"), _scored(0.1, GB))],
        "C": [_written(new_run("c", algorithm="centralised"), _scored(0.9))],
    }
    table = _grids(groups, 0.6)[1]
    assert _column(table, "Algorithm") == ["A", "B"]
    assert _column(table, "Seeds") == ["2 of 3", "0 of 1"]
    assert _column(table, "Sent") == ["2.02 ± 0.01 GB", "–"]
    assert _column(table, "Simulated time") == ["1 min", "–"]


def test_without_a_target_every_share_has_a_row_an_algorithm(new_run: NewRun) -> None:
    groups = {n: [read_run(new_run(n, algorithm=n, counted=True))] for n in ("fedavg", "fedopt")}
    _, whole, own = _grids(groups)
    for table, part in ((whole, "global"), (own, "personal")):
        best = max(group[0].scores(part)["accuracy"] for group in groups.values())
        shares = (50, 80, 90, 95)
        expected = [f"{share * best:.1f} % ({share} % of the best)" for share in shares for _ in groups]
        assert _column(table, "Accuracy reached") == expected
    assert "1 of 1" in _column(whole, "Seeds")
    assert len(_grids({"x": [read_run(new_run("x", personal=False))]})) == 2


@pytest.mark.parametrize("target", [84.0, 0.0, -0.5, float("nan"), float("inf")])
def test_a_share_outside_0_to_1_is_no_target(new_run: NewRun, tmp_path: Path, target: float) -> None:
    with pytest.raises(RunError, match="accuracy cannot be that") as caught:
        write_report([new_run()], tmp_path / "out", target)
    assert ("write 0.84 for 84 %" in str(caught.value)) == (target == 84.0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", [45.0, -0.1])
def test_a_correlation_is_no_percentage(new_run: NewRun, tmp_path: Path, target: float) -> None:
    folder = new_run(environment={"data": {"metric": "mcc"}})
    with pytest.raises(RunError, match=r"^--target [-.\d]*: MCC cannot be that$"):
        write_report([folder], tmp_path / "out", target)


def test_a_metric_that_is_no_share_takes_any_target(new_run: NewRun) -> None:
    folder = new_run(environment={"data": {"metric": "bleu"}})
    run = _written(folder, {"bytes_up": 3, "evaluation": {"global": {"bleu": 31.5}}})
    assert _column(_grids({"A": [run]}, 30)[1], "BLEU reached") == ["30"]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.whole
def test_a_written_report_takes_the_target(new_run: NewRun, tmp_path: Path) -> None:
    config = {"costs": {"bandwidth_up": 1.0, "bandwidth_down": 4.0, "device": "jetson-tx2"}}
    folder = new_run(rounds=2, clients=3, counted=True, config=config)
    html, text, *files = write_report([folder], tmp_path / "out", target=0.3)
    markdown = text.read_text(encoding="utf-8")
    assert "30.0 %" in markdown
    assert "reached the target that was given" in markdown
    assert "1 MB/s up, 4 MB/s down, device jetson-tx2" in markdown
    names = {path.stem for path in files}
    assert {
        f"cost-{x}" for x in ("bytes", "bytes-personal", "simulated", "simulated-personal", "time")
    } <= names
    assert "Simulated time so far" in html.read_text(encoding="utf-8")


def test_a_curve_against_simulated_time_ends_at_the_mean_total_of_the_seeds(new_run: NewRun) -> None:
    runs = [read_run(new_run(f"r{s}", seed=s, counted=True)) for s in range(3)]
    for metric in ("global.accuracy", "personal.accuracy"):
        chart = plots.against_simulated_seconds({"A": runs}, metric)
        assert chart is not None
        (line,) = chart.lines
        found = plots.band(runs, metric)
        assert found is not None
        np.testing.assert_allclose(line.y, 100 * found.mean)
        mean = np.mean([run.total("simulated_seconds") for run in runs])
        assert chart.xlabel == "Simulated time so far (min)"
        assert line.x[-1] == pytest.approx(mean / 60)
        assert line.spread is not None


def test_what_has_no_simulated_time_is_no_curve_and_colours_stay(new_run: NewRun) -> None:
    groups = {
        "old": [read_run(new_run("old", algorithm="fedavg"))],
        "new": [read_run(new_run("new", counted=True))],
        "all": [read_run(new_run("all", algorithm="centralised"))],
    }
    chart = plots.against_simulated_seconds(groups, "global.accuracy")
    assert chart is not None
    lines = {line.label: line for line in chart.lines}
    assert set(lines) == {"new", "all"}
    assert lines["new"].look["color"] == SERIES[1]
    assert list(lines["all"].x) == []
    assert plots.against_simulated_seconds({"old": groups["old"]}, "global.accuracy") is None
    assert plots.against_simulated_seconds({"all": groups["all"]}, "global.accuracy") is None


def test_runs_with_other_prices_are_apart_and_no_prices_are_told(new_run: NewRun) -> None:
    runs = [
        read_run(new_run(f"r{mb}", counted=True, config={"costs": {"bandwidth_up": mb}}))
        for mb in (0.1, 10.0)
    ]
    groups = group_runs(runs)
    assert list(groups) == ["FedOpt (bandwidth_up 0.1)", "FedOpt (bandwidth_up 10.0)"]
    assert _grids(groups)[0].notes == []
    pictures = [block.name for block in cost_blocks(groups) if isinstance(block, Picture)]
    assert len(pictures) == len(set(pictures)) == 6
