"""Clients that differ in their labels: FedNLP (Lin et al. 2022), section 3.2."""

from fednlp.errors import PartitionError
from fednlp.partition.entities import Entity, entity_labels
from fednlp.partition.index import IntArray
from fednlp.partition.methods import Alpha, Clients, partitioner
from fednlp.partition.request import Assignment, Request
from fednlp.partition.shift import label_owners


@partitioner("label shift")
def label(request: Request, clients: Clients, alpha: Alpha, entity: Entity | None = None) -> Assignment:
    """Give each client labels in the shares of a draw from Dir(alpha · prior).

    Args:
        request: The examples.
        alpha: Concentration of the shares.
        entity: Which entity's type is the label of a tagged text; ``"majority"`` if left out.

    Raises:
        PartitionError: The data has no labels.
    """
    return by_labels(request, clients, alpha, None, entity)


def by_labels(
    request: Request, clients: int, alpha: float, beta: float | None, entity: Entity | None
) -> Assignment:
    """Return label shift, with sizes that differ where ``beta`` is given.

    Args:
        request: The examples.
        alpha: Concentration of the shares.
        beta: Concentration of the sizes; None for sizes that differ by at most one.
        entity: Which entity's type is the label of a tagged text.

    Raises:
        PartitionError: The data has neither labels nor tags.
    """
    if request.train_entities is not None:
        found = entity_labels(request.train_entities, request.test_entities or (), entity or "majority")
        return by_groups(request, *found[:2], clients, alpha, beta)
    if entity is not None:
        raise PartitionError("partition.entity is for texts with tags: leave it out")
    if request.label_names is None:
        raise PartitionError(
            "label shift needs labels, and this data has none: say "
            'partition.method = "uniform", "quantity", "cluster" or "natural"'
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
        alpha: Concentration of the shares.
        beta: Concentration of the sizes; None for sizes that differ by at most one.
    """
    return Assignment(label_owners(train, clients, alpha, request.seed, beta), clients, train, test)
