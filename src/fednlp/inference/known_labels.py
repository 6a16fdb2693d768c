"""The labels of a file beside those that a model knows: which are unknown, and whether any is known."""

import shlex
from collections.abc import Collection, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from fednlp.data.profiling.statistics import count_labels
from fednlp.data.textdata import Split, TextData
from fednlp.errors import DataError
from fednlp.formatting.units import plural

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_NAMES = 5
_LONGEST_NAME = 40


def unknown_labels(data: TextData, split: Split, known: Collection[str]) -> dict[str, int]:
    """Count the examples with labels that a model does not know; of tags the words.

    Args:
        split: The part of it that is scored.
        known: The labels of the model.

    Raises:
        DataError: There are labels, and the model knows none of them. The tag ``O`` alone, which marks no span, does
            not count as known.
    """
    counts = zip(data.label_names, count_labels(data)[split].tolist(), strict=True)
    found = {name: count for name, count in counts if count}
    unknown = {name: count for name, count in found.items() if name not in known}
    nothing = {"O"} if data.schema.kind == "tags" else set()
    if unknown and not found.keys() - unknown.keys() - nothing:
        table = data.train if split == "train" else data.test
        raise DataError(
            f"{data.source}: the model knows none of the labels there ({_shown(unknown)}), which are in the column "
            f"{_own_column(data)!r}; it knows {_shown(known)}: {_remedy(data, table, known)}"
        )
    return unknown


def warning(unknown: Mapping[str, int], tags: bool) -> str:
    """Return a warning about labels that the model does not know, with their effect on the scores.

    Args:
        unknown: How many rows, or words, have each of them.
        tags: Whether they are tags of words.
    """
    count = sum(unknown.values())
    if tags:
        words = plural(count, "word")
        return f"warning: {words} with a tag that the model does not know ({_shown(unknown)}): always wrong"
    return (
        f"warning: {plural(count, 'row')} with a label that the model does not know ({_shown(unknown)}): wrong in "
        "accuracy, and left out of the other scores"
    )


def _shown(names: Collection[str]) -> str:
    """Return a few names, each of bounded length, and how many more there are.

    >>> _shown("abcdefg")
    "'a', 'b', 'c', 'd', 'e' and 2 more"
    """
    cut = (one if len(one) <= _LONGEST_NAME else f"{one[:_LONGEST_NAME]}..." for one in names)
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(repr, islice(cut, _MOST_NAMES))) + more


def _own_column(data: TextData) -> str:
    return data.columns["tags" if data.schema.kind == "tags" else "label"]


def _remedy(data: TextData, table: "pa.Table", known: Collection[str]) -> str:
    """Return what to type: the column that holds nothing but labels that the model knows, if there is one."""
    if data.schema.kind == "tags":
        return "name the column of the tags with --column tags=COLUMN, or write them as the model does"
    for column in table.column_names:
        if set(table.column(column).unique().to_pylist()) <= set(known):
            return f"they are in another column, so add --label {shlex.quote(column)}"
    return "name the column of the labels with --label COLUMN, or write them as the model does"
