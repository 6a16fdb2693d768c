"""Text regression: correlations equal SciPy's, also where sums of squares would lose them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fednlp.data.features import Features
from fednlp.tasks import task_class
from fednlp.tasks.text_regression import TextRegression

CPU = torch.device("cpu")
TASK = TextRegression()


def table(scores: Any) -> Features:
    return Features.in_memory([{"input_ids": [1], "score": float(score)} for score in scores])


def drawn(offset: float, spread: float, seed: int = 0, count: int = 500) -> tuple[Any, Any]:
    """Return scores between 0 and 5, moved by an offset, and 32-bit predictions that know something of them."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 26, count) / 5 + offset
    guess = offset + spread * (0.5 * (scores - offset) + rng.standard_normal(count))
    return scores, guess.astype(np.float32).astype(np.float64)


def from_sums(guess: Any, features: Features, pieces: int = 7) -> float:
    """Score sums of statistics that were made in several calls, as clients' are."""
    parts = np.array_split(np.random.default_rng(1).permutation(len(guess)), pieces)
    sums = np.stack(
        [TASK.statistics(np.asarray(guess)[part].tolist(), features, part).sum(0) for part in parts]
    )
    return float(TASK.score(sums.sum(0)))


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e3, 1e5])
@pytest.mark.parametrize("spread", [1.0, 1e-2])
def test_correlations_are_those_of_scipy(offset: float, spread: float) -> None:
    scores, guess = drawn(offset, spread)
    features, numbers = table(scores), np.arange(len(scores))
    metrics = TASK.metrics(guess.tolist(), features, numbers)
    assert metrics["pearson"] == scipy.stats.pearsonr(scores, guess).statistic
    assert metrics["spearman"] == scipy.stats.spearmanr(scores, guess).statistic
    assert metrics["mse"] == pytest.approx(np.mean((scores - guess) ** 2))
    assert TASK.score(TASK.statistics(guess, features, numbers).sum(0)) == pytest.approx(
        metrics["pearson"], abs=1e-9
    )
    assert from_sums(guess, features) == pytest.approx(metrics["pearson"], abs=1e-9)
    assert 0 < metrics["pearson"] < 1


def test_an_untrained_model_far_from_the_scores() -> None:
    scores, guess = drawn(1e3, 1.0)
    for far in (guess - 1e3, 1e-3 * (guess - 1e3) - 50, 1e-4 * (guess - 1e3) + 2e3):
        features, said = table(scores), far.astype(np.float32).astype(np.float64)
        expected = scipy.stats.pearsonr(scores, said).statistic
        assert from_sums(said, features) == pytest.approx(expected, abs=1e-9)


def test_every_client_has_its_own_correlation() -> None:
    scores, guess = drawn(1e3, 0.1)
    features, clients = table(scores), np.arange(500) % 5
    each = TASK.statistics(guess.tolist(), features, np.arange(500))
    found = TASK.score(np.stack([each[clients == client].sum(0) for client in range(5)]))
    expected = [
        scipy.stats.pearsonr(scores[clients == client], guess[clients == client]).statistic
        for client in range(5)
    ]
    assert found == pytest.approx(expected, abs=1e-9)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(-10, 10, width=32)), min_size=2, max_size=30),
    st.sampled_from([0.0, 1e3]),
)
def test_law(pairs: list[tuple[int, float]], offset: float) -> None:
    guess = [said for _, said in pairs]
    assume(np.ptp(guess) == 0 or np.ptp(guess) > 1e-6)
    features, numbers = table([score / 10 + offset for score, _ in pairs]), np.arange(len(pairs))
    metrics = TASK.metrics(guess, features, numbers)
    assert TASK.score(TASK.statistics(guess, features, numbers).sum(0)) == pytest.approx(
        metrics["pearson"], abs=1e-9, nan_ok=True
    )
    varied = len({score for score, _ in pairs}) > 1
    assert all(np.isnan(metrics[n]) != varied and not abs(metrics[n]) > 1 for n in ("pearson", "spearman"))


