"""Profiles the data of a run: how they were read, how they are partitioned, and what the model truncates."""

import numpy as np

from fednlp.config import Experiment
from fednlp.data.profiling import DataProfile, Holders, Truncation, profile
from fednlp.data.textdata import TextData
from fednlp.partition import Partition
from fednlp.simulation.components import RunComponents
from fednlp.tasks.truncation import truncates, truncation


def profile_run_data(experiment: Experiment, components: RunComponents, partition: Partition) -> DataProfile:
    """Return the profile of a run's data.

    Args:
        experiment: Resolved.
        components: Data, task and features of the run.
        partition: The examples of each client.
    """
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
    higher = components.longest == experiment.model.max_length
    return Truncation(
        texts=round(found.texts),
        share=found.texts / max(found.of_texts, 1),
        tokens=found.tokens / max(found.of_tokens, 1),
        limit=components.longest,
        remedy="raise model.max_length"
        if higher
        else "choose a model that reads longer texts, or split them",
    )
