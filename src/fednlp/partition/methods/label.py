"""Clients that differ in their labels: FedNLP (Lin et al. 2022), section 3.2."""

from fednlp.errors import PartitionError
from fednlp.partition.index import IntArray
from fednlp.partition.methods import Alpha, Clients, partitioner
from fednlp.partition.request import Assignment, Request
from fednlp.partition.shift import label_owners


@partitioner("label shift")
def label(request: Request, clients: Clients, alpha: Alpha) -> Assignment:
    """Give each client labels in the shares of a draw from Dir(alpha · prior).

    Args:
        request: The examples.
        clients: C.
        alpha: Concentration of the shares.

    Raises:
        PartitionError: The data has no labels.
    """
    return by_labels(request, clients, alpha)


def by_labels(request: Request, clients: int, alpha: float, beta: float | None = None) -> Assignment:
    """Return label shift, with sizes that differ where ``beta`` is given.

    Args:
        request: The examples.
        clients: C.
        alpha: Concentration of the shares.
        beta: Concentration of the sizes; None for sizes that differ by at most one.

    Raises:
        PartitionError: The data has no labels.
    """
    if request.label_names is None:
        raise PartitionError(
            "label shift needs labels, and this data has none: use uniform, quantity, cluster or natural"
        )
    return by_groups(request, *request.labels(), clients, alpha, beta)


def by_groups(
    request: Request, train: IntArray, test: IntArray, clients: int, alpha: float, beta: float | None
) -> Assignment:
    """Return label shift over any groups of the examples.

    Args:
        request: The examples.
        train: The group of each training example (N).
        test: The group of each test example (M).
        clients: C.
        alpha: Concentration of the shares.
        beta: Concentration of the sizes; None for sizes that differ by at most one.
    """
    return Assignment(label_owners(train, clients, alpha, request.seed, beta), clients, train, test)
