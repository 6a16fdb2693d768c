"""The global model evaluated on the clients' own tests by sums: the scores of the union of their tests."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fednlp
from fednlp.cli.console import closing_table
from fednlp.config import Experiment, with_algorithm
from fednlp.errors import ConfigError
from fednlp.reports import write_report
from fednlp.simulation.federated_evaluation import check_federated_evaluation
from fednlp.simulation.run_dir import RunDir
from fednlp.tasks.text_classification import TextClassification

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("undrawn")]

Make = Callable[..., Experiment]
Outcome = Callable[[Path | RunDir], dict[str, Any]]
FEDERATED = {"evaluation.federated": True, "num_rounds": 2}
PROTOCOLS = ("secagg", "secagg+", "lightsecagg")


def evaluations(run: RunDir) -> list[dict[str, Any]]:
    lines = (run.folder / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line)["evaluation"] for line in lines]


@pytest.fixture(scope="module")
def plain(experiment: Make, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return fednlp.run(experiment(FEDERATED), tmp_path_factory.mktemp("plain") / "run")


def test_it_is_the_evaluation_of_the_union_of_all_tests(plain: RunDir) -> None:
    summary = json.loads((plain.folder / "summary.json").read_text())
    found = evaluations(plain)
    assert len(found) == 2
    for one in found:
        baseline = {"baseline": summary["trivial_baseline"]["accuracy"]}
        expected = {
            **one["global"],
            **baseline,
            "examples": summary["data"]["test"],
            "clients": summary["clients"],
        }
        assert one["federated"] == pytest.approx(expected, rel=1e-5)
        assert one["federated"]["accuracy"] == one["global"]["accuracy"]


def test_it_changes_nothing_else(plain: RunDir, experiment: Make, outcome: Outcome, tmp_path: Path) -> None:
    without = outcome(
        fednlp.run(experiment(FEDERATED | {"evaluation.federated": False}), tmp_path / "without")
    )
    found = outcome(plain)
    for one in (*(line["evaluation"] for line in found["rounds"]), found["summary"]["evaluation"]):
        del one["federated"]
    assert found == without


@pytest.mark.slow
def test_two_workers_have_the_same_sums(
    plain: RunDir, experiment: Make, outcome: Outcome, tmp_path: Path
) -> None:
    two = fednlp.run(experiment(FEDERATED | {"runtime.workers": 2}), tmp_path / "two")
    assert outcome(two) == outcome(plain)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_secure_sum_of_the_same_model_is_the_same(protocol: str, experiment: Make, tmp_path: Path) -> None:
    """Bit for bit: the numbers are whole ones."""
    made = experiment(FEDERATED | {"secure.protocol": protocol, "num_rounds": 1})
    run = fednlp.run(made, tmp_path / "secure")
    (found,) = evaluations(run)
    secure = found["federated"]
    assert secure.pop("bytes") > 4 * 4 * 9  # of each of the clients a vector of digits, at least
    assert 0.25 <= secure.pop("baseline") <= 1  # of the four labels the one that most tests have
    assert secure == pytest.approx(
        {**found["global"], "examples": secure["examples"], "clients": secure["clients"]}, rel=1e-5
    )
    assert secure["accuracy"] == found["global"]["accuracy"]


def test_clients_with_layers_of_their_own_use_them(experiment: Make, tmp_path: Path) -> None:
    run = fednlp.run(experiment(FEDERATED | {"model.train": {"personal": "head"}}), tmp_path / "own")
    for one in evaluations(run):
        assert one["federated"]["accuracy"] == pytest.approx(one["personal"]["accuracy"])


def test_it_is_shown(plain: RunDir, tmp_path: Path) -> None:
    from rich.console import Console

    summary = json.loads((plain.folder / "summary.json").read_text())
    console = Console(width=100)
    with console.capture() as shown:
        console.print(closing_table(summary))
    examples = summary["evaluation"]["federated"]["examples"]
    assert f"({examples:,} examples of {summary['clients']} clients)" in shown.get()
    pages = [path.read_text() for path in write_report([plain.folder], tmp_path) if path.suffix == ".md"]
    assert any("Summed test" in page for page in pages)


def test_baselines_of_a_comparison_leave_it_out(experiment: Make) -> None:
    assert not with_algorithm(experiment(FEDERATED), "local", 1).evaluation.federated


def test_too_few_clients_with_tests_have_no_secure_sum(experiment: Make) -> None:
    changes = {"secure.protocol": "secagg", "evaluation.federated": True}
    made = experiment(changes)
    task = TextClassification(("a", "b"))
    assert check_federated_evaluation(made, task, np.array([0, 1, 2, 2, 5])) == []
    with pytest.raises(ConfigError, match=r"evaluation\.federated over 2 clients with test examples"):
        check_federated_evaluation(made, task, np.array([0, 1, 1, 2, 2]))


def test_a_report_of_a_run_without_a_test_set_of_the_server_s_shows_the_sums(
    plain: RunDir, tmp_path: Path
) -> None:
    """As that of a federation between machines, where no single site tells its score."""
    folder = tmp_path / "run"
    shutil.copytree(plain.folder, folder)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    for evaluation in (*(line["evaluation"] for line in lines), summary["evaluation"]):
        evaluation["global"] = {}
        del evaluation["personal"]
    (folder / "rounds.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps(summary))
    write_report([folder], tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Accuracy after each round, on the clients&#x27; own tests, from sums over the clients." in page
    assert "Summed test accuracy" in page
