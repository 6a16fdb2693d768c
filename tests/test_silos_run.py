"""Silos through the public command: the example of docs/data.md, resume, comparison, evaluation, export."""

import csv
import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fednlp
from fednlp import config
from fednlp.cli import app
from fednlp.config import Experiment, parse
from fednlp.data import load_data
from fednlp.errors import ConfigError, DataError, FednlpError, PartitionError, RunError
from fednlp.inference.client_models import client_number
from fednlp.inference.score import evaluate_run
from fednlp.partition import Partition
from fednlp.simulation.callback import Callback, NullCallback
from fednlp.simulation.partitioning import describe, partition_source
from fednlp.simulation.run_dir import RunDir

pytestmark = pytest.mark.whole

PAGE = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## Silos\n") : PAGE.index("## A look at your data\n")]
FILES, HEAD, SAID = re.findall(r"```text\n(.*?)```", SECTION, re.S)
HOSPITALS = ("Mitte", "Nord", "Ost", "Süd", "West")
Make = Callable[..., Experiment]


def typed(*words: object) -> str:
    """Type a command that must go well, and return all that it prints."""
    result = CliRunner().invoke(app, list(map(str, words)))
    if isinstance(result.exception, FednlpError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def hospitals(here: Path) -> Path:
    """The folders and the experiment of the page, with 20 notes in each file."""
    header, *notes = csv.reader(HEAD.splitlines())
    for place in FILES.split():
        path = here / place
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *(notes * 10)])
    (toml,) = re.findall(r"```toml\n(.*?)```", SECTION, re.S)
    (here / "hospitals.toml").write_text(toml)
    return here / "hospitals"


def test_the_page(hospitals: Path, tiny_model: Path) -> None:
    """Each command of the section goes well; its run is one of five named clients with their own tests."""
    (commands,) = re.findall(r"```sh\n(.*?)```", SECTION, re.S)
    tiny = ["--set", f"model.name_or_path={tiny_model}", "--set", "num_rounds=1", "--workers", 1]
    run, evaluate, partition = (line.split()[1:] for line in commands.strip().splitlines())
    first, second = SAID.strip().splitlines()
    assert first in typed(*run, *tiny).replace("\n", " ")
    assert "accuracy" in typed(*evaluate)
    said = typed(*partition)
    assert first in said
    assert second.replace("silos:", "silos (seed 0):") in said
    made = Partition.load("runs/hospitals/partition.npz")
    assert made.client_names == HOSPITALS
    assert np.diff(made.train_offsets).tolist() == [16, 20, 16, 16, 16]
    assert np.diff(made.test_offsets).tolist() == [4, 20, 4, 4, 4]
    matrix = json.loads(Path("runs/hospitals/cross_client_evaluation.json").read_text())
    assert set(HOSPITALS) <= set(
        json.dumps(matrix, ensure_ascii=False).replace('"', " ").replace(",", " ").split()
    )
    with Path("runs/hospitals/clients.csv").open(encoding="utf-8") as file:
        assert [row["name"] for row in csv.DictReader(file)] == list(HOSPITALS)


