"""The comparison table says what independent statistics say."""

import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fednlp.cli.console import closing_table
from fednlp.reports import across_table, write_report
from fednlp.reports.read import Run, read_run
from fednlp.reports.render import to_text
from fednlp.reports.table import Stat, compare_table

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("undrawn")]

NewRun = Callable[..., Path]

finite = st.floats(min_value=-1e6, max_value=1e6)


@settings(deadline=None)
@given(st.lists(finite, min_size=1, max_size=20))
def test_mean_and_sample_standard_deviation(values: list[float]) -> None:
    stat = Stat(tuple(values))
    assert stat.mean == pytest.approx(statistics.mean(values), abs=1e-9)
    if len(values) == 1:
        assert stat.std is None
    else:
        assert stat.std == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-6)


@pytest.fixture
def groups(new_run: NewRun) -> dict[str, list[Run]]:
    return {
        name: [read_run(new_run(f"{name}{s}", algorithm=name, seed=s, rounds=4 + s)) for s in range(3)]
        for name in ("fedopt", "fedavg", "local")
    }


def test_rows_come_in_the_order_given_with_the_numbers_of_the_summaries(groups: dict[str, list[Run]]) -> None:
    table = compare_table(groups)
    assert [(row.label, row.baseline, row.seeds) for row in table.rows] == [
        ("fedopt", None, 3),
        ("fedavg", None, 3),
        ("local", "local", 3),
    ]
    for row, runs in zip(table.rows, groups.values(), strict=True):
        summaries = [run.summary or {} for run in runs]
        expected = {
            "global": [s["evaluation"]["global"]["accuracy"] for s in summaries],
            "personal": [s["evaluation"]["personal"]["accuracy"] for s in summaries],
            "personal_worst_decile": [
                s["evaluation"]["personal"]["accuracy_worst_decile"] for s in summaries
            ],
            "personal_spread": [s["evaluation"]["personal"]["accuracy_std"] for s in summaries],
            "bytes": [s["bytes_up"] + s["bytes_down"] for s in summaries],
            "seconds": [s["seconds"] for s in summaries],
            "rounds": [s["rounds"] for s in summaries],
        }
        assert list(row.cells) == list(expected)
        if row.label == "local":
            # Its rounds are clients one after the other.
            assert row.cells["rounds"] is None
            del expected["rounds"]
        for key, values in expected.items():
            stat = row.cells[key]
            assert stat is not None
            assert stat.values == tuple(values)
            assert stat.std == pytest.approx(statistics.stdev(values))


def test_another_metric(groups: dict[str, list[Run]]) -> None:
    table = compare_table(groups, metric="loss")
    assert table.columns[0].kind == "plain"
    stat = table.rows[0].cells["global"]
    assert stat is not None
    assert stat.values == tuple(run.scores("global")["loss"] for run in groups["fedopt"])
    assert table.rows[0].cells["personal"] is None


def test_what_no_run_measured_is_none(new_run: NewRun) -> None:
    run = read_run(new_run(personal=False))
    assert compare_table({"fedopt": [run]}).rows[0].cells["personal"] is None


def test_notes_of_summaries_stand_under_the_table_once(new_run: NewRun) -> None:
    summary = {"note": "mean over 10 of the clients' models"}
    runs = [read_run(new_run(f"l{s}", algorithm="local", seed=s, summary=summary)) for s in range(3)]
    assert compare_table({"Local only": runs}).notes == ("Local only: mean over 10 of the clients' models",)


def test_methods_are_compared_seed_by_seed(new_run: NewRun) -> None:
    """Seeds differ by 20 points, and the methods by 2 to 4 within each; two seeds are too few."""
    found = {"FedAvg": (0.5, 0.7, 0.6), "FedProx": (0.53, 0.72, 0.64), "Local only": (0.1, 0.2, 0.3)}
    groups = {
        label: [
            read_run(
                new_run(
                    f"{label}{seed}",
                    algorithm="local" if label == "Local only" else "fedavg",
                    seed=seed,
                    summary={"evaluation": {"global": {"accuracy": score}}},
                )
            )
            for seed, score in enumerate(scores)
        ]
        for label, scores in found.items()
    }
    paired = [note for note in compare_table(groups).notes if "paired" in note]
    low, high = stats.t.interval(0.95, 2, loc=3.0, scale=stats.sem([3.0, 2.0, 4.0]))
    assert paired[0] == (
        f"FedProx against FedAvg, global test: +3 points, 95 % interval {low:+.3g} to {high:+.3g} "
        "(paired by 3 seeds, Student's t)"
    )
    assert paired[1].startswith("Local only against FedAvg, global test: -40 points")
    fewer = {label: group[:2] for label, group in groups.items()}
    assert not any("paired" in note for note in compare_table(fewer).notes)


def test_unfinished_and_stopped_runs_are_said_to_be_so(new_run: NewRun) -> None:
    begun = read_run(new_run("begun", seed=4, rounds=3, finished=False, config={"num_rounds": 9}))
    stopped = read_run(new_run("stopped", seed=5, rounds=3, summary={"stopped": "2 of 5 clients left"}))
    assert compare_table({"A": [begun, stopped]}).notes == (
        "A: seed 4 is unfinished, 3 of 9 rounds",
        "A: seed 5 stopped after round 3: 2 of 5 clients left",
    )