@pytest.mark.parametrize("same", [0.0, 0.1, 3.8, 1e3 + 0.1, -1e30])
def test_constant_predictions_are_worth_nothing_and_constant_scores_define_nothing(same: float) -> None:
    scores, guess = drawn(0.0, 1.0, count=37)
    cases = (table(scores), [same] * 37, 0.0), (table([same] * 37), guess.tolist(), math.nan)
    for features, said, expected in cases:
        metrics = TASK.metrics(said, features, np.arange(37))
        found = metrics["pearson"], metrics["spearman"], from_sums(said, features)
        np.testing.assert_array_equal(found, [expected] * 3)


def test_a_client_with_one_score_only_has_no_correlation() -> None:
    scores = np.asarray([3.3] * 11 + [1.0, 5.0])
    said = np.linspace(0, 1, 13).astype(np.float32)
    assert np.isnan(TASK.score(TASK.statistics(said[:11].tolist(), table(scores), np.arange(11)).sum(0)))


def test_no_score_and_one_score_define_no_correlation() -> None:
    assert all(math.isnan(value) for value in TASK.metrics([], table([1.0]), np.arange(0)).values())
    found = TASK.metrics([3.0], table([1.0]), np.arange(1))
    np.testing.assert_equal(found, {"pearson": math.nan, "spearman": math.nan, "mse": 4.0})
    assert np.isnan(TASK.score(np.zeros((2, 7)))).all()
    assert np.isnan(TASK.score(TASK.statistics([3.0], table([1.0]), np.arange(1)).sum(0)))


def rows(count: int) -> list[dict[str, str | None]]:
    """Return pairs whose score is the share of the words of the second that go up, from 0 to 5."""
    return [
        {
            "text": "is" + " what" * (number % 3),
            "text_pair": " ".join(["up"] * (number % 6) + ["down"] * (5 - number % 6)),
            "score": f"{number % 6}.0",
        }
        for number in range(count)
    ]


def test_encode_and_loss(
    tokenizer: Any, model_for: Callable[..., Any], predicted: Callable[..., Any]
) -> None:
    task = TextRegression.build([], tokenizer)
    assert task_class("text-regression") is TextRegression
    features = Features.in_memory(task.encode(rows(12), tokenizer, 32))
    assert features.values("score").tolist() == [float(n % 6) for n in range(12)]
    assert features.ragged("token_type_ids", 0).tolist() == [0] * 3 + [1] * 6
    model = model_for(task)
    assert model.config.problem_type == "regression"
    batch = task.collate(features, np.arange(12), CPU)
    scores = batch.pop("scores")
    outputs = model(**batch).logits[:, 0]
    expected = ((outputs - scores) ** 2).mean().item()
    assert task.loss(model, batch | {"scores": scores}).item() == pytest.approx(expected, rel=1e-5)
    outcome = predicted(task, model, features)
    assert outcome.loss / outcome.weight == pytest.approx(expected, rel=1e-5)
    assert outcome.predictions == pytest.approx(outputs.tolist(), abs=1e-5)
    assert task.format_prediction(outcome.predictions[0]) == outcome.predictions[0]


def test_a_diverged_model_is_finite(
    tokenizer: Any, model_for: Callable[..., Any], predicted: Callable[..., Any]
) -> None:
    features, model = Features.in_memory(TASK.encode(rows(4), tokenizer, 32)), model_for(TASK)
    for value in (float("nan"), float("inf")):
        with torch.no_grad():
            model.classifier.bias.fill_(value)
        said = predicted(TASK, model, features).predictions
        assert np.isfinite(list(TASK.metrics(said, features, np.arange(4)).values())).all()
        assert TASK.score(TASK.statistics(said, features, np.arange(4)).sum(0)) == 0.0


@pytest.mark.whole
def test_learns(tokenizer: Any, fitted: Callable[..., dict[str, float]]) -> None:
    metrics = fitted(TASK, Features.in_memory(TASK.encode(rows(24), tokenizer, 32)), steps=150)
    assert metrics["pearson"] > 0.9
    assert metrics["spearman"] > 0.9
    assert metrics["mse"] < 1.0  # the mean of the scores alone leaves 2.9
