"""The files and folders that are silos, each with the examples of one client, and the names of silos."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from glob import has_magic
from itertools import count
from pathlib import Path

from fednlp.data.files import SUFFIXES, TABLES, is_system_entry, parallel_files, refuse_address, suffix_of
from fednlp.data.readers.hf_datasets import is_saved
from fednlp.data.readers.text_io import data_errors
from fednlp.data.split_names import (
    SplitPaths,
    grouped_splits,
    is_test_name,
    refuse_splits,
    silo_name,
    split_name,
)
from fednlp.disk import expanded
from fednlp.errors import DataError

PathSetting = Path | Sequence[Path]
"""What ``data.path`` is: a file, a folder or a pattern; or a list of these."""

MOST_ENTRIES = 100_000
"""How many files and folders are looked at for one pattern."""
_NAMES_SHOWN = 5

_README = re.compile(r"(?i)(readme|licen[cs]e|changelog|citation)\b")


def silo_paths(
    given: PathSetting, languages: Sequence[str] = (), *, tests: bool = False
) -> list[SplitPaths] | None:
    """Return the files or folders of each silo, or None where there is one data set.

    A list or a pattern names silos; so does a folder of files, or of folders that are a data set each. The splits of a
    silo go together by their names (:func:`fednlp.data.split_names.grouped_splits`).

    Args:
        given: The setting ``data.path``.
        languages: Endings of the files of a text in two languages.
        tests: Whether these are the test files of silos, each by itself.

    Raises:
        DataError: A pattern fits nothing or goes through too many files, a folder holds silos and something else, or
            the names of files leave open what is a test set.
    """
    for path in [given] if isinstance(given, Path) else given:
        refuse_address(path)
    if not isinstance(given, Path):
        paths = [one for path in given for one in (_matching(path) if _is_pattern(path) else [path])]
        return grouped_splits(paths, paths[0].parent, named=True)
    if tests and (_is_pattern(given) or (given.is_dir() and not is_saved(given))):
        there = _matching(given) if _is_pattern(given) else visible_entries(given)
        silos = [path for path in there if path.is_dir() or suffix_of(path) in SUFFIXES]
        return [SplitPaths(silo_name(path), (path,)) for path in silos] or None
    if _is_pattern(given):
        return grouped_splits(_matching(given), given)
    if not given.is_dir() or is_saved(given) or _is_pair(given, languages) or data_folder(given) != given:
        return None
    return None if set_in(given, languages) else _inside(given, languages)


def _is_pair(folder: Path, languages: Sequence[str]) -> bool:
    """Say whether a folder holds the files of a text in two languages."""
    return len(languages) == 2 and parallel_files(folder, languages) is not None


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


def set_in(folder: Path, languages: Sequence[str] = ()) -> SplitPaths | None:
    """Return the splits of a folder whose files, or whose folders ``train`` and ``test``, are one data set.

    None where they are silos or texts a class, or where it holds one file alone.

    Raises:
        DataError: The names leave open what is a test set.
    """
    entries = visible_entries(folder)
    files = [path for path in entries if path.is_file() and suffix_of(path) in SUFFIXES]
    return _set_of_files(folder, files) or _set_of_folders(folder, entries, languages)


def _set_of_files(folder: Path, files: Sequence[Path]) -> SplitPaths | None:
    names = {path: split_name(silo_name(path)) for path in files}
    bare = [path for path, name in names.items() if not name.key and (name.splits or name.shard)]
    others = [path for path in files if path not in bare]
    if not any("train" in names[path].splits for path in bare):
        found = grouped_splits(others, folder) if not bare else grouped_splits(files, folder)
        split = [one for one in found if one.test or one.validation or names[one.train[0]].shard]
        if not split or len(split) == len(found) > 1:
            return None
        loose = [one for one in found if one not in split and not _README.match(one.name)]
        if loose and len(split) == 1:
            one, other = split[0], loose[0].train[0].name
            if not one.test:
                refuse_splits(
                    folder, files, f"holds {one.train[0].name} and {other}, which may be two silos or not"
                )
            refuse_splits(
                folder,
                [*one.train, *one.test],
                f"{one.train[0].name} has a test set of its own, and {other} is another file",
            )
        return split[0] if len(split) == 1 else None
    found = grouped_splits(bare, folder)
    tests = [path for path in others if is_test_name(path)]
    if tests and not found[0].test:
        refuse_splits(
            folder, [*found[0].train, *tests], f"{tests[0].name} may be the test set of {bare[0].name}"
        )
    named = len(bare) > 1 or names[bare[0]].shard or silo_name(bare[0]) == "train"
    if others and not named:
        refuse_splits(
            folder, files, f"holds {bare[0].name} and {others[0].name}, which may be two silos or not"
        )
    unread = [path.name for path in others if not _README.match(path.name)]
    note = f"not read: {_listed(unread)}" if unread else ""
    return replace(found[0], note=note)


def _set_of_folders(folder: Path, entries: Sequence[Path], languages: Sequence[str]) -> SplitPaths | None:
    folders = [path for path in entries if path.is_dir()]
    bare = [path for path in folders if split_name(silo_name(path)).splits and _is_bare(path)]
    if len(bare) < 2 or all(map(is_test_name, bare)):
        return None
    if not all(_is_one_split(path, languages) for path in bare):
        return None
    if others := [path for path in folders if path not in bare and _is_silo(path, languages)]:
        refuse_splits(folder, bare, f"{others[0].name} is a data set beside {bare[0].name}")
    return grouped_splits(bare, folder)[0]


def _is_bare(path: Path) -> bool:
    return not split_name(silo_name(path)).key


def _is_one_split(folder: Path, languages: Sequence[str]) -> bool:
    """Say whether a folder holds one split: class folders, a folder of ``datasets``, one file, or all parts of one."""
    if is_saved(folder) or _holds_classes(folder, languages):
        return True
    files = [path for path in visible_entries(folder) if suffix_of(path) in SUFFIXES and path.is_file()]
    return len(files) == 1 or (len(files) > 1 and all(split_name(silo_name(path)).shard for path in files))


def _holds_classes(folder: Path, languages: Sequence[str]) -> bool:
    return folder.is_dir() and any(
        _is_silo(one, languages) is False for one in visible_entries(folder) if one.is_dir()
    )


def data_folder(folder: Path) -> Path:
    """Return the folder of the files: ``data`` in it, where that is all there is but for files about it.

    Repositories of data sets are laid out so.
    """
    inside = folder / "data"
    entries = visible_entries(folder) if inside.is_dir() and not is_saved(folder) else []
    alone = entries and all(
        path == inside or (path.is_file() and suffix_of(path) not in TABLES) for path in entries
    )
    return inside if alone and set_in(inside) is not None else folder


def _inside(folder: Path, languages: Sequence[str]) -> list[SplitPaths] | None:
    entries = visible_entries(folder)
    folders = [path for path in entries if path.is_dir()]
    if not folders:
        files = [path for path in entries if suffix_of(path) in SUFFIXES]
        return grouped_splits(files, folder) if files else None
    kinds = {path: _is_silo(path, languages) for path in folders}
    silos = [path for path, is_silo in kinds.items() if is_silo]
    classes = [path for path, is_silo in kinds.items() if is_silo is False]
    if not silos:
        if (
            len(folders) > 1
            and all(split_name(silo_name(path)).splits for path in folders)
            and any(map(is_test_name, folders))
        ):
            raise DataError(
                f"{folder}: the folders {_listed([path.name for path in folders])} hold texts and no folder for each "
                "class: put each text into the folder of its label, such as train/spam and test/spam"
            )
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
    splits = [path for path in silos if _is_bare(path)]
    if len(splits) > 1 and len(splits) == len(silos):
        train = next((path for path in splits if not is_test_name(path)), splits[0])
        test = next((path for path in splits if path != train), splits[-1])
        raise DataError(
            f'{folder}: holds the folders {train.name} and {test.name}: say path = "{train}" and '
            f'test_path = "{test}" where each file in them is a client'
        )
    return grouped_splits(silos, folder)


def _is_silo(folder: Path, languages: Sequence[str]) -> bool | None:
    """Say whether a folder is a data set by itself, and not the texts of one class; None for an empty one."""
    inside = visible_entries(folder)
    files = [path for path in inside if path.is_file()]
    if not inside:
        return None
    splits = [split_name(silo_name(path)) for path in files]
    return (
        is_saved(folder)
        or _is_pair(folder, languages)
        or any(suffix_of(path) in TABLES for path in files)
        or not files
        or (
            all(name.splits and not name.key for name in splits)
            and any("train" in name.splits for name in splits)
        )
    )


def _listed(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _NAMES_SHOWN} more"] if len(names) > _NAMES_SHOWN else []
    return ", ".join([*names[:_NAMES_SHOWN], *more])


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
