"""Scores from sums over sites, beside what scikit-learn, SciPy, seqeval and SQuAD's rules say of the pooled tests.

Nothing of a task's own metrics takes part: the expected numbers come from what the sites' tests hold, end to end.
"""

import json
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import scipy.stats
import seqeval.metrics
import sklearn.dummy
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from seqeval.scheme import IOB2

from fednlp.data.features import Features
from fednlp.tasks.base import Predictions
from fednlp.tasks.question_answering import QuestionAnswering
from fednlp.tasks.text_classification import TextClassification
from fednlp.tasks.text_regression import TextRegression
from fednlp.tasks.token_classification import TokenClassification
from fednlp.training.scores import scores_of_sums, sums_of

from .test_squad_metrics import f1_of, words_of

pytestmark = pytest.mark.whole

LABELS = ("a", "b", "c", "d")
TAGS = ("B-X", "I-X", "B-Y", "I-Y", "O")
ANSWERS = st.lists(st.sampled_from(["the", "Up", "down.", "north-west", "an"]), max_size=5).map(" ".join)


def sites(test: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[Any]]]:
    """The tests of one to four sites, some of which may have none; at least one has one."""
    return st.lists(st.lists(test, max_size=8), min_size=1, max_size=4).filter(any)


def summed(
    task: Any, column: str, tests: Sequence[Sequence[tuple[Any, Any]]], **others: Any
) -> dict[str, Any]:
    """Return the scores from the sites' sums; each site has the features of its own tests alone.

    Args:
        task: Of the experiment.
        column: Of the right answers.
        tests: Of each site: right answers and predictions.
        others: Further columns that the task reads, each a function of the right answer.
    """
    found = []
    for own in tests:
        rows = [
            {"input_ids": [1], column: truth} | {name: of(truth) for name, of in others.items()}
            for truth, _ in own
        ]
        outcomes = [Predictions([n], [guess], 0.5, 1) for n, (_, guess) in enumerate(own)]
        features = Features.in_memory(rows or [{"input_ids": [1]}])
        found.append(sums_of(task, features, outcomes))
    scores = scores_of_sums(task, [sum(numbers) for numbers in zip(*found, strict=True)])
    assert scores.pop("examples") == sum(map(len, tests))
    assert scores.pop("loss") == 0.5
    return scores


def pooled(tests: Sequence[Sequence[tuple[Any, Any]]]) -> tuple[list[Any], list[Any]]:
    """Return the right answers and the predictions of all sites."""
    every = [pair for own in tests for pair in own]
    return [truth for truth, _ in every], [guess for _, guess in every]


def by_scikit_learn(truth: Any, guess: Any) -> dict[str, float]:
    """Return the metrics of classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a single label
        return {
            "accuracy": sklearn.metrics.accuracy_score(truth, guess),
            "macro_f1": sklearn.metrics.f1_score(truth, guess, average="macro", zero_division=0),
            "mcc": sklearn.metrics.matthews_corrcoef(truth, guess),
        }


@given(sites(st.tuples(st.integers(0, 3), st.integers(0, 3))))
def test_classification_is_scikit_learn_s(tests: list[list[tuple[int, int]]]) -> None:
    truth, guess = pooled(tests)
    usual = sklearn.dummy.DummyClassifier(strategy="most_frequent").fit(truth, truth)
    expected = by_scikit_learn(truth, guess) | {"baseline": usual.score(truth, truth)}
    assert summed(TextClassification(LABELS), "label", tests) == pytest.approx(expected, abs=1e-12)


@given(st.integers(1, 40), st.integers(1, 3000), st.floats(0, 1), st.integers(0, 2**32))
def test_metrics_of_a_whole_set_are_scikit_learn_s_to_the_last_bit(
    labels: int, examples: int, right: float, seed: int
) -> None:
    """Also the F1 of one label, with labels that never occur, and texts whose label is unknown."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(-1, labels, examples)
    guess = np.where(rng.random(examples) < right, np.maximum(truth, 0), rng.integers(0, labels, examples))
    names = tuple(f"{number:02}" for number in range(labels + 1))
    task = TextClassification(names, metric="f1", positive_label=names[0])
    features = Features.in_memory([{"input_ids": [1], "label": int(label)} for label in truth])
    found = task.metrics(guess.tolist(), features, np.arange(examples))
    known = truth >= 0
    if not known.any():
        assert math.isnan(found["mcc"])
        return
    expected = by_scikit_learn(truth[known], guess[known])
    f1 = sklearn.metrics.f1_score(truth[known] == 0, guess[known] == 0, zero_division=0)
    assert found == expected | {"f1": f1, "accuracy": sklearn.metrics.accuracy_score(truth, guess)}


@pytest.mark.parametrize("scheme", ["default", "strict"])
@given(sites(st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=6)))
def test_tagging_is_seqeval_s(scheme: str, drawn: list[list[list[tuple[str, str]]]]) -> None:
    tests = [[([t for t, _ in one], [g for _, g in one]) for one in own] for own in drawn]
    truth, guess = pooled(tests)
    options: dict[str, Any] = {"mode": "strict", "scheme": IOB2} if scheme == "strict" else {}
    expected = {
        "precision": seqeval.metrics.precision_score(truth, guess, zero_division=0, **options),
        "recall": seqeval.metrics.recall_score(truth, guess, zero_division=0, **options),
        "f1": seqeval.metrics.f1_score(truth, guess, zero_division=0, **options),
        "accuracy": seqeval.metrics.accuracy_score(truth, guess),
        "unread_words": 0.0,
    }
    as_stored = [[(json.dumps(tags), said) for tags, said in own] for own in tests]
    task = TokenClassification(TAGS, scheme=scheme)
    found = summed(task, "gold", as_stored, places=lambda tags: [0] * len(json.loads(tags)))
    assert found == pytest.approx(expected, abs=1e-12)


@given(sites(st.tuples(st.floats(-5, 5), st.floats(-5, 5, width=32))))
def test_regression_is_that_of_scipy_and_scikit_learn(tests: list[list[tuple[float, float]]]) -> None:
    truth, guess = pooled(tests)
    found = summed(TextRegression(), "score", tests)
    assert found["mse"] == pytest.approx(sklearn.metrics.mean_squared_error(truth, guess), abs=1e-9)
    if np.std(truth) > 1e-2 and np.std(guess) > 1e-2:
        assert found["pearson"] == pytest.approx(scipy.stats.pearsonr(truth, guess).statistic, abs=1e-6)


@given(sites(st.tuples(st.lists(ANSWERS, min_size=1, max_size=3), ANSWERS)))
def test_answers_are_scored_by_squad_s_rules(tests: list[list[tuple[list[str], str]]]) -> None:
    truth, guess = pooled(tests)
    pairs = list(zip(guess, truth, strict=True))
    expected = {
        "exact_match": np.mean(
            [any(words_of(said) == words_of(one) for one in golds) for said, golds in pairs]
        ),
        "f1": np.mean([max(f1_of(said, one) for one in golds) for said, golds in pairs]),
    }
    as_stored = [[(json.dumps(golds), said) for golds, said in own] for own in tests]
    assert summed(QuestionAnswering(), "golds", as_stored) == pytest.approx(expected, abs=1e-9)
