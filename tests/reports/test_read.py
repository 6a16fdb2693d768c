"""A run directory is read as it was written, finished or still under way."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.config.tables import lookup
from fednlp.errors import RunError
from fednlp.reports.read import curve, read_labels, read_run, running_total

NewRun = Callable[..., Path]


def test_a_finished_run(new_run: NewRun) -> None:
    folder = new_run(rounds=7, clients=12, names=("b,c", 'quote"', "line\nbreak", "\u2028"), seed=3)
    run = read_run(folder)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [dict(line) for line in run.rounds] == lines
    assert (run.name, run.algorithm, run.seed, run.baseline, run.finished) == (
        "quickstart",
        "fedopt",
        3,
        None,
        True,
    )
    assert run.evaluation == lines[-1]["evaluation"]
    assert run.scores("global") == lines[-1]["evaluation"]["global"]
    assert run.total("bytes_up") == 7 * 175_000_000
    assert run.environment["python"] == "3.11.7"
    assert run.clients.ids.tolist() == list(range(12))
    assert run.clients.names[:5] == ("b,c", 'quote"', "line\nbreak", "\u2028", "")
    labels = read_labels(run)
    assert labels is not None
    assert labels.names == ("alt.atheism", "sci.space", "talk.misc")
    assert labels.train.sum(axis=1).tolist() == run.clients.train_examples.tolist()
    assert labels.test.sum(axis=1).tolist() == run.clients.test_examples.tolist()


def test_a_run_under_way_has_no_summary_and_its_last_evaluation(new_run: NewRun) -> None:
    run = read_run(new_run(rounds=5, every=2, finished=False))
    assert run.summary is None
    assert not run.finished
    assert run.evaluation == run.rounds[-1]["evaluation"]
    assert run.total("seconds") == pytest.approx(sum(line["seconds"] for line in run.rounds))


@pytest.mark.parametrize("algorithm", ["centralised", "local"])
def test_a_baseline_is_known_with_and_without_a_summary(new_run: NewRun, algorithm: str) -> None:
    assert read_run(new_run("a", algorithm=algorithm)).baseline == algorithm
    assert read_run(new_run("b", algorithm=algorithm, finished=False)).baseline == algorithm


@settings(deadline=None)
@given(cut=st.integers(min_value=1, max_value=400))
def test_a_last_line_cut_anywhere_costs_that_line_only(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    lines = [json.dumps({"round": r, "cohort": list(range(50)), "train_loss": 2.5}) + "\n" for r in (1, 2)]
    whole = "".join(lines)
    kept = len(whole) - min(cut, len(lines[1]))
    (folder / "resolved.toml").write_text("seed = 1\n")
    (folder / "rounds.jsonl").write_text(whole[:kept])
    # Without its line end alone, the line is still whole.
    assert len(read_run(folder).rounds) == (2 if kept == len(whole) - 1 else 1)


def test_a_client_row_without_its_line_end_is_not_taken_for_whole(new_run: NewRun) -> None:
    folder = new_run(clients=5)
    text = (folder / "clients.csv").read_bytes()
    (folder / "clients.csv").write_bytes(text[:-4])
    assert len(read_run(folder).clients) == 4


def test_a_client_without_test_examples_has_no_score(new_run: NewRun) -> None:
    folder = new_run(clients=1)
    (folder / "clients.csv").write_text(
        "client,name,train_examples,test_examples,accuracy\n0,,5,0,\n1,,5,2,0.5\n"
    )
    scores = read_run(folder).clients.scores
    assert np.isnan(scores[0])
    assert scores[1] == 0.5


def test_a_round_done_again_after_a_resume_stands_in_for_the_first(new_run: NewRun) -> None:
    folder = new_run(rounds=2)
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "train_loss": 0.125}\n{"round": 3, "train_loss": 0.1}\n')
    rounds, values = curve(read_run(folder), "train_loss")
    assert rounds.tolist() == [1, 2, 3]
    assert values[1:].tolist() == [0.125, 0.1]


def test_curves_hold_the_rounds_that_measured(new_run: NewRun) -> None:
    run = read_run(new_run(rounds=7, every=3))
    rounds, values = curve(run, "global.accuracy")
    assert rounds.tolist() == [3, 6, 7]
    assert values.tolist() == [run.rounds[r - 1]["evaluation"]["global"]["accuracy"] for r in (3, 6, 7)]
    assert curve(run, "train_loss")[0].tolist() == list(range(1, 8))
    assert [len(part) for part in curve(run, "global.rouge")] == [0, 0]


def test_running_totals(new_run: NewRun) -> None:
    run = read_run(new_run(rounds=3))
    assert running_total(run, "bytes_up", "bytes_down") == {1: 3.5e8, 2: 7e8, 3: 10.5e8}


def test_a_folder_that_is_no_run_directory_is_refused_in_one_line(tmp_path: Path) -> None:
    for folder, why in ((tmp_path, "no resolved.toml"), (tmp_path / "missing", "does not exist")):
        with pytest.raises(RunError, match=f"is no run directory .*{why}") as caught:
            read_run(folder)
        assert "\n" not in str(caught.value)


def test_a_folder_of_run_directories_names_one_of_them(new_run: NewRun) -> None:
    inside = new_run(rounds=1)
    with pytest.raises(
        RunError, match=rf"{inside.parent} is no run directory .*: give one that it holds, such as {inside}"
    ):
        read_run(inside.parent)


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("resolved.toml", "seed = = 1", "resolved.toml"),
        ("resolved.toml", b"name = '\xff'", "resolved.toml"),
        ("summary.json", '{"name": ', "summary.json"),
        ("summary.json", "[]", "summary.json"),
        ("environment.json", b"\xff", "environment.json"),
        ("rounds.jsonl", '{"round": 1}\n{"rou\n{"round": 3}\n', "rounds.jsonl:2"),
        ("rounds.jsonl", '{"round": 1}\n[]\n{"round": 3}\n', "rounds.jsonl:2"),
        (
            "clients.csv",
            "client,name,train_examples,test_examples,accuracy\n0,,1,1,.5\n1,,x,1,.5\n",
            "clients.csv:3",
        ),
        ("clients.csv", "client,name\n0,a\n", "clients.csv:2"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(
    new_run: NewRun, name: str, content: str | bytes, place: str
) -> None:
    folder = new_run()
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(RunError, match="is damaged") as caught:
        read_run(folder)
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", ['{"labels": ["a"], "train": [["x"]], "test": []}', '{"labels": ["a"]}', "{"]
)
def test_damaged_label_counts_are_named(new_run: NewRun, content: str) -> None:
    folder = new_run()
    (folder / "labels.json").write_text(content)
    with pytest.raises(RunError, match=r"labels\.json is damaged"):
        read_labels(read_run(folder))


def test_label_counts_may_be_missing(new_run: NewRun) -> None:
    folder = new_run()
    (folder / "labels.json").unlink()
    assert read_labels(read_run(folder)) is None


@settings(deadline=None)
@given(
    st.recursive(st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=8)
)
def test_lookup_finds_what_indexing_finds(table: object) -> None:
    def indexed(data: object, parts: list[str]) -> object:
        for part in parts:
            if not isinstance(data, dict) or part not in data:
                return "absent"
            data = data[part]
        return data

    for key in ("a", "a.b", "a.b.c", "c.a"):
        assert lookup(table if isinstance(table, dict) else {}, key, "absent") == indexed(
            table if isinstance(table, dict) else {}, key.split(".")
        )
