"""Intervals of scores against SciPy's, and how often they hold the truth."""

import numpy as np
import pytest
import scipy.stats

from fednlp.tasks.intervals import of_examples, wilson


def f1(sums: np.ndarray) -> np.ndarray:
    return np.asarray(2 * sums[..., 0] / (sums[..., 1] + sums[..., 2]))


def mean(sums: np.ndarray) -> np.ndarray:
    return np.asarray(sums[..., 0] / sums[..., 1])


@pytest.mark.parametrize(("right", "examples"), [(0, 5), (3, 7), (480, 500), (12, 12)])
def test_a_share_of_examples_has_wilsons_interval(right: int, examples: int) -> None:
    rows = np.ones((examples, 2))
    rows[right:, 0] = 0
    theirs = scipy.stats.binomtest(right, examples).proportion_ci(0.95, method="wilson")
    assert of_examples(rows, mean) == pytest.approx((theirs.low, theirs.high), abs=1e-7)
    assert wilson(right / examples, examples) == of_examples(rows, mean)


def test_other_scores_have_the_percentiles_of_a_bootstrap_over_examples() -> None:
    rng = np.random.default_rng(3)
    predicted, true = rng.integers(0, 4, (2, 300))
    rows = np.stack([rng.integers(0, np.minimum(predicted, true) + 1), predicted, true], axis=1).astype(float)
    theirs = scipy.stats.bootstrap(
        list(rows.T),
        lambda a, b, c, axis: 2 * a.sum(axis) / (b.sum(axis) + c.sum(axis)),
        paired=True,
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(5),
    ).confidence_interval
    ours = of_examples(rows, f1)
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.006)
    assert ours == of_examples(rng.permutation(rows), f1)  # of the examples, in any order


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        rows = np.stack([rng.beta(2, 5, 60), np.ones(60)], axis=1)
        low, high = of_examples(rows, mean) or (1.0, 0.0)
        held += low <= 2 / 7 <= high
    assert 178 <= held <= 199


def test_there_is_none_where_no_sample_has_a_score() -> None:
    assert of_examples(np.zeros((0, 2)), mean) is None
    assert of_examples(np.zeros((4, 3)), lambda sums: np.full(sums.shape[:-1], np.nan)) is None
