"""The Jensen-Shannon divergence of the clients' labels, between clients and from the prior."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fednlp.errors import PartitionError
from fednlp.partition.index import FloatArray, IntArray, Partition
from fednlp.partition.shift import chunks, count_labels
from fednlp.seeds import generator

MAX_CLIENTS_SHOWN = 200


def jensen_shannon(p: ArrayLike, q: ArrayLike) -> FloatArray:
    """Return the Jensen-Shannon divergence of distributions along the last axis, to base 2, from 0 to 1.

    JSD(p, q) = H((p + q) / 2) - H(p) / 2 - H(q) / 2 (Lin, "Divergence measures based on the Shannon entropy",
    1991). It is the square of what SciPy calls the Jensen-Shannon distance.

    Args:
        p: Shares or counts (..., K), 0 or more; a row of zeros gives NaN.
        q: The same, of a shape that broadcasts.

    >>> jensen_shannon([[1, 0], [1, 1]], [3, 3]).round(4).tolist()
    [0.3113, 0.0]
    """
    first, second = _shares(p), _shares(q)
    divergence = _entropy((first + second) / 2) - (_entropy(first) + _entropy(second)) / 2
    return np.clip(divergence, 0.0, 1.0)


def _shares(values: ArrayLike) -> FloatArray:
    counts = np.asarray(values, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(counts / counts.sum(axis=-1, keepdims=True), dtype=np.float64)


def _entropy(shares: FloatArray) -> FloatArray:
    logs = np.log2(shares, out=np.zeros_like(shares), where=shares != 0)
    return np.asarray(-(shares * logs).sum(axis=-1), dtype=np.float64)


def divergence_matrix(counts: ArrayLike) -> FloatArray:
    """Return the divergence between each two clients (m, m) from their label counts (m, K)."""
    rows = _shares(counts)
    return np.array([jensen_shannon(row, rows) for row in rows]).reshape(len(rows), len(rows))


def label_counts(
    partition: Partition,
    labels: NDArray[np.integer[Any]],
    num_labels: int,
    clients: NDArray[np.integer[Any]] | None = None,
    split: str = "train",
) -> IntArray:
    """Return the number of examples of each label that clients hold (m, K).

    Args:
        partition: The examples of each client.
        labels: The label of every example of the published set, by example number.
        clients: Numbers of the clients; all if left out (a table of C x K numbers).
        split: ``"train"`` or ``"test"``.

    Raises:
        PartitionError: An example has no label from 0 to K-1.
    """
    offsets, indices = _split_arrays(partition, split)
    held = _labels_of(indices, labels, num_labels, split)
    if clients is None:
        return count_labels(offsets, held, slice(0, partition.num_clients), num_labels)
    rows = [np.bincount(held[offsets[c] : offsets[c + 1]], minlength=num_labels) for c in clients]
    return np.array(rows, dtype=np.int64).reshape(len(clients), num_labels)


def divergence_from_prior(
    partition: Partition, labels: NDArray[np.integer[Any]], num_labels: int
) -> FloatArray:
    """Return each client's divergence (C), 0 to 1, from the label distribution of all training examples.

    Args:
        partition: The examples of each client.
        labels: The label of every example of the published training set, by example number.

    Raises:
        PartitionError: An example has no label from 0 to K-1.
    """
    offsets, indices = _split_arrays(partition, "train")
    held = _labels_of(indices, labels, num_labels, "train")
    prior = np.bincount(held, minlength=num_labels)
    divergences = np.empty(partition.num_clients)
    for rows in chunks(partition.num_clients, num_labels):
        part = held[offsets[rows.start] : offsets[rows.stop]]
        divergences[rows] = jensen_shannon(count_labels(offsets, part, rows, num_labels), prior)
    return divergences


def sample_clients(num_clients: int, limit: int = MAX_CLIENTS_SHOWN) -> IntArray:
    """Return the clients that a plot shows: all of them, or `limit` drawn at random, in order."""
    if num_clients <= limit:
        return np.arange(num_clients, dtype=np.int64)
    drawn = generator(0, "clients shown", num_clients).choice(
        num_clients, limit, replace=False, shuffle=False
    )
    return np.sort(drawn).astype(np.int64)


def summary(
    partition: Partition,
    labels: NDArray[np.integer[Any]] | None = None,
    num_labels: int | None = None,
) -> dict[str, Any]:
    """Return a partition's figures as JSON values.

    ``sizes`` and ``mean_divergence`` (from the prior) of all clients, and of the first and last tenth of them
    in order, which should be similar. Without labels, only the figures that need none.

    Args:
        partition: The examples of each client.
        labels: The label of every example of the published training set, by example number.
    """
    sizes, tests = np.diff(partition.train_offsets), np.diff(partition.test_offsets)
    divergences = None
    if labels is not None and num_labels is not None:
        divergences = divergence_from_prior(partition, labels, num_labels)
    tenth = max(1, partition.num_clients // 10)
    return {
        "clients": partition.num_clients,
        "train_examples": len(partition.train_indices),
        "test_examples": len(partition.test_indices),
        **_figures(sizes, divergences, slice(None)),
        "test_sizes": _spread(tests),
        "first_tenth": {"clients": tenth, **_figures(sizes, divergences, slice(0, tenth))},
        "last_tenth": {"clients": tenth, **_figures(sizes, divergences, slice(-tenth, None))},
    }


def _figures(sizes: IntArray, divergences: FloatArray | None, rows: slice) -> dict[str, Any]:
    mean = {} if divergences is None else {"mean_divergence": float(divergences[rows].mean())}
    return {"sizes": _spread(sizes[rows]), **mean}


def _spread(sizes: IntArray) -> dict[str, float]:
    return {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())}


def _split_arrays(partition: Partition, split: str) -> tuple[IntArray, IntArray]:
    if split == "train":
        return partition.train_offsets, partition.train_indices
    return partition.test_offsets, partition.test_indices


def _labels_of(
    indices: IntArray, labels: NDArray[np.integer[Any]], num_labels: int, split: str
) -> NDArray[np.integer[Any]]:
    """Return the labels of examples, after checking that there are such examples and labels."""
    if len(indices) and int(indices.max()) >= len(labels):
        raise PartitionError(
            f"the partition holds {split} example {int(indices.max())}, but there are only {len(labels)}: "
            f"it was made for other data"
        )
    held = labels[indices]
    wrong = (held < 0) | (held >= num_labels)
    if wrong.any():
        number = int(indices[int(np.argmax(wrong))])
        raise PartitionError(f"{split} example {number} has no label from 0 to {num_labels - 1}")
    return held
