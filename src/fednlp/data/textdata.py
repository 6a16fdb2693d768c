"""What a data set is to the rest of the library: tables on disk, and which rows are for what."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fednlp.data.chats import dialogue
from fednlp.data.columns import check_columns
from fednlp.data.split import Numbers
from fednlp.errors import DataError
from fednlp.formatting.sorting import sort_labels
from fednlp.formatting.units import plural
from fednlp.formulations import TASKS, Schema

if TYPE_CHECKING:
    import pyarrow as pa

Split = Literal["train", "test"]


@dataclass(frozen=True)
class TextData:
    """Examples of one task, for training and for the global test.

    Attributes:
        name: Of the data set, or the stem of the file.
        source: Where the examples come from, for people.
        task: The formulation that they are for (:data:`fednlp.formulations.TASKS`).
        train: Every row of the training file, memory-mapped; every column, as strings.
        test: Every row of the test file; the same object as ``train`` where the test set was held out of it.
        train_numbers: Which rows of ``train`` are training examples, int64, in order.
        test_numbers: Which rows of ``test`` are test examples, int64, in order.
        held_out: Whether the test examples are rows of the table ``train``: taken out of the one file, or of silos.
        columns: The task's columns that there are: own names by canonical ones. An optional one may be in
            one of the tables only.
        label_names: The labels, or the tags with ``O`` first; an id is a position here. Empty for other tasks.
        dropped: How many rows were left out because they cannot be examples.
        dropped_why: Why the first few of them were, for people; empty where there are none.
        dropped_by: How many of them each silo had; empty where the data are not of silos.
        fingerprint: SHA-256 of the content, of how it is read and of the split: equal for equal data,
            wherever it lies.
        content: SHA-256 of the rows of the files alone, whatever they are read for and however they are divided; empty
            where it is not known.
        own_tests: Whether the test examples are split off the examples of each client.
        silo: The column that names the silo of every row; None where the data are not of silos.
        notes: What was found out about the files, for people: silos, and what separates cells.
        drawn_from: How many examples each split had before a sample was drawn; empty where none was.
        delimiter: What separates the cells of the ``.csv`` file that the test examples are from; None for other files.
    """

    name: str
    source: str
    task: str
    train: "pa.Table"
    test: "pa.Table"
    train_numbers: Numbers
    test_numbers: Numbers
    held_out: bool
    columns: Mapping[str, str]
    label_names: tuple[str, ...]
    dropped: int
    dropped_why: str
    fingerprint: str
    content: str = ""
    own_tests: bool = False
    silo: str | None = None
    notes: tuple[str, ...] = ()
    drawn_from: Mapping[Split, int] = field(default_factory=dict)
    dropped_by: Mapping[str, int] = field(default_factory=dict)
    delimiter: str | None = None

    def __repr__(self) -> str:
        labels = f", {plural(len(self.label_names), 'label')}" if self.label_names else ""
        return (
            f"<TextData {self.name}: {self.task}, {len(self.train_numbers):,} training and "
            f"{len(self.test_numbers):,} test examples{labels}>"
        )

    @property
    def schema(self) -> Schema:
        """The columns of the task."""
        return TASKS[self.task].schema

    @property
    def text(self) -> str:
        """Name of the column that holds the task's first input."""
        return self.columns[self.schema.inputs[0]]

    def columns_in(self, split: Split) -> dict[str, str]:
        """Return the task's columns that one table has: own names by canonical ones."""
        there = self._table(split).column_names
        return {name: own for name, own in self.columns.items() if own in there}

    def labels(self, split: Split) -> Numbers:
        """Return the label id of every row of a table, -1 for one that is not in ``label_names``.

        All are 0 for a task without classes.
        """
        return class_ids(self._table(split), self.task, self.columns, self.label_names)

    def scores(self, split: Split) -> NDArray[np.float64]:
        """Return the score of every row of a table, float64.

        Raises:
            DataError: The task has no scores.
        """
        if self.schema.kind != "score":
            raise DataError(f"{self.name}: {self.task} has no scores, text-regression has")
        import pyarrow.compute as pc

        column = self._table(split).column(self.columns["score"])
        found: NDArray[np.float64] = pc.cast(pc.utf8_trim_whitespace(column), "float64").to_numpy()
        return found

    def input_texts(self, split: Split, numbers: Sequence[int] | Numbers) -> list[str]:
        """Return the first input of some rows as texts: words are joined by spaces.

        Args:
            split: Which table.
        """
        texts: list[str] = self.column(split, self.text).take(np.asarray(numbers, dtype=np.int64)).to_pylist()
        if self.schema.kind == "tags":
            return [" ".join(json.loads(text)) for text in texts]
        if "messages" in self.schema.inputs:
            return [dialogue(text) for text in texts]
        return texts

    def groups(
        self, split: Split, field: str, names: Sequence[str] | None = None
    ) -> tuple[Numbers, tuple[str, ...]]:
        """Return which group every row of a table belongs to, by the values of a column.

        Args:
            split: Which table.
            names: The groups, such as those of the training table; by default those of this one.

        Returns:
            A position among the names for every row, -1 where the value is missing, blank or not among them;
            and the names, numbers by value and anything else by character.

        Raises:
            DataError: There is no such column; with the nearest there is.
        """
        column = self.column(split, field)
        if names is None:
            found = column.unique().to_pylist()
            names = sort_labels(value for value in found if value is not None and value.strip())
        return positions(column, names), tuple(names)

    def column(self, split: Split, name: str) -> "pa.ChunkedArray":
        """Return a column of a table.

        Raises:
            DataError: There is no such column; with the nearest there is.
        """
        table = self._table(split)
        check_columns(f"{self.name} ({split})", table.column_names, name)
        return table.column(name)

    def _table(self, split: Split) -> "pa.Table":
        if split not in ("train", "test"):
            raise DataError(f"unknown split {split!r}: it is 'train' or 'test'")
        return self.train if split == "train" else self.test


