"""A run directory is data, never a program: a stranger's runs nothing, and damage is one line."""

import csv
import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fednlp
from fednlp.config import Experiment, load, parse
from fednlp.data.fednlp_h5 import export_data
from fednlp.deployment.site.policy import load_policy
from fednlp.errors import FednlpError, RunError
from fednlp.federated.params import Layout
from fednlp.inference.export import export
from fednlp.inference.model import open_trained
from fednlp.inference.predict import predict_texts
from fednlp.inference.score import evaluate_run
from fednlp.models.pretrained import load_tokenizer
from fednlp.partition import Partition
from fednlp.partition.plot_data import overview
from fednlp.partition.plots import save_plots
from fednlp.partition.proportion_tables import read_proportions
from fednlp.reports import write_report
from fednlp.reports.read import read_run
from fednlp.runtime.placement import workers_by_gpu
from fednlp.simulation.components import open_data
from fednlp.simulation.evaluate import write_clients
from fednlp.simulation.run_dir import RunDir

pytestmark = pytest.mark.whole

Document = Callable[..., dict[str, Any]]
Stopping = Callable[..., AbstractContextManager[Any]]
CLASS = "task_of_mine:Mine"
SMALL = {"num_rounds": 2, "clients_per_round": 2, "client.max_steps": 2}


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module with a task of the user's own: text classification under another name."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "task_of_mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from fednlp.tasks.text_classification import TextClassification\n"
        "@dataclass(frozen=True)\n"
        "class Mine(TextClassification):\n"
        "    name: str = 'mine'\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
        sys.modules.pop("task_of_mine", None)


