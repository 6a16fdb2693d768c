"""Opens the user's own data: a file, a folder that is a data set, or silos."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os.path import commonpath
from pathlib import Path

from fednlp.data.catalogue import Opened
from fednlp.data.columns import TARGETS
from fednlp.data.files import (
    SUFFIXES,
    TABLES,
    file_rows,
    folder_rows,
    h5_rows,
    joined_rows,
    parallel_files,
    parallel_rows,
    refuse_address,
    refuse_brat,
    suffix_of,
)
from fednlp.data.readers.csv_files import Quoting
from fednlp.data.readers.hf_datasets import is_saved, saved_rows
from fednlp.data.readers.text_io import Encodings
from fednlp.data.silos.paths import (
    PathSetting,
    data_folder,
    languages_of,
    set_in,
    silo_paths,
    visible_entries,
)
from fednlp.data.silos.pooling import OpenedSet, open_silos
from fednlp.data.split_names import (
    SplitPaths,
    Validation,
    grouped_splits,
    silo_name,
    split_name,
    validation_note,
)
from fednlp.data.store import Rows
from fednlp.errors import DataError
from fednlp.formatting.suggestions import did_you_mean

_H5 = (".h5", ".hdf5")


@dataclass(frozen=True)
class Reading:
    """How the user's own files are read.

    Attributes:
        configured: The user's own names of columns, by the canonical ones.
        delimiter: What separates the cells of CSV files; None to find it out.
        quoting: Whether cells of CSV files may be in quotes.
        encoding: Of files that are not UTF-8.
        validation: What is done with validation sets, with ``"train"`` or ``"test"``; None to leave them out.
    """

    configured: Mapping[str, str]
    delimiter: str | None = None
    quoting: Quoting = "double"
    encoding: Encodings = field(default_factory=Encodings)
    validation: Validation | None = None

    @property
    def languages(self) -> list[str]:
        """The endings of the files of a text in two languages."""
        return languages_of(self.configured)


def open_user_data(path: PathSetting, test_path: Path | None, reading: Reading) -> tuple[str, Opened]:
    """Open the user's own files.

    Args:
        path: What :func:`fednlp.data.load_data` takes.
        test_path: The test set that goes with it.

    Returns:
        The name of the data set, and its rows.

    Raises:
        DataError: There is no such file, or it is not a data set.
    """
    silos = silo_paths(path, reading.languages)
    if silos is not None and isinstance(path, Path) and path.is_dir():
        refuse_brat(visible_entries(path))
    if silos is not None:
        tests = None if test_path is None else silo_paths(test_path, reading.languages, tests=True)
        if test_path is not None and tests is None:
            raise DataError(
                f"data.test_path is {test_path}, and data.path names silos: give a folder or pattern of test files "
                "that have the names of the silos, or put a test file into the folder of each silo"
            )
        found = open_silos(silos, tests or [], partial(_open_splits, reading=reading), reading.validation)
        paths = [path for silo in silos for path in silo.train]
        reading.encoding.require_all_used(paths[0].parent)
        notes = (f"{found.note}; {found.rows.note}" if found.rows.note else found.note, *found.notes)
        _require_validation(reading, found.with_validation > 0, paths[0].parent)
        return _silos_name(path, paths), Opened(found.rows, None, found.rows.shown, found.task, notes, True)
    assert isinstance(path, Path)
    opened = _open_path(path, reading)
    train, test = opened.train, opened.test
    if test_path is not None:
        if test_path.resolve() == path.resolve():
            raise DataError(
                f"data.test_path is the training file {path}: leave it out to hold a test set out of it"
            )
        test = _open_path(test_path, replace(reading, validation=None)).train
    reading.encoding.require_all_used(path)
    _require_validation(reading, bool(opened.validation), path)
    place = path.resolve()
    name = place.name if place.is_dir() else Path(place.name.removesuffix(".gz")).stem
    parts = [train] if test is None else [train, test]
    notes = tuple(f"{rows.shown}: {rows.note}" for rows in parts if rows.note)
    held = validation_note(opened.validation, reading.validation, test is not None)
    return name, Opened(
        train,
        test,
        " and ".join(rows.shown for rows in parts),
        opened.task,
        (*notes, *(note for note in (held, opened.note) if note)),
    )


def _require_validation(reading: Reading, found: bool, where: Path) -> None:
    if reading.validation is not None and not found:
        raise DataError(
            f'data.validation is "{reading.validation}", and no file of {where} is called a validation set: leave it '
            "out"
        )


def _silos_name(path: PathSetting, paths: Sequence[Path]) -> str:
    """Return the name of silos together: that of the folder that holds them."""
    folder = (
        path
        if isinstance(path, Path) and path.is_dir()
        else Path(commonpath([p.resolve().parent for p in paths]))
    )
    return folder.resolve().name or "silos"


def _open_path(path: Path, reading: Reading) -> OpenedSet:
    """Return the rows of one data set.

    Args:
        path: A file, a folder, or the common beginning of the names of two files, before the languages.

    Raises:
        DataError: There is no such file, or it is not one data set.
    """
    languages = reading.languages
    if len(languages) == 2 and (pair := parallel_files(path, languages)) is not None:
        test = parallel_files(path / "test", languages) if path.is_dir() else None
        train, held = (
            parallel_rows(list(map(reading.encoding.of, both)), languages) if both else None
            for both in (pair, test)
        )
        assert train is not None
        return OpenedSet(train, held)
    if not path.exists():
        refuse_address(path)
        siblings = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(
            f"there is no {path}: {did_you_mean(path.name, siblings)}give a file or a folder that exists"
        )
    if path.is_dir():
        return _open_folder(data_folder(path), reading)
    if path.suffix.lower() in _H5:
        return OpenedSet(*h5_rows(path))
    return OpenedSet(_file(path, reading))


def _file(path: Path, reading: Reading) -> Rows:
    return file_rows(reading.encoding.of(path), reading.delimiter, reading.configured, reading.quoting)


def _open_folder(path: Path, reading: Reading) -> OpenedSet:
    if is_saved(path):
        return _open_saved(path, reading)
    if (splits := set_in(path, reading.languages)) is not None:
        return _open_splits(splits, reading)
    if (only := _only_file(path)) is not None:
        return OpenedSet(_file(only, reading))
    inside = silo_paths(path, reading.languages)
    if inside is not None:
        raise DataError(
            f"{path} holds silos itself, from {inside[0].train[0].name} on: give these as data.path, such as "
            f'"{path}/*"'
        )
    return OpenedSet(folder_rows(path, encodings=reading.encoding))


def _open_saved(path: Path, reading: Reading) -> OpenedSet:
    """Return the rows of a folder of ``datasets``, its validation set where the option says."""
    train, test, held = saved_rows(path, targets_of(reading.configured))
    serves = next((name for name, rows in held.items() if test is not None and rows.what == test.what), None)
    if reading.validation is None:
        return OpenedSet(train, test, validation=tuple(name for name in held if name != serves))
    if reading.validation == "train":
        tested = None if serves else test
        return OpenedSet(
            joined_rows([("train", train), *held.items()]) if held else train, tested, None, "", (*held,)
        )
    if test is not None and serves is None:
        raise DataError(
            f'{path}: data.validation is "test", and there is a test split: say "train", or leave it out'
        )
    return OpenedSet(train, test, validation=tuple(held))


def _open_splits(splits: SplitPaths, reading: Reading) -> OpenedSet:
    """Return the rows of the splits of one data set, its validation set where the option says."""
    if not (splits.test or splits.validation) and len(splits.train) == 1:
        opened = _open_path(splits.train[0], reading)
        return replace(opened, note="; ".join(note for note in (opened.note, splits.note) if note))
    train, test = [*splits.train], [*splits.test]
    if reading.validation == "train":
        train += splits.validation
    elif reading.validation == "test" and splits.validation:
        if test:
            raise DataError(
                f'data.validation is "test", and {test[0]} is the test set: say "train", or leave it out'
            )
        test = [*splits.validation]
    shown = tuple(path.name for path in splits.validation)
    first = _open_split(train, reading)
    return OpenedSet(first, _open_split(test, reading) if test else None, None, splits.note, shown)


def _open_split(paths: Sequence[Path], reading: Reading) -> Rows:
    """Return the rows of the files, or of the folders, of one split together."""
    parts = [
        (path.name, _one_split(path, reading) if path.is_dir() else _file(path, reading)) for path in paths
    ]
    return parts[0][1] if len(parts) == 1 else joined_rows(parts)


def _one_split(folder: Path, reading: Reading) -> Rows:
    """Return the rows of a folder that is one split: class folders, one file, all parts of one, or of ``datasets``."""
    if is_saved(folder):
        return saved_rows(folder, targets_of(reading.configured))[0]
    refuse_brat(visible_entries(folder))
    files = [one for one in visible_entries(folder) if one.is_file() and suffix_of(one) in SUFFIXES]
    if not files or any(one.is_dir() for one in visible_entries(folder)):
        return folder_rows(folder, encodings=reading.encoding)
    shards = {split_name(silo_name(one)).shard is not None for one in files}
    if len(files) > 1 and shards != {True}:
        raise DataError(
            f'{folder}: holds {files[0].name} and {files[1].name}: say path = "{folder}" where each is a client, and '
            "test_path for their test files"
        )
    return _open_split(
        grouped_splits(files, folder, named=True)[0].train if shards == {True} else files, reading
    )


def _only_file(folder: Path) -> Path | None:
    """Return the one file of examples that a folder holds, or None where it holds no table.

    Raises:
        DataError: It holds a table and further files.
    """
    files = [one for one in visible_entries(folder) if one.is_file() and suffix_of(one) in SUFFIXES]
    if not any(suffix_of(one) in TABLES for one in files):
        return None
    if len(files) > 1:
        raise DataError(
            f"{folder}: holds {files[0].name} and {files[1].name}: keep one file, or call them train and test"
        )
    return files[0]


def targets_of(configured: Mapping[str, str]) -> Sequence[str]:
    """Return the names of the columns to be predicted."""
    return [configured.get(target, target) for target in TARGETS]
