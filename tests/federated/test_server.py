"""Server optimisers against Algorithm 2 of Reddi et al., written out in NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.federated.aggregators.base import Mean
from fednlp.federated.params import Layout
from fednlp.federated.schedules import RateSchedule
from fednlp.federated.server import ServerOptimizer

LAYOUT = Layout.of(
    {"w": ((4,), "parameter"), "mean": ((2,), "buffer"), "e": ((3, 2), "parameter")}, table="e"
)
EVERY_ROW = torch.arange(3)


def by_hand(options: ServerOptimizer, deltas: list[np.ndarray]) -> np.ndarray:
    """Algorithm 2, a line a line of the paper; buffers take the mean."""
    x = np.zeros(LAYOUT.numel)
    m, v = np.zeros_like(x), np.full_like(x, options.tau**2)
    for delta in deltas:
        if options.name == "sgd":
            m = options.momentum * m + delta
            step = options.learning_rate * m
        else:
            m = options.beta1 * m + (1 - options.beta1) * delta
            if options.name == "adagrad":
                v = v + delta**2
            elif options.name == "yogi":
                v = v - (1 - options.beta2) * delta**2 * np.sign(v - delta**2)
            else:
                v = options.beta2 * v + (1 - options.beta2) * delta**2
            step = options.learning_rate * m / (np.sqrt(v) + options.tau)
        step[LAYOUT.buffers] = delta[LAYOUT.buffers]
        x = x + step
    return x


@pytest.mark.parametrize(
    "options",
    [
        ServerOptimizer(),
        ServerOptimizer("sgd", 0.5),
        ServerOptimizer("sgd", 1.0, momentum=0.9),
        ServerOptimizer("adagrad", 0.1, beta1=0.0),
        ServerOptimizer("adam", 0.01),
        ServerOptimizer("yogi", 0.01, tau=1e-2),
    ],
    ids=lambda o: f"{o.name}-{o.momentum}",
)
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), rounds=st.integers(1, 5))
def test_steps_follow_the_paper(options: ServerOptimizer, seed: int, rounds: int) -> None:
    rng = np.random.default_rng(seed)
    deltas = [rng.normal(size=LAYOUT.numel).astype(np.float32) for _ in range(rounds)]
    x, vectors = torch.zeros(LAYOUT.numel), options.init(LAYOUT)
    for delta in deltas:
        options.move(LAYOUT, x, Mean(torch.from_numpy(delta.copy()), EVERY_ROW), vectors)
    np.testing.assert_allclose(
        x.numpy(), by_hand(options, [d.astype(float) for d in deltas]), rtol=2e-4, atol=2e-5
    )


def test_sgd_with_rate_one_and_no_momentum_is_averaging() -> None:
    delta = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(0))
    x = torch.zeros(LAYOUT.numel)
    ServerOptimizer().move(LAYOUT, x, Mean(delta.clone(), EVERY_ROW), {})
    assert torch.equal(x, delta)


def test_plain_sgd_moves_touched_rows_alone() -> None:
    delta = torch.zeros(LAYOUT.numel)
    LAYOUT.rows(delta)[1] = 1
    x = torch.zeros(LAYOUT.numel)
    ServerOptimizer().move(LAYOUT, x, Mean(delta, torch.tensor([1])), {})
    assert LAYOUT.rows(x).tolist() == [[0, 0], [1, 1], [0, 0]]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="choose sgd, adagrad, adam or yogi"):
        ServerOptimizer("adamax")


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "yogi"])
def test_stretches_that_no_client_sent_stay_and_so_do_their_vectors(optimizer: str) -> None:
    options = ServerOptimizer(optimizer, 0.5, momentum=0.9 if optimizer == "sgd" else 0.0)
    vectors, x = options.init(LAYOUT), torch.ones(LAYOUT.numel)
    before = {name: vector.clone() for name, vector in vectors.items()}
    options.move(LAYOUT, x, Mean(torch.ones(LAYOUT.numel), EVERY_ROW, [slice(1, 3)]), vectors)
    assert (x == 1.0).nonzero().flatten().tolist() == [1, 2]
    assert vectors
    for name, vector in vectors.items():
        assert (vector == before[name]).nonzero().flatten().tolist() == [1, 2]


def test_the_learning_rate_follows_its_schedule_over_the_rounds() -> None:
    options = ServerOptimizer(rate=RateSchedule("linear", rounds=4))
    moved = []
    for number in (1, 2, 3):
        x = torch.zeros(LAYOUT.numel)
        options.move(LAYOUT, x, Mean(torch.ones(LAYOUT.numel), EVERY_ROW), {}, number)
        moved.append(float(x[0]))
        assert x[LAYOUT.buffers].tolist() == [1.0, 1.0]  # statistics are averaged, at no rate
    assert moved == [1.0, 0.75, 0.5]


@pytest.mark.parametrize(
    ("rate", "averages"),
    [
        (RateSchedule(), True),
        (RateSchedule("constant", rounds=10), True),
        (RateSchedule("constant", rounds=10, warmup=1), False),
        (RateSchedule("cosine", rounds=10), False),
    ],
)
def test_a_server_with_a_schedule_does_not_average(rate: RateSchedule, averages: bool) -> None:
    assert ServerOptimizer("sgd", 1.0, rate=rate).averages is averages
