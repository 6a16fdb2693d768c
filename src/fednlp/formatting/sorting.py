"""The order of labels: numbers by value, anything else by character."""

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)")


def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct labels in the order of their ids: numbers by value, anything else by character.

    >>> sort_labels(["10", "9", "10"])
    ('9', '10')
    >>> sort_labels(["b", "10", "9"])
    ('10', '9', 'b')
    """
    names = sorted(set(labels))
    if all(_NUMBER.fullmatch(name) for name in names):
        names.sort(key=float)
    return tuple(names)
