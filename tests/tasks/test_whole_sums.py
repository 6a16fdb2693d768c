"""Metrics from sums of whole numbers over clients: those of all examples together."""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data.features import Features
from fednlp.errors import ConfigError
from fednlp.tasks import task_from
from fednlp.tasks.base import Predictions
from fednlp.tasks.causal_lm import CausalLM
from fednlp.tasks.label_scores import scores_labels
from fednlp.tasks.own_metric import scored_by
from fednlp.tasks.question_answering import QuestionAnswering
from fednlp.tasks.seq2seq import SequenceToSequence
from fednlp.tasks.text_classification import TextClassification
from fednlp.tasks.text_regression import TextRegression
from fednlp.tasks.token_classification import TokenClassification
from fednlp.tasks.whole_sums import LARGEST, STEP_BITS, steps
from fednlp.training.scores import NoSums, num_sums, require_summable, scored, scores_of_sums, sums_of

CLASSES = TextClassification(("a", "b", "c", "d"))
TAGS = TokenClassification(("B-X", "I-X", "B-Y", "O"))
SCORES = TextRegression()
WORDS = st.lists(st.sampled_from(["up", "down", "the", "north"]), min_size=1, max_size=6).map(" ".join)


def outcomes_of(guesses: Sequence[Any], clients: Sequence[int]) -> dict[int, list[Predictions]]:
    """Return each client's predictions, in two batches."""
    found: dict[int, list[Predictions]] = {}
    for client in sorted(set(clients)):
        own = [number for number, owner in enumerate(clients) if owner == client]
        batches = (own[::2], own[1::2])
        found[client] = [
            Predictions(batch, [guesses[n] for n in batch], 0.1 * len(batch) + client / 3, len(batch))
            for batch in batches
            if batch
        ]
    return found


def summed(task: Any, features: Features, guesses: Sequence[Any], clients: Sequence[int]) -> dict[str, Any]:
    """Return the scores from sums over clients."""
    task = require_summable(task)
    sums = [sums_of(task, features, own) for own in outcomes_of(guesses, clients).values()]
    assert all(len(one) == num_sums(task) for one in sums)
    return scores_of_sums(task, [sum(column) for column in zip(*sums, strict=True)])


def check(
    task: Any, features: Features, guesses: Sequence[Any], clients: Sequence[int], **close: Any
) -> None:
    """Check that sums over clients give the scores of the union of their examples."""
    union = [one for own in outcomes_of(guesses, clients).values() for one in own]
    expected = scored(task, features, union)
    assert expected is not None
    found = summed(task, features, guesses, clients)
    assert found.pop("examples") == len(guesses)
    found.pop("baseline", None)  # of no model
    assert {*expected} - {*found} == {*getattr(task, "unsummed", ())}
    limits = {"rel": 1e-9, "abs": 1e-9} | close
    for name, value in found.items():
        assert (value is None) is (expected[name] is None)
        assert value is None or value == pytest.approx(expected[name], **limits)


def owners(count: int) -> Any:
    return st.lists(st.integers(0, 3), min_size=count, max_size=count)


@given(st.data(), st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_classes(data: Any, drawn: list[tuple[int, int]]) -> None:
    """Labels that are not known (-1), that never occur and that are never predicted are among them."""
    features = Features.in_memory([{"input_ids": [1], "label": label} for label, _ in drawn])
    check(CLASSES, features, [guess for _, guess in drawn], data.draw(owners(len(drawn))))


TAGGED = st.lists(st.tuples(st.sampled_from([*TAGS.labels, "I-Z"]), st.sampled_from(TAGS.labels)), min_size=1)


@given(st.data(), st.lists(TAGGED, min_size=1, max_size=8))
def test_spans(data: Any, drawn: list[list[tuple[str, str]]]) -> None:
    rows = [
        {
            "input_ids": [1],
            "places": [0] * len(one),
            "tags": [0] * len(one),
            "gold": json.dumps([t for t, _ in one]),
        }
        for one in drawn
    ]
    guesses = [[guess for _, guess in one] for one in drawn]
    check(TAGS, Features.in_memory(rows), guesses, data.draw(owners(len(drawn))))


@given(st.data(), st.lists(st.tuples(WORDS, st.lists(WORDS, min_size=1, max_size=2)), min_size=1, max_size=8))
def test_answers_and_generated_texts(data: Any, drawn: list[tuple[str, list[str]]]) -> None:
    rows = [
        {
            "input_ids": [1],
            "golds": json.dumps(golds),
            "references": json.dumps(golds),
        }
        for _, golds in drawn
    ]
    features, guesses, clients = (
        Features.in_memory(rows),
        [said for said, _ in drawn],
        data.draw(owners(len(drawn))),
    )
    check(QuestionAnswering(), features, guesses, clients)
    check(SequenceToSequence(tokenizer=""), features, guesses, clients)


@given(
    st.data(),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.floats(0, 50)), min_size=1, max_size=9),
)
def test_tokens(data: Any, drawn: list[tuple[int, int, float]]) -> None:
    guesses = [[right, right + wrong, loss] for right, wrong, loss in drawn]
    features = Features.in_memory([{"input_ids": [1]} for _ in drawn])
    check(CausalLM(vocabulary=9), features, guesses, data.draw(owners(len(drawn))))


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e5])
@pytest.mark.parametrize("spread", [1.0, 1e-4])
def test_correlations_are_those_of_scipy_wherever_the_scores_lie(offset: float, spread: float) -> None:
    """No client knows the middle of all scores; the sums are exact, so none is needed."""
    rng = np.random.default_rng(0)
    truth = offset + spread * rng.standard_normal(300)
    guess = (offset + 0.5 * (truth - offset) + spread * rng.standard_normal(300)).astype(np.float32)
    features = Features.in_memory([{"input_ids": [1], "score": float(one)} for one in truth])
    found = summed(SCORES, features, guess.tolist(), rng.integers(0, 5, 300).tolist())
    exact = guess.astype(np.float64)
    assert found["mse"] == pytest.approx(np.mean((truth - exact) ** 2), rel=1e-6)
    if np.ptp(exact):
        assert found["pearson"] == pytest.approx(scipy.stats.pearsonr(truth, exact).statistic, abs=1e-7)
    assert "spearman" not in found


