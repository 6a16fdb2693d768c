"""APFL: Algorithm 1 of Deng et al. 2020 written out, FedAvg's global model, and a client alone at alpha = 1."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import fednlp
from fednlp.config import Experiment
from fednlp.errors import ConfigError

from .written_out import WHOLE_BATCHES, Clients, Tensors, assert_close, moved, weights_of

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]


def algorithm_1(clients: Clients, alpha: float) -> tuple[Tensors, list[Tensors]]:
    """Return the global model and the clients' mixtures after three rounds of two steps, by the paper's pseudo-code."""
    x, v = clients.x, [clients.x, clients.x]

    def mixed(one: Tensors, other: Tensors) -> Tensors:
        return other | {n: alpha * one[n] + (1 - alpha) * other[n] for n in one if one[n].is_floating_point()}

    for _ in range(3):
        ends = []
        for client in (0, 1):
            w = x
            for _ in range(2):
                loss = partial(clients.loss, client)
                at_mixture = clients.gradient(mixed(v[client], w), loss)
                v[client] = moved(v[client], {n: alpha * g for n, g in at_mixture.items()})
                w = moved(w, clients.gradient(w, loss))
            ends.append(w)
        x = clients.mean(ends)
    return x, [mixed(own, w) for own, w in zip(v, ends, strict=True)]


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_it_is_algorithm_1(experiment: Make, tmp_path: Path, alpha: float) -> None:
    """At alpha = 1 a client's model is that of training alone, six steps from the first model."""
    asked = experiment(WHOLE_BATCHES | {"algorithm": {"name": "apfl", "alpha": alpha}})
    run = fednlp.run(asked, tmp_path / "run")
    clients = Clients(asked, run)
    x, mixtures = algorithm_1(clients, alpha)
    assert_close(weights_of(run), x, atol=1e-5)
    for client in (0, 1):
        assert_close(weights_of(run, client), mixtures[client], atol=1e-5)
        alone = clients.x
        for _ in range(6):
            alone = moved(alone, clients.gradient(alone, partial(clients.loss, client)))
        gap = max(float((alone[n] - mixtures[client][n]).abs().max()) for n in alone)
        assert gap < 1e-6 if alpha == 1.0 else gap > 1e-3


def test_the_global_model_is_that_of_fedavg(
    experiment: Make, tmp_path: Path, outcome: Callable[..., dict[str, Any]]
) -> None:
    """Bit for bit, with dropout, Adam and a cohort: what happens beside the steps draws nothing of theirs."""
    runs = {
        name: fednlp.run(experiment({"algorithm.name": name}), tmp_path / name) for name in ("apfl", "fedavg")
    }
    assert outcome(runs["apfl"])["weights"] == outcome(runs["fedavg"])["weights"]
    client = runs["apfl"].round_lines()[-1]["cohort"][0]
    own, shared = weights_of(runs["apfl"], client), weights_of(runs["apfl"])
    assert all(bool(value.isfinite().all()) for value in own.values() if value.is_floating_point())
    assert any(not torch.equal(own[name], shared[name]) for name in own)


def test_at_alpha_0_a_client_has_the_model_that_its_steps_end_with(experiment: Make, tmp_path: Path) -> None:
    asked = WHOLE_BATCHES | {"num_rounds": 1, "algorithm": {"name": "apfl", "alpha": 0.0}}
    run = fednlp.run(experiment(asked), tmp_path / "run")
    clients = Clients(experiment(asked), run)
    w = clients.x
    for _ in range(2):
        w = moved(w, clients.gradient(w, lambda: clients.loss(0)))
    assert_close(weights_of(run, 0), w, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"model.peft": {"method": "lora", "r": 2}},
        {"model.train": {"frozen": ["embeddings", "layer.0"]}},
        {"client.gradient_accumulation_steps": 2, "client.weight_decay": 0.01},
        {"client.gradient_checkpointing": True},
        {"client.lr_scheduler_type": "linear", "client.max_grad_norm": 1.0},
        {"client.padding_free": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
@pytest.mark.variants(2)
def test_what_it_goes_with(experiment: Make, tmp_path: Path, changes: dict[str, Any]) -> None:
    asked = {"num_rounds": 2, "clients_per_round": 2, "partition.clients": 2, "algorithm.name": "apfl"}
    run = fednlp.run(experiment(asked | changes), tmp_path / "run")
    own = [weights_of(run, client) for client in (0, 1)]
    assert any(not torch.equal(own[0][name], own[1][name]) for name in own[0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.train": {"personal": "head"}}, "model.train keeps layers with each client"),
        ({"client.keep_optimizer": True}, "keeps the state of one optimiser"),
        ({"algorithm.alpha": 1.5}, r"algorithm\.alpha = 1.5"),
    ],
)
def test_what_it_does_not_go_with(experiment: Make, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        experiment({"algorithm.name": "apfl"} | changes).resolved()