def class_names(task: str, columns: Mapping[str, str], tables: Iterable["pa.Table"]) -> tuple[str, ...]:
    """Return the names of a task's classes in the order of their ids, from all tables together.

    Labels are sorted (numbers by value); of tags, ``O`` comes first. An empty label is none.
    Other tasks have none.
    """
    kind = TASKS[task].schema.kind
    if kind == "class":
        column = columns["label"]
        values = (one for table in tables for one in table.column(column).unique().to_pylist())
        return in_order(task, (value for value in values if value))
    if kind != "tags":
        return ()
    tags: set[str] = set()
    for table in tables:
        for chunk in table.column(columns["tags"]).chunks:
            for value in chunk.unique().to_pylist():
                tags.update(json.loads(value))
    return in_order(task, tags)


def in_order(task: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of a task's classes in the order of their ids, each once.

    >>> in_order("text-classification", ["10", "9"]), in_order("token-classification", ["B-PER", "O", "B-LOC"])
    (('9', '10'), ('O', 'B-LOC', 'B-PER'))
    """
    if TASKS[task].schema.kind == "class":
        return sort_labels(names)
    return tuple(sorted(set(names), key=lambda tag: (tag != "O", tag)))


def class_ids(table: "pa.Table", task: str, columns: Mapping[str, str], names: Sequence[str]) -> Numbers:
    """Return the class of every row, -1 for one without a name; zeros for a task without classes."""
    if TASKS[task].schema.kind != "class":
        return np.zeros(table.num_rows, dtype=np.int64)
    return positions(table.column(columns["label"]), names)


def positions(column: "pa.ChunkedArray", names: Sequence[str]) -> Numbers:
    """Return the place of every value of a column among some names, int64, -1 for any other."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.index_in(column, value_set=pa.array(names, pa.string()))
    ids: Numbers = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return ids
