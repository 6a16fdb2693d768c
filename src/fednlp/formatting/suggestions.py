"""Suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


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
