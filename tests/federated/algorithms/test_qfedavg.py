"""q-FedAvg: Algorithm 2 of Li et al. 2020 written out, FedAvg at q = 0, and what it refuses."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import fednlp
from fednlp.config import Experiment
from fednlp.errors import ConfigError
from fednlp.federated.algorithms.qfedavg import qfedavg

from .written_out import WHOLE_BATCHES, Clients, Tensors, assert_close, moved, weights_of

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
RATE = 0.2


def algorithm_2(clients: Clients, q: float, lipschitz: float) -> Tensors:
    """Return the global model after three rounds of two steps, with the paper's L in all places."""
    x, shares = clients.x, clients.sizes / clients.sizes.sum()
    for _ in range(3):
        top: Tensors = {}
        bottom = 0.0
        for client, p in enumerate(shares):
            clients.model.load_state_dict(x)
            loss, y = float(clients.loss(client).detach()), x
            for _ in range(2):
                y = moved(y, clients.gradient(y, partial(clients.loss, client)), RATE)
            delta = {n: lipschitz * (x[n] - y[n]) for n in x if x[n].is_floating_point()}
            square = sum(float(one.square().sum()) for one in delta.values())
            bottom += p * (q * loss ** (q - 1) * square + lipschitz * loss**q)
            top = {n: top.get(n, 0) + float(p) * loss**q * one for n, one in delta.items()}
        x = x | {n: x[n] - one / bottom for n, one in top.items()}
    return x


@pytest.mark.parametrize("options", [{"q": 1.0}, {"q": 3.0, "lipschitz": 2.0}])
def test_it_is_algorithm_2(experiment: Make, tmp_path: Path, options: dict[str, float]) -> None:
    """L is 1 / the learning rate unless it is given."""
    asked = experiment(WHOLE_BATCHES | {"algorithm": {"name": "qfedavg"} | options})
    run = fednlp.run(asked, tmp_path / "run")
    expected = algorithm_2(Clients(asked, run), options["q"], options.get("lipschitz", 1 / RATE))
    assert_close(weights_of(run), expected, atol=1e-5)


def test_at_q_0_it_is_fedavg(
    experiment: Make, tmp_path: Path, outcome: Callable[..., dict[str, Any]]
) -> None:
    """Bit for bit, with dropout, Adam and a cohort."""
    plain = outcome(fednlp.run(experiment({"algorithm.name": "fedavg"}), tmp_path / "fedavg"))
    off = outcome(fednlp.run(experiment({"algorithm": {"name": "qfedavg", "q": 0.0}}), tmp_path / "off"))
    assert off["weights"] == plain["weights"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pull": {"rule": "low"}}, r"leave \[pull\] out"),
        ({"algorithm.q": -1.0}, r"algorithm\.q = -1.0"),
        ({"algorithm.lipschitz": 0.0}, r"algorithm\.lipschitz = 0.0"),
    ],
)
def test_what_it_does_not_go_with(experiment: Make, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        experiment({"algorithm.name": "qfedavg"} | changes).resolved()


def test_a_trainer_of_one_s_own_gives_no_loss_beforehand() -> None:
    class Trainer:
        def get_model_params(self) -> dict[str, torch.Tensor]:
            return {"w": torch.zeros(1)}

        def set_model_params(self, params: dict[str, torch.Tensor]) -> None: ...

        def train(self, data: Any) -> None: ...

        def test(self, data: Any) -> dict[str, float]:
            return {}

    with pytest.raises(ConfigError, match="qfedavg asks for the loss of the model that a client gets"):
        fednlp.federate(Trainer(), [[1.0]], qfedavg(1), num_rounds=1)
