"""Nested tables: values by dotted keys, and one table laid over another."""

from collections.abc import Iterator, Mapping
from typing import Any


def merged_over(document: dict[str, Any], larger: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables with those of another laid over them.

    >>> merged_over({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4}})
    {'a': 1, 'b': {'c': 4, 'd': 3}}
    """
    merged = dict(document)
    for key, value in larger.items():
        old = merged.get(key)
        merged[key] = (
            merged_over(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
        )
    return merged


def flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting of nested tables under its dotted key.

    >>> list(flatten({"seed": 0, "data": {"name": "20news"}}))
    [('seed', 0), ('data.name', '20news')]
    """
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def lookup(data: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return the value at a dotted key of nested tables.

    >>> lookup({"a": {"b": 1}}, "a.b"), lookup({"a": {"b": 1}}, "a.c.d")
    (1, None)
    """
    value: Any = data
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value
