"""Labels under other names and numbers: those of a data set, as another party knows them."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fednlp.data.label_names import label_name
from fednlp.data.textdata import TextData, in_order
from fednlp.errors import DataError
from fednlp.formatting.suggestions import did_you_mean
from fednlp.formulations import TASKS

if TYPE_CHECKING:
    import pyarrow as pa


def rename_labels(data: TextData, names: Mapping[str, str]) -> TextData:
    """Return a data set with some of its labels, or tags, under other names; several may become one.

    Args:
        data: The data set; the tables on disk are not changed.
        names: New names by old ones; a label that is not among them keeps its name.

    Raises:
        DataError: The task has no labels, and names are given.
    """
    names = {old: new for old, new in names.items() if old != new}
    if names and not has_labels(data.task):
        raise DataError(f"{data.name}: {data.task} has no labels to rename: leave the names out")
    if names.keys().isdisjoint(data.label_names):
        return data
    column, convert = _labels(data, names)
    train = _converted(data.train, column, convert)
    test = train if data.test is data.train else _converted(data.test, column, convert)
    identity = json.dumps([data.fingerprint, sorted(names.items())])
    return replace(
        data,
        train=train,
        test=test,
        label_names=in_order(data.task, (names.get(label, label) for label in data.label_names)),
        fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
    )


def without_labels(data: TextData, names: Collection[str]) -> TextData:
    """Return a data set without the examples that have one of some labels.

    Args:
        data: The data set; the tables on disk are not changed.
        names: The labels; those that no example has are passed over.

    Raises:
        DataError: The examples have no single label each, or no training example is left.
    """
    dropped = [place for place, label in enumerate(data.label_names) if label in names]
    if names and data.schema.kind != "class":
        raise DataError(
            f"{data.name}: the examples of {data.task} have no label each by which to leave them out"
        )
    if not dropped:
        return data
    train = data.train_numbers[~np.isin(data.labels("train")[data.train_numbers], dropped)]
    test = data.test_numbers[~np.isin(data.labels("test")[data.test_numbers], dropped)]
    if not len(train):
        raise DataError(f"{data.name}: no training example has another label than those that are left out")
    identity = json.dumps([data.fingerprint, "without", sorted(names)])
    return replace(
        data,
        train_numbers=train,
        test_numbers=test,
        label_names=tuple(label for label in data.label_names if label not in names),
        fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
    )


def mapped_labels(data: TextData, names: Mapping[str, str]) -> TextData:
    """Return a data set with other names for some labels or tags; examples whose label has an empty name are left out.

    Args:
        data: The data set; the tables on disk are not changed.
        names: Other names by those in the files, which must be there.

    Raises:
        DataError: A name is not there, with the nearest; or as for :func:`rename_labels` and :func:`without_labels`.
    """
    found = {label_name(old): label_name(new) for old, new in names.items()}
    if not has_labels(data.task):
        raise DataError(f"data.labels_map: {data.task} has no labels: leave it out")
    for old in found:
        if old not in data.label_names:
            raise DataError(
                f"data.labels_map: no example has the label {old!r}: {did_you_mean(old, data.label_names)}type one as "
                "fednlp data info shows it"
            )
    dropped = [old for old, new in found.items() if not new.strip()]
    data = without_labels(data, dropped)
    return rename_labels(data, {old: new for old, new in found.items() if old not in dropped})


def unknown_labels(data: TextData, names: Sequence[str]) -> dict[str, int]:
    """Return the labels that are not among some names, with how many examples (of tags: words) have each.

    Args:
        data: The data set; the examples of training and test are counted.
        names: The names that are known.

    Raises:
        DataError: A name is blank or occurs twice, or the task has no labels and names are given.
    """
    if names and not has_labels(data.task):
        raise DataError(f"{data.name}: {data.task} has no labels: leave their names out")
    if len(set(names)) < len(names) or not all(name.strip() for name in names):
        raise DataError("the names of the labels are not distinct, or one is blank: give each label one name")
    strange = [label for label in data.label_names if label not in set(names)]
    counts = _counted(data) if strange else Counter[str]()
    return {label: counts[label] for label in strange}


def with_labels(data: TextData, names: Sequence[str]) -> TextData:
    """Return a data set whose labels are numbered by the places of their names in a list.

    Args:
        names: The names of all labels, in the order of their ids; empty for a task without labels.

    Raises:
        DataError: The data have a label that is not among the names; or as for :func:`unknown_labels`.
    """
    strange = unknown_labels(data, names)
    if strange:
        label, count = next(iter(strange.items()))
        raise DataError(f"{data.name}: the label {label!r} ({count:,}) is none of {', '.join(names)}")
    return replace(data, label_names=tuple(names))


def has_labels(task: str) -> bool:
    """Return whether the examples of a task have labels or tags.

    >>> has_labels("token-classification"), has_labels("question-answering")
    (True, False)
    """
    return TASKS[task].schema.kind in ("class", "tags")


def _labels(data: TextData, names: Mapping[str, str]) -> tuple[str, Callable[[str], str]]:
    """Return the column of the labels, and what becomes of a value of it."""
    if data.schema.kind == "class":
        return data.columns["label"], lambda label: names.get(label, label)

    def convert(tags: str) -> str:
        return json.dumps([names.get(tag, tag) for tag in json.loads(tags)], ensure_ascii=False)

    return data.columns["tags"], convert


def _converted(table: "pa.Table", column: str, convert: Callable[[str], str]) -> "pa.Table":
    """Return a table in which each value of a column is converted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = table.column(column)
    distinct = values.unique()
    converted = pa.array([convert(value) for value in distinct.to_pylist()], values.type)
    places = pc.index_in(values, value_set=distinct)
    return table.set_column(table.column_names.index(column), column, converted.take(places))


def _counted(data: TextData) -> Counter[str]:
    """Return how many examples have each label, or how many words each tag."""
    counts: Counter[str] = Counter()
    is_class = data.schema.kind == "class"
    for table in [data.train] if data.test is data.train else [data.train, data.test]:
        for found in table.column(data.columns["label" if is_class else "tags"]).value_counts().to_pylist():
            value, count = found["values"], found["counts"]
            for label in [value] if is_class else json.loads(value):
                counts[label] += count
    return counts
