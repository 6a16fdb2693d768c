"""What a run writes down before its first round: the versions, the data, the task, and a profile of the data."""

import os
import platform
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch

from fednlp.clock import DATA, timed
from fednlp.config import Experiment
from fednlp.data import TextData
from fednlp.data.profiling import DataProfile, Holders, Truncation, profile
from fednlp.formatting.places import data_source
from fednlp.partition import Partition
from fednlp.processor import instruction_sets, processor
from fednlp.simulation.components import Log, RunComponents
from fednlp.simulation.run_dir import RunDir, saving
from fednlp.tasks.label_scores import defined_together
from fednlp.tasks.truncation import truncates, truncation
from fednlp.training.worker_spec import pick_device


@timed(DATA)
def write_start(
    directory: RunDir,
    experiment: Experiment,
    components: RunComponents,
    partition: Partition,
    start: dict[str, str],
    log: Log,
) -> None:
    """Log how the data were read; write what a run begins with, and what reports show of data and partition.

    Args:
        experiment: Resolved.
        start: Fingerprints of the model that the run begins with.
    """
    profiled = _profile(experiment, components, partition)
    for line in profiled.lines():
        log(line)
    runtime = experiment.runtime
    with saving(directory.folder):
        (directory.folder / "checkpoint").mkdir(exist_ok=True)
        partition.save(directory.partition)
        shown = profiled.values(texts=False)
        directory.write_json(
            "data.json", shown | {"source": data_source(shown["source"], experiment.model_dump())}
        )
        device = pick_device(runtime.device, runtime.workers_per_gpu, runtime.gpu_mapping)
        write_facts(directory, components, partition, start, device)


def write_facts(
    directory: RunDir,
    components: RunComponents,
    partition: Partition,
    start: dict[str, str],
    device: torch.device | None = None,
) -> None:
    """Write what a run begins with: versions, machine, data, task, and the labels of each client where these are few.

    Args:
        components: Data, task and features of the run.
        partition: The examples of each client.
        start: Fingerprints of the model that the run begins with.
        device: What trains on this machine; a GPU is named.
    """
    data = components.data
    facts = {
        "name": data.name,
        "source": data_source(data.source, directory.experiment().model_dump()),
        "fingerprint": data.fingerprint,
        **({"content": data.content} if data.content else {}),
        **example_counts(data, partition),
        "labels": len(data.label_names) or None,
        "task": components.task.name,
        "metric": components.task.metric,
        **({"drawn_from": dict(data.drawn_from)} if data.drawn_from else {}),
    }
    directory.write_json("environment.json", {**_environment(facts, device), "start": start})
    directory.write_json("task.json", {"task": components.task_spec, "fields": asdict(components.task)})  # type: ignore[call-overload]
    clients, labels = partition.num_clients, len(data.label_names)
    if not len(data.train_numbers) or data.schema.kind != "class" or clients * labels > 200_000:
        return
    counts = {}
    for split in ("train", "test"):
        indices, offsets = getattr(partition, f"{split}_indices"), getattr(partition, f"{split}_offsets")
        owner = np.repeat(np.arange(clients), np.diff(offsets))
        known = data.labels(split)[indices]
        table = np.zeros((clients, labels), dtype=np.int64)
        np.add.at(table, (owner[known >= 0], known[known >= 0]), 1)
        counts[split] = table.tolist()
    directory.write_json("labels.json", {"labels": list(data.label_names), **counts})


def example_counts(data: TextData, partition: Partition) -> dict[str, Any]:
    """Return the numbers of training and test examples; where this machine has none, those that the sites told.

    Of those it also has, in ``not_told``, how many sites keep them to themselves.
    """
    counts: dict[str, Any] = {}
    hidden: dict[str, int] = {}
    for place, (split, own) in enumerate((("train", data.train_numbers), ("test", data.test_numbers))):
        sizes = np.diff(getattr(partition, f"{split}_offsets"))
        if partition.hidden is not None and not len(own):
            sizes = sizes[~partition.hidden[:, place]]
            hidden[split] = int(partition.hidden[:, place].sum())
        counts[split] = len(own) or int(sizes.sum())
    return counts | ({"not_told": hidden} if any(hidden.values()) else {})


def computed_on(device: torch.device | None = None) -> dict[str, Any]:
    """Return what decides the last digits of what this machine computes: processor, libraries, and a GPU if it trains.

    Args:
        device: What trains on this machine.
    """
    on_gpu = device is not None and device.type == "cuda"
    return {
        **{name: _version(name) for name in ("torch", "transformers", "tokenizers", "numpy")},
        "processor": processor(),
        "instruction_sets": instruction_sets(),
        **({"gpu": torch.cuda.get_device_name(device)} if on_gpu else {}),
    }


def _environment(data: dict[str, Any], device: torch.device | None) -> dict[str, Any]:
    """Return the versions of packages, facts on this machine, and the facts on the data."""
    return {
        "fednlp": _version("fednlp"),
        **computed_on(device),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": data,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _profile(experiment: Experiment, components: RunComponents, partition: Partition) -> DataProfile:
    """Return the profile of a run's data."""
    data = components.data
    lengths = [
        components.train.lengths(data.train_numbers),
        components.test.lengths(data.test_numbers),
    ]
    return profile(
        data, holders_of(data, partition), np.concatenate(lengths), _truncation_of_run(experiment, components)
    )


def holders_of(data: TextData, partition: Partition) -> Holders:
    """Return the client of each row of the training table, -1 for rows that no client holds."""
    owners = np.full(data.train.num_rows, -1, dtype=np.int64)
    sizes = np.diff(partition.train_offsets)
    owners[partition.train_indices] = np.repeat(np.arange(partition.num_clients), sizes)
    return Holders(owners, partition.client_names)


def _truncation_of_run(experiment: Experiment, components: RunComponents) -> Truncation | None:
    """Return what the model truncates; None for tasks that read whole texts, or do not say so."""
    data, task, tokenizer = components.data, components.task, components.tokenizer
    if not truncates(task):
        return None
    found = truncation(data, "train", data.train_numbers, components.train, task, tokenizer) + truncation(
        data, "test", data.test_numbers, components.test, task, tokenizer
    )
    cuts = _cuts_of_run(components)
    higher = components.longest == experiment.model.max_length
    return Truncation(
        texts=round(found.texts),
        share=found.texts / max(found.of_texts, 1),
        tokens=found.tokens / max(found.of_tokens, 1),
        limit=components.longest,
        remedy="raise model.max_length"
        if higher
        else "choose a model that reads longer texts, or split them",
        cuts=cuts,
        severe=bool({*cuts} & {*getattr(task, "severe_cuts", ())}),
    )


def _cuts_of_run(components: RunComponents) -> dict[str, int]:
    """Return how many training and test examples lose which part, by words for it; none where a task has no parts."""
    data, task, found = components.data, components.task, Counter[str]()
    if defined_together(task, "cuts", "encode"):
        for features, numbers in (
            (components.train, data.train_numbers),
            (components.test, data.test_numbers),
        ):
            found.update(task.cuts(features, numbers) if len(numbers) else {})  # type: ignore[attr-defined]
    return dict(found)