def test_the_commands_of_the_partitions_page(hospitals: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "partitions.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"\n## silos\n.*?```sh\n(.*?)```", page, re.S)
    folder, pattern, pooled = (line.split()[1:] for line in commands.strip().splitlines())
    typed(*folder, "--out", "a.npz")
    place = pattern.index("hospitals/*")
    assert "are pooled" not in typed(
        *pattern[:place], *sorted(hospitals.iterdir()), *pattern[place + 1 :], "--out", "b.npz"
    )
    assert Path("a.npz").read_bytes() == Path("b.npz").read_bytes()
    assert 'the silos are pooled and shared out again by "label"' in typed(*pooled, "--out", "c.npz")
    made = Partition.load("c.npz")
    assert (made.num_clients, made.client_names) == (20, None)


def silos(folder: Path, rows: list[tuple[str, str, str]], make_csv: Callable[..., Path]) -> Path:
    """Write the rows of each site as a file of its own."""
    folder.mkdir()
    for site in {site for _, _, site in rows}:
        make_csv(folder / f"{site}.csv", [row[:2] for row in rows if row[2] == site], ("text", "label"))
    return folder


@pytest.fixture
def sites(tmp_path: Path, make_csv: Callable[..., Path], make_rows: Callable[..., Any]) -> Path:
    """A folder of five files."""
    return silos(tmp_path / "sites", make_rows(100), make_csv)


def test_named_clients_are_listed_with_what_they_hold(tmp_path: Path, make_csv: Callable[..., Path]) -> None:
    """The first 20 of them, a line each; clients without names are not."""

    def report(names: int, **method: Any) -> dict[str, Any]:
        rows = [(f"text {n}", "ab"[n // names % 2], f"s\x1b{n % names:02}") for n in range(10 * names)]
        table = make_csv(tmp_path / "table.csv", rows)
        made = parse({"data": {"path": str(table)}, "partition": method})
        return partition_source(made, None, None, lambda text: None)

    few = report(9, method="natural", field="site")
    assert sum(one["train"] for one in few["named"]) == few["train_examples"]
    assert sum(one["test"] for one in few["named"]) == few["test_examples"]
    assert describe(few).splitlines()[-9:] == [
        f"s\ufffd{n:02}  {one['train']} training and {one['test']} test example{'s' * (one['test'] != 1)}"
        for n, one in enumerate(few["named"])
    ]
    lines = describe(report(23, method="natural", field="site")).splitlines()[-21:]
    assert [line.split()[0] for line in lines[:20]] == [f"s\ufffd{n:02}" for n in range(20)]
    assert lines[20] == "and 3 clients more"
    unnamed = report(9, method="uniform", clients=3)
    assert "named" not in unnamed
    assert describe(unnamed).splitlines()[-1].startswith("last tenth")


def changes(sites: Path) -> dict[str, Any]:
    return {"data": {"path": str(sites)}, "partition": None, "num_rounds": 2}


def test_silos_train_as_a_natural_partition_of_one_table_does(
    sites: Path, experiment: Make, tmp_path: Path
) -> None:
    """The column says the same, and so do the weights, if all that is held out is."""
    run = fednlp.run(experiment(changes(sites)), tmp_path / "silos")
    named = {"method": "natural", "field": "silo"}
    other = fednlp.run(experiment(changes(sites) | {"partition": named}), tmp_path / "natural")
    assert run.partition.read_bytes() == other.partition.read_bytes()
    weights = [one.model / "model.safetensors" for one in (run, other)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert run.experiment().partition.method == "silos"


def test_a_changed_silo_is_refused_on_resume(
    sites: Path,
    experiment: Make,
    tmp_path: Path,
    stopping: Callable[..., AbstractContextManager[Callback]],
    outcome: Callable[[Path | RunDir], dict[str, Any]],
) -> None:
    whole = fednlp.run(experiment(changes(f"{sites}/*.csv")), tmp_path / "whole")  # type: ignore[arg-type]
    with stopping(rounds=1) as callback:
        fednlp.run(experiment(changes(f"{sites}/*.csv")), tmp_path / "run", callback=callback)  # type: ignore[arg-type]
    one = sites / "site3.csv"
    before = one.read_text()
    one.write_text(before + "another text,arts\n")
    with pytest.raises(RunError, match="have changed since it was begun"):
        fednlp.resume(tmp_path / "run")
    one.write_text(before)
    (sites / "site9.csv").write_text(before)
    with pytest.raises(RunError, match="have changed since it was begun"):
        fednlp.resume(tmp_path / "run")
    (sites / "site9.csv").unlink()
    assert outcome(fednlp.resume(tmp_path / "run")) == outcome(whole)


def test_what_is_compared_keeps_the_silos(sites: Path, experiment: Make) -> None:
    """Other algorithms, references and variants are made from an experiment that is written out."""
    made = experiment(changes(sites) | {"variants": {"slow": {"client": {"learning_rate": 0.001}}}})
    for name in ("fedprox", "local", "slow"):
        assert config.with_method(made, name, 1).resolved().partition.method == "silos"


def settled(path: object, **partition: object) -> Any:
    return parse({"data": {"path": path}, "partition": partition, "clients_per_round": 1}).resolved()


def test_the_method_is_chosen_by_the_path(sites: Path, texts: Path) -> None:
    for path in (str(sites), f"{sites}/*.csv", [str(one) for one in sites.iterdir()]):
        assert settled(path).partition.method == "silos"
        assert settled(path).resolved() == settled(path)
    assert (settled(str(texts)).partition.method, settled(str(texts)).partition.clients) == ("uniform", 10)
    assert settled(str(sites), method="uniform", clients=3).partition.method == "uniform"
    with pytest.raises(ConfigError, match="alpha has no effect with method 'silos'"):
        settled(str(sites), alpha=1.0)
    with pytest.raises(ConfigError, match="method 'uniform' needs clients"):
        settled(str(texts), seed=3)
    with pytest.raises(DataError, match="no file or folder fits"):
        settled(f"{sites}/*.tsv")


@pytest.mark.parametrize("path", [[], 3, ["a.csv", 3]])
def test_what_is_no_path(path: object) -> None:
    with pytest.raises(
        ConfigError, match=r"data.path: give a file, a folder, a pattern such as .* or a list of these"
    ):
        settled(path)


def test_silos_that_are_none_or_another_number(sites: Path, texts: Path) -> None:
    with pytest.raises(
        PartitionError, match=r'texts is one data set, and partition.method = "silos" makes a client'
    ):
        partition_source(settled(str(texts), method="silos"), None, None, print)
    with pytest.raises(
        PartitionError, match=r"the data have 5 silos, and partition.clients = 9: leave it out"
    ):
        partition_source(settled(str(sites), clients=9), None, None, print)
    assert partition_source(settled(str(sites), clients=5), None, None, print)["clients"] == 5


class Told(NullCallback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def log(self, text: str) -> None:
        self.said.append(text)


def test_the_first_lines_of_a_run_say_how_the_data_are_read(
    tmp_path: Path, experiment: Make, make_rows: Callable[..., Any]
) -> None:
    path = tmp_path / "semi.csv"
    path.write_text("text;label\n" + "".join(f"{text};{label}\n" for text, label, _ in make_rows(40)))
    told = Told()
    run = fednlp.run(
        experiment({"data": {"path": str(path)}, "num_rounds": 1, "partition.clients": 4}),
        tmp_path / "run",
        callback=told,
    )
    assert told.said[0] == f"{path}: a semicolon separates the cells"
    assert evaluate_run(run.folder, path).metrics["accuracy"] >= 0


def test_evaluate_reads_a_published_file(
    tmp_path: Path, experiment: Make, make_csv: Callable[..., Path]
) -> None:
    """AG News has no header; a file with the columns of the task goes as well."""
    folder = tmp_path / "ag"
    folder.mkdir()
    rows = [[str(1 + n % 4), f"word{n % 7} arts{n % 4}", f"word{n % 5}"] for n in range(40)]
    make_csv(folder / "train.csv", rows[1:], rows[0])
    make_csv(folder / "test.csv", rows[1:12], rows[0])
    data = {"name": "agnews", "path": str(folder)}
    run = fednlp.run(experiment({"data": data, "num_rounds": 1, "partition.clients": 4}), tmp_path / "run")
    whole = evaluate_run(run.folder).metrics
    assert evaluate_run(run.folder, folder / "test.csv").metrics == pytest.approx(whole)
    known = load_data("agnews", folder)
    canonical = [[row["text"], row["label"]] for row in known.test.to_pylist()]
    mine = make_csv(tmp_path / "mine.csv", canonical, ("text", "label"))
    assert evaluate_run(run.folder, mine).metrics == pytest.approx(whole)
    wrong = make_csv(tmp_path / "wrong.csv", canonical, ("body", "label"))
    with pytest.raises(
        DataError, match=r"no column 'text': .*; nor is it a file of agnews \(train.csv and test.csv"
    ):
        evaluate_run(run.folder, wrong)


def test_evaluate_reads_files_whose_ending_says_nothing(tmp_path: Path) -> None:
    """CoNLL-2003 calls its files eng.train, eng.testa and eng.testb."""
    from fednlp.inference.score import _file_of

    path = tmp_path / "eng.testa"
    path.write_text("-DOCSTART- -X- -X- O\n\nAnna NNP B-NP I-PER\nruns VBZ B-VP O\n")
    experiment = parse({"data": {"name": "conll2003", "path": str(tmp_path)}})
    data = _file_of(experiment, path, "token-classification", {})
    assert data.train.column("tags").to_pylist() == ['["B-PER", "O"]']


def test_a_text_in_two_languages_is_exported_and_shared_out(here: Path) -> None:
    for language in ("de", "en"):
        Path(f"train.{language}").write_text("".join(f"{language} {number}\n" for number in range(10)))
    options = ["--column", "source=de", "--column", "target=en"]
    assert "10 examples" in typed("data", "export", "train", "mine_data.h5", *options)
    again = load_data(path="mine_data.h5")
    assert (again.task, again.train.num_rows, again.test.num_rows) == ("sequence-to-sequence", 8, 2)
    assert "2 clients, 8 training and 2 test" in typed("partition", "train", "--clients", 2, *options)
    with pytest.raises(ConfigError, match="--column source: write name=own"):
        typed("partition", "train", "--column", "source")


def test_how_data_are_read_can_be_said_to_every_command(here: Path) -> None:
    Path("a.csv").write_text("note^dept^score\nx^a^1\ny^b^2\nz^^3\n")
    options = ["--text", "note", "--label", "dept", "--delimiter", "^", "--on-invalid-row", "drop"]
    assert "2 examples" in typed(
        "data", "export", "a.csv", "a_data.h5", *options, "--task", "text-classification"
    )
    assert "1 training and 1 test" in typed(
        "partition", "a.csv", "--clients", 1, *options, "--task", "text-classification"
    )
    with pytest.raises(ConfigError, match="--path goes with one known data set"):
        typed("partition", "a.csv", "a.csv", "--path", "b")


def test_a_client_is_found_in_either_form_of_its_umlaut() -> None:
    """A shell may complete a name of a folder in its decomposed form."""
    partition: Any = SimpleNamespace(client_names=("Nord", "S\u00fcd"), num_clients=2)
    assert client_number(partition, "Su\u0308d") == client_number(partition, "S\u00fcd") == 1
