"""Silos pooled into one table, and the test set of each.

The column ``silo`` names the client, and ``silo_part`` tells whether a row is of a silo's training file, of its own
test file, or of its only file, out of which a test set is held.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fednlp.data.files import joined_rows
from fednlp.data.silos.paths import silo_name
from fednlp.data.split import Numbers, hold_out
from fednlp.data.store import Fault, Located, Rows
from fednlp.data.textdata import positions
from fednlp.errors import DataError
from fednlp.formatting.units import plural

if TYPE_CHECKING:
    import pyarrow as pa

SILO, PART = "silo", "silo_part"

Open = Callable[[Path], tuple[Rows, Rows | None, str | None]]
"""Opens one data set: its training rows, its test rows if it has any, and its task if its files name it."""

_NAMES_SHOWN = 5


@dataclass(frozen=True)
class Silos:
    """The rows of several silos.

    Attributes:
        rows: Of all of them, with the columns :data:`SILO` and :data:`PART`.
        task: Their task, where their files name it.
        note: Their number and their names, for people.
    """

    rows: Rows
    task: str | None
    note: str


def open_silos(paths: Sequence[Path], tests: Sequence[Path], open_one: Open) -> Silos:
    """Return the rows of silos.

    Args:
        paths: Of each its file or folder.
        tests: Of some of them the test file, which has the name of the silo.
        open_one: Opens one of them.

    Raises:
        DataError: Two have the same name, a test set belongs to none or is there twice, or one cannot be opened.
    """
    train, test = _by_name(paths), _by_name(tests)
    for name in test:
        if name not in train:
            raise DataError(f"{test[name]}: there is no silo {name!r}: they are {_listed(sorted(train))}")
    parts: list[tuple[str, Rows]] = []
    tasks, with_test = set(), 0
    for name in sorted(train):
        rows, own, task = open_one(train[name])
        tasks.add(task)
        if name in test:
            if own is not None:
                raise DataError(f"{train[name]} holds a test set, and {test[name]} is one: keep one of them")
            own, _, _ = open_one(test[name])
        parts.append((f"{name} train", marked(rows, {SILO: name, PART: "all" if own is None else "train"})))
        if own is not None:
            with_test += 1
            parts.append((f"{name} test", marked(own, {SILO: name, PART: "test"})))
    if len(tasks) > 1:
        raise DataError(f"the silos are for different tasks: {', '.join(sorted(str(one) for one in tasks))}")
    note = f"{plural(len(train), 'silo')} ({_listed(sorted(train))}), {_tests_of(len(train), with_test)}"
    rows = joined_rows(parts)
    return Silos(
        replace(rows, shown=f"{plural(len(train), 'silo')} from {paths[0]} to {paths[-1]}"), tasks.pop(), note
    )


def _tests_of(silos: int, with_test: int) -> str:
    if with_test == silos:
        return "each with its own test set"
    return f"{with_test} with their own test sets" if with_test else "a test set is held out of each"


def _by_name(paths: Sequence[Path]) -> Mapping[str, Path]:
    named: dict[str, Path] = {}
    for path in paths:
        name = silo_name(path)
        if name in named:
            raise DataError(
                f"two silos are called {name!r}: {named[name]} and {path}: rename one, or give the folders that "
                "they lie in, which are then the silos"
            )
        named[name] = path
    return named


def _listed(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _NAMES_SHOWN} more"] if len(names) > _NAMES_SHOWN else []
    return ", ".join([*names[:_NAMES_SHOWN], *more])


def marked(rows: Rows, marks: Mapping[str, str]) -> Rows:
    """Return rows with further columns, in each of which all rows have the same value.

    Args:
        rows: Without such columns.
        marks: Values by the names of the columns.

    Raises:
        DataError: When they are read: there is a column of such a name.
    """
    added = list(marks.values())

    def names(there: Sequence[str]) -> Sequence[str]:
        for name in marks:
            if name in there:
                raise DataError(
                    f"{rows.names_at or rows.shown}: the column {name!r} has the name of one that fednlp adds to "
                    "silos: rename it"
                )
        return (*there, *marks)

    def read(roles: Mapping[str, str]) -> tuple[Sequence[str], Iterator[Located]]:
        there, placed = rows.read(roles)
        both = ((where, row if isinstance(row, Fault) else [*row, *added]) for where, row in placed)
        return names(there), both

    what = ("marked", *marks, *added, *rows.what)
    return replace(rows, what=what, names=lambda: names(rows.names()), read=read)


def split_silos(
    table: "pa.Table", classes: Numbers, num_classes: int, fraction: float, seed: int
) -> tuple[Numbers, Numbers]:
    """Return the numbers of the training and of the test examples of all silos, in order.

    Out of a silo's only file a test set is held, as out of any file; a single example is for training. What is held out
    of one silo does not depend on the others.

    Args:
        table: The rows of :func:`open_silos`.
        classes: The class of every row, 0 to ``num_classes - 1``.
        num_classes: How many there are, at least 1.
        fraction: Share of the test set.
        seed: Of the draw.

    Raises:
        DataError: A silo has no training example, or none has a test example.
    """
    names = table.column(SILO).unique().to_pylist()
    codes = positions(table.column(SILO), names)
    is_test, is_only = (positions(table.column(PART), [kind]) == 0 for kind in ("test", "all"))
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    for name, own in zip(names, np.split(order, ends[:-1]), strict=True):
        if is_test[own].all():
            raise DataError(f"the silo {name!r} has no training example: add one, or leave the silo out")
        if is_only[own[0]] and len(own) > 1:
            _, held = hold_out(classes[own], num_classes, fraction, seed, f"held-out/{name}")
            is_test[own[held]] = True
    if not is_test.any():
        raise DataError(
            "no silo has more than one example, nor a test set: give more, or a test set by test_path"
        )
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)
