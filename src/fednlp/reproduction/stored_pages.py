"""Reads a folder of pages: its ``results.json``, and the pictures that this names."""

from pathlib import Path

from pydantic import ValidationError

from fednlp.checked_json import damaged, first_problem
from fednlp.disk import regular
from fednlp.reproduction.results import Results

RESULTS, FIGURES = "results.json", "figures"
_PNG = b"\x89PNG\r\n\x1a\n"
_LARGEST = 16 << 20
_LARGEST_PICTURE = 8 << 20


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


def with_pictures(results: Results, folder: Path) -> tuple[Results, dict[str, bytes]]:
    """Return results without the pictures that cannot be shown, and the PNG files of the others by name."""
    pictures: dict[str, bytes] = {}
    papers = []
    for paper in results.papers:
        entries = []
        for entry in paper.entries:
            found = {one.name: content for one in entry.pictures if (content := _read(folder, one.name))}
            pictures |= found
            kept = [one for one in entry.pictures if one.name in found]
            entries.append(entry.model_copy(update={"pictures": kept}))
        papers.append(paper.model_copy(update={"entries": entries}))
    return results.model_copy(update={"papers": papers}), pictures


def _read(folder: Path, name: str) -> bytes | None:
    """Return the file of a picture; None where it is no PNG file of a bounded size in the folder."""
    path = folder / FIGURES / f"{name}.png"
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            return None
        content = path.read_bytes() if regular(path).stat().st_size <= _LARGEST_PICTURE else b""
    except OSError:
        return None
    return content if content.startswith(_PNG) else None
