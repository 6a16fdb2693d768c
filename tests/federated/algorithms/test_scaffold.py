"""SCAFFOLD: Algorithm 1 of Karimireddy et al. 2020, written out; what it promises, and what it refuses."""

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fednlp
from fednlp import fedavg, federate
from fednlp.config import Experiment
from fednlp.errors import ConfigError
from fednlp.federated.algorithms.scaffold import scaffold
from fednlp.federated.cohort import equally
from fednlp.federated.store import ClientStore
from fednlp.partition import Partition
from fednlp.seeds import generator
from fednlp.simulation.run_dir import RunDir
from fednlp.training.model_layout import layout_of

from .written_out import UNLIKE_SIZES, Tensors, assert_close, assert_ends_alike, loss_of, rows_of, start

Make = Callable[..., Experiment]

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("same_workers")]
SETTINGS = UNLIKE_SIZES | {"algorithm.name": "scaffold", "client.learning_rate": 0.5}


def straight_line(
    run: RunDir, folder: Path, texts: Path, option: str, server_rate: float, decay: float, uniform: bool
) -> tuple[Tensors, Tensors]:
    """Algorithm 1 with nothing of the library but the data's order; return the model and the control variate."""
    from transformers import AutoTokenizer, get_scheduler

    experiment, partition = run.experiment(), Partition.load(run.partition)
    model, tokenizer = start(folder).train(), AutoTokenizer.from_pretrained(folder)
    rows = rows_of(texts)
    names = [name for name, _ in model.named_parameters()]

    def gradient(at: Tensors, numbers: np.ndarray) -> Tensors:
        model.load_state_dict(at, strict=False)
        model.zero_grad()
        loss_of(model, tokenizer, [rows[n] for n in numbers]).backward()  # type: ignore[no-untyped-call]
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in model.named_parameters()
        }

    x = {name: p.detach().clone() for name, p in model.named_parameters()}
    zeros = {name: torch.zeros_like(p) for name, p in x.items()}
    c, controls = dict(zeros), {client: dict(zeros) for client in range(partition.num_clients)}
    sizes = [len(partition.train(client)) for client in range(partition.num_clients)]
    weights = [1.0] * len(sizes) if uniform else sizes
    for line in run.round_lines():
        delta_x, delta_c = dict(zeros), dict(zeros)
        total = sum(weights[client] for client in line["cohort"])
        for client in line["cohort"]:
            examples, c_i, y = partition.train(client), controls[client], dict(x)
            order = generator(experiment.seed, "batches", line["round"], client)
            shuffles = [order.permutation(len(examples)) for _ in range(2)]
            batches = [examples[places[i : i + 8]] for places in shuffles for i in range(0, len(examples), 8)]
            nothing = torch.optim.SGD([torch.zeros(1)], lr=experiment.client.learning_rate)
            schedule = get_scheduler(experiment.client.lr_scheduler_type, nothing, 0, len(batches))
            rates = []
            for numbers in batches:
                rates.append(schedule.get_last_lr()[0])
                g = gradient(y, numbers)
                for name in names:
                    decayed = 0.0 if "bias" in name or "LayerNorm" in name else decay
                    step = g[name] - c_i[name] + c[name] + decayed * y[name]
                    y[name] = y[name] - rates[-1] * step
                nothing.step()
                schedule.step()
            if option == "I":
                new = gradient(x, examples)
            else:
                new = {name: c_i[name] - c[name] + (x[name] - y[name]) / sum(rates) for name in names}
            share = weights[client] / total
            for name in names:
                delta_x[name] = delta_x[name] + share * (y[name] - x[name])
                delta_c[name] = delta_c[name] + share * (new[name] - c_i[name])
            controls[client] = new
        x = {name: x[name] + server_rate * delta_x[name] for name in names}
        c = {name: c[name] + total / sum(weights) * delta_c[name] for name in names}
    return x, c


