"""Clients whose labels have given shares: a table with a row for each client."""

from typing import Annotated

from pydantic import Field

from fednlp.errors import PartitionError
from fednlp.formatting.units import plural
from fednlp.option_types import File
from fednlp.partition.methods import Clients, partitioner
from fednlp.partition.proportion_tables import columns_in_order, read_proportions
from fednlp.partition.proportions import bin_scores, proportions_owners, score_bins
from fednlp.partition.request import Assignment, Request


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
