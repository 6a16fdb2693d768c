"""Reads a folder of pages, which may come from anyone: its ``results.json``, and the pictures that this names."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from fednlp.checked_json import damaged, first_problem
from fednlp.disk import regular
from fednlp.reproduction.manifest import PictureName
from fednlp.reproduction.results import Finding, PaperResults, Results

RESULTS, FIGURES = "results.json", "figures"
_PNG = b"\x89PNG\r\n\x1a\n"
_LARGEST = 16 << 20
_LARGEST_PICTURE = 8 << 20
_LARGEST_PICTURES = 128 << 20
_KIND = re.compile("|".join(["curves-[0-9]+", "update-norms", *get_args(PictureName)]))
"""What follows the names of paper and table in that of a picture (:mod:`fednlp.reproduction.pictures`)."""


def read_results(folder: Path, remedy: str = "write it again with fednlp reproduce --budget 0s") -> Results:
    """Return what the ``results.json`` of a folder of pages holds.

    Args:
        folder: The folder.
        remedy: Advice for the end of an error message.

    Raises:
        DamagedError: It cannot be read, is too large, or is no such file.
    """
    path = folder / RESULTS
    try:
        if regular(path).stat().st_size > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST >> 20} MiB")
        return Results.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = ValueError(first_problem(error)) if isinstance(error, ValidationError) else error
        raise damaged(path, reason, remedy) from error


def with_pictures(results: Results, folder: Path) -> tuple[Results, Mapping[str, bytes]]:
    """Return results without the pictures that cannot be shown, and the PNG files of the others by name.

    A picture is shown if its name is one of its table's, and if it lies in the folder as a PNG file of a bounded size.

    Args:
        results: Of the pages.
        folder: Of the pages.
    """
    pictures: dict[str, bytes] = {}
    inside, left, papers = folder.resolve(), _LARGEST_PICTURES, []
    for paper in results.papers:
        entries = []
        for entry in paper.entries:
            named = _own(paper, entry)
            for name in named:
                content = _read(inside, name, min(left, _LARGEST_PICTURE))
                if content is not None:
                    pictures[name] = content
                    left -= len(content)
            kept = [one for one in entry.pictures if one.name in named and one.name in pictures]
            entries.append(entry.model_copy(update={"pictures": kept}))
        papers.append(paper.model_copy(update={"entries": entries}))
    return results.model_copy(update={"papers": papers}), pictures


def _own(paper: PaperResults, entry: Finding) -> dict[str, None]:
    """Return the names of a table's pictures that are names of such pictures, in their order."""
    beginning = f"{paper.name}-{entry.id}-"
    named = [one.name for one in entry.pictures if one.name.startswith(beginning)]
    return dict.fromkeys(name for name in named if _KIND.fullmatch(name.removeprefix(beginning)))


def _read(folder: Path, name: str, most: int) -> bytes | None:
    """Return the file of a picture; None where it is no PNG file in the folder with at most so many bytes."""
    path = folder / FIGURES / f"{name}.png"
    try:
        if not path.resolve().is_relative_to(folder) or regular(path).stat().st_size > most:
            return None
        content = path.read_bytes()
    except OSError:
        return None
    return content if content.startswith(_PNG) else None
