"""IFCA: with one model it is FedAvg, and clients whose labels contradict each other find models of their own."""

from collections.abc import Mapping
from typing import Any

import torch

import fednlp
from fednlp import federate
from fednlp.federated.aggregators.mean_by_model import MeanByModel

CLIENTS = {
    name: [(x, sign * x) for x in (-1.0, 1.0)] for name, sign in (("a", 1), ("b", -1), ("c", 1), ("d", -1))
}
"""Two populations: the label is the sign of x, or its opposite."""


class Logistic:
    """Logistic regression on one number, without a constant: w1 w2 x, so that the starting point is no optimum."""

    def __init__(self) -> None:
        self.w = torch.tensor([0.3, 0.3])

    def get_model_params(self) -> dict[str, Any]:
        return {"w": self.w}

    def set_model_params(self, params: Mapping[str, Any]) -> None:
        self.w = params["w"].clone()

    def _loss(self, w: torch.Tensor, data: list[tuple[float, float]]) -> torch.Tensor:
        return torch.stack([torch.nn.functional.softplus(-y * x * w.sum()) for x, y in data]).mean()

    def loss(self, data: list[tuple[float, float]]) -> float:
        return float(self._loss(self.w, data))

    def train(self, data: list[tuple[float, float]]) -> float:
        for _ in range(5):
            w = self.w.clone().requires_grad_()
            loss = self._loss(w, data)
            loss.backward()  # type: ignore[no-untyped-call]
            self.w = self.w - 0.5 * w.grad
        return float(loss.detach())


def test_with_one_model_it_is_fedavg() -> None:
    one, other = (
        federate(Logistic(), CLIENTS, method, num_rounds=3)
        for method in (fednlp.ifca(3, clusters=1), fednlp.fedavg(3))
    )
    assert torch.equal(one.params["w"], other.params["w"])
    assert [report.results for report in one.rounds] == [report.results for report in other.rounds]


def test_two_populations_with_swapped_labels_find_two_models() -> None:
    found = federate(Logistic(), CLIENTS, fednlp.ifca(4, spread=3.0), num_rounds=15)
    chosen = [{result.client: result.model for result in report.results} for report in found.rounds]
    assert chosen[-1][0] == chosen[-1][2] != chosen[-1][1] == chosen[-1][3]
    assert found.rounds[-1].train_loss < 0.1
    one_model = federate(Logistic(), CLIENTS, fednlp.fedavg(4), num_rounds=15)
    assert abs(float(one_model.params["w"].sum())) < 0.05


def test_each_model_moves_by_the_mean_of_those_who_chose_it() -> None:
    method = fednlp.ifca(4, clusters=3)
    assert method.aggregator == MeanByModel(("model.1", "model.2"))
    assert method.receives == method.models == ("model.1", "model.2")
    assert method.held_vectors == 3
