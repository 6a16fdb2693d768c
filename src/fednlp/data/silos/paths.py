"""The files and folders that are silos, each with the examples of one client, and the names of silos."""

import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import has_magic
from itertools import count
from pathlib import Path

from fednlp.data.files import SUFFIXES, TABLES, parallel_files, suffix_of
from fednlp.data.folders import is_system_entry, split_file
from fednlp.data.readers.hf_datasets import is_saved
from fednlp.data.readers.text_io import data_errors
from fednlp.disk import expanded
from fednlp.errors import DataError

PathSetting = Path | Sequence[Path]
"""What ``data.path`` is: a file, a folder or a pattern; or a list of these."""

MOST_ENTRIES = 100_000
"""How many files and folders are looked at for one pattern."""
_SPLITS = {"train", "test", "dev", "val", "valid", "validation"}


def silo_paths(given: PathSetting, languages: Sequence[str] = ()) -> list[Path] | None:
    """Return the files or folders that are a silo each, or None where there is one data set.

    A list or a pattern names silos; so does a folder of files, or of folders that are a data set each.

    Args:
        given: The setting ``data.path``.
        languages: Endings of the files of a text in two languages.

    Raises:
        DataError: A pattern fits nothing or goes through too many files, or a folder holds silos and something else.
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
        path: The setting ``data.path``.
        columns: Own names of columns by the canonical ones.

    Raises:
        DataError: As for :func:`silo_paths`.
    """
    given = expanded(path) if isinstance(path, str) else [expanded(one) for one in path]
    return silo_paths(given, languages_of(columns)) is not None


def languages_of(configured: Mapping[str, str]) -> list[str]:
    """Return the endings of the files of a text in two languages, where the user names both columns."""
    return [configured[side] for side in ("source", "target") if side in configured]


def _is_pattern(path: Path) -> bool:
    return has_magic(str(path)) and not path.exists()


def _matching(pattern: Path) -> list[Path]:
    found = sorted(path for path in matching_paths(pattern) if not is_system_entry(path))
    if not found:
        raise DataError(f"no file or folder fits {pattern}: give one that does, or a list of paths")
    return found


def visible_entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted, without hidden files.

    Raises:
        DataError: It cannot be read.
    """
    with data_errors(folder):
        return sorted(path for path in folder.iterdir() if not is_system_entry(path))


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
    entries = visible_entries(folder)
    folders = [path for path in entries if path.is_dir()]
    if not folders:
        return [path for path in entries if suffix_of(path) in SUFFIXES] or None
    kinds = {path: _is_silo(path, languages) for path in folders}
    silos = [path for path, is_silo in kinds.items() if is_silo]
    classes = [path for path, is_silo in kinds.items() if is_silo is False]
    if not silos:
        return None
    if empty := [path.name for path, is_silo in kinds.items() if is_silo is None]:
        raise DataError(f"{folder}: the folder {empty[0]} is empty: put its file into it, or remove it")
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
    inside = visible_entries(folder)
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
    """Return the name of a silo: that of the folder, or of the file without its ending.

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


def matching_paths(pattern: Path) -> Iterator[Path]:
    """Yield the files and folders that a pattern fits, each once, in whatever order.

    ``*``, ``?`` and ``[...]`` stand for what :mod:`fnmatch` says, and fit no hidden file unless the pattern begins
    with a dot; ``**`` stands for any number of folders, where links to folders are not followed.

    Raises:
        DataError: Too many files and folders would have to be looked at.
    """
    parts = pattern.parts[len(Path(pattern.anchor).parts) :]
    looked = count(1)
    todo = [(Path(pattern.anchor), 0)]
    seen = set(todo)
    while todo:
        path, place = todo.pop()
        if place == len(parts):
            yield path
            continue
        for following in _following(path, place, parts[place]):
            if next(looked) > MOST_ENTRIES:
                raise DataError(
                    f"{pattern}: there are more than {MOST_ENTRIES:,} files and folders to look at: "
                    f"name a folder further down, or give a list of paths"
                )
            if following not in seen:
                seen.add(following)
                todo.append(following)


def _following(path: Path, place: int, part: str) -> Iterator[tuple[Path, int]]:
    """Yield what one part of a pattern leads to, with the place of the part that is to fit next."""
    if part == "**":
        yield path, place + 1
    elif not has_magic(part):
        if os.path.lexists(path / part):
            yield path / part, place + 1
        return
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith(".") and not part.startswith("."):
                    continue
                if part == "**":
                    yield path / entry.name, place if entry.is_dir(follow_symlinks=False) else place + 1
                elif fnmatchcase(entry.name, part):
                    yield path / entry.name, place + 1
    except OSError:
        return  # a file, or a folder that cannot be read
