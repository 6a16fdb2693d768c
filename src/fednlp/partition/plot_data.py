"""What the four pictures of a partition show: sizes, labels and divergences of its clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fednlp.errors import PartitionError
from fednlp.partition.divergence import (
    MAX_CLIENTS_SHOWN,
    divergence_from_prior,
    jensen_shannon,
    label_counts,
    sample_clients,
)
from fednlp.partition.index import FloatArray, IntArray, Partition


@dataclass(frozen=True)
class Overview:
    """The data behind the pictures.

    Attributes:
        clients: The clients shown one by one (m), a sample where there are many.
        counts: Their training examples of each label (m, K).
        names: Their names (m): numbers, or a natural partition's values.
        label_names: The labels (K).
        sizes: Training examples of every client (C).
        divergences: Divergence of every client from the prior (C), 0 to 1.
    """

    clients: IntArray
    counts: IntArray
    names: tuple[str, ...]
    label_names: tuple[str, ...]
    sizes: IntArray
    divergences: FloatArray

    def __repr__(self) -> str:
        return f"<Overview of {len(self.clients):,} of {len(self.sizes):,} clients, {len(self.label_names):,} labels>"


def overview(
    partition: Partition,
    labels: NDArray[np.integer[Any]],
    label_names: Sequence[str],
    limit: int = MAX_CLIENTS_SHOWN,
) -> Overview:
    """Return what the pictures of a partition show.

    Args:
        partition: The examples of each client.
        labels: The label of every example of the published training set, by example number.
        limit: Maximum number of clients that are shown one by one.
    """
    clients = sample_clients(partition.num_clients, limit)
    return Overview(
        clients,
        label_counts(partition, labels, len(label_names), clients),
        _names(clients, partition.client_names),
        tuple(label_names),
        np.diff(partition.train_offsets),
        divergence_from_prior(partition, labels, len(label_names)),
    )


def overview_of_counts(
    counts: ArrayLike,
    label_names: Sequence[str],
    client_names: Sequence[str] | None = None,
    limit: int = MAX_CLIENTS_SHOWN,
) -> Overview:
    """Return the content of the plots, from the number of training examples by client and label (C, K).

    Raises:
        PartitionError: The counts do not fit the names, or a client holds nothing.
    """
    table = np.asarray(counts, dtype=np.int64)
    if table.ndim != 2 or not len(table) or table.shape[1] != len(label_names):
        raise PartitionError(f"counts must be clients x {len(label_names)} labels, not {table.shape}")
    sizes = table.sum(axis=1)
    if (table < 0).any() or (sizes == 0).any():
        raise PartitionError("counts must be 0 or more, and every client must hold an example")
    clients = sample_clients(len(table), limit)
    divergences = jensen_shannon(table, table.sum(axis=0))
    return Overview(
        clients, table[clients], _names(clients, client_names), tuple(label_names), sizes, divergences
    )


def _names(clients: IntArray, names: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(str(client) if names is None else names[client] for client in clients.tolist())
