"""Models of clients: what is kept of them, who is meant by ``--client``, and the folders they are written to."""

import csv
import json
import shutil
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

import fednlp
from fednlp.cli import app
from fednlp.config import Experiment
from fednlp.errors import RunError
from fednlp.inference.client_models import client_number
from fednlp.inference.export import folder_names
from fednlp.inference.score import evaluate_run
from fednlp.partition.index import from_owners
from fednlp.simulation.run_dir import RunDir

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
SHORT: dict[str, Any] = {"num_rounds": 1, "client.finetune_steps": 8, "clients_per_round": 8}
METHODS: dict[str, dict[str, Any]] = {
    "shared": SHORT,
    "personal": SHORT | {"model.train": {"personal": "head", "frozen": "embeddings"}},
    "not after own steps": {"num_rounds": 1, "clients_per_round": 8, "model.train": {"personal": "head"}},
    "selected": SHORT | {"pull": {"rule": "high", "push": "selected"}, "num_rounds": 2},
    "lora": SHORT | {"model.peft": {"method": "lora", "r": 2}},
    "own adapters": {
        "num_rounds": 1,
        "clients_per_round": 8,
        "model.peft": {"method": "lora", "r": 2},
        "model.train": {"personal": "head"},
    },
    "fedsa": {
        "num_rounds": 1,
        "clients_per_round": 8,
        "model.peft": {"method": "lora", "r": 2, "averaging": "fedsa"},
    },
    "exact": SHORT | {"model.peft": {"method": "lora", "r": 2, "averaging": "exact"}},
    "centralised": SHORT | {"algorithm.name": "centralised"},
}
NAMES = ("Nord", "Süd", "Ost", "West")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, experiment: Make) -> Callable[[str], RunDir]:
    """Return the run of a method, made once."""
    runs: dict[str, RunDir] = {}

    def run(method: str) -> RunDir:
        if method not in runs:
            folder = tmp_path_factory.mktemp("made") / "run"
            runs[method] = fednlp.run(experiment(METHODS[method]), folder)
        return runs[method]

    return run


@pytest.fixture(scope="module")
def named(
    tmp_path_factory: pytest.TempPathFactory,
    experiment: Make,
    make_csv: Callable[..., Path],
    make_rows: Callable[..., Any],
) -> RunDir:
    """A run whose clients have names and models of their own."""
    folder = tmp_path_factory.mktemp("named")
    rows = [(text, label, NAMES[n % 4]) for n, (text, label, _) in enumerate(make_rows(100, seed=3))]
    changes = {
        "data.path": str(make_csv(folder / "own.csv", rows)),
        "partition": {"method": "natural", "field": "site"},
        "model.train": {"personal": "head"},
        "clients_per_round": 4,
        "num_rounds": 1,
    }
    return fednlp.run(experiment(changes), folder / "run")


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def own_accuracy(run: RunDir, client: int, folder: Path, out: Path) -> float:
    """Score an exported folder, read by transformers alone, on one client's own test examples."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    evaluate_run(run.folder, None, out, client=str(client))
    part = np.load(run.partition)
    first, last = part["test_offsets"][client : client + 2]
    numbers = set(part["test_indices"][first:last].tolist())
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    rows = table(Path(run.experiment().data.path or ""))
    right = []
    for line in lines:
        if line["example"] in numbers:
            with torch.no_grad():
                batch = tokenizer(
                    rows[line["example"]]["text"], return_tensors="pt", truncation=True, max_length=32
                )
                guess = model.config.id2label[int(model(**batch).logits.argmax())]
            assert guess == line["prediction"]
            right.append(guess == line["label"])
    return float(np.mean(right))


@pytest.mark.parametrize("method", ["personal", "fedsa"])
def test_a_run_without_a_model_for_all_asks_whose(
    method: str, made: Callable[[str], RunDir], tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="have models of their own: say whose, with --client"):
        evaluate_run(made(method).folder, None, tmp_path / "out.jsonl")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.variants(3)
def test_an_exported_client_has_its_own_score(
    method: str, made: Callable[[str], RunDir], tmp_path: Path
) -> None:
    """Transformers alone loads the folder, and scores what clients.csv says; the card says the same."""
    run = made(method)
    rows = table(run.folder / "clients.csv")
    column = (
        "accuracy" if method in ("not after own steps", "own adapters", "fedsa") else "accuracy_finetuned"
    )
    chosen = [int(row["client"]) for row in rows if row[column]][:2]
    for client in chosen:
        folder = fednlp.export(run.folder, tmp_path / str(client), client)
        said = float(rows[client][column])
        assert own_accuracy(run, client, folder, tmp_path / "out.jsonl") == pytest.approx(said, abs=1e-6)
        card = (folder / "README.md").read_text()
        front = yaml.safe_load(card.split("\n---\n")[0].removeprefix("---\n"))
        (result,) = front["model-index"][0]["results"]
        assert result["metrics"] == [{"type": "accuracy", "value": pytest.approx(said)}]
        assert f"client {client}" in result["dataset"]["name"]
        assert "Whole test set" not in card
        for path in filter(Path.is_file, [*folder.rglob("*"), *run.model.rglob("*")]):
            for place in (run.folder.parent.parent, Path.home(), Path.cwd()):
                assert str(place).encode() not in path.read_bytes(), path


def test_adapters_of_a_client_name_the_base_of_the_run(
    made: Callable[[str], RunDir], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The folder from which a checkpoint was loaded, a snapshot of the hub for example, is no name."""
    run, named = made("own adapters"), RunDir.experiment

    def of_the_hub(run: RunDir) -> Experiment:
        read = named(run)
        return read.model_copy(update={"model": read.model.model_copy(update={"name_or_path": "owner/base"})})

    client = next(row["client"] for row in table(run.folder / "clients.csv") if row["accuracy"])
    source = run.experiment().model.name_or_path
    monkeypatch.setattr(RunDir, "experiment", of_the_hub)
    monkeypatch.setattr("fednlp.inference.model.trained_source", lambda experiment: source)
    folder = fednlp.export(run.folder, tmp_path / "out", client)
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "owner/base"
    assert 'base_model: "owner/base"' in (folder / "README.md").read_text()


