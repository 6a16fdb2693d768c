"""The reference: what the model that a run begins with says of examples, computed once before the first round.

It is computed of each example alone, so that it depends neither on the batch nor on the worker nor on who else has
examples, and lies in further columns of the features. So no second model is in memory while one is trained, and the
reference stays that of round 0, whatever the rounds do to adapters and base weights.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fednlp.data.features import Features, add_columns, open_features
from fednlp.disk import writing
from fednlp.formatting.units import plural
from fednlp.tasks.base import Task
from fednlp.training.activation_cache import digest_of_model


def has_reference(task: Task) -> bool:
    """Return whether a task compares a model with the one that its run began with."""
    return hasattr(task, "reference")


def reference_columns(
    task: Task, model: nn.Module, features: Features, numbers: np.ndarray, device: torch.device
) -> dict[str, np.ndarray]:
    """Return the columns, float64, one value an example; NaN for examples that are not asked for.

    Args:
        task: One that has a reference.
        model: The starting model, on the device.
        numbers: The examples.
    """
    model.train(False)
    columns: dict[str, np.ndarray] = {}
    with torch.inference_mode():
        for number in numbers.tolist() or [0]:
            for name, value in task.reference(model, features, number, device).items():  # type: ignore[attr-defined]
                columns.setdefault(name, np.full(len(features), np.nan))[number] = value
    return columns


def with_reference(
    task: Task,
    model: nn.Module,
    features: Features,
    numbers: np.ndarray,
    device: torch.device,
    peft: Mapping[str, Any] | None,
    log: Callable[[str], None],
) -> Features:
    """Return the features with the columns of the reference; they are kept beside those without.

    Args:
        features: On disk.
        numbers: The examples that are trained or tested on.
        peft: The adapters, as in ``[model.peft]``.
        log: Told before they are computed.

    Raises:
        RunError: The disk is full, or the cache cannot be written.
    """
    assert features.folder is not None
    numbers = np.unique(numbers)
    key = hashlib.sha256(numbers.tobytes() + _digest(model, device, peft).encode()).hexdigest()[:32]
    folder = features.folder.with_name(f"{features.folder.name}-{key}")
    if (found := open_features(folder)) is not None:
        return found
    if len(numbers):
        log(f"computing the reference of {plural(len(numbers), 'example')}: once, by the model of round 0")
    before = next(model.parameters()).device
    columns = reference_columns(task, model.to(device), features, numbers, device)
    model.to(before)
    with writing(folder.parent):
        return add_columns(features, folder, columns)


def _digest(model: nn.Module, device: torch.device, peft: Mapping[str, Any] | None) -> str:
    """Return a digest of what the reference depends on: not on adapters that add nothing yet, which each seed draws."""
    tensors: dict[str, Tensor] = dict(model.named_parameters()) | dict(model.named_buffers())
    adapters = [name for name in tensors if ".lora_A." in name or ".lora_B." in name]
    idle = all(not tensors[name].any() for name in adapters if ".lora_B." in name)
    kept = {name: tensor for name, tensor in tensors.items() if not (idle and name in adapters)}
    config: Any = model.config
    return digest_of_model(config, kept, [device.type, None if idle else peft])
