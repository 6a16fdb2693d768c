"""Names that people type: the nearest known one, and the order of labels."""

import difflib
import re
from collections.abc import Iterable

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"did you mean 'x'? "`` for the nearest known name, or nothing where none is near.

    >>> did_you_mean("20new", ["20news", "agnews"])
    "did you mean '20news'? "
    >>> did_you_mean("zzz", ["20news"])
    ''
    """
    by_lower = {option.lower(): option for option in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[near[0]]!r}? " if near else ""


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
