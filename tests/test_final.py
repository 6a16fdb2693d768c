"""Laws of what is done once after the last round: fine-tuning by each client, and the cross-client evaluation."""

import csv
import json
import logging
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fednlp
from fednlp.config import Experiment
from fednlp.errors import RunError, TooFewClients
from fednlp.federated.client import TrainRequest
from fednlp.inference.score import evaluate_run
from fednlp.simulation import evaluate
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.run_dir import RunDir
from fednlp.training.local import LocalTrainer
from fednlp.training.requests import HANDLERS
from fednlp.training.worker import ClientWorker

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
Outcome = Callable[[Path | RunDir], dict[str, Any]]
SHORT: dict[str, Any] = {"num_rounds": 2, "client.finetune_steps": 3}
FEW = {"gold": 12, "gamma": 1.0, "f": 1, "n": 2, "k": 20.0}
METHODS: dict[str, dict[str, Any]] = {
    "plain": SHORT | {"evaluation.cross_client_evaluation": True},
    "personal": SHORT
    | {
        "model.train": {"personal": "head"},
        "evaluation.cross_client_evaluation": True,
        "evaluation.every": 2,
    },
    "few labels": SHORT | {"fewshot": FEW},
    "matrix alone": {"num_rounds": 2, "evaluation.cross_client_evaluation": True},
    "centralised": SHORT | {"algorithm.name": "centralised"},
    "not kept": SHORT | {"evaluation.keep_client_models": 7},
}


class Killed(Exception):
    """What stands for a crash."""


def last_line(run: RunDir) -> dict[str, Any]:
    line: dict[str, Any] = json.loads((run.folder / "rounds.jsonl").read_text().splitlines()[-1])
    return line


def rows_of(run: RunDir) -> list[dict[str, str]]:
    return list(csv.DictReader((run.folder / "clients.csv").read_text().splitlines()))


@pytest.mark.parametrize(
    ("method", "where"),
    [("plain", "before"), *((method, "within") for method in METHODS), ("personal", "after")],
)
@pytest.mark.variants(2)
def test_killed_between_the_last_round_and_the_end(
    method: str,
    where: str,
    experiment: Make,
    outcome: Outcome,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last round is saved before, and resuming repeats what comes after it alone, with the same result."""
    settings = experiment(METHODS[method])
    whole = fednlp.run(settings, tmp_path / "whole")

    def killed(*arguments: Any, **named: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        home = {"before": "evaluate_final", "after": "summary_of"}.get(where)
        if home is None:
            patch.setattr(
                evaluate,
                "_cross_client_evaluation" if settings.evaluation.cross_client_evaluation else "_add_scores",
                killed,
            )
        else:
            patch.setattr(f"fednlp.simulation.train.{home}", killed)
        with pytest.raises(Killed):
            fednlp.run(settings, tmp_path / "run")
    run = RunDir(tmp_path / "run")
    assert last_line(run)["round"] == 2
    assert not run.finished
    with monkeypatch.context() as patch:
        nobody = replace(HANDLERS[TrainRequest], answer=killed)  # no round is done again
        patch.setitem(HANDLERS, TrainRequest, nobody)
        fednlp.resume(tmp_path / "run", workers=2 if where == "before" else 1)
    assert outcome(run) == outcome(whole)
    kept = [one.client_models.read_bytes() if one.client_models.is_file() else None for one in (run, whole)]
    assert kept[0] == kept[1]


def test_finetune_steps_and_few_labels(experiment: Make, tmp_path: Path) -> None:
    """Clients train on the labels they have; those without any are counted and have no score."""
    run = fednlp.run(
        experiment(SHORT | {"fewshot": FEW | {"pacing": "none", "gamma": 0.1}}), tmp_path / "run"
    )
    summary = run.read_json("summary.json")
    assert summary["finished"]
    untrained = summary["finetune_untrained"]
    assert 0 < untrained < 8
    empty = [row for row in rows_of(run) if not row["accuracy_finetuned"]]
    assert len(empty) >= untrained
    assert summary["evaluation"]["finetuned"]["clients"] == 8 - len(empty)
    assert "finetune_failed" not in summary


def test_hidden_labels_do_not_reach_finetune_steps(
    experiment: Make, make_csv: Callable[..., Path], make_rows: Callable[..., Any], tmp_path: Path
) -> None:
    """Training labels that no client has been given may be any: what is kept of the clients' models is the same."""
    rows, path = make_rows(160), tmp_path / "own.csv"
    settings = experiment(
        SHORT
        | {
            "fewshot": FEW | {"pacing": "none"},
            "data.path": str(make_csv(path, rows)),
            "data.test_path": str(make_csv(tmp_path / "test.csv", make_rows(40, seed=1))),
            "partition": {"method": "uniform", "clients": 8},
        }
    )
    gold: set[int] = set()

    def note(worker: ClientWorker, request: Any) -> AbstractContextManager[Any]:
        assert request.examples is not None
        assert request.labels is not None
        gold.update(request.examples)
        return labelled_examples(worker, request)

    labelled_examples = ClientWorker.labelled_examples
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientWorker, "labelled_examples", note)
        one = fednlp.run(settings, tmp_path / "one")
    assert 0 < len(gold) <= 12
    hidden = [n for n in range(160) if n not in gold]
    swapped = dict(zip(hidden, [rows[n][1] for n in hidden[1:] + hidden[:1]], strict=True))
    make_csv(path, [(text, swapped.get(n, label), site) for n, (text, label, site) in enumerate(rows)])
    other = fednlp.run(settings, tmp_path / "other")
    assert other.client_models.read_bytes() == one.client_models.read_bytes()


