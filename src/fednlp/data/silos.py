"""Silos: several files or folders, each with the examples of one client.

The examples of all silos are one table, in which the column ``silo`` names the client, and ``silo_part`` says whether
a row is of a silo's training file, of its own test file, or of its only file, out of which a test set is held.
"""

import glob
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fednlp.data.files import SUFFIXES, TABLES, joined_rows, parallel_files, suffix_of
from fednlp.data.folders import split_file
from fednlp.data.hub import is_saved
from fednlp.data.readers.opening import reading
from fednlp.data.split import Numbers, hold_out
from fednlp.data.store import Fault, Placed, Rows
from fednlp.data.textdata import positions
from fednlp.disk import expanded
from fednlp.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

SILO, PART = "silo", "silo_part"

Given = Path | Sequence[Path]
"""What ``data.path`` is: a file, a folder or a pattern; or a list of these."""
Open = Callable[[Path], tuple[Rows, Rows | None, str | None]]
"""Opens one data set: its training rows, its test rows if it has any, and its task if it says it."""

_NAMES_SHOWN = 5
_SPLITS = {"train", "test", "dev", "val", "valid", "validation"}


@dataclass(frozen=True)
class Silos:
    """The rows of several silos.

    Attributes:
        rows: Of all of them, with the columns :data:`SILO` and :data:`PART`.
        task: Their task, where their files say it.
        note: How many there are and what they are called, for people.
    """

    rows: Rows
    task: str | None
    note: str


def silo_paths(given: Given, languages: Sequence[str] = ()) -> list[Path] | None:
    """Return the files or folders that are a silo each, or None where there is one data set.

    A list or a pattern names silos; so does a folder of files, or of folders that are a data set each.

    Args:
        given: What the user says.
        languages: Endings of the files of a text in two languages.

    Raises:
        DataError: A pattern fits nothing, or a folder holds silos and something else.
    """
    if not isinstance(given, Path):
        return [one for path in given for one in (_matching(path) if _is_pattern(path) else [path])]
    if _is_pattern(given):
        return _matching(given)
    if not given.is_dir() or is_saved(given) or _holds_split(given, languages):
        return None
    return _inside(given, languages)


def names_silos(path: str | Sequence[str], columns: Mapping[str, str]) -> bool:
    """Say whether ``data.path`` names silos.

    Args:
        path: What the user says.
        columns: Own names of columns by the canonical ones.

    Raises:
        DataError: As for :func:`silo_paths`.
    """
    given = expanded(path) if isinstance(path, str) else [expanded(one) for one in path]
    return silo_paths(given, languages_of(columns)) is not None


def languages_of(wanted: Mapping[str, str]) -> list[str]:
    """Return the endings of the files of a text in two languages, if the user names both columns."""
    return [wanted[side] for side in ("source", "target") if side in wanted]


def _is_pattern(path: Path) -> bool:
    return glob.has_magic(str(path)) and not path.exists()


def _matching(pattern: Path) -> list[Path]:
    found = sorted(path for text in glob.glob(str(pattern), recursive=True) if _is_shown(path := Path(text)))
    if not found:
        raise DataError(f"no file or folder fits {pattern}: give one that does, or a list of paths")
    return found


def shown_in(folder: Path) -> list[Path]:
    """Return what lies in a folder, sorted, without hidden files.

    Raises:
        DataError: It cannot be read.
    """
    with reading(folder):
        return sorted(path for path in folder.iterdir() if _is_shown(path))


def _is_shown(path: Path) -> bool:
    return not path.name.startswith((".", "~$"))  # the latter is what Excel leaves beside an open workbook


def _stem(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    return name if path.is_dir() else name.removesuffix(Path(name).suffix)


def _holds_split(folder: Path, languages: Sequence[str]) -> bool:
    """Say whether a folder is one data set: it holds files ``train.*``, or ``train`` and ``test`` of class folders."""
    if len(languages) == 2 and parallel_files(folder, languages) is not None:
        return True
    return split_file(folder, "train") is not None or all(
        _holds_classes(folder / split, languages) for split in ("train", "test")
    )


def _holds_classes(folder: Path, languages: Sequence[str]) -> bool:
    return folder.is_dir() and any(
        _is_silo(one, languages) is False for one in folder.iterdir() if one.is_dir()
    )


def _inside(folder: Path, languages: Sequence[str]) -> list[Path] | None:
    entries = shown_in(folder)
    folders = [path for path in entries if path.is_dir()]
    if not folders:
        return [path for path in entries if suffix_of(path) in SUFFIXES] or None
    silos: list[Path] = []
    classes: list[Path] = []
    for path in folders:
        is_silo = _is_silo(path, languages)
        if is_silo is not None:
            (silos if is_silo else classes).append(path)
    if not silos:
        return None
    hint = "silos are a folder for each client (or a file for each), and a folder of class folders holds texts alone"
    if classes:
        raise DataError(
            f"{folder}: {silos[0].name} is a data set, and {classes[0].name} a folder of texts: {hint}"
        )
    strays = [path.name for path in entries if suffix_of(path) in TABLES and path.is_file()]
    if strays:
        raise DataError(f"{folder}: holds folders and {strays[0]}: put it into a folder of its own; {hint}")
    if {path.name for path in silos} == {"train", "test"}:
        raise DataError(
            f'{folder}: holds the folders train and test: say path = "{folder / "train"}" and '
            f'test_path = "{folder / "test"}" where each file in them is a client'
        )
    return silos


def _is_silo(folder: Path, languages: Sequence[str]) -> bool | None:
    """Say whether a folder is a data set by itself, and not the texts of one class; None for an empty one."""
    inside = shown_in(folder)
    files = [path for path in inside if path.is_file()]
    if not inside:
        return None
    return (
        is_saved(folder)
        or (_holds_split(folder, languages) and {_stem(path) for path in files} <= _SPLITS)
        or any(suffix_of(path) in TABLES for path in files)
        or not files
    )


def silo_name(path: Path) -> str:
    """Return what a silo is called: the name of the folder, or of the file without its ending.

    Raises:
        DataError: The name is not UTF-8.

    >>> silo_name(Path("silos/Süd.csv.gz"))
    'Süd'
    """
    name = unicodedata.normalize("NFC", _stem(path))
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(f"{str(path)!r}: the name is not UTF-8: rename it") from None
    return name


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
    note = f"{len(train)} silos ({_listed(sorted(train))}), {_tests_of(len(train), with_test)}"
    rows = joined_rows(parts)
    return Silos(replace(rows, shown=f"{len(train)} silos from {paths[0]} to {paths[-1]}"), tasks.pop(), note)


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

    def read(roles: Mapping[str, str]) -> tuple[Sequence[str], Iterator[Placed]]:
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
