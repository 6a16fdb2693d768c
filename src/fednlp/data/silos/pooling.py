"""Silos pooled into one table, and the test set of each.

The column ``silo`` names the client, and ``silo_part`` tells whether a row is of a silo's training file, of its own
test file, or of its only file, out of which a test set is held.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fednlp.data.files import joined_rows
from fednlp.data.split import Numbers, hold_out
from fednlp.data.split_names import SplitPaths, Validation, split_name, validation_note
from fednlp.data.store import SILO, Fault, Located, Rows
from fednlp.data.textdata import positions
from fednlp.errors import DataError
from fednlp.formatting.units import plural

if TYPE_CHECKING:
    import pyarrow as pa

PART = "silo_part"


@dataclass(frozen=True)
class OpenedSet:
    """The rows of one data set.

    Attributes:
        test: Of the test set; None where it has none.
        task: Its task, where its files name it.
        note: What was found out about its files, for people.
        validation: The names of its validation files.
    """

    train: Rows
    test: Rows | None = None
    task: str | None = None
    note: str = ""
    validation: tuple[str, ...] = ()


Open = Callable[[SplitPaths], OpenedSet]
"""Opens one data set."""

_NAMES_SHOWN = 5


@dataclass(frozen=True)
class Silos:
    """The rows of several silos.

    Attributes:
        rows: Of all of them, with the columns :data:`SILO` and :data:`PART`.
        task: Their task, where their files name it.
        note: Their number and their names, for people.
        notes: What else was found out about them, for people.
        with_validation: How many have a validation set.
    """

    rows: Rows
    task: str | None
    note: str
    notes: tuple[str, ...]
    with_validation: int


def open_silos(
    silos: Sequence[SplitPaths], tests: Sequence[SplitPaths], open_one: Open, used: Validation | None = None
) -> Silos:
    """Return the rows of silos.

    Args:
        silos: Of each its files or folders.
        tests: Of some of them the test file, which has the name of the silo.
        open_one: Opens one of them.
        used: What validation sets are used for.

    Raises:
        DataError: Two have the same name, a test set belongs to none or is there twice, or one cannot be opened.
    """
    train, test = _by_name(silos), _by_name(tests)
    if test and train.keys().isdisjoint(test):
        train, test = _without_splits(train), _without_splits(test)
    for name in test:
        if name not in train:
            raise DataError(
                f"{test[name].train[0]}: there is no silo {name!r}: they are {_listed(sorted(train))}"
            )
    parts: list[tuple[str, Rows]] = []
    opened: dict[str, OpenedSet] = {}
    for name in sorted(train):
        one = open_one(train[name])
        if name in test:
            if one.test is not None:
                raise DataError(
                    f"{train[name].train[0]} holds a test set, and {test[name].train[0]} is one: keep one of them"
                )
            one = replace(one, test=open_one(test[name]).train)
        opened[name] = one
        parts.append((f"{name} train", marked(one.train, {SILO: name, PART: "train" if one.test else "all"})))
        if one.test is not None:
            parts.append((f"{name} test", marked(one.test, {SILO: name, PART: "test"})))
    tasks = {one.task for one in opened.values()}
    if len(tasks) > 1:
        raise DataError(f"the silos are for different tasks: {', '.join(sorted(str(one) for one in tasks))}")
    with_test = sum(one.test is not None for one in opened.values())
    note = f"{plural(len(train), 'silo')} ({_listed(sorted(train))}), {_tests_of(len(train), with_test)}"
    rows = joined_rows(parts)
    first, last = silos[0].train[0], silos[-1].train[0]
    validation = [name for one in opened.values() for name in one.validation]
    notes = [
        validation_note(validation, used, with_test == len(train)),
        *(one.note for one in opened.values()),
    ]
    return Silos(
        replace(rows, shown=f"{plural(len(train), 'silo')} from {first} to {last}"),
        tasks.pop(),
        note,
        tuple(note for note in notes if note),
        len(validation),
    )


def _tests_of(silos: int, with_test: int) -> str:
    if with_test == silos:
        return "each with its own test set"
    return f"{with_test} with their own test sets" if with_test else "a test set is held out of each"


def _by_name(silos: Sequence[SplitPaths]) -> dict[str, SplitPaths]:
    named: dict[str, SplitPaths] = {}
    for silo in silos:
        if silo.name in named:
            raise DataError(
                f"two silos are called {silo.name!r}: {named[silo.name].train[0]} and {silo.train[0]}: rename one, or "
                "give the folders that they lie in, which are then the silos"
            )
        named[silo.name] = silo
    return named


def _without_splits(named: Mapping[str, SplitPaths]) -> dict[str, SplitPaths]:
    """Return silos by their names without what they say of splits: training and test files that lie apart."""
    return _by_name([replace(silo, name=split_name(name).group or name) for name, silo in named.items()])


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
        silo = marks.get(SILO, "")
        both = (
            (where, replace(row, silo=silo) if isinstance(row, Fault) else [*row, *added])
            for where, row in placed
        )
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
