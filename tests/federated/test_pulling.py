"""The laws of dynamic pulling: what is chosen, and what the server makes of tensors that not all sent."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import RunError
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.cohort import Cohort, Population, RoundPlan
from fednlp.federated.params import Layout
from fednlp.federated.pulling import EMBEDDINGS, Pull, choose, distances
from fednlp.federated.round import run_round
from fednlp.federated.sent import Sent, require_sent
from fednlp.federated.server import ServerOptimizer
from fednlp.federated.state import State
from fednlp.federated.transforms import RngKey
from fednlp.federated.update import Update
from fednlp.runtime.shared import PrivateRoom

pytestmark = pytest.mark.whole

KEY = RngKey(0, 3, 2)
moves = st.lists(st.floats(0, 100), min_size=1, max_size=30)


def equal_tensors(count: int) -> Layout:
    return Layout.of({f"t{n}": ((4,), "parameter") for n in range(count)})


def marks(pull: Pull, layout: Layout, moved: np.ndarray, key: RngKey = KEY) -> np.ndarray:
    """Which elements of the flat vector are sent, each at most once."""
    found = np.zeros(layout.numel, dtype=int)
    for start, stop in choose(pull, layout, moved, key).stretches(layout):
        found[start:stop] += 1
    assert found.max(initial=0) <= 1
    return found.astype(bool)


def entries(pull: Pull, layout: Layout, moved: np.ndarray, key: RngKey = KEY) -> np.ndarray:
    """Which tensors are sent, all of them whole."""
    sent = choose(pull, layout, moved, key)
    assert not sent.slices
    found = np.zeros(len(layout.entries), dtype=bool)
    found[list(sent.entries)] = True
    return found


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, np.ndarray, tuple[str, ...]]:
    """Tensors of any sizes, how far each moved, and their groups."""
    shapes = draw(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=8))
    layout = Layout.of({f"t{n}": (tuple(shape), "parameter") for n, shape in enumerate(shapes)})
    moved = draw(st.lists(st.integers(0, 3), min_size=len(shapes), max_size=len(shapes)))
    groups = draw(
        st.lists(st.sampled_from(["encoder", "decoder"]), min_size=len(shapes), max_size=len(shapes))
    )
    return layout, np.array(moved, dtype=float), tuple(groups)


@given(layouts(), st.integers(1, 99), st.integers(1, 5))
def test_all_rules_send_the_same_number_of_parameters(
    drawn: tuple[Layout, np.ndarray, tuple[str, ...]], percent: int, number: int
) -> None:
    """In each group: the share, to one parameter. Low and the rest of high are everything, and never the same."""
    layout, moved, groups = drawn
    key, share = RngKey(0, number, 2), percent / 100
    sizes = np.array([entry.numel for entry in layout.entries])
    for group in {*groups}:
        place = np.repeat([one == group for one in groups], sizes)
        budget = int(place.sum()) * percent // 100
        for rule, more in (("low", 0), ("random", 0), ("high", 1)):
            sent = marks(Pull(rule, share, "parameters", groups=groups), layout, moved, key)
            assert budget <= (sent & place).sum() <= budget + more
    low = marks(Pull("low", share, "parameters", groups=groups), layout, moved, key)
    high = marks(Pull("high", 1 - share, "parameters", groups=groups), layout, moved, key)
    assert np.array_equal(low, ~high)


@given(layouts(), st.sampled_from(["low", "high", "random"]), st.sampled_from([0.1, 0.33, 0.5, 0.9]))
def test_what_is_sent_can_be_said_in_two_ways_and_is_accepted(
    drawn: tuple[Layout, np.ndarray, tuple[str, ...]], rule: str, share: float
) -> None:
    layout, moved, groups = drawn
    sent = choose(Pull(rule, share, "parameters", groups=groups), layout, moved, KEY)
    assert Sent.bounded(sent.bounds(layout), layout) == sent
    said = [list(one) for one in sent.slices]
    require_sent(list(sent.entries), said, layout, sliced=True)
    assert Sent.reported(list(sent.entries), said) == sent
    assert sum(torch.Size(piece.shape).numel() for piece in sent.pieces(layout)) == sent.numel(layout)
    flat = torch.arange(layout.numel, dtype=torch.float32) + 1
    back = torch.zeros(layout.numel)
    for piece in sent.pieces(layout):
        piece.write(back, piece.read(flat))
    assert np.array_equal(
        (back > 0).numpy(), marks(Pull(rule, share, "parameters", groups=groups), layout, moved)
    )
    assert torch.equal(back[back > 0], flat[back > 0])


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_random_draws_every_element_with_the_same_chance(share: float) -> None:
    """However large its tensor is: an embedding of two thirds of the model, a matrix, and a bias."""
    layout = Layout.of(
        {"embedding": ((40, 2), "parameter"), "weight": ((6, 6), "parameter"), "bias": ((4,), "parameter")}
    )
    times, moved = 4000, np.zeros(3)
    counts = sum(
        marks(Pull("random", share, "parameters"), layout, moved, RngKey(0, number, 0)).astype(int)
        for number in range(1, times + 1)
    )
    deviation = (share * (1 - share) / times) ** 0.5
    assert np.abs(counts / times - share).max() < 5 * deviation


def test_the_part_of_a_tensor_that_low_sends_is_drawn_again() -> None:
    """No row of a large embedding is always sent, or never."""
    layout = Layout.of({"embedding": ((50, 2), "parameter"), "bias": ((4,), "parameter")})
    moved = np.array([2.0, 1.0])
    sent = [
        marks(Pull("low", 0.5, "parameters"), layout, moved, RngKey(0, number, 0)) for number in range(1, 60)
    ]
    assert all(one[layout.entries[1].start :].all() for one in sent)
    counts = np.sum(sent, axis=0)[: layout.entries[0].stop]
    assert 0 < counts.min() <= counts.max() < len(sent)


@given(moves, st.sampled_from(["low", "high", "random"]), st.sampled_from(["tensors", "parameters"]))
def test_embeddings_apart_are_sent_and_not_counted(moved: list[float], rule: str, of: str) -> None:
    """The others are chosen as if there were no embeddings."""
    layout, d = equal_tensors(len(moved) + 1), np.array([*moved, 1.0])
    groups = ("",) * len(moved) + (EMBEDDINGS,)
    with_them = marks(Pull(rule, of=of, groups=groups), layout, d)
    assert with_them[-4:].all()
    assert np.array_equal(with_them[:-4], marks(Pull(rule, of=of), equal_tensors(len(moved)), d[:-1]))


@given(moves, st.sampled_from([0.25, 0.5, 0.75]), st.sampled_from(["tensors", "parameters"]))
def test_low_and_high_are_complementary(moved: list[float], share: float, of: str) -> None:
    layout = equal_tensors(len(moved))
    low = marks(Pull("low", share, of), layout, np.array(moved))
    high = marks(Pull("high", 1 - share, of), layout, np.array(moved))
    assert np.array_equal(low, ~high)


def test_shares_are_exact() -> None:
    """Of n equal tensors, floor(share n) are low, and all others are high with the rest of the share."""
    for count in (*range(1, 61), 100, 200, 300):
        layout, moved = equal_tensors(count), np.arange(count, dtype=np.float64)
        for percent in range(1, 100):
            low = entries(Pull("low", percent / 100), layout, moved)
            high = entries(Pull("high", (100 - percent) / 100), layout, moved)
            drawn = entries(Pull("random", percent / 100), layout, moved)
            assert low.sum() == drawn.sum() == percent * count // 100
            assert np.array_equal(low, ~high)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30, unique=True))
def test_the_threshold_is_the_median(moved: list[float]) -> None:
    """DP_l = {d < theta} and DP_g = {d >= theta} with theta the upper median of d."""
    theta = sorted(moved)[len(moved) // 2]
    layout = equal_tensors(len(moved))
    assert entries(Pull("low"), layout, np.array(moved)).tolist() == [d < theta for d in moved]
    assert entries(Pull("high"), layout, np.array(moved)).tolist() == [d >= theta for d in moved]


@given(moves, st.sampled_from([0.33, 0.5]))
def test_random_is_as_many_as_low_and_other_for_others(moved: list[float], share: float) -> None:
    layout, d = equal_tensors(len(moved)), np.array(moved)
    chosen = entries(Pull("random", share), layout, d)
    assert chosen.sum() == entries(Pull("low", share), layout, d).sum()
    assert np.array_equal(chosen, entries(Pull("random", share), layout, d))
    if len(moved) == 30:
        others = [entries(Pull("random", share), layout, d, RngKey(0, r, 2)).tolist() for r in range(4, 8)]
        assert chosen.tolist() not in others


def test_each_group_has_its_own_threshold() -> None:
    moved = np.array([1.0, 2.0, 100.0, 200.0])
    pull = Pull("low", groups=("encoder", "encoder", "decoder", "decoder"))
    assert entries(pull, equal_tensors(4), moved).tolist() == [True, False, True, False]
    assert entries(Pull("low"), equal_tensors(4), moved).tolist() == [True, True, False, False]


def test_a_share_of_the_parameters() -> None:
    """The large tensor that moved least is half of all values: it alone is sent."""
    layout = Layout.of({n: ((s,), "parameter") for n, s in (("large", 6), ("b", 2), ("c", 2), ("d", 2))})
    moved = np.array([1.0, 2.0, 3.0, 4.0])
    assert choose(Pull("low", 0.5, "parameters"), layout, moved, KEY) == Sent((0,))
    assert choose(Pull("low", 0.5), layout, moved, KEY) == Sent((0, 1))


def test_distances_are_norms() -> None:
    layout = Layout.of({"a": ((2, 2), "parameter"), "b": ((3,), "parameter")})
    old = torch.zeros(7)
    new = torch.tensor([3.0, 0.0, 4.0, 0.0, 1.0, 2.0, 2.0])
    assert distances(layout, new, old).tolist() == [5.0, 3.0]
    assert distances(layout, -new, old, "l1").tolist() == [7.0, 5.0]


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


@given(st.lists(st.tuples(layouts(), st.integers(1, 4)), min_size=1, max_size=1), st.data())
def test_an_element_s_mean_is_over_the_clients_that_sent_it(
    drawn: list[tuple[tuple[Layout, np.ndarray, tuple[str, ...]], int]], data: st.DataObject
) -> None:
    """Whatever parts of tensors they send, and whatever the table; nobody's elements keep the server's values."""
    (layout, moved, _), clients = drawn[0]
    table = next((e.name for e in layout.entries if len(e.shape) == 2 and e.numel), None)
    layout = Layout.of({e.name: (e.shape, "parameter") for e in layout.entries}, table)
    total, plain = WeightedMean().init(layout, ["model"], PrivateRoom()), np.zeros(layout.numel)
    weight, results = np.zeros(layout.numel), []
    for client in range(clients):
        pull = Pull(data.draw(st.sampled_from(["low", "high", "random"])), 0.4, "parameters")
        sent = choose(pull, layout, moved, RngKey(0, 1, client))
        update = torch.zeros(layout.numel)
        for start, stop in sent.stretches(layout):
            update[start:stop] = client + 1.0
            weight[start:stop] += 0.25
            plain[start:stop] += 0.25 * (client + 1.0)
        WeightedMean().add(total, TrainRequest(client, 1, 0.25), {"model": Update.of(update, layout)})
        said = [list(one) for one in sent.slices]
        results.append(ClientResult(client, 0.25, entries=list(sent.entries), slices=said))
    plan = SimpleNamespace(unit=1.0)
    mean = WeightedMean().finish(total, cast(RoundPlan, plan), results).model
    expected = np.divide(plain, weight, out=np.zeros_like(plain), where=weight > 0)
    np.testing.assert_allclose(mean.delta.numpy(), expected, rtol=1e-6)
    kept = np.zeros(layout.numel, dtype=bool)
    for place in mean.unsent:
        kept[place] = True
    assert np.array_equal(kept, weight == 0)


@pytest.mark.parametrize(
    ("slices", "said"),
    [
        ([[1, 0, 4]], "no part of its 4"),
        ([[1, 0, 0]], "no part of its 4"),
        ([[1, 2, 2]], "no part of its 4"),
        ([[1, -1, 2]], "no part of its 4"),
        ([[1, 4, 2]], "no part of its 4"),
        ([[1, 0, 5]], "no part of its 4"),
        ([[1, 0, 10**30]], "no part of its 4"),
        ([[0, 0, 1]], "other tensors"),
        ([[3, 0, 1]], "other tensors"),
        ([[-1, 0, 1]], "other tensors"),
        ([[1, 0]], "other tensors"),
        ([[1, 0, 1], [1, 2, 3]], "other tensors"),
        ([[2, 0, 1], [1, 2, 3]], "other tensors"),
    ],
)
def test_slices_that_the_model_does_not_have_are_refused(slices: list[list[int]], said: str) -> None:
    layout = equal_tensors(3)
    with pytest.raises(RunError, match=said):
        require_sent([0], slices, layout, sliced=True)


def test_parts_of_tensors_are_for_shares_of_the_parameters() -> None:
    for entries_, sliced in (([0], False), (None, True)):
        with pytest.raises(RunError, match="was to send whole ones"):
            require_sent(entries_, [[1, 0, 1]], equal_tensors(3), sliced=sliced)
