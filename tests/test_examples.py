"""The examples run, learn, and say the same as the library."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from fednlp import errors
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.cohort import by_examples
from fednlp.federated.params import Layout
from fednlp.federated.round import Gathered, Reply, run_round
from fednlp.federated.state import State
from fednlp.federated.sums import ExactSum

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def news_or_skip(main: ModuleType, rounds: int) -> float:
    try:
        return main.main(rounds)
    except errors.FetchError as error:
        pytest.skip(f"BBC News cannot be fetched: {error}")


def test_fedavg_by_hand_is_short_and_learns() -> None:
    assert len((EXAMPLES / "fedavg_by_hand.py").read_text().splitlines()) <= 100
    assert news_or_skip(load("fedavg_by_hand"), 12) > 0.4


def test_the_library_makes_the_round_that_is_made_by_hand() -> None:
    """The same clients, the same local steps, and the library's sum and server step."""
    hand = load("fedavg_by_hand")
    rng = np.random.default_rng(0)
    clients = [
        [(rng.integers(0, hand.WORDS, 6).tolist(), int(rng.integers(5))) for _ in range(size)]
        for size in (9, 3, 20)
    ]
    model = hand.new_model()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    layout = Layout.of({name: (tuple(value.shape), "parameter") for name, value in start.items()})

    class Runtime:
        def train(self, round_number, state, factors, done):  # type: ignore[no-untyped-def]
            total, replies = ExactSum(layout), []
            for client, factor in factors.items():
                model.load_state_dict(layout.views(state.x))
                hand.local_training(model, clients[client])
                total.add(factor, layout.flatten(model.state_dict()) - state.x)
                replies.append(Reply(client, factor, len(clients[client]), 1))
            return Gathered(total, replies)

    everyone = Algorithm("fedavg", lambda seed, number, count: list(range(count)), by_examples)
    state = State(0, layout, layout.flatten(start))
    for _ in range(3):
        run_round(everyone, state, [len(client) for client in clients], Runtime(), seed=0)
    model.load_state_dict(start)
    for _ in range(3):
        hand.federated_round(model, clients)
    for name, value in model.state_dict().items():
        assert not torch.equal(value, start[name])
        torch.testing.assert_close(layout.views(state.x)[name], value, rtol=1e-5, atol=1e-5)


def test_bring_your_own_trainer_learns() -> None:
    assert news_or_skip(load("bring_your_own_trainer"), 5) > 0.5
