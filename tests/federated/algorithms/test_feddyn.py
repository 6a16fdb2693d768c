"""FedDyn: Algorithm 1 of Acar et al. 2021 written out, the optimum that it promises; and FedAvgM beside FedOpt."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import fednlp
from fednlp.config import Experiment
from fednlp.errors import ConfigError
from fednlp.federated.algorithms.feddyn import feddyn

from .written_out import WHOLE_BATCHES, Clients, Tensors, assert_close, weights_of

Make = Callable[..., Experiment]
CLIENTS = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -1.0]])]


class Quadratic:
    """Two numbers w, trained on |w - data|^2 / 2 by five steps of SGD."""

    rate = 0.1

    def __init__(self) -> None:
        self.w = torch.nn.Parameter(torch.zeros(2))

    def get_model_params(self) -> dict[str, torch.Tensor]:
        return {"w": self.w}

    def set_model_params(self, params: dict[str, torch.Tensor]) -> None:
        self.w.data.copy_(params["w"])

    def train(self, data: torch.Tensor, adjust: Callable[..., None]) -> None:
        for _ in range(5):
            self.w.grad = self.w.detach() - data[0]
            adjust({"w": self.w})
            self.w.data -= self.rate * self.w.grad

    def test(self, data: Any) -> dict[str, float]:
        return {}


def test_clients_that_disagree_end_at_the_optimum_of_all() -> None:
    """The fixed point of Theorem 1: the clients' kept gradients sum to zero there; FedAvg's model is elsewhere."""
    found = fednlp.federate(Quadratic(), CLIENTS, feddyn(2, alpha=0.5), num_rounds=200)
    torch.testing.assert_close(found.params["w"], torch.tensor([2.0, 0.5]), rtol=0, atol=1e-4)


def algorithm_1(clients: Clients, alpha: float) -> Tensors:
    """Return the global model after three rounds of two steps, by the paper's pseudo-code, with weights by examples."""
    x, shares = clients.x, clients.sizes / clients.sizes.sum()
    h = {name: torch.zeros_like(value) for name, value in x.items()}
    kept = [h, h]
    for _ in range(3):
        ends = []
        for client in (0, 1):
            y = x
            for _ in range(2):
                g = clients.gradient(y, partial(clients.loss, client))
                y = y | {n: y[n] - 0.2 * (g[n] - kept[client][n] + alpha * (y[n] - x[n])) for n in g}
            kept[client] = {n: kept[client][n] - alpha * (y[n] - x[n]) for n in y}
            ends.append(y)
        h = {
            n: h[n] - alpha * sum(float(p) * (y[n] - x[n]) for p, y in zip(shares, ends, strict=True))
            for n in h
        }
        mean = clients.mean(ends)
        x = {n: mean[n] - h[n] / alpha if mean[n].is_floating_point() else mean[n] for n in mean}
    return x


@pytest.mark.whole
def test_it_is_algorithm_1(experiment: Make, tmp_path: Path) -> None:
    asked = experiment(WHOLE_BATCHES | {"algorithm": {"name": "feddyn", "alpha": 0.5}})
    run = fednlp.run(asked, tmp_path / "run")
    assert_close(weights_of(run), algorithm_1(Clients(asked, run), 0.5), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, 'say client.optimizer = "sgd"'),
        (
            {"algorithm.alpha": 0.0, "client.optimizer": "sgd"},
            "algorithm.alpha = 0.0: input should be greater than 0",
        ),
        ({"client.optimizer": "sgd", "pull": {"rule": "low"}}, r"leave \[pull\] out"),
    ],
)
def test_what_it_does_not_go_with(experiment: Make, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        experiment({"algorithm.name": "feddyn"} | changes).resolved()


@pytest.mark.whole
def test_fedavgm_is_fedopt_with_momentum_and_no_other_optimiser(
    experiment: Make, tmp_path: Path, outcome: Callable[..., dict[str, Any]]
) -> None:
    server = {"server.optimizer": "sgd", "server.momentum": 0.7, "num_rounds": 3}
    one, other = (
        outcome(fednlp.run(experiment(server | {"algorithm.name": name}), tmp_path / name))
        for name in ("fedavgm", "fedopt")
    )
    assert one["weights"] == other["weights"]
    assert one["state"] == other["state"]
    with pytest.raises(ConfigError, match="fedavgm"):
        experiment({"algorithm.name": "fedavgm", "server.optimizer": "adam"}).resolved()