@pytest.fixture(scope="module")
def plain(document: Document, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a task that fednlp knows."""
    return fednlp.run(parse(document(SMALL)), tmp_path_factory.mktemp("plain") / "run").folder


@pytest.fixture
def settings_of_mine(mine: None, document: Document) -> Experiment:
    """An experiment with a task of the user's own."""
    return parse(document(SMALL | {"task.name": CLASS}))


@pytest.fixture
def stranger(plain: Path, tmp_path: Path) -> Path:
    """A copy of a run that may be changed."""
    return shutil.copytree(plain, tmp_path / "stranger")


@pytest.mark.parametrize(
    ("task", "fields"),
    [
        ("subprocess:Popen", {"args": ["touch", "PWNED"]}),
        ("os:system", {"command": "touch PWNED"}),
        ("builtins:exec", {"object": "open('PWNED', 'w')"}),
        (CLASS, {}),
    ],
)
def test_a_strangers_task_is_not_even_imported(
    task: str, fields: dict[str, Any], stranger: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fednlp.tasks.load", None)
    (stranger / "task.json").write_text(json.dumps({"task": task, "fields": fields}))
    for use in (
        lambda: predict_texts(stranger, ["a"], {}),
        lambda: evaluate_run(stranger),
        lambda: fednlp.export(stranger, here / "out"),
        lambda: fednlp.export_clients(stranger, here / "out"),
    ):
        with pytest.raises(
            RunError, match=f"says task = .{task}.*: if you trust it, add (--task |task=.){task}"
        ) as caught:
            use()
        assert "\n" not in str(caught.value)
    assert not (here / "PWNED").exists()


def test_a_strangers_task_that_the_user_names_is_a_task_or_nothing(stranger: Path, here: Path) -> None:
    """Even then nothing is called that is no task."""
    said = {"task": "subprocess:Popen", "fields": {"args": ["touch", "PWNED"]}}
    (stranger / "task.json").write_text(json.dumps(said))
    with pytest.raises(FednlpError, match="is no task"):
        open_trained(stranger, task="subprocess:Popen")
    assert not (here / "PWNED").exists()


@pytest.mark.parametrize(
    "name", ["resolved.toml", "task.json", "algorithm.json", "rounds.jsonl", "summary.json", "partition.npz"]
)
def test_a_device_in_a_run_directory_is_not_read(name: str, stranger: Path) -> None:
    """A link to a pipe or to ``/dev/zero`` would be read for ever."""
    (stranger / name).unlink()
    (stranger / name).symlink_to(os.devnull)
    uses: dict[str, Callable[[RunDir], Any]] = {
        "resolved.toml": RunDir.experiment,
        "rounds.jsonl": lambda run: run.keep_rounds(2),
        "partition.npz": lambda run: Partition.load(run.partition),
    }
    use = uses.get(name, lambda run: run.read_json(name))
    with pytest.raises(FednlpError, match=r"a pipe or a device|is no run directory|has 0 whole lines"):
        use(RunDir(stranger))


def test_the_task_that_is_named_is_that_of_the_run(plain: Path) -> None:
    assert open_trained(plain, task="text-classification").task_spec == "text-classification"
    with pytest.raises(RunError, match='is a run of the task "text-classification", not of "mine:Task"'):
        open_trained(plain, task="mine:Task")
    with pytest.raises(RunError, match="leave out task="):
        fednlp.resume(plain, task="mine:Task")


def test_a_class_of_ones_own_is_named_to_go_on_and_to_predict(
    settings_of_mine: Experiment, stopping: Stopping, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with stopping(rounds=1) as callback:
        fednlp.run(settings_of_mine, folder, callback=callback)
    with pytest.raises(RunError, match=f"add task=.{CLASS}"):
        fednlp.resume(folder)
    fednlp.resume(folder, task=CLASS)
    assert RunDir(folder).finished
    fednlp.resume(folder, expected=settings_of_mine)
    with pytest.raises(RunError, match=f"add --task {CLASS}"):
        predict_texts(folder, ["arts0"], {})
    assert open_trained(folder, task=CLASS).task.name == "mine"


def test_code_in_a_strangers_model_is_not_run(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = stranger / "model"
    (model / "evil.py").write_text(f"open({str(stranger / 'PWNED')!r}, 'w')\n")
    auto = {"AutoConfig": "evil.C", "AutoModelForSequenceClassification": "evil.M"}
    config = json.loads((model / "config.json").read_text()) | {"model_type": "evil", "auto_map": auto}
    (model / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(FednlpError, match="fednlp runs no code"):
        predict_texts(stranger, ["a"], {})
    assert not (stranger / "PWNED").exists()


@given(data=st.data())
@settings(max_examples=40)
def test_a_damaged_task_is_one_line_or_a_task(
    plain: Path, mutants: ModuleType, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("task")
    for name in ("resolved.toml", "task.json"):
        shutil.copy(plain / name, folder / name)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    mutants.damage(data.draw, folder / "task.json")
    with pytest.raises(FednlpError) as caught:  # of the model, if not of the task
        open_trained(folder)
    assert "\n" not in str(caught.value)


@given(data=st.data(), name=st.sampled_from(["resolved.toml", "summary.json", "rounds.jsonl"]))
@settings(max_examples=40)
def test_what_a_resumed_run_reads(
    plain: Path,
    mutants: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    name: str,
) -> None:
    folder = tmp_path_factory.mktemp("resume")
    for known in ("resolved.toml", "summary.json", "rounds.jsonl"):
        shutil.copy(plain / known, folder / known)
    mutants.damage(data.draw, folder / name)
    run = RunDir(folder)
    try:
        run.experiment()
        assert isinstance(run.finished, bool)
        lines = run.keep_rounds(2)
        fednlp.costs.totals(lines)
    except FednlpError:
        return
    assert [line["round"] for line in lines] == [1, 2]


READERS: dict[str, Callable[[Path], Any]] = {
    "task.json": lambda path: RunDir(path.parent).read_json(path.name),
    "summary.json": lambda path: RunDir(path.parent).read_json(path.name),
    "resolved.toml": lambda path: RunDir(path.parent).experiment(),
    "rounds.jsonl": lambda path: RunDir(path.parent).round_lines(),
    "rounds.jsonl of a report": lambda path: read_run(path.parent),
    "clients.csv": lambda path: read_run(path.parent),
    "model/config.json": lambda path: load_tokenizer(str(path.parent)),
    "experiment.toml": load,
    "site.toml": load_policy,
    "gpus.yaml": lambda path: workers_by_gpu(1, 1, str(path)),
    "shares.csv": read_proportions,
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_is_bounded_before_it_is_read(name: str, stranger: Path) -> None:
    path = stranger / name.partition(" of ")[0]
    with path.open("ab") as file:
        file.truncate(1 << 40)  # no room is taken on the disk
    with pytest.raises(FednlpError, match=r"1,099,511,627,776 bytes, and") as caught:
        READERS[name](path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"model/config.json"}))
def test_a_device_in_the_place_of_a_file_is_not_read(name: str, stranger: Path) -> None:
    path = stranger / name.partition(" of ")[0]
    path.unlink(missing_ok=True)
    path.symlink_to(os.devnull)
    with pytest.raises(FednlpError, match=r"is no run directory|pipe or a device"):
        READERS[name](path)


def test_a_damaged_checkpoint_says_how_to_start_again(stranger: Path) -> None:
    (stranger / "checkpoint" / "state.safetensors").write_bytes(b"\xff" * 99)
    with pytest.raises(RunError) as caught:
        RunDir(stranger).load_state(Layout.of({}))
    command = f"fednlp run {stranger / 'resolved.toml'} --out {stranger}-again"
    assert str(caught.value).endswith(f"start again with: {command}")


def test_names_of_clients_are_no_formulas(tmp_path: Path) -> None:
    """In clients.csv, and in the tables beside the plots of a partition."""
    names = ("=HYPERLINK(1)", "@b")
    partition = Partition([0, 2, 3], [0, 1, 2], [0, 0, 1], [0], [0, 1], names)
    worker = SimpleNamespace(task=SimpleNamespace(metric="accuracy"))
    scores = np.array([np.nan, -0.5])
    context: Any = SimpleNamespace(partition=partition, worker=worker, client_scores=scores)
    write_clients(tmp_path / "clients.csv", context)
    rows = list(csv.reader((tmp_path / "clients.csv").read_text().splitlines()))
    assert rows[1:] == [["0", "'=HYPERLINK(1)", "2", "0", ""], ["1", "'@b", "1", "1", "-0.500000"]]
    save_plots(tmp_path, overview(partition, np.array([0, 1, 1]), ("-label", "b")))
    head, first, _ = (tmp_path / "label_heatmap.csv").read_text().splitlines()
    assert (head, first) == ("client,'-label,b", "'=HYPERLINK(1),1,1")


def test_a_full_disk_is_said_where_a_round_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="no space left on the disk"):
        RunDir(tmp_path).append_round({"round": 1})


WRITERS: dict[str, Callable[[Path], Any]] = {
    "report": lambda run: write_report([run], run / "report"),
    "evaluate": lambda run: evaluate_run(run, out=run / "predictions.jsonl"),
    "export": lambda run: export(run, run / "exported"),
    "partition": lambda run: Partition.load(run / "partition.npz").save(run / "part.npz"),
    "plots": lambda run: save_plots(
        run / "plots", overview(Partition([0, 1], [0], [0, 0], [], [0]), np.array([0]), ("a",))
    ),
    "data export": lambda run: export_data(open_data(RunDir(run).experiment()), run / "data.h5"),
}


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.variants(3)
def test_what_is_written_into_a_strangers_folder_goes_through_no_link(
    command: str, stranger: Path, tmp_path: Path
) -> None:
    """Each file that a command makes lies there before, as a link to a file of the user."""
    before = {path for path in stranger.rglob("*") if path.is_file()}
    WRITERS[command](stranger)
    made = [path for path in stranger.rglob("*") if path.is_file() and path not in before]
    assert made
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for path in made:
        path.unlink()
        path.symlink_to(precious)
    refused = pytest.raises(RunError, match="never overwritten") if command == "export" else nullcontext()
    with refused:
        WRITERS[command](stranger)
        assert not any(path.is_symlink() for path in made)
    assert precious.read_text() == "mine"


@pytest.mark.parametrize(
    ("place", "pipe"),
    [("notes.txt", False), ("notes.txt", True), ("adapter/notes.txt", False), ("adapter", False)],
)
def test_nothing_of_the_user_is_exported(place: str, pipe: bool, stranger: Path, tmp_path: Path) -> None:
    """A link in the model's folder leads to what is not the stranger's, and the copy may be published."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("mine")
    path = stranger / "model" / place
    path.parent.mkdir(exist_ok=True)
    if pipe:
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "secrets" if place == "adapter" else tmp_path / "secrets" / "key")
    with pytest.raises(RunError, match="is no file of its own, and would be copied: remove it"):
        export(stranger, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("folder", ["report", "report/figures"])
def test_a_report_is_not_written_into_a_folder_elsewhere(folder: str, stranger: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (stranger / folder).parent.mkdir(exist_ok=True)
    (stranger / folder).symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match=r"is a link to .*/mine, which would be changed: remove the link"):
        write_report([stranger], stranger / "report")
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize(
    "name",
    ["rounds.jsonl", "checkpoint", "checkpoint/clients.bin", "checkpoint/.state.part", "model/config.json"],
)
def test_a_run_with_links_that_lead_out_is_not_resumed(name: str, stranger: Path, tmp_path: Path) -> None:
    (stranger / "summary.json").unlink()
    path, precious = stranger / name, tmp_path / "precious"
    if path.is_dir():
        path.rename(precious)
    else:
        path.unlink(missing_ok=True)
        precious.write_text("mine")
    path.symlink_to(precious)
    with pytest.raises(RunError, match="is a link to"):
        fednlp.resume(stranger)
    if precious.is_file():
        assert precious.read_text() == "mine"
