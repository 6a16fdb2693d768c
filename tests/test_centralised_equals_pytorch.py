"""A run against loops in plain PyTorch, as everybody writes them: the reference, and one round of FedAvg."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fednlp
from fednlp.config import Experiment
from fednlp.errors import ConfigError
from fednlp.models.pretrained import pretrained_model
from fednlp.partition import Partition
from fednlp.seeds import generator
from fednlp.simulation.run_dir import RunDir

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
LABELS = ("arts", "economy", "science", "sports")
PLAIN = {
    "model.config": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "client.group_by_length": False,
    "clients_per_round": 8,
}
"""Without dropout and with batches in drawn order, a loop needs nothing of the library but that order."""

Batch = dict[str, torch.Tensor]


def start(model: Path, seed: int = 0) -> nn.Module:
    """The checkpoint with the head that the seed draws."""
    settings = {
        "num_labels": 4,
        "id2label": dict(enumerate(LABELS)),
        "label2id": {n: i for i, n in enumerate(LABELS)},
    }
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return pretrained_model(str(model), "AutoModelForSequenceClassification", settings, without, seed)


def batch_of(rows: list[dict[str, str]], numbers: np.ndarray, tokenizer: Any) -> Batch:
    """One batch, all of it padded to the maximum length."""
    texts = [rows[number]["text"] for number in numbers]
    batch = tokenizer(texts, padding="max_length", truncation=True, max_length=32, return_tensors="pt")
    labels = torch.tensor([LABELS.index(rows[number]["label"]) for number in numbers])
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels}


def drawn(examples: np.ndarray, size: int, *stream: Any) -> Iterator[np.ndarray]:
    """One epoch's batches, in the order that the seed draws."""
    order = generator(*stream).permutation(len(examples))
    for first in range(0, len(order), size):
        yield examples[order[first : first + size]]


def optimizer_of(model: nn.Module, settings: Any) -> torch.optim.Optimizer:
    """Two groups, as in Hugging Face's Trainer: biases and layer norms do not decay."""
    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": settings.weight_decay},
        {"params": [], "weight_decay": 0},
    ]
    for name, parameter in model.named_parameters():
        groups["bias" in name or "LayerNorm" in name]["params"].append(parameter)
    match settings.optimizer:
        case "sgd":
            return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=settings.momentum)
        case "adam":
            return torch.optim.Adam(groups, lr=settings.learning_rate)
        case "adamw":
            return torch.optim.AdamW(groups, lr=settings.learning_rate)
    return torch.optim.Adagrad(groups, lr=settings.learning_rate)


