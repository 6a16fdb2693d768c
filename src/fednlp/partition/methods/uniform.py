"""Clients that differ in nothing (IID)."""

from fednlp.partition.methods import Clients, partitioner
from fednlp.partition.request import Assignment, Request
from fednlp.partition.shift import uniform_owners


@partitioner("uniform (IID)")
def uniform(request: Request, clients: Clients) -> Assignment:
    """Share the examples out at random, in parts whose sizes differ by at most one.

    Args:
        request: The examples.
    """
    owners = uniform_owners(len(request.train_labels), clients, request.seed)
    return Assignment(owners, clients, *request.labels())
