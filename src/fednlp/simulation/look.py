"""A look at the data of a run, with what its partition and its model add to it."""

import numpy as np

from fednlp.config import Experiment
from fednlp.data.profiling import DataProfile, Holders, Truncation, profile
from fednlp.data.textdata import TextData
from fednlp.partition import Partition
from fednlp.simulation.build import Pieces
from fednlp.tasks.truncation import TRUNCATING_TASKS, truncation


def look_at(experiment: Experiment, pieces: Pieces, partition: Partition) -> DataProfile:
    """Return how the data of a run were read, and what is odd about them."""
    data = pieces.data
    lengths = [
        pieces.train.lengths(data.train_numbers),
        pieces.test.lengths(data.test_numbers),
    ]
    return profile(data, holders_of(data, partition), np.concatenate(lengths), _cut_off(experiment, pieces))


def holders_of(data: TextData, partition: Partition) -> Holders:
    """Return which client holds each row of the training table."""
    owners = np.full(data.train.num_rows, -1, dtype=np.int64)
    sizes = np.diff(partition.train_offsets)
    owners[partition.train_indices] = np.repeat(np.arange(partition.num_clients), sizes)
    return Holders(owners, partition.client_names)


def _cut_off(experiment: Experiment, pieces: Pieces) -> Truncation | None:
    """Return what the model does not read; None for tasks that read whole texts, and for the user's own."""
    if pieces.place not in TRUNCATING_TASKS:
        return None
    data, task, tokenizer = pieces.data, pieces.task, pieces.tokenizer
    found = truncation(data, "train", data.train_numbers, pieces.train, task, tokenizer) + truncation(
        data, "test", data.test_numbers, pieces.test, task, tokenizer
    )
    higher = pieces.longest == experiment.model.max_length
    return Truncation(
        texts=round(found.texts),
        share=found.texts / max(found.of_texts, 1),
        tokens=found.tokens / max(found.of_tokens, 1),
        limit=pieces.longest,
        remedy="raise model.max_length"
        if higher
        else "choose a model that reads longer texts, or split them",
    )
