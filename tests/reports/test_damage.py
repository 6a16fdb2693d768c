"""A run directory that is damaged, or a stranger's: a report is made of it, or one line says what is wrong."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.errors import FednlpError
from fednlp.reports import compare_table, cross_client_tables, group_runs, plots, read_run, render
from fednlp.reports.content import build
from fednlp.reports.sections import communication

from .conftest import make_run

CONFIG = {
    "model": {"name_or_path": "bert-tiny", "train": {"shared": ["layer.0"], "personal": "head"}},
    "pull": {"rule": "low", "share": 0.5, "of": "tensors", "push": "all"},
    "exchange": {"up": ["topk:0.1", "int8:64"], "down": []},
    "costs": {"device": "x", "bandwidth_up": 1.0},
    "client": {"finetune_steps": 3, "optimizer": "adamw", "learning_rate": 0.1},
}
SUMMARY = {
    "trivial_baseline": {"name": "the most frequent label", "accuracy": 0.1},
    "client_memory_bytes": 12,
    "personalised": True,
}
ENVIRONMENT = {"data": {"name": "x", "metric": "accuracy", "task": "text-classification"}}
FILES = (
    *("resolved.toml", "environment.json", "rounds.jsonl", "summary.json"),
    *("clients.csv", "labels.json", "cross_client_evaluation.json", "partition.npz"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has something to say in every part of a report."""
    folder = make_run(
        tmp_path_factory.mktemp("whole") / "run",
        rounds=3,
        clients=6,
        names=tuple("abcdef"),
        counted=True,
        config=CONFIG,
        summary=SUMMARY,
        environment=ENVIRONMENT,
    )
    rows = [{"model": "server", "scores": [0.1, None, 0.2, 0.3, 0.4, 0.5]}]
    matrix = {"metric": "accuracy", "tests": list("abcdef"), "rows": rows}
    (folder / "cross_client_evaluation.json").write_text(json.dumps(matrix))
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line["update_norms"] = {str(client): [0.1, 0.2] for client in line["cohort"]}
        line["sent"] = {str(client): [0] for client in line["cohort"]}
        line["dropped"] = [{"client": 1, "reason": "out of memory"}]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def without_figures() -> Iterator[None]:
    """Draw nothing: that takes most of a report's time."""
    names = ("learning_curves", "client_curves", "client_histogram")
    names += ("against_bytes", "against_seconds", "against_simulated_seconds")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(plots, name, lambda *_: None)
        patch.setattr("fednlp.partition.plots.figures", lambda _: {})
        patch.setattr(communication, "drawn_norms", lambda *_: (None, ""))
        yield


def report(folder: Path) -> str:
    """Make the whole report but for its figures; return what is wrong with the folder, if anything is."""
    try:
        run = read_run(folder)
        build([run])
        groups = group_runs([run])
        for table in (compare_table(groups), *cross_client_tables(groups).values()):
            for made in (render.to_text, render.to_csv, render.to_json, render.to_latex, render.to_markdown):
                made(table)
    except FednlpError as error:
        return str(error)
    return ""


@given(data=st.data(), name=st.sampled_from(FILES))
@settings(max_examples=30)
def test_one_line_or_a_report(
    whole: Path,
    without_figures: None,
    mutants: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    name: str,
) -> None:
    folder = shutil.copytree(whole, tmp_path_factory.mktemp("damaged") / "run")
    mutants.damage(data.draw, folder / name)
    wrong = report(folder)
    assert "\n" not in wrong
    assert not wrong or name in wrong


def edited(name: str, key: str, value: Any) -> Callable[[Path], None]:
    """Return a change of one key of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return change


def in_line(key: str, value: Any) -> Callable[[Path], None]:
    """Return a change of one key of the first round."""

    def change(folder: Path) -> None:
        first, *rest = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
        text = json.dumps(json.loads(first) | {key: value}) + "\n"
        (folder / "rounds.jsonl").write_text(text + "".join(rest))

    return change


def written(name: str, text: str) -> Callable[[Path], None]:
    """Return another content of a file."""
    return lambda folder: (folder / name).write_text(text) and None


RAGGED: dict[str, Any] = {"labels": ["a", "b"], "support": [1, 1], "confusion": [[2], [1, 1]]}
RAGGED |= {key: [0.5, 0.5] for key in ("precision", "recall", "f1")}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (edited("summary.json", "evaluation", 3), "summary.json is damaged"),
        (edited("summary.json", "data", 1.5), "summary.json is damaged"),
        (edited("summary.json", "seconds", [1]), "summary.json is damaged"),
        (edited("summary.json", "metric", {}), "summary.json is damaged"),
        (
            written("by_label.json", json.dumps(RAGGED)),
            "by_label.json is damaged",
        ),
        (edited("summary.json", "bytes_up", 10**30), "number beyond 64 bits"),
        (edited("environment.json", "data", []), "environment.json is damaged"),
        (edited("labels.json", "train", [[1], [1, 2]]), "labels.json is damaged"),
        (in_line("bytes_up", {}), "rounds.jsonl:1 is damaged"),
        (in_line("evaluation", {"global": 0.5}), "rounds.jsonl:1 is damaged"),
        (written("summary.json", "[" * 100_000), "nested too deep"),
        (written("resolved.toml", "seed = " + "9" * 5_000), "resolved.toml is damaged"),
        (written("resolved.toml", "data = 3"), "resolved.toml is damaged (data:"),
        (
            written("resolved.toml", "[client]\nmax_steps = 'x'"),
            "resolved.toml is damaged (client.max_steps:",
        ),
        (
            written(
                "clients.csv", f"client,name,train_examples,test_examples,accuracy\n{'9' * 23},a,1,1,.5\n"
            ),
            "clients.csv:2 is damaged (a number out of range",
        ),
    ],
)
def test_what_is_wrong_is_said(
    whole: Path, without_figures: None, tmp_path: Path, change: Callable[[Path], None], expected: str
) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    assert report(folder) == ""
    change(folder)
    assert expected in report(folder)


def test_a_name_that_is_a_formula_is_read_back(tmp_path: Path) -> None:
    text = "client,name,train_examples,test_examples,accuracy\n0,'=HYPERLINK(1),2,1,0.5\n"
    folder = make_run(tmp_path / "run", clients=1)
    (folder / "clients.csv").write_text(text)
    assert read_run(folder).clients.names == ("=HYPERLINK(1)",)


def test_a_label_that_is_a_formula_is_text_in_a_table(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    assert "\n'=1+1 (x)," in render.to_csv(compare_table({"=1+1 (x)": [run]}))
