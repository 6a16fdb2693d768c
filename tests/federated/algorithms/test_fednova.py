"""FedNova: the normalised average of Wang et al. 2020, written out; what it promises, and what it refuses."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import fednlp
from fednlp import ServerOptimizer, fedavg, federate
from fednlp.config import Experiment
from fednlp.errors import ConfigError
from fednlp.federated.algorithms.fednova import fednova, gradient_count
from fednlp.federated.cohort import equally
from fednlp.partition import Partition
from fednlp.seeds import generator
from fednlp.simulation.run_dir import RunDir

from .written_out import UNLIKE_SIZES, Tensors, assert_close, assert_ends_alike, loss_of, rows_of, start

Make = Callable[..., Experiment]
SETTINGS = UNLIKE_SIZES | {"algorithm.name": "fednova", "client.learning_rate": 0.2}


@given(steps=st.integers(1, 60), momentum=st.floats(0, 0.99))
def test_how_often_a_gradient_counts_is_what_sgd_does_with_it(steps: int, momentum: float) -> None:
    """Under a gradient of one throughout, PyTorch's SGD moves a weight by that often the learning rate."""
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=momentum)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert gradient_count(steps, momentum) == pytest.approx(-float(weight.detach()), rel=1e-6)


def straight_line(
    run: RunDir, folder: Path, texts: Path, momentum: float, server_rate: float, uniform: bool
) -> Tensors:
    """FedNova with nothing of the library but the order of the data; what each gradient counts is noted by step."""
    from transformers import AutoTokenizer

    partition, tokenizer = Partition.load(run.partition), AutoTokenizer.from_pretrained(folder)
    rows = rows_of(texts)
    rate, x = run.experiment().client.learning_rate, start(folder).state_dict()
    names = [name for name, _ in start(folder).named_parameters()]
    for line in run.round_lines():
        sizes = {client: len(partition.train(client)) for client in line["cohort"]}
        weights = {client: 1.0 if uniform else float(size) for client, size in sizes.items()}
        total = sum(weights.values())
        tau_eff, direction = 0.0, {name: torch.zeros_like(x[name]) for name in names}
        for client in line["cohort"]:
            model, share = start(folder).train(), weights[client] / total
            model.load_state_dict(x)
            optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
            order, examples = generator(0, "batches", line["round"], client), partition.train(client)
            counts: list[float] = []
            for _ in range(2):
                places = order.permutation(len(examples))
                for first in range(0, len(places), 8):
                    numbers = examples[places[first : first + 8]]
                    optimizer.zero_grad()
                    loss_of(model, tokenizer, [rows[n] for n in numbers]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    counts = [*counts, 0.0]
                    age = len(counts)
                    counts = [
                        count + momentum ** (age - 1 - place) if age - 1 - place else count + 1.0
                        for place, count in enumerate(counts)
                    ]
            tau_eff += share * sum(counts)
            for name, parameter in model.named_parameters():
                direction[name] += share * (parameter.detach() - x[name]) / sum(counts)
        for name in names:
            x[name] = x[name] + server_rate * tau_eff * direction[name]
    return {name: x[name] for name in names}


@pytest.mark.parametrize(
    ("changes", "momentum", "server_rate", "uniform"),
    [
        ({}, 0.0, 1.0, False),
        ({"algorithm.weighting": "uniform", "server.learning_rate": 0.5}, 0.0, 0.5, True),
        ({"client.momentum": 0.8, "client.learning_rate": 0.05}, 0.8, 1.0, False),
    ],
    ids=["plain", "uniform, server rate", "momentum"],
)
@pytest.mark.variants(1)
@pytest.mark.whole
def test_a_run_is_the_algorithm_written_out(
    changes: dict[str, Any],
    momentum: float,
    server_rate: float,
    uniform: bool,
    experiment: Make,
    tiny_model: Path,
    texts: Path,
    tmp_path: Path,
) -> None:
    run = fednlp.run(experiment(SETTINGS | changes), tmp_path / "run")
    steps = {-(-len(Partition.load(run.partition).train(c)) // 8) for c in run.round_lines()[0]["cohort"]}
    assert len(steps) > 1
    expected, begun = straight_line(run, tiny_model, texts, momentum, server_rate, uniform), start(tiny_model)
    found = load_file(run.model / "model.safetensors")
    assert_close(found, expected, 2e-5)
    first = begun.state_dict()
    assert max(float((found[name] - first[name]).abs().max()) for name in expected) > 0.02


@pytest.mark.slow
def test_two_workers_and_a_resumed_run_end_alike(
    experiment: Make,
    outcome: Callable[[RunDir], dict[str, Any]],
    stopping: Callable[..., AbstractContextManager[Any]],
    tmp_path: Path,
) -> None:
    changes = SETTINGS | {
        "model.config": {},
        "server.momentum": 0.5,
        "server.optimizer": "sgd",
    }  # with dropout
    two = experiment(changes | {"runtime.workers": 2})
    assert_ends_alike(experiment(changes), two, outcome, stopping, tmp_path)


@pytest.mark.whole
def test_as_many_steps_by_all_is_fedavg(experiment: Make, tmp_path: Path) -> None:
    """And it sends as many bytes as FedAvg."""
    changes = SETTINGS | {"client.max_steps": 4}
    runs = [
        fednlp.run(experiment(changes | {"algorithm.name": name}), tmp_path / name)
        for name in ("fednova", "fedavg")
    ]
    one, other = (load_file(run.state)["params"] for run in runs)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    keys = ("bytes_up", "bytes_down", "tensors_up", "tensors_down", "parameters_up")
    assert [[line[key] for key in keys] for line in runs[0].round_lines()] == [
        [line[key] for key in keys] for line in runs[1].round_lines()
    ]


class Parabolas:
    """Gradient steps on a (w - b)^2 / 2: as many as the client's data say, with momentum if asked for."""

    def __init__(self, learning_rate: float, momentum: float = 0.0) -> None:
        self.w, self.learning_rate, self.momentum = (
            torch.zeros(1, requires_grad=True),
            learning_rate,
            momentum,
        )

    def get_model_params(self) -> Tensors:
        return {"w": self.w}

    def set_model_params(self, params: Tensors) -> None:
        self.w.data.copy_(params["w"])

    def train(self, data: Any, adjust: Callable[[Tensors], None]) -> None:
        a, b, steps = data[0]
        optimizer = torch.optim.SGD([self.w], lr=self.learning_rate, momentum=self.momentum)
        for _ in range(steps):
            optimizer.zero_grad()
            (a * (self.w - b) ** 2 / 2).backward()
            adjust({"w": self.w})
            optimizer.step()

    def test(self, data: Any) -> dict[str, float]:
        return {}


UNLIKE = [[(1.0, 0.0, 2)] * 3, [(1.0, 4.0, 16)]]
"""Two clients' (a, b, steps): the second takes eight times the steps of the first."""


@pytest.mark.parametrize("momentum", [pytest.param(0.0, marks=pytest.mark.slow), 0.7])
@pytest.mark.parametrize(("weight", "best"), [(float, 1.0), (equally, 2.0)])
@pytest.mark.variants(1)
def test_unlike_numbers_of_steps_do_not_change_what_is_minimised(
    weight: Callable[[int], float], best: float, momentum: float
) -> None:
    """Steps are small, so that what is left of the bias is theirs: of the order of the learning rate."""
    trainer = Parabolas(0.004, momentum)
    found = federate(trainer, UNLIKE, fednova(2, weight=weight), num_rounds=400).params["w"]
    biased = federate(trainer, UNLIKE, fedavg(2, weight=weight), num_rounds=400).params["w"]
    assert float(found) == pytest.approx(best, abs=0.15)
    assert float(biased) > best + 1.0


def test_a_cohort_of_some_weighs_by_those_who_came() -> None:
    """tau_eff and the weights are those of the round's clients: with one a round, FedNova is FedAvg."""
    one = federate(Parabolas(0.01), UNLIKE, fednova(1), num_rounds=6).params["w"]
    other = federate(Parabolas(0.01), UNLIKE, fedavg(1), num_rounds=6).params["w"]
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert float(one) > 0.1


def test_the_server_takes_the_mean_times_its_rate() -> None:
    """One round of two clients, by hand: x + eta tau_eff (3/4 d_1 + 1/4 d_2)."""
    rate, (one, two) = 0.01, (4 * (1 - (1 - 0.01) ** steps) for steps in (2, 16))
    clients = [[(1.0, 4.0, 2)] * 3, [(1.0, 4.0, 16)]]
    server = ServerOptimizer("sgd", 0.5)
    found = federate(Parabolas(rate), clients, fednova(2, server), num_rounds=1).params["w"]
    tau_eff = 0.75 * 2 + 0.25 * 16
    assert float(found) == pytest.approx(0.5 * tau_eff * (0.75 * one / 2 + 0.25 * two / 16), rel=1e-5)


def test_a_trainer_must_count_its_steps() -> None:
    class Plain(Parabolas):
        def train(self, data: Any) -> None:  # type: ignore[override]
            pass

    with pytest.raises(
        ConfigError, match=r"fednova needs to know how many local steps.*train\(data, adjust\)"
    ):
        federate(Plain(0.1), UNLIKE, fednova(2))


def test_statistics_are_no_sum_of_gradients() -> None:
    class Normed(Parabolas):
        buffer_names = ("w",)

    with pytest.raises(ConfigError, match="this model has statistics"):
        federate(Normed(0.1), UNLIKE, fednova(2))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"client.optimizer": "adamw"}, 'which adamw does not fix: say client.optimizer = "sgd"'),
        ({"client.max_grad_norm": 1.0}, "client.max_grad_norm has some count less"),
        ({"client.lr_scheduler_type": "linear"}, "leave client.lr_scheduler_type out"),
        ({"client.momentum": 0.9, "client.keep_optimizer": True}, "leave client.keep_optimizer out"),
        ({"algorithm.mu": 0.1}, "algorithm.mu is not supported by fednova"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_what_it_cannot_go_with_is_refused(changes: dict[str, Any], reason: str, experiment: Make) -> None:
    with pytest.raises(ConfigError, match=reason):
        experiment(SETTINGS | changes).resolved()


@pytest.mark.parametrize(
    "changes",
    [
        {"client.momentum": 0.9},
        {"client.weight_decay": 0.1},
        {"client.round_schedule": "cosine"},
        {"server.optimizer": "yogi"},
        {"exchange.up": ["int8"], "exchange.error_feedback": True},
    ],
    ids=str,
)
def test_what_it_goes_with_is_not(changes: dict[str, Any], experiment: Make) -> None:
    assert experiment(SETTINGS | changes).resolved().algorithm.name == "fednova"