def test_a_client_that_trained_on_is_another_model(made: Callable[[str], RunDir], tmp_path: Path) -> None:
    one, other = (evaluate_run(made("shared").folder, client=str(c)).metrics for c in (0, 1))
    assert one != other != evaluate_run(made("shared").folder).metrics


def test_the_shared_model_is_that_of_the_run(made: Callable[[str], RunDir], tmp_path: Path) -> None:
    run = made("shared")
    folder = fednlp.export(run.folder, tmp_path / "out")
    for path in run.model.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()


def test_models_that_are_not_kept_say_why(experiment: Make, tmp_path: Path) -> None:
    run = fednlp.run(experiment(SHORT | {"evaluation.keep_client_models": 7}), tmp_path / "run")
    with pytest.raises(
        RunError, match=r"the run has 8 clients, and evaluation.keep_client_models = 7: run again"
    ):
        evaluate_run(run.folder, client="0")
    assert not run.client_models.exists()
    run.write_json("summary.json", run.read_json("summary.json") | {"finished": False})
    with pytest.raises(RunError, match=r"keep_client_models"):
        fednlp.export(run.folder, tmp_path / "out", "0")
    assert not (tmp_path / "out").exists()


def test_all_clients_get_a_folder_each(named: RunDir, tmp_path: Path) -> None:
    made = fednlp.export_clients(named.folder, tmp_path / "all")
    assert sorted(path.name for path in made) == sorted(NAMES)
    assert all((path / "model.safetensors").is_file() for path in made)
    assert not list((tmp_path / "all").glob(".*"))
    with pytest.raises(RunError, match="4 clients, more than limit=3"):
        fednlp.export_clients(named.folder, tmp_path / "few", limit=3)
    with pytest.raises(RunError, match="holds something already"):
        fednlp.export_clients(named.folder, tmp_path / "all")


