"""What a worker needs to know of a run, and what follows from it: the model, its personal parameters, the features."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fednlp.data.features import Features, open_features
from fednlp.errors import ModelError, RunError
from fednlp.federated.adapters import Adapters, LoraPair, ranks_of, rule_of
from fednlp.federated.pulling import EMBEDDINGS
from fednlp.models.adapters import ADAPTER
from fednlp.models.pretrained import new_model, pretrained_model
from fednlp.models.selection import Selection, apply_selection
from fednlp.models.selection_spec import parse_selection
from fednlp.runtime.placement import gpu_of, worker_number, workers_by_gpu
from fednlp.tasks import task_from
from fednlp.training.replica import Replica

UNLABELLED = -1
"""The label of a text that has none yet."""


@dataclass(frozen=True)
class WorkerSpec:
    """All that a worker needs to know of a run besides its algorithm: JSON values and paths of files on this machine.

    Attributes:
        source: The model's folder or hub name.
        model_config: Settings laid over the model's own.
        peft: Adapters, as in ``[model.peft]``.
        train: Which parameters are shared, personal or frozen, as ``model.train``.
        task: The task's name, or ``"module:Class"``.
        train_features: Folder of the training set's features.
        test_features: Folder of the test set's features.
        test_numbers: File of the numbers of the global test set's examples.
        partition: File of the partition.
        options: Of local training (:class:`fednlp.training.local_training.LocalTraining`).
        records: File of the clients' records.
        unlabelled: Whether training examples have only the labels that come with a request.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ...
        cache_activations: Whether what frozen layers compute is kept on disk.
        evaluation_batch: Test examples a batch.
        evaluation_bf16: Whether test examples are predicted in bfloat16.
        longest: Tokens that the model reads of a text at most; 0 where it is not known.
        gpu_mapping: A file that says so by machine; None for the same everywhere.
        onednn: Whether oneDNN computes the linear layers.
    """

    source: str
    model_config: dict[str, Any]
    peft: dict[str, Any] | None
    train: Any
    task: str
    task_fields: dict[str, Any]
    train_features: str
    test_features: str
    test_numbers: str
    partition: str
    options: dict[str, Any]
    federated: bool
    records: str
    unlabelled: bool
    seed: int
    device: str
    cache_activations: bool
    evaluation_batch: int
    longest: int = 0
    evaluation_bf16: bool = False
    workers_per_gpu: int = 1
    gpu_mapping: str | None = None
    onednn: bool = False


def pick_device(name: str, workers_per_gpu: int = 1, gpu_mapping: str | None = None) -> torch.device:
    """Return this worker's device by name; ``"auto"`` and ``"cuda"`` are a GPU of those that the workers are laid over.

    Args:
        name: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...; ``"auto"`` is the CPU where there is no GPU.
        gpu_mapping: A file that says so by machine (:func:`fednlp.runtime.placement.workers_by_gpu`).

    Raises:
        ConfigError: The file does not fit this machine.
        RunError: There is no such device.
    """
    if name == "auto" or (name == "cuda" and torch.cuda.is_available()):
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        laid = workers_by_gpu(gpus, workers_per_gpu, gpu_mapping)
        return torch.device("cuda", gpu_of(worker_number(), laid)) if gpus else torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # the device "meta" holds no values
    except (RuntimeError, AssertionError, NotImplementedError):
        raise RunError(f'there is no device "{name}" here: say runtime.device = "cpu" or "auto"') from None
    return device


def load_model(spec: WorkerSpec) -> nn.Module:
    """Load the architecture in a worker process; shared weights come with the first broadcast."""
    task = task_from(spec.task, spec.task_fields)
    # No broadcast fills in frozen and personal weights.
    load: Callable[..., nn.Module] = (
        partial(new_model, drawn=False) if spec.train == "all" else pretrained_model
    )
    return load(spec.source, task.model_class, task.settings(), spec.model_config, spec.seed, spec.peft)


def selected(model: nn.Module, train: Any, peft: dict[str, Any] | None) -> Selection:
    """Freeze what the selection freezes in a model, and return the state of every tensor.

    Args:
        train: ``model.train``.
        peft: ``[model.peft]``, whose rule may leave a factor with each client.
    """
    selection, factor = apply_selection(model, parse_selection(train)), rule_of(peft).personal
    own = [name for name in selection.shared if factor and factor_of(name) == factor]
    return Selection({**selection.states, **dict.fromkeys(own, "personal")}) if own else selection


def personal_names(
    model: nn.Module, train: Any, federated: bool, peft: dict[str, Any] | None
) -> frozenset[str]:
    """Freeze what the selection freezes, and return the names of what each client keeps to itself.

    Outside a federation nobody exchanges anything, and personal tensors are trained like all others.

    Args:
        train: ``model.train``.
        peft: ``[model.peft]``.
    """
    if train == "all" and not rule_of(peft).personal:
        return frozenset()
    selection = selected(model, train, peft)
    return selection.personal if federated else frozenset()


def adapters_of(model: nn.Module, peft: dict[str, Any] | None, federated: bool) -> Adapters:
    """Return the low-rank adapters of a model that are treated otherwise than other tensors, with their rule.

    There are none by default.

    Raises:
        ModelError: A layer is not linear, its weight is used elsewhere too where products are added to it, or it has
            fewer inputs or outputs than a client's rank.
    """
    rule, ranks = rule_of(peft), ranks_of(peft)
    if not federated or not (rule.pairs or ranks):
        return Adapters()
    from peft.tuners.lora import LoraLayer

    what = f'averaging = "{rule.name}"' if rule.pairs else "ranks"
    owners = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    pairs, rank = [], 0
    for path, module in model.named_modules():
        if not isinstance(module, LoraLayer):
            continue
        weight, layer = getattr(module.base_layer, "weight", None), path.removeprefix("base_model.model.")
        tied = weight is not None and rule.products and owners[id(weight)] > 1
        if ADAPTER not in module.lora_A or weight is None or weight.dim() != 2 or tied:
            raise ModelError(
                f"[model.peft] {what} needs linear layers with weights of their own, and {layer} is none: leave it out "
                "of target_modules"
            )
        rank = module.r[ADAPTER]
        if ranks and rank > min(weight.shape):
            raise ModelError(
                f"[model.peft] ranks: {rank} is above {min(weight.shape)}, the smaller side of {layer}: lower it"
            )
        a, b = (f"{path}.{name}.{ADAPTER}.weight" for name in ("lora_A", "lora_B"))
        transposed = bool(module.fan_in_fan_out)
        pairs.append(LoraPair(a, b, f"{path}.base_layer.weight", module.scaling[ADAPTER], transposed))
    if not pairs:
        raise ModelError(f"[model.peft] {what} is for low-rank adapters, and there are none")
    return Adapters(rule, tuple(pairs), rank, ranks)


def factor_of(name: str) -> str:
    """Return which factor of a low-rank adapter a parameter is; empty for none.

    >>> factor_of("layer.0.lora_B.default.weight"), factor_of("classifier.weight")
    ('b', '')
    """
    return "a" if ".lora_A." in name else "b" if ".lora_B." in name else ""


def model_fields(replica: Replica) -> dict[str, int]:
    """Return what the record of a client's whole model holds: names and numbers of float32 values."""
    return {"shared": replica.layout.numel, "personal": replica.personal.numel}


