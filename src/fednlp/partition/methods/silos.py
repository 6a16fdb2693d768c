"""Clients that are the files, or the folders, of the data."""

from fednlp.errors import PartitionError
from fednlp.formatting.units import plural
from fednlp.partition.methods import Clients, partitioner
from fednlp.partition.methods.natural import by_field
from fednlp.partition.request import Assignment, Request


@partitioner("silos, each a client")
def silos(request: Request, clients: Clients | None = None) -> Assignment:
    """Make a client of each silo.

    Args:
        request: The examples.
        clients: How many silos there are, to be checked; None for as many as there are.

    Raises:
        PartitionError: The data are not of silos, or there is another number of them.
    """
    made = by_field(request, "silos", "silo")
    if clients not in (None, made.clients):
        raise PartitionError(
            f"the data have {plural(made.clients, 'silo')}, and partition.clients = {clients}: leave it out, or share "
            'out the examples of all silos together, such as with partition.method = "uniform"'
        )
    return made