@given(st.data(), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=9))
def test_scores_that_do_not_vary_have_no_correlation(data: Any, drawn: list[tuple[int, int]]) -> None:
    features = Features.in_memory([{"input_ids": [1], "score": float(one)} for one, _ in drawn])
    check(SCORES, features, [float(guess) for _, guess in drawn], data.draw(owners(len(drawn))), abs=1e-7)


@given(st.floats(-1e6, 1e6))
def test_a_fraction_is_counted_to_the_nearest_step(value: float) -> None:
    assert abs(steps(value) - value * 2**STEP_BITS) <= 0.5 + abs(value) * 2**-13


def test_a_diverged_model_has_a_loss_that_can_be_summed() -> None:
    assert steps(math.nan) == steps(math.inf) == steps(1e300) == LARGEST * 2**STEP_BITS
    assert steps(-math.inf) == -steps(math.inf)


@pytest.mark.parametrize(
    "task", [CLASSES, TAGS, SCORES, QuestionAnswering(), SequenceToSequence(tokenizer="")]
)
@given(data=st.data())
def test_whatever_clients_send_ends_in_numbers_or_is_refused(task: Any, data: Any) -> None:
    number = st.integers(-(2**191), 2**191) | st.integers(-3, 3)
    sums = data.draw(st.lists(number, min_size=num_sums(task), max_size=num_sums(task)))
    try:
        found = scores_of_sums(task, sums)
    except NoSums:
        return
    assert all(value is None or math.isfinite(value) for value in found.values())


def test_a_task_without_sums_is_refused() -> None:
    class Own(TextClassification):
        def metrics(self, *arguments: Any) -> dict[str, float]:
            return {}

    with pytest.raises(ConfigError, match=r"evaluation\.federated needs .* leave evaluation\.federated out"):
        require_summable(Own(("a",)))


OWN = "own_scores:exact"
SCORED: list[tuple[str, dict[str, Any], list[dict[str, Any]], list[Any]]] = [
    ("text-classification", {"labels": ["a", "b"]}, [{"label": one} for one in (0, 1, -1)], [0, 0, 1]),
    (
        "token-classification",
        {"labels": ["B-X", "O"]},
        [{"places": [0], "tags": [0], "gold": json.dumps(tags)} for tags in (["O"], ["B-X"], ["O"])],
        [["O"], ["O"], ["B-X"]],
    ),
    ("text-regression", {}, [{"score": one} for one in (0.5, 1.0, 2.0)], [0.5, 2.0, 1.0]),
    ("question-answering", {}, [{"golds": json.dumps(["up", "a"])}] * 3, ["up", "no", "down"]),
    (
        "sequence-to-sequence",
        {"tokenizer": ""},
        [{"references": json.dumps(["up"])}] * 3,
        ["up", "no", "down"],
    ),
]


@pytest.fixture
def own_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of the user's own."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_scores.py").write_text(
        "def exact(prediction, truth):\n"
        "    return prediction == truth or (isinstance(truth, list) and prediction in truth)\n\n"
        "def accuracy(prediction, truth):\n    return 1\n\n"
        "def five(prediction, truth):\n    return 5\n\n"
        "def broken(prediction, truth):\n    return truth.nothing\n"
    )
    scored_by.cache_clear()
    yield
    scored_by.cache_clear()
    sys.modules.pop("own_scores", None)


@pytest.mark.parametrize(("name", "fields", "rows", "guesses"), SCORED, ids=[one[0] for one in SCORED])
def test_a_function_of_the_users_own_scores_each_example(
    own_scores: None, name: str, fields: dict[str, Any], rows: list[dict[str, Any]], guesses: list[Any]
) -> None:
    """One of three is right; its sums over clients are those of all, and a task built again is the same."""
    task = task_from(f"{name}+{OWN}", fields)
    assert task_from(f"{name}+{OWN}", json.loads(json.dumps(asdict(task)))) == task  # type: ignore[call-overload]
    features = Features.in_memory([{"input_ids": [1], **row} for row in rows])
    numbers = np.arange(3)
    assert task.metric == "exact"
    assert task.metrics(guesses, features, numbers)["exact"] == pytest.approx(1 / 3)
    assert task.score(task.statistics(guesses, features, numbers).sum(0)) == pytest.approx(1 / 3)
    check(task, features, guesses, [0, 1, 0])
    assert scores_labels(task) == scores_labels(task_from(name, fields))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("text-classification+own_scores:five", "returned 5: it has to be a number from 0 to 1"),
        ("text-classification+own_scores:broken", r"failed: AttributeError: .* \(own_scores.py, line 11\)"),
        ("text-classification+own_scores:accuracy", "has the name of a score of the task"),
        ("text-classification+own_scores:exat", "has no exat; did you mean own_scores:exact"),
        ("text-classification+math:pi", "is no function"),
        ("causal-lm+own_scores:exact", "has no single truth"),
    ],
)
def test_a_function_that_is_no_metric_is_named(own_scores: None, place: str, message: str) -> None:
    features = Features.in_memory([{"input_ids": [1], "label": 0}])
    with pytest.raises(ConfigError, match=message):
        task_from(place, {"labels": ["a"]}).metrics([0], features, np.arange(1))
