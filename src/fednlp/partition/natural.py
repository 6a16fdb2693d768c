"""Natural partitions: one client per value of a field (author, domain, speaker, film)."""

import math
from collections.abc import Sequence

import numpy as np

from fednlp.errors import PartitionError
from fednlp.partition.index import IntArray

# Names are saved as one block of fixed width: a field of whole texts is a mistake, and a costly one.
_LONGEST_NAME = 1000


def natural_owners(
    values: Sequence[object],
    field: str,
    clients: int | None = None,
    numbers: Sequence[int] | IntArray | None = None,
) -> tuple[IntArray, tuple[str, ...]]:
    """Return each example's client, one per value of the field, and the values, in the order of the clients.

    Args:
        values: The field of each example: text or numbers.
        field: Its name, for messages.
        clients: How many clients are expected; None for as many as there are values.
        numbers: The example numbers, for messages; positions if left out.

    Raises:
        PartitionError: A value is missing, or their number is not that of the clients.

    >>> natural_owners(["uk", "us", "uk"], "country")
    (array([0, 1, 0]), ('uk', 'us'))
    """
    from fednlp.data.names import sort_labels

    for row, value in enumerate(values):
        if _is_missing(value):
            number = row if numbers is None else int(numbers[row])
            raise PartitionError(
                f"example {number} has no value in the field {field!r}: fill it, or choose another field"
            )
    names = sort_labels(str(value) for value in values)
    if clients is not None and clients != len(names):
        raise PartitionError(
            f"the field {field!r} has {len(names)} values, which makes {len(names)} clients, not {clients}: "
            f"leave clients out, or say clients = {len(names)}"
        )
    if max(map(len, names)) > _LONGEST_NAME:
        raise PartitionError(
            f"the field {field!r} has values of more than {_LONGEST_NAME} characters: choose one that says "
            "who or where an example is from"
        )
    return field_groups(values, names), names


def field_groups(values: Sequence[object], names: Sequence[str]) -> IntArray:
    """Return the position of each value among the names, -1 for any other and for none.

    >>> field_groups(["us", None, "fr"], ["uk", "us"]).tolist()
    [1, -1, -1]
    """
    place = {name: position for position, name in enumerate(names)}
    found = (-1 if _is_missing(value) else place.get(str(value), -1) for value in values)
    return np.fromiter(found, dtype=np.int64, count=len(values))


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or not str(value).strip()