def test_the_clients_after_steps_of_their_own_have_a_column_only_where_a_run_has_them(
    new_run: NewRun,
) -> None:
    scores = {"accuracy": 0.75, "accuracy_worst_decile": 0.5, "accuracy_std": 0.1, "clients": 20}
    evaluation = {"global": {"accuracy": 0.5}, "personal": {"accuracy": 0.6}, "finetuned": scores}
    tuned = read_run(new_run("tuned", summary={"evaluation": evaluation}))
    plain = read_run(new_run("plain", algorithm="fedavg"))
    table = compare_table({"a": [tuned], "b": [plain]})
    assert [column.key for column in table.columns].count("finetuned") == 1
    cell = table.rows[0].cells["finetuned"]
    assert cell is not None
    assert cell.values == (0.75,)
    assert table.rows[1].cells["finetuned"] is None
    assert "finetune_steps" in table.caption
    without = compare_table({"b": [plain]})
    assert "finetuned" not in [column.key for column in without.columns]
    assert "finetune_steps" not in without.caption
    across = across_table({"x": {"a": [tuned]}}, "finetuned").rows[0].cells["a"]
    assert across is not None
    assert across.values == (75.0,)


def test_experiments_in_shares_and_in_correlations_are_shown_beside_each_other(new_run: NewRun) -> None:
    found = {
        name: {
            "FedAvg": [
                read_run(
                    new_run(
                        f"{name}{seed}",
                        seed=seed,
                        environment={"data": {"metric": metric}},
                        summary={"evaluation": {"global": {metric: score}}},
                    )
                )
                for seed, score in enumerate((0.745, 0.731))
            ]
        }
        for name, metric in (("pairs", "pearson"), ("small", "accuracy"))
    }
    text = to_text(across_table(found))
    assert re.search(r"^pairs, Pearson +0\.738 ± 0\.010 ", text, re.MULTILINE)
    assert re.search(r"^small, accuracy +73\.8 ± 1\.0 ", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({}, False),
        ({"costs": {"bandwidth_up": 1.0}}, False),
        ({"costs": {"device": "mine"}}, True),
        ({"fewshot": {"gold": 64, "pacing": "none"}}, True),
    ],
)
def test_memory_has_a_column_where_devices_or_labels_are_few(
    new_run: NewRun, config: dict[str, Any], shown: bool
) -> None:
    def runs(name: str, *memory: int) -> list[Run]:
        return [
            read_run(new_run(f"{name}{s}", seed=s, config=config, summary={"client_memory_bytes": taken}))
            for s, taken in enumerate(memory)
        ]

    groups = {"a": runs("a", 300_000_000, 500_000_000), "b": [read_run(new_run("old", config=config))]}
    table = compare_table(groups)
    assert ("memory" in [column.key for column in table.columns]) is shown
    assert ("Memory: what a client requires at its peak, predicted." in table.caption) is shown
    if shown:
        assert [column.heading for column in table.columns].count("Memory") == 1
        cell = table.rows[0].cells["memory"]
        assert cell is not None
        assert cell.values == (300_000_000, 500_000_000)
        assert table.rows[1].cells["memory"] is None
        assert "memory" not in [column.key for column in compare_table({"b": groups["b"]}).columns]


@pytest.mark.parametrize(("personalised", "shown"), [(True, True), (False, False)])
@pytest.mark.variants(1)
def test_clients_with_models_of_their_own_have_a_plain_mean_too(
    new_run: NewRun, tmp_path: Path, personalised: bool, shown: bool
) -> None:
    scores = {
        "accuracy": 0.75,
        "accuracy_client_mean": 0.625,
        "accuracy_worst_decile": 0.5,
        "accuracy_std": 0.1,
    }
    folder = new_run(
        config={"model": {"train": {"personal": "head"}}},
        summary={"evaluation": {"personal": scores | {"clients": 20}}, "personalised": personalised},
    )
    table = compare_table({"a": [read_run(folder)]})
    assert ("Mean of clients" in [column.heading for column in table.columns]) is shown
    assert ("Mean of clients: of the same scores" in table.caption) is shown
    text = write_report([folder], tmp_path / "out")[1].read_text()
    assert "| Personal test accuracy, plain mean over clients | 62.5 % |" in text


def test_every_metric_shows_them_too(new_run: NewRun, tmp_path: Path) -> None:
    scores = {"accuracy": 0.75, "accuracy_worst_decile": 0.5, "clients": 20}
    folder = new_run(summary={"evaluation": {"global": {"accuracy": 0.5}, "finetuned": scores}})
    text = write_report([folder], tmp_path / "out")[1].read_text()
    assert "| Personal test after own steps, accuracy | 75.0 % |" in text
    assert "| Personal test after own steps, accuracy, worst decile | 50.0 % |" in text


def test_the_terminal_ends_with_them() -> None:
    own = {"accuracy": 0.6, "accuracy_worst_decile": 0.1, "accuracy_std": 0.2, "clients": 7}
    summary = {
        "metric": "accuracy",
        "evaluation": {"personal": own, "finetuned": own | {"accuracy": 0.75}},
        "baseline": {"name": "the most frequent label", "accuracy": 0.1},
        "best": None,
        **dict.fromkeys(("bytes_up", "bytes_down", "rounds", "seconds", "dropped"), 0),
        "note": None,
    }

    def rows(evaluation: dict[str, Any]) -> dict[str, str]:
        names, values = (
            list(column.cells) for column in closing_table(summary | {"evaluation": evaluation}).columns
        )
        return {str(name): str(value) for name, value in zip(names, values, strict=True)}

    found = rows({"personal": own, "finetuned": own | {"accuracy": 0.75}})
    assert found["clients' own tests"] == "0.6000 (worst decile 0.1000, spread 0.2000, 7 clients)"
    assert found["after own steps"] == "0.7500 (worst decile 0.1000, spread 0.2000, 7 clients)"
    assert "after own steps" not in rows({"personal": own})
    assert "memory a client" not in found
    summary["client_memory_bytes"] = 412_345_678
    assert rows({})["memory a client"] == "412 MB (predicted)"
