"""Clients that differ in size: FedNLP (Lin et al. 2022), section 3.2."""

from fednlp.partition.methods import Beta, Clients, partitioner
from fednlp.partition.request import Assignment, Request
from fednlp.partition.shift import quantity_owners


@partitioner("quantity shift")
def quantity(request: Request, clients: Clients, beta: Beta) -> Assignment:
    """Give the clients sizes in proportion to a draw from Dir_C(beta), and examples at random.

    Args:
        request: The examples.
        beta: Concentration of the sizes.
    """
    owners = quantity_owners(len(request.train_labels), clients, beta, request.seed)
    return Assignment(owners, clients, *request.labels())