def stacks_of(groups: list[str], embeddings: str = "chosen") -> tuple[str, ...]:
    """Return the group of each tensor in dynamic pulling; nothing where all are one group.

    Args:
        groups: The part of the model that each tensor belongs to (:func:`fednlp.models.groups.groups_of`).
        embeddings: ``"apart"`` for a group of their own; ``"chosen"`` for none.

    >>> stacks_of(["embeddings", "encoder.layer.0", "decoder.layer.0", "head"])
    ('encoder', 'encoder', 'decoder', 'decoder')
    >>> stacks_of(["embeddings", "layer.0", "head"], "apart")
    ('embeddings', '', '')
    """
    two = any(group.startswith("decoder.") for group in groups)
    apart = [embeddings == "apart" and group.rpartition(".")[2] == EMBEDDINGS for group in groups]
    if not two and not any(apart):
        return ()
    stacks = ["decoder" if group.startswith(("decoder.", "head")) else "encoder" for group in groups]
    return tuple(
        EMBEDDINGS if alone else stack if two else "" for alone, stack in zip(apart, stacks, strict=True)
    )


def without_labels(features: Features) -> Features:
    """Return features in which no example has a label: those that are known come with a job."""
    hidden = np.full(len(features), UNLABELLED, dtype=np.int64)
    return replace(features, arrays={**features.arrays, "label": hidden})


def opened_features(folder: str) -> Features:
    features = open_features(Path(folder))
    if features is None:
        raise RunError(f"the features in {folder} are gone: start the run again, which makes them")
    return features
