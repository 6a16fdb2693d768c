"""The example of a user's own task: what it must be so that everything else works with it."""

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import cohen_kappa_score, f1_score, precision_score, recall_score

from fednlp.data.features import Features
from fednlp.tasks import task_class, task_from
from fednlp.tasks.base import Task
from fednlp.tasks.fields import option_misfit
from fednlp.tasks.label_scores import defined_together
from tests.docs_blocks import blocks

from .models import CPU, WORDS, bert, built, fit, wordpiece

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return wordpiece(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def multi_label() -> Iterator[Any]:
    """The class, as an experiment imports it by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("new_task").MultiLabel
        sys.modules.pop("new_task")


def rows() -> list[dict[str, str | None]]:
    """A text has the labels whose words it holds; some have none."""
    rng = np.random.default_rng(0)
    made: list[dict[str, str | None]] = []
    for _ in range(40):
        own = [name for name in ("w0", "w1", "w2") if rng.random() < 0.5]
        words = [*own, *rng.choice(WORDS[3:], 4)]
        made.append({"text": " ".join(rng.permutation(words)), "label": "|".join(own)})
    return made


def test_its_options_have_types_and_ranges(multi_label: Any) -> None:
    assert option_misfit(multi_label, {"threshold": 0.4, "left_to": "build"}) is None
    assert option_misfit(multi_label, {"threshold": 1.5}) == "threshold = 1.5: input should be less than 1"
    assert option_misfit(multi_label, {"threshold": "x"}) == 'threshold = "x": input should be a valid number'


def test_it_is_a_task_from_a_column_to_its_scores(tokenizer: Any, multi_label: Any) -> None:
    data = rows()
    task: Task = multi_label.build([row["label"] for row in data], tokenizer)
    assert task.labels == ("w0", "w1", "w2")
    assert task_class("new_task:MultiLabel") is multi_label
    assert task_from("new_task:MultiLabel", json.loads(json.dumps(asdict(task)))) == task
    features = Features.in_memory(task.encode(data, tokenizer, 16))
    numbers = np.arange(len(data))
    model = built(task, bert(len(tokenizer)))
    fit(task, model, features, numbers, steps=60, rate=0.003)
    with torch.inference_mode():
        outcome = task.predict(model, features, numbers, CPU)
    metrics = task.metrics(outcome.predictions, features, numbers)
    assert metrics["micro_f1"] > 0.9
    name, found = task.baseline(features, numbers, features, numbers)
    assert (name, len(found)) == ("the most frequent labels", 40)
    assert 0 <= task.metrics(found, features, numbers)["micro_f1"] < metrics["micro_f1"]
    assert set(task.format_prediction(outcome.predictions[0])) <= set(task.labels)
    json.dumps([outcome.predictions, metrics], allow_nan=False)
    loss = task.loss(model, task.collate(features, numbers, CPU)).detach()
    assert outcome.loss / outcome.weight == pytest.approx(float(loss), rel=1e-5)


def test_its_scores_are_those_of_scikit_learn_and_sums(tokenizer: Any, multi_label: Any) -> None:
    data = rows()
    task = multi_label.build([row["label"] for row in data], tokenizer, threshold=0.3)
    assert task.threshold == 0.3
    features, numbers = Features.in_memory(task.encode(data, tokenizer, 16)), np.arange(40)[::-1]
    rng = np.random.default_rng(1)
    guess = rng.random((40, 3)) < 0.4
    truth = np.array([[name in (data[n]["label"] or "").split("|") for name in task.labels] for n in numbers])
    predictions = [np.flatnonzero(row).tolist() for row in guess]
    metrics = task.metrics(predictions, features, numbers)
    for name, scored in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        assert metrics[f"micro_{name}"] == pytest.approx(scored(truth, guess, average="micro"))
    statistics = task.statistics(predictions, features, numbers)
    assert statistics.dtype == np.float64
    assert abs(task.score(statistics.sum(0)) - metrics[task.metric]) < 1e-9
    assert task.score(np.zeros((2, 3))).tolist() == [0, 0]


@pytest.mark.parametrize("labels", [2, 4])
def test_the_metric_of_the_docs_is_that_of_scikit_learn(labels: int) -> None:
    """Of the whole set, of sums, and of each client's part of it; what goes with the counts stays."""
    page = Path(__file__).parents[2] / "docs" / "add-a-task.md"
    (code,) = (block.text for block in blocks(page) if block.marks.get("file") == "my_metrics.py")
    module: dict[str, Any] = {"__name__": __name__}
    exec(code, module)
    task = module["Kappa"](tuple("abcd"[:labels]))
    rng = np.random.default_rng(labels)
    truth, guess = rng.integers(labels, size=(2, 60))
    features = Features.in_memory([{"input_ids": [1], "label": int(one)} for one in truth])
    every, part = np.arange(60), np.arange(20)
    for numbers in (every, part):
        expected = cohen_kappa_score(truth[numbers], guess[numbers])
        sums = task.statistics(guess[numbers], features, numbers).sum(0)
        assert task.metrics(guess[numbers], features, numbers)["kappa"] == pytest.approx(expected)
        assert task.score(sums) == pytest.approx(expected)
    assert all(defined_together(task, name, "metrics") for name in ("by_label", "sums"))
