"""Clients that are the values of a column: authors, sites, speakers."""

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from fednlp.errors import PartitionError
from fednlp.formatting.units import plural
from fednlp.partition.index import IntArray
from fednlp.partition.methods import Clients, partitioner
from fednlp.partition.request import Assignment, Request


@partitioner("natural")
def natural(
    request: Request, field: Annotated[str, Field(examples=["author"])], clients: Clients | None = None
) -> Assignment:
    """Make a client of each value of a column.

    Args:
        request: The examples.
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
        test_groups = _coded_groups(np.asarray(test_field, dtype=np.int64), request.field_names, names)
    else:
        test_groups = field_groups(test_field, names)
    return Assignment(owners, len(names), owners, test_groups, names, unseen=False)


# Names are saved as one block of fixed width: a field of whole texts is a mistake, and a costly one.
_LONGEST_NAME = 1000


def natural_owners(
    values: Sequence[object] | IntArray,
    field: str,
    clients: int | None = None,
    numbers: Sequence[int] | IntArray | None = None,
    names: Sequence[str] | None = None,
) -> tuple[IntArray, tuple[str, ...]]:
    """Return each example's client, one per value of the field, and the values, in the order of the clients.

    Args:
        values: The field of each example: text or numbers; or positions among ``names``, -1 for none.
        field: Name of the field, for messages.
        clients: Expected number of clients; None for as many as there are values.
        numbers: The example numbers, for messages; positions if left out.
        names: The values in order, where ``values`` are positions; those that no example has are left out.

    Raises:
        PartitionError: A value is missing, or their number is not that of the clients.

    >>> natural_owners(["uk", "us", "uk"], "country")
    (array([0, 1, 0]), ('uk', 'us'))
    """
    from fednlp.formatting.sorting import sort_labels

    if names is None:
        names = sort_labels(str(value) for value in values if not _is_missing(value))
        values = field_groups(values, names)
    codes = np.asarray(values, dtype=np.int64)
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        number = row if numbers is None else int(numbers[row])
        raise PartitionError(
            f"example {number} has no value in the field {field!r}: fill it, or choose another "
            "partition.field"
        )
    used, owners = np.unique(codes, return_inverse=True)
    found = tuple(names[position] for position in used)
    if clients is not None and clients != len(found):
        raise PartitionError(
            f"the field {field!r} has {plural(len(found), 'value')}, each a client, not {clients}: "
            f"leave partition.clients out, or say "
            f"partition.clients = {len(found)}"
        )
    if max(map(len, found)) > _LONGEST_NAME:
        raise PartitionError(
            f"the field {field!r} has values of more than {_LONGEST_NAME} characters: choose a partition.field "
            "that says who or where an example is from"
        )
    return owners.astype(np.int64), found


def field_groups(values: Sequence[object] | IntArray, names: Sequence[str]) -> IntArray:
    """Return the position of each value among the names, -1 for any other and for none.

    >>> field_groups(["us", None, "fr"], ["uk", "us"]).tolist()
    [1, -1, -1]
    """
    place = {name: position for position, name in enumerate(names)}
    found = (-1 if _is_missing(value) else place.get(str(value), -1) for value in values)
    return np.fromiter(found, dtype=np.int64, count=len(values))


def _coded_groups(codes: IntArray, field_names: Sequence[str], names: Sequence[str]) -> IntArray:
    """Return, for positions among ``field_names``, the position among ``names``, -1 for any other and for none.

    >>> _coded_groups(np.array([2, -1, 0]), ["fr", "uk", "us"], ["uk", "us"]).tolist()
    [1, -1, -1]
    """
    position = {name: number for number, name in enumerate(field_names)}
    place = np.full(len(field_names) + 1, -1, dtype=np.int64)  # the last is for a code of -1
    place[[position[name] for name in names]] = np.arange(len(names))
    return place[codes]


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or not str(value).strip()
