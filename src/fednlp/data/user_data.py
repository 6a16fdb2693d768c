"""Opens the user's own data: a file, a folder that is a data set, or silos."""

from collections.abc import Mapping, Sequence
from functools import partial
from os.path import commonpath
from pathlib import Path

from fednlp.data.catalogue import Opened
from fednlp.data.columns import TARGETS
from fednlp.data.files import (
    OTHER_FORMATS,
    SUFFIXES,
    TABLES,
    file_rows,
    h5_rows,
    parallel_files,
    parallel_rows,
    suffix_of,
)
from fednlp.data.folders import folder_rows, split_file
from fednlp.data.readers.csv_files import Quoting
from fednlp.data.readers.hf_datasets import is_saved, saved_rows
from fednlp.data.silos.paths import PathSetting, languages_of, silo_paths, visible_entries
from fednlp.data.silos.pooling import open_silos
from fednlp.data.store import Rows
from fednlp.errors import DataError
from fednlp.formatting.suggestions import did_you_mean

_H5 = (".h5", ".hdf5")


def open_user_data(
    path: PathSetting,
    test_path: Path | None,
    configured: Mapping[str, str],
    delimiter: str | None,
    quoting: Quoting = "double",
) -> tuple[str, Opened]:
    """Open the user's own files.

    Args:
        path: What :func:`fednlp.data.load_data` takes.
        test_path: The test set that goes with it.
        configured: The user's own names of columns, by the canonical ones.
        delimiter: What separates the cells of CSV files; found out if left out.
        quoting: Whether cells of CSV files may be in quotes.

    Returns:
        The name of the data set, and its rows.

    Raises:
        DataError: There is no such file, or it is not a data set.
    """
    open_one = partial(open_path, configured=configured, delimiter=delimiter, quoting=quoting)
    silos = silo_paths(path, languages_of(configured))
    if silos is not None and isinstance(path, Path) and path.is_dir():
        _refuse_brat(path)
    if silos is not None:
        tests = None if test_path is None else silo_paths(test_path, languages_of(configured))
        if test_path is not None and tests is None:
            raise DataError(
                f"data.test_path is {test_path}, and data.path names silos: give a folder or pattern of test files "
                "that have the names of the silos, or put a test file into the folder of each silo"
            )
        found = open_silos(silos, tests or [], open_one)
        note = f"{found.note}; {found.rows.note}" if found.rows.note else found.note
        return _silos_name(path, silos), Opened(found.rows, None, found.rows.shown, found.task, (note,), True)
    assert isinstance(path, Path)
    train, test, task = open_one(path)
    if test_path is not None:
        if test_path.resolve() == path.resolve():
            raise DataError(
                f"data.test_path is the training file {path}: leave it out to hold a test set out of it"
            )
        test, _, _ = open_one(test_path)
    place = path.resolve()
    name = place.name if place.is_dir() else Path(place.name.removesuffix(".gz")).stem
    parts = [train] if test is None else [train, test]
    notes = tuple(f"{rows.shown}: {rows.note}" for rows in parts if rows.note)
    return name, Opened(train, test, " and ".join(rows.shown for rows in parts), task, notes)


def _silos_name(path: PathSetting, silos: Sequence[Path]) -> str:
    """Return the name of silos together: that of the folder that holds them."""
    folder = (
        path
        if isinstance(path, Path) and path.is_dir()
        else Path(commonpath([p.resolve().parent for p in silos]))
    )
    return folder.resolve().name or "silos"


def open_path(
    path: Path, configured: Mapping[str, str], delimiter: str | None, quoting: Quoting = "double"
) -> tuple[Rows, Rows | None, str | None]:
    """Return the rows of one data set: training, test if there is one, and the task if the files name it.

    Args:
        path: A file, a folder, or the common beginning of the names of two files, before the languages.
        configured: The user's own names of columns, by the canonical ones.
        delimiter: What separates the cells of CSV files; found out if left out.
        quoting: Whether cells of CSV files may be in quotes.

    Raises:
        DataError: There is no such file, or it is not one data set.
    """
    languages = languages_of(configured)
    if len(languages) == 2 and (pair := parallel_files(path, languages)) is not None:
        test = parallel_files(path / "test", languages) if path.is_dir() else None
        return parallel_rows(pair, languages), parallel_rows(test, languages) if test else None, None
    if not path.exists():
        siblings = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(
            f"there is no {path}: {did_you_mean(path.name, siblings)}give a file or a folder that exists"
        )
    if path.is_dir():
        return (*_open_folder(path, configured, delimiter, quoting), None)
    if path.suffix.lower() in _H5:
        return h5_rows(path)
    return file_rows(path, delimiter, configured, quoting), None, None


def _open_folder(
    path: Path, configured: Mapping[str, str], delimiter: str | None, quoting: Quoting = "double"
) -> tuple[Rows, Rows | None]:
    if is_saved(path):
        return saved_rows(path, targets_of(configured))
    train, held = (split_file(path, split) for split in ("train", "test"))
    if train is not None:
        test = file_rows(held, delimiter, configured, quoting) if held is not None else None
        return file_rows(train, delimiter, configured, quoting), test
    if (only := _only_file(path)) is not None:
        return file_rows(only, delimiter, configured, quoting), None
    inside = silo_paths(path, languages_of(configured))
    if inside is not None:
        raise DataError(
            f'{path} holds silos itself, from {inside[0].name} on: give these as data.path, such as "{path}/*"'
        )
    if all((path / split).is_dir() and _has_folders(path / split) for split in ("train", "test")):
        return folder_rows(path / "train"), folder_rows(path / "test")
    return folder_rows(path), None


def _refuse_brat(folder: Path) -> None:
    """Refuse a folder of texts with BRAT's annotations beside them, which would be a client each.

    Raises:
        DataError: It is one.
    """
    if any(one.suffix == ".ann" for one in visible_entries(folder)):
        raise DataError(f"{folder}: holds {OTHER_FORMATS['.ann']}")


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


def _has_folders(folder: Path) -> bool:
    return any(one.is_dir() for one in folder.iterdir())
