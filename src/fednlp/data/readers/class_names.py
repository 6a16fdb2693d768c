"""Names of classes that Hugging Face ``datasets`` stores as numbers: in a Parquet file, or in a file beside it."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fednlp.disk import read_whole

_LARGEST = 16 << 20
"""Bytes of a description of features that are read."""


def class_names_in(
    metadata: Mapping[bytes, bytes], beside: Path, columns: Sequence[str]
) -> dict[str, Sequence[str]]:
    """Return the names of the classes of each column that holds their numbers, or lists of them.

    Args:
        beside: The file ``dataset_info.json`` that may lie beside it.
        columns: Those of the file.
    """
    described = _features(metadata.get(b"huggingface", b""), "info")
    if not described:
        with suppress(OSError):  # there is none, or none that a person would write
            described = _features(read_whole(beside, _LARGEST), None)
    return class_names({column: described.get(column) for column in columns})


def class_names(features: Any) -> dict[str, Sequence[str]]:
    """Return the names of the classes of each column that holds their numbers, or lists of them.

    Args:
        features: Descriptions by the names of columns; or a list of ``{"name": ..., "type": ...}``.
    """
    if isinstance(features, list):
        features = {str(one.get("name")): one.get("type") for one in features if isinstance(one, dict)}
    found = {column: _names(of) for column, of in features.items()} if isinstance(features, dict) else {}
    return {column: names for column, names in found.items() if names}


def named_class(value: Any, names: Sequence[str]) -> Any:
    """Return the name of a class, or the names of a list of them; None for the -1 of what has none.

    >>> named_class([1, 0], ["neg", "pos"]), named_class(-1, ["neg", "pos"]), named_class("pos", ["neg", "pos"])
    (['pos', 'neg'], None, 'pos')
    """
    if isinstance(value, list):
        return [named_class(item, names) for item in value]
    if type(value) is not int:
        return value
    return names[value] if 0 <= value < len(names) else None


def _features(described: bytes, key: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(described[:_LARGEST]) if described else {}
        features = (found[key] if key else found)["features"] if found else {}
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def _names(feature: Any) -> Sequence[str]:
    """Return the names of a feature of classes, or of lists of them, however it is written; empty for any other."""
    while isinstance(feature, list) and len(feature) == 1:
        feature = feature[0]
    if not isinstance(feature, dict):
        return ()
    names = feature.get("names")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return names
    inner = feature.get("feature")
    return _names(inner) if isinstance(inner, dict) and inner is not feature else ()
