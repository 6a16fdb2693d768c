"""Makes the tables and figures of papers within a budget of time; what is done is kept, and a second call goes on."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from fednlp import config
from fednlp.errors import ConfigError
from fednlp.formatting.units import plural
from fednlp.reports.document import Picture
from fednlp.reproduction import folder
from fednlp.reproduction.catalogue import find_papers
from fednlp.reproduction.finding import Evidence, find_results
from fednlp.reproduction.jobs import Work
from fednlp.reproduction.joining import check_joined, page_folder, read_joined, shown_pictures, unite
from fednlp.reproduction.making import Making, Now
from fednlp.reproduction.manifest import Entry, Paper
from fednlp.reproduction.needs import needed_data
from fednlp.reproduction.outcomes import read_outcomes
from fednlp.reproduction.pictures import draw_pictures
from fednlp.reproduction.preparation import Preparation
from fednlp.reproduction.results import FoundPicture
from fednlp.reproduction.write import write_pages
from fednlp.simulation.callback import Callback, default_callback

_GROUPS: Mapping[str, Callable[[Entry], bool]] = {
    "tables": lambda entry: entry.id.startswith("table"),
    "figures": lambda entry: entry.id.startswith("figure"),
    "partitions": lambda entry: bool(entry.partitions),
}
"""Words of ``--only`` that stand for several entries."""


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        papers: Numbers or names of papers, or paths of manifests.
        only: Ids of entries, patterns of them, or ``tables``, ``figures``, ``partitions``; empty for all.
        data: Folders of data sets by name; those of earlier calls are remembered.
        overrides: Settings over those of the manifests, ``"a.b=c"``.
        most_seeds: At most so many seeds.
        join: Folders of other reproductions, or of their pages, whose figures are joined with those found here;
            those of earlier calls are remembered.
        jobs: How many runs are done at once.
    """

    papers: Sequence[str]
    only: Sequence[str] = ()
    data: Mapping[str, Path] = field(default_factory=dict)
    overrides: Sequence[str] = ()
    most_seeds: int = 100
    join: Sequence[Path] = ()
    jobs: int = 1


def reproduce(
    request: Request, budget: float, out: Path, callback: Callback | None = None, now: Now = time.monotonic
) -> list[Path]:
    """Make tables and figures of papers, as many as fit into a budget, and write the pages about them.

    First seeds come before second ones, and cheap tables before dear ones. Nothing is begun that is not expected to end
    within the budget, and a run that goes beyond it is stopped after a round and can go on in the next call.

    Args:
        budget: Seconds; 0 to write the pages alone.
        out: The folder; a second call goes on there.
        callback: Reports progress; by default as for :func:`fednlp.run`.
        now: The clock, in seconds.

    Returns:
        The overview, as Markdown and as HTML, and its data as JSON.

    Raises:
        FednlpError: An unknown paper, entry or data set, a folder with other files, or a joined folder that cannot be
            used. What goes wrong in one run, or is damaged there, is written to the page, and the others are made.
    """
    names = [str(Path(name).resolve()) if name.endswith(".toml") else name for name in request.papers]
    wanted = find_papers(names)
    check(list(wanted.values()), request)
    check_joined(request.join, out)
    callback = callback or default_callback()
    end = now() + budget
    with folder.opened(out) as record:
        record.remember(names, request.data, [page for one in request.join if (page := page_folder(one))])
        shown = find_papers(_that_are_left(record.papers))
        preparation = Preparation(out, record.data, request.overrides, request.most_seeds)
        settings = preparation.settings(shown.values() if record.join else [])
        found, stored = read_joined(record.join, out, settings, callback.log)
        works = [
            preparation.prepare(paper, entry, found) for paper in shown.values() for entry in paper.entries
        ]
        folder.write(out, record)
        ids = {(paper.name, name) for paper in wanted.values() for name in _asked(paper, request.only)}
        asked = [work for work in works if work.id in ids]
        for work in asked:
            if work.wrong:
                callback.log(f"{work.entry.id} cannot be made: {work.reason}")
        _say_what_is_known(asked, callback.log)
        making = Making(asked, out, record, callback, end, now, request.jobs)
        try:
            making.make()
        finally:
            evidence, drawn = _gather(works, making, record, callback.log)
            here = find_results(shown, works, evidence)
            united = unite({paper.name: paper for paper in shown.values()}, here, found)
            pictures = shown_pictures(shown.values(), united, here, drawn, stored)
            pages = write_pages(united, pictures, out / "page")
    return pages


