"""One data set of the catalogue, and the ways in which its files are found and put together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from fednlp.data.files import joined_rows, reader_rows
from fednlp.data.readers.hf_datasets import hub_rows
from fednlp.data.readers.parallel import COLUMNS, parallel
from fednlp.data.store import Fault, Row, Rows, file_identity
from fednlp.errors import DataError, MissingDependency
from fednlp.hubs.archives import PinnedArchive

Pair = tuple[Rows, Rows | None]
"""Training and test rows."""
Part = tuple[str, Rows]
"""A name, such as that of a domain, and some of its rows."""
FromFolder = Callable[[Path], Pair | None]
Reader = Callable[..., Iterator[Row | Fault]]
Way = Literal["package index", "hub", "path"]


@dataclass(frozen=True)
class Opened:
    """The rows of a data set: training, test (None where none is published), their source, and their task.

    ``notes`` tell people what was found out about the files; with ``silos``, ``train`` holds all rows of silos.
    """

    train: Rows
    test: Rows | None
    source: str
    task: str | None = None
    notes: tuple[str, ...] = ()
    silos: bool = False


@dataclass(frozen=True)
class Hub:
    """Where a data set is at the Hugging Face hub, and what its columns are called otherwise there."""

    name: str
    rename: Mapping[str, str] = field(default_factory=dict)
    config: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class Opener:
    """What opens the files of a data set: those in a folder, and, where they are packaged, those of pinned archives."""

    folder: FromFolder
    index: Callable[[], Pair] | None = None
    archives: tuple[PinnedArchive, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One data set of the catalogue.

    Attributes:
        task: The formulation that it is made for.
        labels: Number of labels or tags; None for a task without.
        train: Number of published training examples; None where it depends on the copy.
        test: Number of published test examples; None where the test set is held out.
        licence: The licence as its publishers state it.
        files: Which files ``path`` must hold.
        natural: The column whose values are the clients of a natural partition; None where there is none.
    """

    name: str
    title: str
    task: str
    labels: int | None
    train: int | None
    test: int | None
    source: str
    licence: str
    files: str
    natural: str | None
    _opener: Opener = field(repr=False)
    _hub: Hub | None = field(repr=False)

    @property
    def fetched(self) -> Way:
        """Where it is fetched from when no ``path`` is given; ``"path"`` where it is not fetched."""
        return "package index" if self._opener.index else "hub" if self._hub else "path"

    @property
    def how(self) -> str:
        """How it is obtained, in words."""
        if self._opener.index:
            titles = ", ".join(pinned.title for pinned in self.archives)
            return f"from the package index ({titles}), or its files by path"
        return "its files by path, or the hub" if self._hub else "its files by path"

    @property
    def archives(self) -> tuple[PinnedArchive, ...]:
        """The pinned archives that it is read out of, if any."""
        return self._opener.archives

    def require_source(self) -> None:
        """Check that the data set can be had without its files.

        Raises:
            DataError: It cannot.
        """
        if self._opener.index is None and self._hub is None:
            raise DataError(f"{self.name} is not fetched: give its files by path ({self.files})")

    def open(self, path: Path | None = None) -> Opened:
        """Return the rows of the data set, from its files in a folder where one is given.

        Raises:
            DataError: The folder does not hold the files, or there is no way to get them.
            FetchError: The package index does not give them.
        """
        if path is not None:
            return self._open_folder(path)
        if self._opener.index is not None:
            train, test = self._opener.index()
            titles = ", ".join(pinned.title for pinned in self.archives)
            return Opened(train, test, f"{titles}, {_shown(train, test)}", self.task)
        self.require_source()
        hub = self._hub
        assert hub is not None
        try:
            train, test = hub_rows(hub.name, rename=hub.rename, config=hub.config, revision=hub.revision)
        except (DataError, MissingDependency) as error:
            raise DataError(f"{self.name}: {error} ({self.files})") from None
        return Opened(train, test, train.shown, self.task)

    def _open_folder(self, path: Path) -> Opened:
        if not path.exists():
            raise DataError(f"{self.name}: there is no {path}: give a folder with {self.files}")
        pair = self._opener.folder(path)
        if pair is None:
            raise DataError(f"{self.name}: {path} does not hold its files: give a folder with {self.files}")
        train, test = pair
        return Opened(train, test, _shown(train, test), self.task)


def _shown(train: Rows, test: Rows | None) -> str:
    return f"{train.shown} and {test.shown}" if test else train.shown


def found(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first file of these names in a folder, plain or gzipped, or None."""
    paths = (folder / f"{name}{packed}" for name in names for packed in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def files(
    train: Sequence[str],
    test: Sequence[str],
    reader: Reader,
    columns: Sequence[str],
    **options: str | int | bool,
) -> FromFolder:
    """Return what opens the training and test files of a folder.

    The only one that there is, or a file itself, is the data. All names may end in ``.gz``.

    Args:
        train: What the training file may be called.
        test: What the test file may be called.
    """

    def opened(path: Path) -> Pair | None:
        paths = [path] if path.is_file() else [found(path, train), found(path, test)]
        return _in_order([reader_rows(one, reader, columns, options=options) for one in paths if one])

    return opened


def lines_of(source: Path, target: Path) -> Rows:
    """Return the rows of two files whose lines belong together; a blank line is for the check to judge."""
    return reader_rows(source, parallel, COLUMNS, also=[target], options={"keep_blank": True})


def two_files(train: Sequence[tuple[str, str]], test: Sequence[tuple[str, str]]) -> FromFolder:
    """Return what opens a folder where the lines of two files make up the training set, and two the test set.

    Args:
        train: What the training files may be called, source and target.
        test: What the test files may be called.
    """

    def side(path: Path, names: Sequence[tuple[str, str]]) -> Rows | None:
        for both in names:
            first, second = (found(path, [name]) for name in both)
            if first is not None and second is not None:
                return lines_of(first, second)
        return None

    def opened(path: Path) -> Pair | None:
        return _in_order([rows for rows in (side(path, train), side(path, test)) if rows])

    return opened


def _in_order(found: Sequence[Rows]) -> Pair | None:
    """Return the training and the test rows that were found; the only ones are the training rows."""
    return (found[0], found[1] if len(found) > 1 else None) if found else None


def joined(train: Sequence[Part], test: Sequence[Part] = (), field: str | None = None) -> Pair | None:
    """Return the files of the training and of the test set joined to one each; None without a training file.

    Args:
        field: The column for the names of the parts, which may be the clients; None for none.
    """
    return (joined_rows(train, field), joined_rows(test, field) if test else None) if train else None


def first_of(*ways: FromFolder) -> FromFolder:
    """Return what opens a folder in the first of some ways that finds its files."""
    return lambda path: next((pair for way in ways if (pair := way(path)) is not None), None)


def watching(rows: Rows, paths: Sequence[Path]) -> Rows:
    """Return rows that are read again when one of these files changes."""
    return replace(rows, identity=file_identity(paths))
