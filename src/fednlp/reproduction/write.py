"""Writes the pages of a reproduction, their figures and ``results.json``."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from fednlp.checked_json import damaged, first_problem
from fednlp.disk import atomic, regular, writing
from fednlp.errors import RunError
from fednlp.reports.document import Picture
from fednlp.reports.html import to_html
from fednlp.reports.markdown import to_markdown
from fednlp.reports.style import png
from fednlp.reproduction.page import OVERVIEW, pages
from fednlp.reproduction.results import Results

RESULTS, FIGURES = "results.json", "figures"
_REMEDY = "choose another folder with --out"
_DPI = 100
_LARGEST = 16 << 20


def markdown_pages(results: Results) -> dict[str, str]:
    """Return the pages as Markdown by the names of their files; they depend on nothing but the results."""
    from matplotlib.figure import Figure

    found = [picture for paper in results.papers for entry in paper.entries for picture in entry.pictures]
    named = {one.name: Picture(one.name, one.caption, Figure()) for one in found}
    return {f"{stem}.md": to_markdown(document) for stem, document in pages(results, named).items()}


def write_pages(results: Results, drawn: Mapping[str, Picture], folder: Path) -> list[Path]:
    """Write the pages as Markdown and HTML, with their figures, in place of those of earlier calls.

    Args:
        results: What was found.
        drawn: Its pictures by name.
        folder: Where they are written.

    Returns:
        The overview, as Markdown and as HTML, and ``results.json``.

    Raises:
        RunError: The folder cannot be written.
    """
    texts = {f"{stem}.html": to_html(document) for stem, document in pages(results, drawn).items()}
    with writing(folder, _REMEDY):
        _remove(folder)
        _write_texts(folder, {RESULTS: results.to_json(), **markdown_pages(results), **texts})
        for name, picture in drawn.items():
            _save(picture, folder / FIGURES / f"{name}.png")
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
    results = read_results(source)
    texts = {RESULTS: results.to_json(), **markdown_pages(results)}
    with writing(target, "choose another folder"):
        if any(target.iterdir()) and not (target / RESULTS).is_file():
            raise RunError(
                f"{target} holds files but no {RESULTS}: choose a new folder, or one of earlier pages"
            )
        pictures = {path.name: path.read_bytes() for path in (source / FIGURES).glob("*.png")}
        _remove(target)
        _write_texts(target, texts)
        for name, content in pictures.items():
            (target / FIGURES / name).write_bytes(content)


def read_results(folder: Path, remedy: str = "write it again with fednlp reproduce --budget 0s") -> Results:
    """Return what the ``results.json`` of a folder of pages holds; it may come from anyone.

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


def _save(picture: Picture, path: Path) -> None:
    with atomic(path, _REMEDY) as file:
        file.write(picture.png or png(picture.figure, _DPI))


def _remove(folder: Path) -> None:
    """Remove the pages and figures of earlier calls."""
    for old in [*folder.glob("*.md"), *folder.glob("*.html"), *(folder / FIGURES).glob("*.png")]:
        old.unlink()


def _write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files, each as a whole: another reproduction may be joining them."""
    (folder / FIGURES).mkdir(exist_ok=True)
    for name, text in texts.items():
        with atomic(folder / name, _REMEDY) as file:
            file.write(text.encode())
