"""What a notebook or a script needs: experiments as values, runs as tables and pictures, errors of fednlp."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fednlp
from fednlp.cli.console import CellConsole
from fednlp.config import Experiment
from fednlp.errors import ConfigError, FednlpError, RunError
from fednlp.partition import figures
from fednlp.partition.plot_data import overview_of_counts
from fednlp.python_words import advising_in_python
from fednlp.simulation.callback import NullCallback, default_callback
from fednlp.simulation.run_dir import RunDir

pytestmark = pytest.mark.whole


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
    assert rounds.index.tolist() == rounds["round"].tolist() == [1, 2]
    assert rounds.sort_values("round", ascending=False).reset_index(drop=True)["round"].tolist() == [2, 1]
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


def test_pictures_of_runs_and_partitions_are_shown_without_a_set_up(done: RunDir) -> None:
    counts = np.array([[3, 1], [1, 3]])
    drawn = [done.plot(), *figures(overview_of_counts(counts, ["a", "b"], ["0", "1"])).values()]
    assert [one._repr_png_()[:4] for one in drawn] == [b"\x89PNG"] * 5  # type: ignore[attr-defined]


def test_messages_are_in_the_words_of_python() -> None:
    """Those to the caller's own callback, and to the default one; what else it has stays."""
    told: list[str] = []

    class Mine(NullCallback):
        def log(self, text: str) -> None:
            told.append(text)

    def work(out: str, callback: NullCallback | None = None) -> type:
        assert callback is not None
        callback.log(f"go on with: fednlp run --resume {out} or choose another --out")
        return type(callback.finished.__self__)  # type: ignore[attr-defined]

    called = advising_in_python(work, Mine)
    assert [called("a"), called("b", callback=Mine()), called("c", Mine())] == [Mine] * 3
    assert told == [f"go on with: fednlp.resume({one!r}) or choose another out=" for one in "abc"]
    with pytest.raises(TypeError, match=r"work\(\) missing 1 required positional argument: 'out'"):
        called()


def test_a_kernel_shows_a_picture_and_one_output_for_a_run(
    document: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """In a fresh kernel, which has neither widgets nor a set-up of matplotlib."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = [
        f"import fednlp\nrun = fednlp.run({document({'num_rounds': 2})!r}, {str(tmp_path / 'run')!r})",
        "run.plot()",
        f"fednlp.run({document()!r}, {str(tmp_path / 'run')!r})",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of jupyter's own libraries
        nbclient.NotebookClient(notebook, timeout=None, kernel_name="python3", allow_errors=True).execute()
    ran, plotted, again = (cell.outputs for cell in notebook.cells)
    (shown,) = ran
    assert shown.output_type == "display_data"
    assert "run directory:" in shown.data["text/plain"]
    assert shown.data["text/plain"].count("round ") >= 2
    assert plotted[0].data["image/png"].startswith("iVBOR")
    assert again[0].evalue.endswith("holds a run already and is never overwritten: choose another out=")


def test_a_run_is_used_by_functions_of_the_top_level(done: RunDir, tmp_path: Path) -> None:
    scores = fednlp.evaluate(done, out=str(tmp_path / "out.jsonl"))
    assert scores.metrics["accuracy"] == done.summary.loc[0, "evaluation.global.accuracy"]
    (answer,) = fednlp.predict(done, "a text")
    assert fednlp.predict(done.folder, ["a text"]) == [answer]
    assert fednlp.report(done, tmp_path / "report")[0].name == "report.html"
    assert {"evaluate", "predict", "report"} <= {*fednlp.__all__}


def test_advice_is_in_the_words_of_python(done: RunDir, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"leave out client=$"):
        fednlp.export(done, tmp_path / "out", "0")
    with pytest.raises(RunError, match=r"never overwritten: choose another out=$"):
        fednlp.export(done, done.folder)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "resolved.toml").touch()
    with pytest.raises(RunError, match=r"go on with: fednlp.resume\('.*begun'\)$"):
        fednlp.run({"data": {"name": "bbc"}}, tmp_path / "begun")


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
    assert isinstance(default_callback(), CellConsole)


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
