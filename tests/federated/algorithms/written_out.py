"""What methods that are written out in plain PyTorch share: clients, the first model, a loss, and how runs compare."""

import copy
import csv
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fednlp
from fednlp.config import Experiment
from fednlp.inference.model import open_trained
from fednlp.models.pretrained import pretrained_model
from fednlp.partition import Partition
from fednlp.simulation.components import build_components
from fednlp.simulation.run_dir import RunDir
from fednlp.simulation.start_model import start_model

Tensors = dict[str, torch.Tensor]
LABELS = ("arts", "economy", "science", "sports")
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
UNLIKE_SIZES = {
    "num_rounds": 3,
    "clients_per_round": 3,
    "partition.method": "quantity",
    "partition.clients": 6,
    "partition.alpha": None,
    "partition.beta": 2.0,
    "model.config": WITHOUT_DROPOUT,
    "client.optimizer": "sgd",
    "client.num_train_epochs": 2,
    "client.group_by_length": False,
}
"""Six clients of unlike sizes, three a round, without dropout, batches in drawn order."""

WHOLE_BATCHES = {
    "num_rounds": 3,
    "clients_per_round": 2,
    "partition.clients": 2,
    "model.config": WITHOUT_DROPOUT,
    "client.optimizer": "sgd",
    "client.learning_rate": 0.2,
    "client.num_train_epochs": 2,
    "client.per_device_train_batch_size": 200,
}
"""Two clients, both in each round. Each step is over all of a client's examples: no order of batches, no dropout."""


class Clients:
    """The clients of a run with :data:`WHOLE_BATCHES` in plain PyTorch, and the model that it began with.

    Args:
        experiment: Of the run.
        run: It.

    Attributes:
        x: The first global model, by name.
        sizes: The clients' numbers of examples.
    """

    def __init__(self, experiment: Experiment, run: RunDir) -> None:
        resolved = experiment.resolved()
        components, partition = build_components(resolved, lambda text: None), Partition.load(run.partition)
        self.model: Any = start_model(resolved, components.source, components.task)
        self.task = components.task
        numbers = [partition.train(client) for client in range(partition.num_clients)]
        self.batches = [
            components.task.collate(components.train, some, torch.device("cpu"), training=True)
            for some in numbers
        ]
        self.sizes = np.array([len(some) for some in numbers])
        self.x = self._copied()

    def _copied(self) -> Tensors:
        return copy.deepcopy(dict(self.model.state_dict()))

    def loss(self, client: int) -> torch.Tensor:
        """Return a client's mean loss with the weights that are loaded."""
        return self.task.loss(self.model, self.batches[client])

    def features(self, client: int) -> torch.Tensor:
        """Return the mean of the last hidden states over each text's tokens, with the weights that are loaded."""
        batch = self.batches[client]
        mask = batch["attention_mask"]
        states = self.model.base_model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
        return (states * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)

    def gradient(self, at: Tensors, loss: Callable[[], torch.Tensor]) -> Tensors:
        """Return the gradient of a loss with some weights, by name."""
        self.model.load_state_dict(at)
        self.model.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        named = self.model.named_parameters()
        return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in named}

    def mean(self, models: Sequence[Tensors]) -> Tensors:
        """Return the mean of the clients' models, weighted by their examples."""
        shares = self.sizes / self.sizes.sum()
        return {
            name: torch.stack([float(p) * one[name] for p, one in zip(shares, models, strict=True)]).sum(0)
            if value.is_floating_point()
            else value
            for name, value in self.x.items()
        }


def moved(weights: Tensors, gradient: Tensors, rate: float = 0.2) -> Tensors:
    """Return weights after a step of SGD."""
    return weights | {name: weights[name] - rate * value for name, value in gradient.items()}


def weights_of(run: RunDir, client: int | None = None) -> Tensors:
    """Return a run's final model, or a client's own, as everybody gets it from the run directory."""
    return {
        name: tensor.clone() for name, tensor in open_trained(run.folder, client).model.state_dict().items()
    }


def start(model: Path) -> nn.Module:
    """Return the tiny model with the head that the seed 0 draws, without dropout."""
    numbers = {name: number for number, name in enumerate(LABELS)}
    settings = {"num_labels": 4, "id2label": dict(enumerate(LABELS)), "label2id": numbers}
    return pretrained_model(str(model), "AutoModelForSequenceClassification", settings, WITHOUT_DROPOUT, 0)


def rows_of(texts: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with texts.open(newline="") as file:
        return list(csv.DictReader(file))


def loss_of(model: nn.Module, tokenizer: Any, rows: Sequence[Mapping[str, str]]) -> torch.Tensor:
    """Return a model's mean loss over rows."""
    batch = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    labels = torch.tensor([LABELS.index(row["label"]) for row in rows])
    loss: torch.Tensor = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels
    ).loss
    return loss


def assert_close(found: Tensors, expected: Tensors, atol: float) -> None:
    """Compare tensors by name, but for one whose gradient is rounding alone: softmax does not see the keys' bias."""
    for name, value in expected.items():
        if not name.endswith("key.bias"):
            torch.testing.assert_close(
                found[name], value, rtol=1e-3, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
            )


def assert_ends_alike(
    settings: Experiment,
    two_workers: Experiment,
    outcome: Callable[[RunDir], dict[str, Any]],
    stopping: Callable[..., AbstractContextManager[Any]],
    folder: Path,
) -> None:
    """Compare a run with one by two workers, and with one that is stopped within its third round and resumed."""
    expected = outcome(fednlp.run(settings, folder / "whole"))
    two = outcome(fednlp.run(two_workers, folder / "two"))
    with stopping(rounds=2, pieces=2) as callback:
        fednlp.run(settings, folder / "stopped", callback=callback)
    assert outcome(fednlp.resume(folder / "stopped")) == expected
    assert {**two, "summary": None} == {**expected, "summary": None}
