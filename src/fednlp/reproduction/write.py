"""Writes the pages of a reproduction, their figures and ``results.json``, and reads a folder of them."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from fednlp.checked_json import damaged, first_problem
from fednlp.disk import own_folder, regular, require_no_link, write, writing
from fednlp.errors import DamagedError, RunError
from fednlp.reports.document import Picture
from fednlp.reports.html import to_html
from fednlp.reports.markdown import to_markdown
from fednlp.reports.style import image
from fednlp.reproduction.page import OVERVIEW, pages
from fednlp.reproduction.results import Results

RESULTS, FIGURES = "results.json", "figures"
_REMEDY = "choose another folder with --out"
_DPI = 100
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


def markdown_pages(results: Results) -> dict[str, str]:
    """Return the pages as Markdown by the names of their files; they depend on nothing but the results."""
    from matplotlib.figure import Figure

    found = [picture for paper in results.papers for entry in paper.entries for picture in entry.pictures]
    named = {one.name: Picture(one.name, one.caption, Figure()) for one in found}
    return {f"{stem}.md": to_markdown(document) for stem, document in pages(results, named).items()}


def write_pages(results: Results, drawn: Mapping[str, Picture], folder: Path) -> list[Path]:
    """Write the pages as Markdown and HTML, with their figures, in place of those of earlier calls.

    Args:
        folder: Where they are written.

    Returns:
        The overview, as Markdown and as HTML, and ``results.json``.

    Raises:
        RunError: The folder cannot be written.
    """
    texts = {f"{stem}.html": to_html(document) for stem, document in pages(results, drawn).items()}
    require_no_link(folder / FIGURES)  # else figures would be written, or removed, elsewhere
    with writing(folder, _REMEDY):
        with suppress(DamagedError):  # there are none, or they are of an earlier version and are written over
            _remove(folder, read_results(folder))
        _write_texts(folder, {RESULTS: results.to_json(), **markdown_pages(results), **texts})
        for name, picture in drawn.items():
            write(folder / FIGURES / f"{name}.png", picture.png or image(picture.figure, dpi=_DPI), _REMEDY)
    return [folder / name for name in (f"{OVERVIEW}.md", f"{OVERVIEW}.html", RESULTS)]


def copy_pages(source: Path, target: Path) -> None:
    """Write the Markdown pages of a folder's ``results.json`` into another folder, or again into the same.

    Args:
        source: A folder with ``results.json`` and figures.
        target: Where they go in place of what earlier calls left there; without HTML.

    Raises:
        RunError: The folder has no ``results.json`` that can be used, or the other holds files of something else or
            cannot be written.
    """
    if not (source / RESULTS).exists():
        raise RunError(f"{source} has no {RESULTS}: give the folder of the pages, such as OUT/page")
    results, pictures = with_pictures(read_results(source), source)
    texts = {RESULTS: results.to_json(), **markdown_pages(results)}
    require_no_link(target / FIGURES)
    with writing(target, "choose another folder"):
        if any(target.iterdir()):
            _remove(target, _earlier(target))
        _write_texts(target, texts)
        for name, content in pictures.items():
            write(target / FIGURES / f"{name}.png", content, _REMEDY)


def _earlier(folder: Path) -> Results:
    """Return the results of the pages that lie in a folder with files.

    Raises:
        RunError: It has none, so that its files are something else.
    """
    try:
        return read_results(folder)
    except DamagedError:
        raise RunError(
            f"{folder} holds files but no {RESULTS} of fednlp reproduce: choose a new folder, or one of earlier pages"
        ) from None


def _remove(folder: Path, earlier: Results) -> None:
    """Remove the pages and figures of an earlier call, and no other file."""
    stems = [OVERVIEW, *(paper.stem for paper in earlier.papers)]
    pictures = [one.name for paper in earlier.papers for entry in paper.entries for one in entry.pictures]
    old = [folder / f"{stem}.{ending}" for stem in stems for ending in ("md", "html")]
    for path in [*old, *(folder / FIGURES / f"{name}.png" for name in pictures)]:
        path.unlink(missing_ok=True)


def _write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    own_folder(folder / FIGURES, _REMEDY)
    for name, text in texts.items():
        write(folder / name, text.encode(), _REMEDY)