def check(papers: Sequence[Paper], request: Request) -> None:
    """Check that what is asked for exists.

    Raises:
        ConfigError: An entry or a data set that no paper has, a folder or an experiment that does not exist, or no
            seed.
    """
    if request.jobs < 1:
        raise ConfigError(f"--jobs {request.jobs}: at least 1 is needed")
    if request.most_seeds < 1:
        raise ConfigError(f"--seeds {request.most_seeds}: at least 1 is needed")
    entries = [entry for paper in papers for entry in paper.entries]
    for name in request.only:
        if not any(is_asked(entry, [name]) for entry in entries):
            ids = dict.fromkeys(entry.id for entry in entries)
            raise ConfigError(f"--only {name}: choose from {', '.join(_GROUPS)}, {', '.join(ids)}")
    for paper in papers:
        asked = _asked(paper, request.only)
        keys = {key for entry in paper.entries if entry.id in asked for key in paper.runs_of(entry)}
        for key in sorted(keys):
            if not paper.runs[key].data:  # else it may lack the path of its data
                config.load(paper.experiment_of(key), paper.runs[key].set)
    known = sorted(
        {name for paper in papers for entry in paper.entries for name in needed_data(paper, entry)}
    )
    for name, place in request.data.items():
        if name not in known:
            raise ConfigError(
                f"--data {name}: choose from {', '.join(known) or 'nothing: no data are needed'}"
            )
        if not place.is_dir():
            raise ConfigError(f"--data {name}={place}: there is no such folder")


def is_asked(entry: Entry, only: Sequence[str]) -> bool:
    """Return whether words of ``--only`` speak of an entry; no words speak of all."""
    return not only or any(
        _GROUPS[name](entry) if name in _GROUPS else fnmatchcase(entry.id, name) for name in only
    )


def _asked(paper: Paper, only: Sequence[str]) -> set[str]:
    """Return the ids of a paper's entries that are asked for; with a mean, those that it is of."""
    entries = [entry for entry in paper.entries if is_asked(entry, only)]
    return {name for entry in entries for name in (entry.id, *entry.mean_of)}


def _that_are_left(names: Sequence[str]) -> list[str]:
    """Return the papers of earlier calls without manifests that have been removed."""
    return [name for name in names if not name.endswith(".toml") or Path(name).is_file()]


def _say_what_is_known(works: Sequence[Work], log: Callable[[str], None]) -> None:
    """Say how many runs need not be made, because joined folders have them."""
    names = {job.name for work in works for job in work.every if not job.done}
    left = {job.name for work in works for job in work.left}
    if names - left:
        log(
            f"{len(names - left)} of the {plural(len(names), 'run')} that are not done here are known, and not made"
        )


def _gather(
    works: Sequence[Work],
    making: Making,
    record: folder.Record,
    log: Callable[[str], None],
) -> tuple[Evidence, dict[str, Picture]]:
    """Return what is known of the jobs, and the pictures but curves, by name, that are drawn of what they left."""
    said = set(making.failed)
    outcomes = read_outcomes((job for work in works for job in work.every), making.failed)
    for name in making.failed.keys() - said:
        log(making.failed[name])
    drawn = {work.id: list(draw_pictures(work, outcomes)) for work in works}
    found = {
        entry: [FoundPicture(name=one.name, caption=one.caption) for one in pictures]
        for entry, pictures in drawn.items()
    }
    evidence = Evidence(outcomes, record, making.reasons(works), found)
    return evidence, {one.name: one for pictures in drawn.values() for one in pictures}
