"""Reads what others found, to be joined with what was found here: their ``results.json`` and pictures, from anyone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fednlp.disk import regular
from fednlp.errors import ConfigError
from fednlp.formatting.units import plural
from fednlp.reports.document import Picture
from fednlp.reproduction.jobs import Work
from fednlp.reproduction.joining import finding_of, shown_of
from fednlp.reproduction.results import Results
from fednlp.reproduction.write import FIGURES, RESULTS, read_results

_PNG = b"\x89PNG\r\n\x1a\n"
_LARGEST_PICTURE = 8 << 20


@dataclass(frozen=True)
class Joined:
    """What others found.

    Attributes:
        results: Without the pictures whose files are missing.
        pictures: PNG files by name.
    """

    results: Results
    pictures: Mapping[str, bytes]


def page_folder(folder: Path) -> Path | None:
    """Return the folder of the pages that a folder has or is, as an absolute path; None where there are none."""
    return next((one.resolve() for one in (folder, folder / "page") if (one / RESULTS).is_file()), None)


def check_joined(folders: Iterable[Path], out: Path) -> None:
    """Check that folders are those of other reproductions.

    Raises:
        ConfigError: One holds no pages, or is the folder of this reproduction.
    """
    for folder in folders:
        page = page_folder(folder)
        if page is None:
            raise ConfigError(
                f"--join {folder}: there is no {RESULTS} in it or in its page/: give the folder of another "
                "fednlp reproduce, or that of its pages"
            )
        if page == (out / "page").resolve():
            raise ConfigError(f"--join {folder} is the folder of this reproduction: give that of another one")


def read_joined(pages: Iterable[str], record: Path, log: Callable[[str], None]) -> list[Joined]:
    """Read folders of pages; one that has vanished is left out, and said so.

    Args:
        pages: The folders.
        record: The file that remembers them.
        log: Takes what is to be said.

    Raises:
        DamagedError: A ``results.json`` that cannot be used.
    """
    joined = []
    for page in map(Path, pages):
        if page_folder(page) == page:
            joined.append(_read(page))
        else:
            log(
                f"{page} has no {RESULTS} any more, so what it had is left out: give its new place with --join DIR, "
                f"and remove the old one from {record}"
            )
    return joined


def say_what_is_known(works: Sequence[Work], joined: Sequence[Joined], log: Callable[[str], None]) -> None:
    """Say how many runs need not be done, because others have them."""
    names = {job.name for work in works for job in work.every if not job.done}
    left = {job.name for work in works for job in work.left}
    if joined:
        log(
            f"{len(names - left)} of the {plural(len(names), 'run')} that are not done here are known from "
            f"{plural(len(joined), 'joined folder')}, and are not made"
        )


def reason_elsewhere(work: Work, joined: Sequence[Joined]) -> str:
    """Return why a table of which nothing was begun here was not finished by the other one who was to make it.

    It is empty where this says nothing of what is left: there is no other one, there are several, or fewer of the
    table's runs could be made there than here.
    """
    every = [finding_of(one.results, *work.id) for one in joined]
    others = [finding for finding in every if finding is not None]
    return others[0].reason if len(others) == 1 and others[0].runs >= len(work.every) else ""


def shown_pictures(
    here: Results, drawn: Mapping[str, Picture], joined: Sequence[Joined]
) -> dict[str, Picture]:
    """Return the pictures by name that joint pages show of each table: those drawn here, or those of one of the others.

    Args:
        here: What was found here.
        drawn: The pictures drawn here.
        joined: What the others found.
    """
    from matplotlib.figure import Figure

    shown: dict[str, Picture] = {}
    for paper in here.papers:
        for entry in [one for one in paper.entries if one.state != "impossible"]:
            others = [(one, finding_of(one.results, paper.name, entry.id)) for one in joined]
            theirs = [(one.pictures, finding) for one, finding in others if finding is not None]
            place = shown_of([entry, *(finding for _, finding in theirs)])
            if place == 0:
                shown |= {one.name: drawn[one.name] for one in entry.pictures}
                continue
            files, finding = theirs[place - 1]
            for one in finding.pictures:
                shown.setdefault(one.name, Picture(one.name, one.caption, Figure(), png=files[one.name]))
    return shown


def _read(page: Path) -> Joined:
    results = read_results(page)
    pictures: dict[str, bytes] = {}
    papers = []
    for paper in results.papers:
        entries = []
        for entry in paper.entries:
            there = [one for one in entry.pictures if _read_picture(page, one.name, pictures)]
            entries.append(entry.model_copy(update={"pictures": there}))
        papers.append(paper.model_copy(update={"entries": entries}))
    return Joined(results.model_copy(update={"papers": papers}), pictures)


def _read_picture(page: Path, name: str, pictures: dict[str, bytes]) -> bool:
    """Add the file of a picture to others; return whether it is there and a PNG of a bounded size."""
    path = page / FIGURES / f"{name}.png"
    try:
        if name not in pictures and regular(path).stat().st_size <= _LARGEST_PICTURE:
            content = path.read_bytes()
            if content.startswith(_PNG):
                pictures[name] = content
    except OSError:
        return False
    return name in pictures
