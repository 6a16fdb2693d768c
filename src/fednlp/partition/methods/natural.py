"""Clients that are the values of a column: authors, sites, speakers."""

from typing import Annotated

import numpy as np
from pydantic import Field

from fednlp.errors import PartitionError
from fednlp.partition.methods import Clients, partitioner
from fednlp.partition.natural import coded_groups, field_groups, natural_owners
from fednlp.partition.request import Assignment, Request


@partitioner("natural")
def natural(
    request: Request, field: Annotated[str, Field(examples=["author"])], clients: Clients | None = None
) -> Assignment:
    """Make a client of each value of a column.

    Args:
        request: The examples.
        field: The column.
        clients: How many values there are, to be checked; None for as many as there are.

    Raises:
        PartitionError: The column is missing, or has another number of values.
    """
    return by_field(request, "natural", field, clients)


def by_field(request: Request, method: str, field: str, clients: int | None = None) -> Assignment:
    """Return one client for each value of the request's field.

    Args:
        request: The examples.
        method: The partition method, for messages.
        field: The column, for messages.
        clients: How many values there are, to be checked.

    Raises:
        PartitionError: The column is missing, or has another number of values.
    """
    if request.train_field is None or (request.test_field is None and len(request.test_labels)):
        raise PartitionError(f"method {method!r} needs the field {field!r} of the training and test examples")
    owners, names = natural_owners(
        request.train_field, field, clients, request.train_numbers, request.field_names
    )
    test_field = () if request.test_field is None else request.test_field
    if request.field_names is not None:
        test_groups = coded_groups(np.asarray(test_field, dtype=np.int64), request.field_names, names)
    else:
        test_groups = field_groups(test_field, names)
    return Assignment(owners, len(names), owners, test_groups, names, unseen=False)