def test_a_client_that_diverges_in_its_finetune_steps_is_reported(
    experiment: Make,
    make_csv: Callable[..., Path],
    make_rows: Callable[..., Any],
    poisoned_model: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Client site0 alone has the text that gives NaN, and is dropped from the rounds too; the run goes on."""
    rows = [
        (text + " poison" if site == "site0" else text, label, site) for text, label, site in make_rows(60)
    ]
    test = make_csv(tmp_path / "test.csv", make_rows(20, seed=1))
    settings = experiment(
        SHORT
        | {
            "data.path": str(make_csv(tmp_path / "own.csv", rows)),
            "data.test_path": str(test),
            "partition": {"method": "natural", "field": "site"},
            "model.name_or_path": str(poisoned_model),
            "clients_per_round": 5,
            "evaluation.cross_client_evaluation": True,
        }
    )
    with caplog.at_level(logging.WARNING, "fednlp"):
        run = fednlp.run(settings, tmp_path / "run")
    summary = run.read_json("summary.json")
    assert summary["finished"]
    (failed,) = summary["finetune_failed"]
    assert failed["client"] == 0
    assert "NaN" in failed["reason"]
    assert failed == last_line(run)["finetune_failed"][0]
    assert "client 0 failed in its fine-tuning steps" in caplog.text
    assert [bool(row["accuracy_finetuned"]) for row in rows_of(run)] == [False, True, True, True, True]
    assert summary["evaluation"]["finetuned"]["clients"] == 4
    matrix = {row["model"]: row["scores"] for row in run.read_json("cross_client_evaluation.json")["rows"]}
    assert matrix["site0"] == [None] * 5
    assert None not in matrix["site1"]


def test_finetune_steps_are_not_pulled_to_the_global_model(experiment: Make, tmp_path: Path) -> None:
    """With FedProx of two mu, clients that begin their fine-tuning steps from the same model end in the same models."""
    shared = SHORT | {
        "num_rounds": 1,
        "algorithm.name": "fedprox",
        "client.max_steps": 1,
        "client.max_grad_norm": 0.0,
    }
    runs = [
        fednlp.run(experiment(shared | {"algorithm.mu": mu}), tmp_path / f"{mu}") for mu in (0.0, 10.0)
    ]  # the first step of a round has nothing to be pulled to: with one step, mu changes nothing
    assert runs[0].client_models.read_bytes() == runs[1].client_models.read_bytes()


def test_models_that_the_disk_has_no_room_for_are_not_kept(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Said(NullCallback):
        text = ""

        def log(self, text: str) -> None:
            self.text += text

    callback = Said()
    monkeypatch.setattr(evaluate, "_LEAVE_FREE", 2 * shutil.disk_usage(tmp_path).total)
    run = fednlp.run(experiment(SHORT), tmp_path / "run", callback=callback)
    assert "the models of 8 clients are not kept" in callback.text
    assert run.finished
    assert not run.client_models.exists()


def test_a_run_that_stopped_early_has_no_models_of_clients_and_says_why(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LocalTrainer.steps

    def broken(local: LocalTrainer, *arguments: Any, **options: Any) -> Any:
        if local.round == 2:
            raise RuntimeError("no such luck")
        return original(local, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalTrainer, "steps", broken)
        with pytest.raises(TooFewClients, match="no such luck"):
            fednlp.run(experiment(SHORT), tmp_path / "run")
    with pytest.raises(
        RunError, match=r"fine-tuning steps \(its run stopped early: .*0 of 4 clients answered"
    ) as caught:
        evaluate_run(tmp_path / "run", client="0")
    assert "--resume" not in str(caught.value)


def test_clients_csv_has_the_finetuned_score_of_each_client(experiment: Make, tmp_path: Path) -> None:
    run = fednlp.run(experiment(SHORT), tmp_path / "run")
    scores = [
        (float(row["accuracy_finetuned"]), int(row["test_examples"]))
        for row in rows_of(run)
        if row["accuracy_finetuned"]
    ]
    mean = sum(score * size for score, size in scores) / sum(size for _, size in scores)
    assert mean == pytest.approx(
        run.read_json("summary.json")["evaluation"]["finetuned"]["accuracy"], abs=1e-5
    )
