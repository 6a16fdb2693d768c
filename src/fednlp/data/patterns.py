"""Patterns such as ``silos/*/notes.csv`` as paths, in bounded time whatever the pattern and the folders are."""

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from glob import has_magic
from itertools import count
from pathlib import Path

from fednlp.errors import DataError

MOST_ENTRIES = 100_000
"""How many files and folders are looked at for one pattern."""


def fitting(pattern: Path) -> Iterator[Path]:
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
