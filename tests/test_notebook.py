"""What a notebook or a script needs: experiments as values, runs as tables and pictures, errors of fednlp."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fednlp
from fednlp.cli.console import Console
from fednlp.config import Experiment
from fednlp.errors import ConfigError, FednlpError, RunError
from fednlp.simulation.callback import NullCallback, default_callback
from fednlp.simulation.run_dir import RunDir


@pytest.fixture(scope="module")
def done(document: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run of a dictionary: its name could be HTML, and its clients' names are numbers."""
    return fednlp.run(document({"num_rounds": 2}), tmp_path_factory.mktemp("runs") / "a<b>run")


def test_a_dictionary_and_an_experiment_are_the_same_run(
    document: Callable[..., dict[str, Any]], done: RunDir, tmp_path: Path
) -> None:
    again = fednlp.run(Experiment(**document({"num_rounds": 2})), tmp_path / "again")
    assert (again.model / "model.safetensors").read_bytes() == (done.model / "model.safetensors").read_bytes()


def test_tables_hold_what_the_files_say(done: RunDir) -> None:
    rounds, clients, summary = done.rounds, done.clients, done.summary
    lines = done.round_lines()
    assert rounds.index.tolist() == [1, 2]
    assert rounds["train_loss"].tolist() == [line["train_loss"] for line in lines]
    assert rounds["evaluation.global.accuracy"].tolist() == [
        line["evaluation"]["global"]["accuracy"] for line in lines
    ]
    assert len(clients) == 8
    assert clients["train_examples"].sum() == 160
    assert clients["accuracy"].between(0, 1).all()
    assert summary.loc[0, "evaluation.global.accuracy"] == lines[-1]["evaluation"]["global"]["accuracy"]


def test_the_curve_is_a_figure_of_every_evaluated_round(done: RunDir) -> None:
    axes = done.plot().axes[0]
    assert any(line.get_xdata().tolist() == [1, 2] for line in axes.lines)  # type: ignore[union-attr]


def test_a_run_shows_itself_and_nothing_of_its_folder_is_markup(done: RunDir) -> None:
    page = done._repr_html_()
    assert page is not None
    assert "accuracy" in page
    assert "a&lt;b&gt;run" in page
    assert "<b>" not in page


def test_a_folder_without_a_run_shows_itself_as_text(tmp_path: Path) -> None:
    assert RunDir(tmp_path)._repr_html_() is None
    with pytest.raises(RunError):
        _ = RunDir(tmp_path).rounds


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: Experiment(data={"name": "20news"}, num_round=3),
        lambda: fednlp.run({"num_rounds": 3}),
        lambda: fednlp.run({"data": {"name": "20news"}, "self": 1}),
        lambda: fednlp.federate(SimpleNamespace(), [[1]], "fedavg"),  # type: ignore[arg-type]
    ],
)
def test_mistakes_are_errors_of_fednlp(mistake: Callable[[], object]) -> None:
    with pytest.raises(FednlpError):
        mistake()


def test_all_mistakes_of_a_value_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Experiment(data={"name": "20news"}, num_round=3, seed="one")
    assert len(caught.value.problems) == 2
    assert "did you mean num_rounds?" in str(caught.value)


def test_a_notebook_gets_progress_and_a_script_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(default_callback(), NullCallback)
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert isinstance(default_callback(), Console)


def test_a_class_of_a_cell_is_a_task_with_one_worker(
    experiment: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fednlp.tasks.text_classification import TextClassification

    cell = type("Mine", (TextClassification,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Mine", cell, raising=False)
    own = {"task.name": "__main__:Mine", "num_rounds": 1}
    fednlp.run(experiment(own | {"runtime.workers": 0}), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"runtime.workers = 2: what a notebook .* say runtime.workers = 1"):
        fednlp.run(experiment(own | {"runtime.workers": 2}), tmp_path / "two")
