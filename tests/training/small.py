"""A small model of texts, as much of a task as local steps need, and a few texts."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from fednlp.data.features import Features
from fednlp.training.local_training import LocalTraining

WORDS, TEXTS = 17, 24


class Small(nn.Module):
    """Words, dropout where there is any, and a linear layer; no weight is tied."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 4, padding_idx=0)
        self.drop, self.out = nn.Dropout(dropout), nn.Linear(4, 2)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.words

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(self.words(ids).mean(1)))


@dataclass
class Classes:
    """As much of a task as local steps need; it notes every batch, and whether the model was in training."""

    batches: list[list[int]] = field(default_factory=list)
    modes: list[tuple[bool, bool]] = field(default_factory=list)

    def collate(
        self, features: Features, numbers: np.ndarray, device: torch.device, *, training: bool = False
    ) -> dict[str, torch.Tensor]:
        self.batches.append(numbers.tolist())
        self.modes.append((training, False))
        ids, _ = features.padded("input_ids", numbers, 0)
        return {"ids": torch.from_numpy(ids), "labels": torch.from_numpy(features.values("label")[numbers])}

    def loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.modes[-1] = self.modes[-1][0], model.training
        return nn.functional.cross_entropy(model(batch["ids"]), batch["labels"])


def changed(options: LocalTraining, **changes: Any) -> LocalTraining:
    """Return options of local training with some others in their place, checked."""
    return LocalTraining(**options.model_dump() | changes)


def texts() -> Features:
    rng = np.random.default_rng(0)
    rows = [
        {"input_ids": rng.integers(1, WORDS, rng.integers(1, 9)).tolist(), "label": int(rng.integers(2))}
        for _ in range(TEXTS)
    ]
    return Features.in_memory(rows)


FEATURES = texts()


def small(dropout: float = 0.0) -> Small:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Small(dropout)
