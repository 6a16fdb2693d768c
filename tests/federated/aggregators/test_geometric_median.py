"""The geometric median: the least sum of weighted distances, what a minority can do to it, and its trivial cases."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fednlp
from fednlp.config import Experiment
from fednlp.federated.aggregators.geometric_median import GeometricMedian
from fednlp.federated.aggregators.kept_updates import shares_of
from fednlp.federated.aggregators.whole_updates import Numbers
from fednlp.federated.client import ClientResult

RULE = GeometricMedian(1e-6, 1000)
Make = Callable[..., Experiment]


def median(points: Numbers, shares: Numbers, rule: GeometricMedian = RULE) -> Numbers:
    """Return the median of points, (points, width), by what the rule sees of them."""
    return np.asarray(rule.weights(points @ points.T, shares) @ points)


def drawn(seed: int, clients: int, width: int = 3) -> tuple[Numbers, Numbers]:
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.2, 1, clients)
    return rng.normal(size=(clients, width)), weights / weights.sum()


@given(seed=st.integers(0, 2**32), clients=st.integers(2, 9))
@settings(max_examples=60)
def test_no_point_near_it_has_a_smaller_sum_of_weighted_distances(seed: int, clients: int) -> None:
    points, shares = drawn(seed, clients)
    found = median(points, shares)

    def total(at: Numbers) -> float:
        return float(shares @ np.linalg.norm(points - at, axis=1))

    steps = np.random.default_rng(seed).normal(size=(20, 3)) * 0.01
    assert total(found) <= min(total(found + step) for step in steps) + 1e-4
    assert total(found) <= min(total(point) for point in points) + 1e-3


@given(seed=st.integers(0, 2**32), clients=st.integers(3, 9), far=st.sampled_from([1e2, 1e4, 1e6]))
@settings(max_examples=60)
def test_a_minority_far_away_moves_it_a_bounded_way(seed: int, clients: int, far: float) -> None:
    """With a third of the weight: by no more than 2 (1 - a) / (1 - 2 a) = 4 times the largest honest norm."""
    points, shares = drawn(seed, clients)
    away = np.full((1, 3), far)
    found = median(np.concatenate([points, away]), np.append(shares * 2 / 3, 1 / 3))
    bound = 4 * float(np.linalg.norm(points, axis=1).max())
    assert float(np.linalg.norm(found)) <= bound + 1e-3


@given(seed=st.integers(0, 2**32), clients=st.integers(1, 9))
def test_of_one_client_and_of_equal_ones_it_is_theirs(seed: int, clients: int) -> None:
    point, shares = drawn(seed, 1)[0], drawn(seed, clients)[1]
    np.testing.assert_allclose(median(np.repeat(point, clients, axis=0), shares), point[0], rtol=1e-9)


def test_more_than_half_of_the_weight_at_one_point_decides() -> None:
    points = np.array([[0.0, 1.0], [5.0, 5.0], [9.0, -3.0]])
    np.testing.assert_allclose(median(points, np.array([0.6, 0.3, 0.1])), points[0], atol=1e-3)
    np.testing.assert_allclose(median(points, np.array([0.1, 0.6, 0.3])), points[1], atol=1e-3)


def test_one_step_from_the_mean_is_the_paper_s() -> None:
    points, shares = np.array([[0.0], [1.0], [4.0]]), np.array([0.5, 0.25, 0.25])
    mean = shares @ points
    beta = shares / np.abs(points - mean)[:, 0]
    found = median(points, shares, GeometricMedian(1e-6, 1))
    np.testing.assert_allclose(found, beta @ points / beta.sum())


def test_clients_that_weigh_nothing_count_alike() -> None:
    assert shares_of([ClientResult(0, 0.0), ClientResult(1, 0.0)]).tolist() == [0.5, 0.5]


@pytest.mark.whole
def test_it_takes_weights_by_examples_and_outvotes_attackers(experiment: Make, tmp_path: Path) -> None:
    attack = {"name": "sign-flip", "fraction": 0.25, "scale": 50.0}
    asked: dict[str, Any] = {"num_rounds": 2, "clients_per_round": 8, "attack": attack}
    ends = {}
    for name in ("geometric-median", "mean"):
        run = fednlp.run(experiment(asked | {"aggregator.name": name}), tmp_path / name)
        ends[name] = run.round_lines()[-1]["evaluation"]["global"]["loss"]
    assert ends["geometric-median"] < ends["mean"]


@pytest.mark.parametrize("option", [{"smoothing": 0.0}, {"iterations": 0}])
def test_options_out_of_their_range_are_refused(experiment: Make, option: dict[str, Any]) -> None:
    with pytest.raises(fednlp.FednlpError, match=f"aggregator.{next(iter(option))}"):
        experiment({"aggregator": {"name": "geometric-median"} | option}).resolved()
