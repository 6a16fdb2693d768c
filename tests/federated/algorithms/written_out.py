"""What methods that are written out in plain PyTorch share: clients, the first model, a loss, and how runs compare."""

import csv
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fednlp
from fednlp.config import Experiment
from fednlp.models.pretrained import pretrained_model
from fednlp.simulation.run_dir import RunDir

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