def test_clients_without_a_model_are_left_out(experiment: Make, tmp_path: Path) -> None:
    changes = {"num_rounds": 1, "clients_per_round": 2, "model.train": {"personal": "head"}}
    run = fednlp.run(experiment(changes), tmp_path / "run")
    said: list[str] = []
    made = fednlp.export_clients(run.folder, tmp_path / "all", log=said.append)
    (line,) = [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    assert [path.name for path in made] == [str(client) for client in line["cohort"]]
    assert len(said) == 6
    assert all("never took part" in text for text in said)


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ("nord", "there is no client 'nord': did you mean 'Nord'? there are Nord, Ost, Süd, West"),
        ("Sud", "did you mean 'Süd'?"),
        ("9", "there is no client '9': there are Nord, Ost, Süd, West"),
        (None, "say whose, with client='Nord' (there are Nord, Ost, Süd, West)"),
    ],
)
def test_a_client_that_is_not_there(client: str | None, said: str, named: RunDir, tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        fednlp.export(named.folder, tmp_path / "out", client)
    assert said in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_is_a_sites_own_lies_at_the_site(named: RunDir, tmp_path: Path) -> None:
    shutil.copytree(named.folder, tmp_path / "run")
    run = RunDir(tmp_path / "run")
    made = run.experiment()
    labels = run.read_json("labels.json")["labels"]
    data = made.data.model_copy(update={"name": "sites", "path": None, "labels": labels})
    run.write_experiment(made.model_copy(update={"data": data}))
    for client in (None, "Nord"):
        with pytest.raises(RunError, match="are sites, and what is their own lies there"):
            fednlp.export(run.folder, tmp_path / "out", client)


def test_names_come_before_numbers() -> None:
    partition = from_owners(np.arange(3), np.arange(3), 3)
    named = type(partition)(**{**vars(partition), "client_names": ("2", "1", "0")})
    assert [client_number(named, name) for name in ("0", 1, "2")] == [2, 1, 0]
    assert client_number(partition, "2") == 2


@given(st.lists(st.text(), max_size=30))
def test_folder_names_are_safe_and_different(names: list[str]) -> None:
    made = folder_names(names)
    assert len({name.casefold() for name in made}) == len(names)
    for name in made:
        assert Path(name).name == name
        assert not name.startswith((".", "-"))
        assert 0 < len(name.encode()) < 200


def test_names_in_either_unicode_form_are_those_letters() -> None:
    assert folder_names(["Süd", unicodedata.normalize("NFD", "Süd")]) == ["Süd", "Süd-1"]


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,2\n",
        "client,name,train_examples,test_examples\n0,x,<b>,1\n",
        "client,name,accuracy\n0,x,[1](javascript:1)\n",
        "client,name,accuracy\n0,x,0.5,more\n",
        "client,name\n0,\xff\n",
    ],
)
def test_a_damaged_table_of_clients_is_one_line(text: str, named: RunDir, tmp_path: Path) -> None:
    shutil.copytree(named.folder, tmp_path / "run")
    (tmp_path / "run" / "clients.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(RunError, match=r"clients.csv is damaged \(.*\): run the experiment again") as caught:
        fednlp.export(tmp_path / "run", tmp_path / "out", 0)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_where_something_is_already_nothing_is_written(named: RunDir, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    for name in ("file", "full"):
        (tmp_path / f"link-{name}").symlink_to(name)
    for name in ("file", "full", "link-file", "link-full", "file/below"):
        for write in (partial(fednlp.export, client="Nord"), fednlp.export_clients):
            with pytest.raises(RunError, match=r"holds something already|cannot write in"):
                write(named.folder, tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]


def test_on_the_command_line(named: RunDir, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    out = str(tmp_path / "süd")
    said = CliRunner().invoke(app, ["export", str(named.folder), "--client", "Süd", "--out", out])
    assert said.exit_code == 0
    assert f"written {out}" in said.output.replace("\n", "")
    assert (tmp_path / "süd" / "tokenizer.json").is_file()
    said = CliRunner().invoke(app, ["export", str(named.folder), "--all", "--client", "Süd", "--out", out])
    assert "do not go together" in str(said.exception)


def test_the_card_of_shared_weights_alone(named: RunDir) -> None:
    """It claims no score and no use of its own, and says how to write a client's model."""
    card = (named.model / "README.md").read_text()
    front = yaml.safe_load(card.split("\n---\n")[0].removeprefix("---\n"))
    assert "model-index" not in front
    assert "metrics" not in front
    assert "pipeline_tag" not in front
    assert "pipeline(" not in card
    assert "fednlp export RUN --client NAME --out FOLDER" in card
    assert "no useful predictions" in card