CASES = {
    "I": ({"algorithm.option": "I"}, 1.0, 0.0, False),
    "II": ({}, 1.0, 0.0, False),
    "II uniform, schedule": (
        {"algorithm.weighting": "uniform", "client.lr_scheduler_type": "linear"},
        1.0,
        0.0,
        True,
    ),
    "I, server rate, decay": (
        {"algorithm.option": "I", "server.learning_rate": 0.5, "client.weight_decay": 0.1},
        0.5,
        0.1,
        False,
    ),
    "II, server rate, decay": ({"server.learning_rate": 0.5, "client.weight_decay": 0.1}, 0.5, 0.1, False),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.variants(2)
def test_a_run_is_the_algorithm_written_out(
    case: str, experiment: Make, tiny_model: Path, texts: Path, tmp_path: Path
) -> None:
    changes, server_rate, decay, uniform = CASES[case]
    settings = experiment(SETTINGS | changes)
    run = fednlp.run(settings, tmp_path / "run")
    option = str(settings.resolved().algorithm.function_options["option"])
    x, c = straight_line(run, tiny_model, texts, option, server_rate, decay, uniform)
    begun = start(tiny_model).state_dict()
    assert max(float((x[name] - begun[name]).abs().max()) for name in x) > 0.05
    assert_close(load_file(run.model / "model.safetensors"), x, 2e-5)
    layout = layout_of(start(tiny_model))
    control = layout.views(load_file(run.state)["vector.control"])
    assert max(float(value.abs().max()) for value in c.values()) > 0.01
    assert_close(control, c, 2e-5)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.slow
def test_two_workers_and_a_resumed_run_end_alike(
    option: str,
    experiment: Make,
    outcome: Callable[[RunDir], dict[str, Any]],
    stopping: Callable[..., AbstractContextManager[Any]],
    tmp_path: Path,
) -> None:
    changes = SETTINGS | {"algorithm.option": option, "model.config": {}}  # with dropout
    two = experiment(changes | {"runtime.workers": 2})
    assert_ends_alike(experiment(changes), two, outcome, stopping, tmp_path)


def controls_of(run: RunDir, numel: int, rounds: int) -> list[torch.Tensor]:
    """The clients' control variates, as their records hold them."""
    clients, store = (
        Partition.load(run.partition).num_clients,
        ClientStore(run.records, {"method.control": numel}),
    )
    found = [store.read(client, rounds) for client in range(clients)]
    store.close()
    return [torch.zeros(numel) if record is None else record["method.control"].clone() for record in found]


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_the_control_variate_is_the_mean_of_the_clients(
    weighting: str, experiment: Make, tmp_path: Path
) -> None:
    """Those that never took part hold zeros, and count too."""
    run = fednlp.run(experiment(SETTINGS | {"algorithm.weighting": weighting}), tmp_path / "run")
    assert len({client for line in run.round_lines() for client in line["cohort"]}) == 5
    control = load_file(run.state)["vector.control"]
    sizes = np.diff(Partition.load(run.partition).train_offsets).astype(float)
    weights = sizes if weighting == "examples" else np.ones(6)
    mean = sum(
        float(weight) * one
        for weight, one in zip(weights / weights.sum(), controls_of(run, len(control), 3), strict=True)
    )
    torch.testing.assert_close(control, mean, rtol=1e-4, atol=1e-6)
    assert float(control.abs().max()) > 0.01


def test_a_client_that_is_dropped_leaves_no_trace(
    experiment: Make,
    poisoned_model: Path,
    make_csv: Callable[..., Path],
    make_rows: Callable[..., list[tuple[str, str, str]]],
    tmp_path: Path,
) -> None:
    """Its update is not in the sums, and it keeps what it kept before: nothing."""
    rows = [(text + " poison" * (site == "site4"), label, site) for text, label, site in make_rows(60)]
    changes = {
        "data.path": str(make_csv(tmp_path / "rows.csv", rows)),
        "partition": {"method": "natural", "field": "site"},
        "model.name_or_path": str(poisoned_model),
        "clients_per_round": 5,
    }
    run = fednlp.run(experiment(SETTINGS | changes), tmp_path / "run")
    assert [[one["client"] for one in line["dropped"]] for line in run.round_lines()] == [[4]] * 3
    control = load_file(run.state)["vector.control"]
    controls = controls_of(run, len(control), 3)
    sizes = np.diff(Partition.load(run.partition).train_offsets)
    mean = sum(float(size / sizes.sum()) * one for size, one in zip(sizes, controls, strict=True))
    assert float(controls[4].abs().max()) == 0.0
    assert min(float(one.abs().max()) for one in controls[:4]) > 0.01
    torch.testing.assert_close(control, mean, rtol=1e-4, atol=1e-6)


def test_two_vectors_travel_each_way(experiment: Make, tmp_path: Path) -> None:
    run = fednlp.run(experiment(SETTINGS), tmp_path / "run")
    plain = fednlp.run(experiment(SETTINGS | {"algorithm.name": "fedavg"}), tmp_path / "plain")
    for line, other in zip(run.round_lines(), plain.round_lines(), strict=True):
        assert line["cohort"] == other["cohort"]
        for key in ("bytes_up", "bytes_down", "tensors_up", "tensors_down", "parameters_up"):
            assert line[key] == 2 * other[key] > 0, key


def test_a_round_at_learning_rate_zero_changes_nothing(experiment: Make, tmp_path: Path) -> None:
    """The one step of a warm-up that begins at 0 tells nothing of the gradient, and no client is dropped."""
    still = {"client.lr_scheduler_type": "linear", "client.warmup_steps": 1, "client.max_steps": 1}
    run = fednlp.run(experiment(SETTINGS | still), tmp_path / "run")
    assert not any("dropped" in line for line in run.round_lines())
    assert not load_file(run.state)["vector.control"].any()


def test_personal_layers_are_kept_with_either_option(experiment: Make, tmp_path: Path) -> None:
    """In a first round no gradient is corrected, so that the two options differ in the control variates alone."""
    changes = SETTINGS | {"num_rounds": 1, "model.train": {"personal": ["head"]}}
    runs = [
        fednlp.run(experiment(changes | {"algorithm.option": option}), tmp_path / option)
        for option in ("I", "II")
    ]
    states = [load_file(run.state) for run in runs]
    assert torch.equal(states[0]["params"], states[1]["params"])
    assert not torch.equal(states[0]["vector.control"], states[1]["vector.control"])
    assert (runs[0].folder / "clients.csv").read_bytes() == (runs[1].folder / "clients.csv").read_bytes()
    fields = json.loads(runs[0].records.read_bytes()[:4096].partition(b"\n")[2])
    assert fields["method.control"] == len(states[0]["params"])
    for client in runs[0].round_lines()[0]["cohort"]:
        stores = [ClientStore(run.records, fields) for run in runs]
        one, other = (store.read(client, 1) for store in stores)
        assert one is not None
        assert other is not None
        assert torch.equal(one["personal"], other["personal"])


def test_what_option_one_draws_is_its_own(experiment: Make, tiny_model: Path, tmp_path: Path) -> None:
    """Masked tokens are drawn from torch's generator: the same whatever it was before."""
    from transformers import AutoTokenizer

    shutil.copytree(tiny_model, tmp_path / "model")
    AutoTokenizer.from_pretrained(tiny_model, mask_token="word0").save_pretrained(tmp_path / "model")
    controls = []
    for seed in (1, 2):
        changes = {"algorithm.option": "I", "task.name": "masked-lm", "num_rounds": 1}
        changes["model.name_or_path"] = str(tmp_path / "model")
        torch.manual_seed(seed)
        run = fednlp.run(experiment(SETTINGS | changes), tmp_path / str(seed))
        controls.append(load_file(run.state)["vector.control"])
    assert torch.equal(controls[0], controls[1])
    assert float(controls[0].abs().max()) > 0


class Parabolas:
    """Gradient steps on a_i (w - b_i)^2 / 2, with what a method makes of the gradient."""

    learning_rate = 0.1

    def __init__(self, steps: int) -> None:
        self.w, self.steps = torch.zeros(2, requires_grad=True), steps

    def get_model_params(self) -> Tensors:
        return {"w": self.w}

    def set_model_params(self, params: Tensors) -> None:
        self.w.data.copy_(params["w"])

    def train(self, data: Any, adjust: Callable[[Tensors], None]) -> None:
        a, b = (torch.tensor(values) for values in data[0])
        for _ in range(self.steps):
            self.w.grad = None
            (a * (self.w - b) ** 2 / 2).sum().backward()
            adjust({"w": self.w})
            with torch.no_grad():
                assert self.w.grad is not None
                self.w -= self.learning_rate * self.w.grad

    def test(self, data: Any) -> dict[str, float]:
        return {}


UNLIKE = [
    [((1.0, 3.0), (0.0, 4.0))] * 3,
    [((5.0, 0.5), (2.0, -4.0))],
    [((2.0, 2.0), (-1.0, 1.0))] * 2,
    [((0.5, 4.0), (3.0, 0.0))] * 2,
]
"""Four clients' (a, b), as often as each has examples."""


def optimum(weights: list[float]) -> torch.Tensor:
    a, b = (torch.tensor([data[0][part] for data in UNLIKE]) for part in (0, 1))
    share = torch.tensor(weights)[:, None]
    return (share * a * b).sum(0) / (share * a).sum(0)


@pytest.mark.parametrize("cohort", [pytest.param(4, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("weight", [float, equally])
@pytest.mark.variants(1)
def test_unlike_clients_reach_the_optimum_where_fedavg_does_not(
    cohort: int, weight: Callable[[int], float]
) -> None:
    best = optimum([weight(len(data)) for data in UNLIKE])
    found = federate(Parabolas(20), UNLIKE, scaffold(cohort, weight=weight), num_rounds=300).params["w"]
    biased = federate(Parabolas(20), UNLIKE, fedavg(cohort, weight=weight), num_rounds=300).params["w"]
    torch.testing.assert_close(found, best, rtol=0, atol=1e-4)
    assert float((biased - best).abs().max()) > 0.2


def test_one_step_each_by_all_is_fedavg() -> None:
    """With the clients' own gradients at x, the corrections add up to nothing."""
    one = federate(Parabolas(1), UNLIKE, scaffold(4), num_rounds=5).params["w"]
    other = federate(Parabolas(1), UNLIKE, fedavg(4), num_rounds=5).params["w"]
    torch.testing.assert_close(one, other)
    assert float(one.abs().max()) > 0.1


def test_a_trainer_must_give_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="choose the method's other option"):
        federate(Parabolas(1), UNLIKE, scaffold(4, "I"))

    class Silent(Parabolas):
        learning_rate = None  # type: ignore[assignment]

        def train(self, data: Any, adjust: Callable[[Tensors], None]) -> None:
            adjust({"w": self.w})

    with pytest.raises(ConfigError, match="give your trainer an attribute learning_rate"):
        federate(Silent(1), UNLIKE, scaffold(4))

    class Plain(Parabolas):
        def train(self, data: Any) -> None:  # type: ignore[override]
            pass

    with pytest.raises(ConfigError, match=r"scaffold changes the gradient.*train\(data, adjust\)"):
        federate(Plain(1), UNLIKE, scaffold(4))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"client.optimizer": "adamw"}, 'say client.optimizer = "sgd"'),
        ({"client.momentum": 0.9}, "without client.momentum"),
        ({"client.max_grad_norm": 1.0}, 'or say algorithm.option = "I"'),
        ({"secure.protocol": "secagg"}, r"leave \[secure\] out"),
        (
            {"privacy": {"clip": 1.0, "noise": 1.0}, "algorithm.weighting": "uniform"},
            r"leave \[privacy\] out",
        ),
        ({"pull.rule": "low"}, r"leave \[pull\] out"),
        (
            {"model.peft": {"method": "lora", "averaging": "exact"}},
            r"what the clients of scaffold keep \(control\)",
        ),
        ({"fewshot": {"pacing": "curriculum"}}, 'say fewshot.pacing = "none"'),
        ({"algorithm.option": "III"}, "algorithm.option"),
        ({"algorithm.mu": 0.1}, "algorithm.mu is not supported by scaffold"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_what_it_cannot_go_with_is_refused(changes: dict[str, Any], reason: str, experiment: Make) -> None:
    with pytest.raises(ConfigError, match=reason):
        experiment(SETTINGS | changes).resolved()


@pytest.mark.parametrize(
    "changes",
    [
        {"client.max_grad_norm": 1.0, "algorithm.option": "I"},
        {"client.weight_decay": 0.1},
        {"client.lr_scheduler_type": "cosine"},
        {"server.optimizer": "adam"},
        {"exchange.up": ["int8"]},
        {"fewshot": {"pacing": "none"}},
    ],
    ids=str,
)
def test_what_it_goes_with_is_not(changes: dict[str, Any], experiment: Make) -> None:
    assert experiment(SETTINGS | changes).resolved().algorithm.name == "scaffold"
