"""Reads what others found, to be joined with what was found here: their ``results.json`` and pictures, from anyone."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fednlp.errors import ConfigError
from fednlp.formatting.units import plural
from fednlp.reports.document import Picture
from fednlp.reproduction.backed import with_backed_figures, with_runs_of
from fednlp.reproduction.changed import Expected, unchecked, with_same_data, with_same_settings
from fednlp.reproduction.jobs import Work
from fednlp.reproduction.known import known
from fednlp.reproduction.manifest import Paper
from fednlp.reproduction.naming import group_of, groups_of, partition_name
from fednlp.reproduction.parts import FoundPicture
from fednlp.reproduction.pictured import pictures_of
from fednlp.reproduction.pictures import draw_curves
from fednlp.reproduction.results import Results
from fednlp.reproduction.stored_pages import RESULTS, read_results, with_pictures


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


def read_joined(
    pages: Iterable[str],
    out: Path,
    papers: Iterable[Paper],
    expected: Expected,
    log: Callable[[str], None],
) -> list[Joined]:
    """Read folders of pages, each once; what cannot be joined is left out, and said so.

    Args:
        pages: The folders. One may have vanished, or lie where this reproduction lies now.
        out: The folder of this reproduction.
        papers: The papers that are shown.
        expected: What the runs have here.
        log: Takes what is to be said.

    Raises:
        DamagedError: A ``results.json`` that cannot be used.
    """
    record, own = out / "reproduction.json", (out / "page").resolve()
    places: dict[Path, None] = {}
    for page in map(Path, pages):
        if not (page / RESULTS).is_file():
            log(
                f"{page} has no {RESULTS} any more, so what it had is left out: give its new place with --join DIR, "
                f"and remove the old one from {record}"
            )
        elif page.resolve() == own:
            log(
                f"{page} is the folder of this reproduction now, so it is not joined: remove it from {record}, and "
                "give the place of the other one with --join DIR"
            )
        else:
            places[page.resolve()] = None
    remedy = (
        f"write it again there with fednlp reproduce --budget 0s, or leave it out of --join and of {record}"
    )
    by_name = {paper.name: paper for paper in papers}
    names, joined = {*expected.settings, *_partitions(by_name.values())}, []
    for page in places:
        of_these = with_runs_of(_of_these(read_results(page, remedy), by_name, page, log), names)
        backed = _with_backed_figures(of_these, by_name, page, log)
        of_same = _with_same_settings(backed, by_name, expected.settings, page, log)
        joined.append(Joined(*with_pictures(_with_same_data(of_same, by_name, expected, page, log), page)))
    return joined


def say_what_is_known(works: Sequence[Work], joined: Sequence[Joined], log: Callable[[str], None]) -> None:
    """Say how many runs need not be done, because others have them."""
    names = {job.name for work in works for job in work.every if not job.done}
    left = {job.name for work in works for job in work.left}
    if joined and names:
        log(
            f"{len(names - left)} of the {plural(len(names), 'run')} that are not done here are known from "
            f"{plural(len(joined), 'joined folder')}, and are not made"
        )


def reason_elsewhere(work: Work, joined: Sequence[Joined]) -> str:
    """Return why a table of which nothing was begun here was not finished by the other one who was to make it.

    It is empty where this says nothing of what is left: there is no other one, several have different reasons, fewer
    of the table's runs could be made there than here, or the table has got further methods, rows or columns since.
    """
    groups = groups_of(work.paper, work.entry)
    reasons = {
        finding.reason
        for results in (one.results for one in joined)
        if (finding := results.finding(*work.id))
        and groups <= set(map(group_of, finding.runs))
        and known(work.paper, work.entry, [results]).issuperset(results.finished(finding))
        and len(finding.runs) >= len(work.every)
    }
    return reasons.pop() if len(reasons) == 1 else ""


def shown_pictures(
    papers: Iterable[Paper],
    united: Results,
    here: Results,
    drawn: Mapping[str, Picture],
    joined: Sequence[Joined],
) -> dict[str, Picture]:
    """Return the pictures by name that joint pages show: drawn of joint points, drawn here, or those of another one.

    Args:
        papers: The papers that are shown.
        united: What was found here and by the others.
        here: What was found here.
        drawn: The pictures drawn here, without learning curves.
        joined: What the others found.
    """
    every = [here, *(one.results for one in joined)]
    shown: dict[str, Picture] = {}
    for paper, entry in ((of, entry) for of in papers for entry in of.entries):
        finding, own = (of.finding(paper.name, entry.id) for of in (united, here))
        if finding is None or own is None or not finding.pictures:
            continue
        pictured = pictures_of(paper, entry, every, finding.curves)
        curves = finding.curves if any(one.place is None for one in pictured) else own.curves
        ours = {**drawn, **{one.name: one for one in draw_curves(paper, entry, curves)}}
        for one in pictured:
            name = one.found.name
            shown[name] = _copied(one.found, joined[one.place - 1]) if one.place else ours[name]
    return shown


def _copied(found: FoundPicture, joined: Joined) -> Picture:
    """Return a picture as it lies in a joined folder."""
    from matplotlib.figure import Figure

    return Picture(found.name, found.caption, Figure(), png=joined.pictures[found.name])


def _partitions(papers: Iterable[Paper]) -> Iterator[str]:
    """Yield the names of the partitions of papers, with all their seeds."""
    for paper in papers:
        for made in (one for entry in paper.entries for one in entry.partitions.values()):
            yield from (partition_name(made, seed) for seed in range(made.seeds))


def _of_these(
    results: Results, papers: Mapping[str, Paper], page: Path, log: Callable[[str], None]
) -> Results:
    """Return results of these papers, without those that only have their name: title and source are others."""
    kept = {}
    for one in results.papers:
        paper = papers.get(one.name)
        if paper is None or one.name in kept:
            continue
        if one.title == paper.title or one.source == paper.source:
            kept[one.name] = one
    for name in sorted({one.name for one in results.papers} & papers.keys() - kept.keys()):
        log(
            f"{page}: its paper {name} has neither the title nor the source of the one here, so it is left out: "
            "if it is the same one, write the same title or source into both manifests"
        )
    return results.model_copy(update={"papers": list(kept.values())})


def _with_same_settings(
    results: Results,
    papers: Mapping[str, Paper],
    settings: Mapping[str, str],
    page: Path,
    log: Callable[[str], None],
) -> Results:
    """Return results without the runs that had other settings than here."""
    kept, other = with_same_settings(results, papers, settings)
    if other:
        log(
            f"{page}: {plural(len(other), 'run')} had other settings than here, by --set or by an experiment file that "
            f"was changed since, and what was found by them is left out: {_some(other)}"
        )
    return kept


def _with_same_data(
    results: Results,
    papers: Mapping[str, Paper],
    expected: Expected,
    page: Path,
    log: Callable[[str], None],
) -> Results:
    """Return results without the runs that were trained on other data than here, or than in an earlier folder."""
    kept, other = with_same_data(results, papers, expected, str(page))
    if unknown := unchecked(results, expected):
        log(
            f"{page}: the data of {plural(len(unknown), 'run')} are not recorded, so whether they are those of here "
            f"cannot be checked, and what was found by them is taken as it is: {_some(unknown)}"
        )
    if other:
        log(
            f"{page}: {plural(len(other), 'run')} had other data than the same experiment has here, or in a folder "
            f"that was joined before, and what was found by them is left out: {_some(other)}"
        )
    return kept


def _with_backed_figures(
    results: Results, papers: Mapping[str, Paper], page: Path, log: Callable[[str], None]
) -> Results:
    """Return results without the figures that are of no finished run of the cell they stand in."""
    kept, tables = with_backed_figures(results, papers)
    if tables:
        log(
            f"{page}: figures or pictures of {plural(len(tables), 'table')} are of other runs than the manifest has "
            f"here, or of runs that are not finished there, and are left out: {_some(tables)}"
        )
    return kept


def _some(names: Sequence[str]) -> str:
    """Return the first few of some names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