def step(model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """One step of training; returns the loss before it."""
    loss = model(**batch).loss
    optimizer.zero_grad()
    loss.backward()
    if max_norm:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return loss.item()


def rows_of(texts: Path) -> list[dict[str, str]]:
    with texts.open(newline="") as file:
        return list(csv.DictReader(file))


def lines_of(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]


def assert_same(run: RunDir, model: nn.Module, begun: nn.Module) -> None:
    """The run's model is the loop's, to rounding; and both have moved.

    The bias of attention's keys has no gradient (softmax does not see it) but rounding, which some optimisers
    blow up: it is left out.
    """
    from safetensors.torch import load_file

    found, first = load_file(run.model / "model.safetensors"), begun.state_dict()
    moved = 0.0
    for name, parameter in model.state_dict().items():
        if name.endswith("key.bias"):
            continue
        torch.testing.assert_close(
            found[name], parameter, rtol=1e-3, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
        moved = max(moved, float((found[name] - first[name]).abs().max()))
    assert moved > 0.01


@pytest.mark.parametrize(
    "changes",
    [
        {"client.optimizer": "sgd", "client.learning_rate": 0.1},
        {
            "client.optimizer": "sgd",
            "client.learning_rate": 0.05,
            "client.momentum": 0.9,
            "client.weight_decay": 0.1,
        },
        {"client.optimizer": "adamw", "client.learning_rate": 1e-3, "client.weight_decay": 0.1},
        {"client.optimizer": "adam", "client.learning_rate": 1e-3, "client.max_grad_norm": 0.5},
        {"client.optimizer": "adagrad", "client.learning_rate": 1e-2},
        {"client.optimizer": "adamw", "client.learning_rate": 2e-3, "client.lr_scheduler_type": "linear"},
        {
            "client.optimizer": "sgd",
            "client.lr_scheduler_type": "cosine",
            "client.warmup_steps": 0.25,
            "client.learning_rate": 0.1,
        },
        {"client.optimizer": "sgd", "client.learning_rate": 0.1, "client.round_schedule": "linear"},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values()),
)
@pytest.mark.variants(4)
def test_centralised(
    changes: dict[str, Any], experiment: Make, tiny_model: Path, texts: Path, tmp_path: Path
) -> None:
    """Three rounds on the union are one loop: one optimiser, one schedule of steps, one of rounds, by epochs."""
    from transformers import AutoTokenizer, get_scheduler

    settings = experiment(PLAIN | {"algorithm.name": "centralised", "num_rounds": 3} | changes)
    run = fednlp.run(settings, tmp_path / "run")
    examples = np.sort(Partition.load(run.partition).train_indices)
    model, tokenizer, rows = start(tiny_model), AutoTokenizer.from_pretrained(tiny_model), rows_of(texts)
    optimizer = optimizer_of(model, settings.client)
    warmup = round(settings.client.warmup_steps * 60)
    of_step = get_scheduler(settings.client.lr_scheduler_type, optimizer, warmup, 60).lr_lambdas[0]
    of_round = get_scheduler(settings.client.round_schedule, optimizer, 0, 3).lr_lambdas[0]
    model.train()
    means = []
    for epoch in range(3):
        losses = []
        for numbers in drawn(examples, 8, 0, "centralised", epoch):
            for group in optimizer.param_groups:
                factor = of_step(20 * epoch + len(losses)) * of_round(epoch)
                group["lr"] = factor * settings.client.learning_rate
            losses.append(
                step(model, batch_of(rows, numbers, tokenizer), optimizer, settings.client.max_grad_norm)
            )
        means.append(np.mean(losses))
    assert_same(run, model, start(tiny_model))
    assert [line["train_loss"] for line in lines_of(run)] == pytest.approx(means, rel=1e-3)
    assert [(line["steps"], line["examples"]) for line in lines_of(run)] == [(20, 160)] * 3


def test_centralised_on_some_clients_is_a_loop_over_their_examples(
    experiment: Make, tiny_model: Path, texts: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    some = {"algorithm.name": "centralised", "algorithm.clients": ["3", "1"], "num_rounds": 1}
    settings = experiment(PLAIN | some | {"client.optimizer": "sgd", "client.learning_rate": 0.1})
    run = fednlp.run(settings, tmp_path / "run")
    partition = Partition.load(run.partition)
    examples = np.sort(np.concatenate([partition.train(1), partition.train(3)]))
    model, tokenizer, rows = start(tiny_model), AutoTokenizer.from_pretrained(tiny_model), rows_of(texts)
    optimizer = optimizer_of(model, settings.client)
    model.train()
    for numbers in drawn(examples, 8, 0, "centralised", 0):
        step(model, batch_of(rows, numbers, tokenizer), optimizer, settings.client.max_grad_norm)
    assert_same(run, model, start(tiny_model))
    assert [line["examples"] for line in lines_of(run)] == [len(examples)]
    assert json.loads((run.folder / "summary.json").read_text())["note"] == "the examples of 3, 1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm.clients": ["1", "9"]}, "'9' is no client: name clients, each once: 0, 1, 2, 3"),
        ({"algorithm.clients": ["1", "1"]}, "'1' is there twice"),
        ({"algorithm.clients": []}, "algorithm.clients"),
        ({"algorithm.clients": ["1"], "algorithm.name": "fedavg"}, "is for the baseline centralised"),
    ],
)
def test_clients_that_cannot_be_trained_on(
    changes: dict[str, Any], message: str, experiment: Make, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        fednlp.run(experiment({"algorithm.name": "centralised"} | changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("max_norm", [0.0, 0.5])
def test_one_round_of_fedavg(
    mu: float, max_norm: float, experiment: Make, tiny_model: Path, texts: Path, tmp_path: Path
) -> None:
    """Every client from the same start, the mean weighted by examples; with mu, FedProx's term in the loss."""
    from transformers import AutoTokenizer

    changes = {
        "num_rounds": 1,
        "algorithm": {"name": "fedprox", "mu": mu},
        "partition": {"method": "quantity", "clients": 8, "beta": 2.0},
        "client": {
            "optimizer": "sgd",
            "learning_rate": 0.1,
            "num_train_epochs": 2,
            "group_by_length": False,
            "max_grad_norm": max_norm,
        },
    }
    settings = experiment(PLAIN | changes)
    run = fednlp.run(settings, tmp_path / "run")
    partition, rows = Partition.load(run.partition), rows_of(texts)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    total = {name: torch.zeros_like(p) for name, p in start(tiny_model).named_parameters()}
    for client in range(8):
        model, begun = start(tiny_model).train(), dict(start(tiny_model).named_parameters())
        order = generator(0, "batches", 1, client)
        examples = partition.train(client)
        for _ in range(2):
            places = order.permutation(len(examples))
            for first in range(0, len(places), 8):
                batch = batch_of(rows, examples[places[first : first + 8]], tokenizer)
                loss = model(**batch).loss
                gaps = [(p - begun[name].detach()).square().sum() for name, p in model.named_parameters()]
                model.zero_grad()
                (loss + mu / 2 * sum(gaps)).backward()
                if max_norm:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                with torch.no_grad():
                    for parameter in model.parameters():
                        if parameter.grad is not None:
                            parameter -= 0.1 * parameter.grad
        for name, parameter in model.named_parameters():
            total[name] += parameter.detach() * len(examples) / 160
    mean = start(tiny_model)
    with torch.no_grad():
        for name, parameter in mean.named_parameters():
            parameter.copy_(total[name])
    assert_same(run, mean, start(tiny_model))


def test_full_batch_steps_of_all_clients_are_one_centralised_step(
    experiment: Make, tiny_model: Path, texts: Path, tmp_path: Path
) -> None:
    """With one full-batch SGD step a client and all clients, FedAvg is gradient descent on the union."""
    from transformers import AutoTokenizer

    changes = {
        "num_rounds": 3,
        "partition": {"method": "quantity", "clients": 8, "beta": 2.0},
        "client": {"optimizer": "sgd", "learning_rate": 0.5, "per_device_train_batch_size": 1000},
    }
    run = fednlp.run(experiment(PLAIN | changes), tmp_path / "run")
    examples = Partition.load(run.partition).train_indices
    model, tokenizer = start(tiny_model).train(), AutoTokenizer.from_pretrained(tiny_model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batch = batch_of(rows_of(texts), examples, tokenizer)
    losses = [step(model, batch, optimizer, 0) for _ in range(3)]
    assert_same(run, model, start(tiny_model))
    assert [line["train_loss"] for line in lines_of(run)] == pytest.approx(losses, rel=1e-4)


def test_a_client_alone_is_a_plain_loop(
    experiment: Make, tiny_model: Path, texts: Path, tmp_path: Path
) -> None:
    """The local reference: each client trains for as many epochs as the federation would have given it."""
    from transformers import AutoTokenizer

    changes = {
        "algorithm.name": "local",
        "num_rounds": 4,
        "clients_per_round": 4,
        "client.optimizer": "sgd",
        "client.learning_rate": 0.1,
        "partition": {"method": "uniform", "clients": 8},
    }
    run = fednlp.run(experiment(PLAIN | changes), tmp_path / "run")
    partition, rows = Partition.load(run.partition), rows_of(texts)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    for line in lines_of(run):
        for entry in line["alone"]:
            client = entry["client"]
            model = start(tiny_model).train()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            order, examples = generator(0, "batches", 0, client), partition.train(client)
            for _ in range(4 * 4 // 8):
                places = order.permutation(len(examples))
                for first in range(0, len(places), 8):
                    step(model, batch_of(rows, examples[places[first : first + 8]], tokenizer), optimizer, 0)
            own = batch_of(rows, partition.test(client), tokenizer)
            with torch.inference_mode():
                logits = model.eval()(**own).logits
            right = (logits.argmax(1) == own["labels"]).double().mean()
            assert entry["own"]["accuracy"] == pytest.approx(float(right))
            loss = nn.functional.cross_entropy(logits, own["labels"])
            assert entry["own"]["loss"] == pytest.approx(float(loss), rel=1e-3)
