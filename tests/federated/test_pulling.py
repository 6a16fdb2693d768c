"""The laws of dynamic pulling: what is chosen, and what the server makes of tensors that not all sent."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import ClientResult, TrainRequest, Update
from fednlp.federated.cohort import Cohort, Population
from fednlp.federated.params import Layout
from fednlp.federated.pulling import Pull, choose, distances
from fednlp.federated.round import run_round
from fednlp.federated.server import ServerOptimizer
from fednlp.federated.state import State
from fednlp.federated.transforms import RngKey
from fednlp.runtime.shared import PrivateRoom

KEY = RngKey(0, 3, 2)
moves = st.lists(st.floats(0, 100), min_size=1, max_size=30)


def equal_tensors(count: int) -> Layout:
    return Layout.of({f"t{n}": ((4,), "parameter") for n in range(count)})


@given(moves, st.sampled_from([0.25, 0.5, 0.75]), st.sampled_from(["tensors", "parameters"]))
def test_low_and_high_are_complementary(moved: list[float], share: float, of: str) -> None:
    layout = equal_tensors(len(moved))
    low = choose(Pull("low", share, of), layout, np.array(moved), KEY)
    high = choose(Pull("high", 1 - share, of), layout, np.array(moved), KEY)
    assert np.array_equal(low, ~high)


@pytest.mark.parametrize("of", ["tensors", "parameters"])
def test_shares_are_exact(of: str) -> None:
    """Of n equal tensors, floor(share n) are low, and all others are high with the rest of the share."""
    for count in (*range(1, 61), 100, 200, 300):
        layout, moved = equal_tensors(count), np.arange(count, dtype=np.float64)
        for percent in range(1, 100):
            low = choose(Pull("low", percent / 100, of), layout, moved, KEY)
            high = choose(Pull("high", (100 - percent) / 100, of), layout, moved, KEY)
            drawn = choose(Pull("random", percent / 100, of), layout, moved, KEY)
            assert low.sum() == drawn.sum() == percent * count // 100
            assert np.array_equal(low, ~high)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30, unique=True))
def test_the_threshold_is_the_median(moved: list[float]) -> None:
    """DP_l = {d < theta} and DP_g = {d >= theta} with theta the upper median of d."""
    theta = sorted(moved)[len(moved) // 2]
    layout = equal_tensors(len(moved))
    assert choose(Pull("low"), layout, np.array(moved), KEY).tolist() == [d < theta for d in moved]
    assert choose(Pull("high"), layout, np.array(moved), KEY).tolist() == [d >= theta for d in moved]


@given(moves, st.sampled_from([0.33, 0.5]))
def test_random_is_as_many_as_low_and_other_for_others(moved: list[float], share: float) -> None:
    layout, d = equal_tensors(len(moved)), np.array(moved)
    chosen = choose(Pull("random", share), layout, d, KEY)
    assert chosen.sum() == choose(Pull("low", share), layout, d, KEY).sum()
    assert np.array_equal(chosen, choose(Pull("random", share), layout, d, KEY))
    if len(moved) == 30:
        others = [choose(Pull("random", share), layout, d, RngKey(0, r, 2)).tolist() for r in range(4, 8)]
        assert chosen.tolist() not in others


def test_each_group_has_its_own_threshold() -> None:
    moved = np.array([1.0, 2.0, 100.0, 200.0])
    pull = Pull("low", groups=("encoder", "encoder", "decoder", "decoder"))
    assert choose(pull, equal_tensors(4), moved, KEY).tolist() == [True, False, True, False]
    assert choose(Pull("low"), equal_tensors(4), moved, KEY).tolist() == [True, True, False, False]


def test_a_share_of_the_parameters() -> None:
    """The large tensor that moved least is half of all values: it alone is sent."""
    layout = Layout.of({n: ((s,), "parameter") for n, s in (("large", 6), ("b", 2), ("c", 2), ("d", 2))})
    moved = np.array([1.0, 2.0, 3.0, 4.0])
    assert choose(Pull("low", 0.5, "parameters"), layout, moved, KEY).tolist() == [True, False, False, False]
    assert choose(Pull("low", 0.5), layout, moved, KEY).tolist() == [True, True, False, False]


def test_distances_are_norms() -> None:
    layout = Layout.of({"a": ((2, 2), "parameter"), "b": ((3,), "parameter")})
    old = torch.zeros(7)
    new = torch.tensor([3.0, 0.0, 4.0, 0.0, 1.0, 2.0, 2.0])
    assert distances(layout, new, old).tolist() == [5.0, 3.0]


class Two:
    """A runtime in which client 0 sends tensor a, client 1 sends a and b, and nobody sends c."""

    def __init__(self, layout: Layout, updates: list[list[float]], sent: list[list[int] | None]) -> None:
        self.updates, self.sent = updates, sent
        self.total = WeightedMean().init(layout, ["model"], PrivateRoom())

    def __len__(self) -> int:
        return 1

    def publish(self, name: str, vector: torch.Tensor, message: bytes | None = None) -> None:
        assert name == "model"

    def do(self, requests: Sequence[TrainRequest], on_progress: Any = None) -> list[ClientResult]:
        results = []
        for request in requests:
            update = {"model": Update(torch.tensor(self.updates[request.client]))}
            WeightedMean().add(self.total, request, update)
            entries = self.sent[request.client]
            results.append(ClientResult(request.client, request.weight, 1, 1, entries=entries))
        return results


@pytest.mark.parametrize(
    "server", [ServerOptimizer(), ServerOptimizer(momentum=0.9), ServerOptimizer("adam", 0.1)]
)
def test_the_mean_is_over_those_who_sent_and_nobody_s_tensor_stays(server: ServerOptimizer) -> None:
    layout = Layout.of(dict.fromkeys("abc", ((1,), "parameter")))
    algorithm = Algorithm("two", lambda population, number: Cohort([0, 1]), server=server)
    population = Population(np.array([1, 3]))

    def rounds(sent: list[list[int] | None], updates: list[list[float]]) -> list[torch.Tensor]:
        state = State(0, layout, torch.tensor([10.0, 20.0, 30.0]), server.init(layout))
        found = []
        for _ in range(2):
            run_round(algorithm, state, population, Two(layout, updates, sent))
            found.append(state.params.clone())
        return found

    first, second = rounds([[0], [0, 1]], [[1.0, 0.0, 0.0], [5.0, 2.0, 0.0]])
    assert float(first[2]) == float(second[2]) == 30.0
    if server == ServerOptimizer():
        assert first.tolist() == [10.0 + (1 * 1.0 + 3 * 5.0) / 4, 22.0, 30.0]
    alone = rounds([None, None], [[4.0, 2.0, 0.0], [4.0, 2.0, 0.0]])
    assert torch.equal(alone[0][:2], first[:2])
    assert torch.equal(alone[1][:2], second[:2])
