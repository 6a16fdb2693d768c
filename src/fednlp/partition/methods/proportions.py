"""Clients whose labels have given shares: a table with a row for each client."""

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from fednlp.errors import PartitionError
from fednlp.formatting.units import plural
from fednlp.option_types import File
from fednlp.partition.draws import equal_sizes, largest_remainder
from fednlp.partition.index import IntArray
from fednlp.partition.methods import Clients, partitioner
from fednlp.partition.proportion_tables import columns_in_order, read_proportions
from fednlp.partition.request import Assignment, Request
from fednlp.seeds import generator


@partitioner("given label proportions")
def proportions(
    request: Request,
    proportions: Annotated[File, Field(examples=["shares.csv"])],
    clients: Clients | None = None,
) -> Assignment:
    """Give each client labels, or bins of scores, in the shares of its row of a table.

    Args:
        request: The examples.
        proportions: The table's file.
        clients: How many rows there are, to be checked; None for as many as there are.

    Raises:
        PartitionError: The table does not fit the labels or the number of clients.
    """
    table = read_proportions(proportions)
    count = len(table.shares)
    if clients not in (None, count):
        raise PartitionError(
            f"{proportions} has rows for {plural(count, 'client')}, not {clients}: "
            f"leave partition.clients out, or say partition.clients = {count}"
        )
    if request.label_names is None:
        train, borders = score_bins(request.train_labels, table.shares, table.by, request.seed)
        shares, test = table.shares, bin_scores(request.test_labels, borders)
    else:
        shares = columns_in_order(request.label_names, table)
        train, test = request.labels()
    owners = proportions_owners(train, shares, table.by, request.seed)
    return Assignment(owners, count, train, test, table.clients)


def proportions_owners(
    labels: NDArray[np.integer[Any]], shares: ArrayLike, by: Literal["client", "label"], seed: int
) -> IntArray:
    """Return the owners of examples by a table of label shares; every example goes to one client.

    By ``"client"`` the clients are of equal size (to within one), and each requests labels in its own
    proportions. Where the table requests more of a label than there is, every client gets the same fraction
    of its request, and the remaining places get the remaining examples at random. By ``"label"`` each
    label is split over the clients in the table's proportions, which determine the sizes. Integers are obtained by
    largest remainder.

    Args:
        labels: The label of each example, 0 to K-1.
        shares: (C, K); rows (by client) or columns (by label) sum to 1.
        by: ``"client"`` or ``"label"``.
        seed: Any integer; the seed of the assignment.

    Raises:
        PartitionError: A client would hold no example.

    >>> owners = proportions_owners(np.array([0, 0, 1, 1]), [[0.5, 0.5], [0.5, 0.5]], "client", seed=0)
    >>> sorted(owners[:2].tolist()), sorted(owners[2:].tolist())
    ([0, 1], [0, 1])
    """
    table = np.asarray(shares, dtype=np.float64)
    clients, count = table.shape
    supply = np.bincount(labels, minlength=count)
    rng = generator(seed, "partition examples")
    if by == "client":
        asked = _requested(table, len(labels), seed)
        given = np.stack(
            [_within(column, int(left)) for column, left in zip(asked.T, supply, strict=True)], axis=1
        )
        waiting = np.repeat(np.arange(clients), (asked - given).sum(axis=1))
    else:
        given = np.stack(
            [largest_remainder(column, int(n)) for column, n in zip(table.T, supply, strict=True)], axis=1
        )
        waiting = np.empty(0, dtype=np.int64)
        _check_filled(given)
    owners = np.full(len(labels), -1, dtype=np.int64)
    examples = rng.permutation(len(labels))
    examples = examples[np.argsort(labels[examples], kind="stable")]
    for column, stock in zip(given.T, np.split(examples, np.cumsum(supply)[:-1]), strict=True):
        owners[stock[: column.sum()]] = np.repeat(np.arange(clients), column)
    owners[owners < 0] = rng.permutation(waiting)
    return owners


def _requested(table: NDArray[np.float64], count: int, seed: int) -> IntArray:
    """Return the number of examples of each label that each client requests: (C, K), integers."""
    sizes = equal_sizes(generator(seed, "partition sizes"), count, len(table))
    return np.stack([largest_remainder(row, int(size)) for row, size in zip(table, sizes, strict=True)])


def _within(asked: IntArray, supply: int) -> IntArray:
    """Return the numbers of one label that clients get: their requests, or the same fraction of each."""
    return asked if asked.sum() <= supply else largest_remainder(asked, supply)


def _check_filled(given: IntArray) -> None:
    empty = np.flatnonzero(given.sum(axis=1) == 0)
    if len(empty):
        raise PartitionError(
            f"the proportions leave client {empty[0]} without an example: give it a larger share"
        )


def score_bins(
    scores: ArrayLike, shares: ArrayLike, by: Literal["client", "label"], seed: int
) -> tuple[IntArray, NDArray[np.float64]]:
    """Sort by score and cut into the bins of a table, the columns from the lowest scores to the highest.

    By ``"client"`` a bin is as large as the clients together ask for, so that every share is met exactly; by
    ``"label"`` all bins are equally large. Equal scores on a border are parted at random. A table with ones
    on its diagonal cuts the sorted scores into as many runs as there are clients.

    Args:
        scores: The score of each example, finite.
        shares: (C, K), as for :func:`proportions_owners`.
        by: ``"client"`` or ``"label"``.
        seed: Any integer; that of :func:`proportions_owners`.

    Returns:
        The bin of each example, 0 to K-1, and the K-1 scores at which the bins above the first begin.

    Raises:
        PartitionError: A score is not finite.

    >>> bins, borders = score_bins([0.2, 5.0, 3.1, 1.0], [[1, 0], [0, 1]], "client", seed=0)
    >>> bins.tolist(), borders.tolist()
    ([0, 1, 1, 0], [3.1])
    """
    values, table = np.asarray(scores, dtype=np.float64), np.asarray(shares, dtype=np.float64)
    if not np.isfinite(values).all():
        raise PartitionError(f"example {int(np.argmin(np.isfinite(values)))} has no finite score")
    if by == "client":
        ends = np.cumsum(_requested(table, len(values), seed).sum(axis=0))
    else:
        ends = np.cumsum(largest_remainder(np.ones(table.shape[1]), len(values)))
    order = np.lexsort((generator(seed, "partition ties").random(len(values)), values))
    bins = np.empty(len(values), dtype=np.int64)
    bins[order] = np.searchsorted(ends, np.arange(len(values)), side="right")
    ranked = np.append(values[order], np.inf)
    return bins, ranked[ends[:-1]]


def bin_scores(scores: ArrayLike, borders: ArrayLike) -> IntArray:
    """Return the bin of each score, given the borders from :func:`score_bins`.

    >>> bin_scores([0.0, 3.1, 9.0], [3.1]).tolist()
    [0, 1, 1]
    """
    return np.searchsorted(np.asarray(borders, dtype=np.float64), np.asarray(scores), side="right").astype(
        np.int64
    )
