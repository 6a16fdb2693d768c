"""MOON: the paper's loss and rounds written out, and what it is where its loss says nothing."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fednlp
from fednlp.config import Experiment
from fednlp.errors import ConfigError
from fednlp.federated.algorithms.moon import contrast, moon

from .written_out import WHOLE_BATCHES, Clients, Tensors, assert_close, moved, weights_of

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]


@given(seed=st.integers(0, 2**32), texts=st.integers(1, 5), temperature=st.floats(0.1, 5))
def test_the_contrastive_loss_is_equation_3(seed: int, texts: int, temperature: float) -> None:
    z, near, far = np.random.default_rng(seed).normal(size=(3, texts, 4))

    def similarity(one: np.ndarray, other: np.ndarray) -> float:
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    expected = [
        -math.log(
            math.exp(similarity(a, b) / temperature)
            / (math.exp(similarity(a, b) / temperature) + math.exp(similarity(a, c) / temperature))
        )
        for a, b, c in zip(z, near, far, strict=True)
    ]
    found = contrast(*(torch.from_numpy(one) for one in (z, near, far)), temperature)
    assert float(found) == pytest.approx(sum(expected) / texts, rel=1e-6)


def algorithm_1(clients: Clients, mu: float, temperature: float) -> Tensors:
    """Return the global model after three rounds of two steps, by the paper's pseudo-code."""
    x, previous = clients.x, [clients.x, clients.x]

    def features(at: Tensors, client: int) -> torch.Tensor:
        clients.model.load_state_dict(at)
        return clients.features(client).detach()

    for _ in range(3):
        ends = []
        for client in (0, 1):
            y = x
            for _ in range(2):
                others = [features(at, client) for at in (x, previous[client])]

                def loss(client: int = client, others: list[torch.Tensor] = others) -> Any:
                    pulled = contrast(clients.features(client), *others, temperature)
                    return clients.loss(client) + mu * pulled

                y = moved(y, clients.gradient(y, loss))
            ends.append(y)
        previous, x = ends, clients.mean(ends)
    return x


def test_it_is_algorithm_1(experiment: Make, tmp_path: Path) -> None:
    asked = experiment(WHOLE_BATCHES | {"algorithm": {"name": "moon", "mu": 2.0, "temperature": 0.2}})
    run = fednlp.run(asked, tmp_path / "run")
    clients = Clients(asked, run)
    expected = algorithm_1(clients, 2.0, 0.2)
    assert_close(weights_of(run), expected, atol=1e-5)
    without = algorithm_1(clients, 0.0, 0.2)
    gaps = [float((expected[name] - without[name]).abs().max()) for name in expected]
    assert max(gaps) > 1e-3, "models that are told apart"


def test_without_its_loss_it_is_fedavg(
    experiment: Make, tmp_path: Path, outcome: Callable[..., dict[str, Any]]
) -> None:
    """Bit for bit, with dropout, Adam and a cohort."""
    plain = outcome(fednlp.run(experiment({"algorithm.name": "fedavg"}), tmp_path / "fedavg"))
    off = experiment({"algorithm": {"name": "moon", "mu": 0.0}})
    assert outcome(fednlp.run(off, tmp_path / "off"))["weights"] == plain["weights"]


def test_in_a_client_s_first_round_there_is_nothing_to_turn_away_from(
    experiment: Make, tmp_path: Path, outcome: Callable[..., dict[str, Any]]
) -> None:
    """Its previous model is the global one, and the two pulls cancel out: what is drawn for dropout is FedAvg's too."""
    found = {}
    for name in ("fedavg", "moon"):
        found[name] = fednlp.run(experiment({"algorithm.name": name, "num_rounds": 1}), tmp_path / name)
    assert_close(weights_of(found["moon"]), weights_of(found["fedavg"]), atol=1e-6)


def test_batches_in_pieces_are_the_same_batches(experiment: Make, tmp_path: Path) -> None:
    asked = WHOLE_BATCHES | {"algorithm": {"name": "moon", "mu": 2.0}}
    whole = fednlp.run(experiment(asked), tmp_path / "whole")
    pieces = {"client.per_device_train_batch_size": 8, "client.gradient_accumulation_steps": 25}
    parts = fednlp.run(experiment(asked | pieces), tmp_path / "parts")
    assert_close(weights_of(parts), weights_of(whole), atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"model.peft": {"method": "lora", "r": 2}},
        {"model.peft": {"method": "prompt-tuning", "num_virtual_tokens": 3}},
        {"model.train": {"frozen": ["embeddings", "layer.0"]}},
        {"client.gradient_checkpointing": True},
        {"client.bf16": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
@pytest.mark.variants(2)
def test_what_it_goes_with(experiment: Make, tmp_path: Path, changes: dict[str, Any]) -> None:
    """The loss that is reported stays the task's; the model is another than FedAvg's from the second round on."""
    asked = {"num_rounds": 2, "clients_per_round": 2, "partition.clients": 2} | changes
    runs = {
        name: fednlp.run(experiment(asked | {"algorithm.name": name}), tmp_path / name)
        for name in ("fedavg", "moon")
    }
    one, other = (weights_of(runs[name]) for name in runs)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    first = [run.round_lines()[0]["train_loss"] for run in runs.values()]
    assert first[0] == pytest.approx(first[1], rel=1e-4)


def test_what_it_does_not_go_with(experiment: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"leave client\.padding_free out"):
        fednlp.run(experiment({"algorithm.name": "moon", "client.padding_free": True}), tmp_path / "packed")
    with pytest.raises(ConfigError, match="moon looks into every batch, which is your trainer's own"):
        fednlp.federate(_Trainer(), [[1.0]], moon(1), num_rounds=1)


class _Trainer:
    """As much of a user's trainer as is asked before it trains."""

    def get_model_params(self) -> dict[str, torch.Tensor]:
        return {"w": torch.zeros(1)}

    def set_model_params(self, params: dict[str, torch.Tensor]) -> None: ...

    def train(self, data: Any) -> None: ...

    def test(self, data: Any) -> dict[str, float]:
        return {}
