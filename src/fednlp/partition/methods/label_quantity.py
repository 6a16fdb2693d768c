"""Clients that differ in their labels and in size: FedNLP (Lin et al. 2022), section 3.2."""

from fednlp.partition.entities import Entity
from fednlp.partition.methods import Alpha, Beta, Clients, partitioner
from fednlp.partition.methods.label import by_labels
from fednlp.partition.request import Assignment, Request


@partitioner("label and quantity shift", name="label+quantity")
def label_quantity(
    request: Request, clients: Clients, alpha: Alpha, beta: Beta, entity: Entity | None = None
) -> Assignment:
    """Give each client labels in the shares of a draw from Dir(alpha · prior), and a size as ``quantity`` does.

    Args:
        request: The examples.
        alpha: Concentration of the shares.
        beta: Concentration of the sizes.
        entity: Which entity's type is the label of a tagged text; ``"majority"`` if left out.

    Raises:
        PartitionError: The data has no labels.
    """
    return by_labels(request, clients, alpha, beta, entity)
