"""Makes the tables and figures of papers within a budget of time; what is done is kept, and a second call goes on."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fednlp.errors import ConfigError, FednlpError
from fednlp.formatting.units import human_seconds, plural
from fednlp.reproduction import folder
from fednlp.reproduction.budget import Step, choose
from fednlp.reproduction.jobs import Job, Work, needed_data, prepare
from fednlp.reproduction.manifest import Entry, Paper, find_papers
from fednlp.reproduction.page import write_page
from fednlp.simulation.callback import Callback, default_callback
from fednlp.simulation.run_dir import RunDir

Now = Callable[[], float]

_NOT_ASKED = "not asked for"
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
        data: Folders of data sets by name.
        overrides: Settings over those of the manifests, ``"a.b=c"``.
        most_seeds: At most so many seeds.
    """

    papers: Sequence[str]
    only: Sequence[str] = ()
    data: Mapping[str, Path] = field(default_factory=dict)
    overrides: Sequence[str] = ()
    most_seeds: int = 100


class _BudgetSpent(Exception):
    """The budget ended within a run, after a round that is saved."""


class _Deadline:
    """A callback that ends a run after the first saved round past a point in time; other calls go on to another."""

    def __init__(self, callback: Callback, end: float, now: Now) -> None:
        self._to, self._end, self._now = callback, end, now
        self.log, self.started, self.on_progress = callback.log, callback.started, callback.on_progress

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Pass on a round; end the run where the time is over and rounds are left."""
        self._to.on_round(line, left)
        if self._now() > self._end and left:
            raise _BudgetSpent

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Pass on the end of a run."""
        self._to.finished(run, summary)


def reproduce(
    request: Request, budget: float, out: Path, callback: Callback | None = None, now: Now = time.monotonic
) -> list[Path]:
    """Make tables and figures of papers, as many as fit into a budget, and write the page about them.

    First seeds come before second ones, and cheap tables before dear ones. Nothing is begun that is not expected to end
    within the budget, and a run that goes beyond it is stopped after a round and can go on in the next call.

    Args:
        request: What is asked for.
        budget: Seconds.
        out: The folder; a second call goes on there.
        callback: Reports progress; by default as for :func:`fednlp.run`.
        now: The clock, in seconds.

    Returns:
        The files of the page.

    Raises:
        FednlpError: An unknown paper, entry or data set, or a folder with other files. What goes wrong in one run is
            written to the page, and the others are made.
    """
    papers = find_papers(list(request.papers))
    check(papers, request)
    callback = callback or default_callback()
    end = now() + budget
    with folder.opened(out) as record:
        record.remember(request.papers)
        shown = find_papers(_that_are_left(record.papers))
        works = [_prepare(paper, entry, out, request) for paper in shown for entry in paper.entries]
        folder.write(out, record)
        asked = [work for work in works if is_asked(work, papers, request.only)]
        reasons = {work.id: _NOT_ASKED for work in works if work not in asked}
        failed: dict[str, str] = {}
        try:
            _make(asked, end, out, record, callback, failed, now)
        finally:
            factor = _slowness(asked, record)
            reasons |= {work.id: why for work in asked if (why := _reason(work, factor, failed))}
            pages = write_page(works, reasons, out)
    return pages


def check(papers: Sequence[Paper], request: Request) -> None:
    """Check that what is asked for exists.

    Raises:
        ConfigError: An entry or a data set that no paper has, a folder that does not exist, or no seed.
    """
    if request.most_seeds < 1:
        raise ConfigError(f"--seeds {request.most_seeds}: at least 1 is needed")
    entries = [entry for paper in papers for entry in paper.entries]
    for name in request.only:
        if not any(fits(entry, name) for entry in entries):
            ids = dict.fromkeys(entry.id for entry in entries)
            raise ConfigError(f"--only {name}: choose from {', '.join(_GROUPS)}, {', '.join(ids)}")
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


def is_asked(work: Work, papers: Sequence[Paper], only: Sequence[str]) -> bool:
    """Return whether an entry is asked for."""
    if work.paper.name not in [paper.name for paper in papers]:
        return False
    return not only or any(fits(work.entry, name) for name in only)


def fits(entry: Entry, name: str) -> bool:
    """Return whether a word of ``--only`` speaks of an entry."""
    return _GROUPS[name](entry) if name in _GROUPS else fnmatchcase(entry.id, name)


def _that_are_left(names: Sequence[str]) -> list[str]:
    """Return the papers of earlier calls without manifests that have been removed."""
    return [name for name in names if not name.endswith(".toml") or Path(name).is_file()]


def _prepare(paper: Paper, entry: Entry, out: Path, request: Request) -> Work:
    data = {name: place.resolve() for name, place in request.data.items()}
    return prepare(paper, entry, out, data, list(request.overrides), request.most_seeds)


def _make(
    works: Sequence[Work],
    end: float,
    out: Path,
    record: folder.Record,
    callback: Callback,
    failed: dict[str, str],
    now: Now,
) -> None:
    """Carry out job after job while one fits."""
    jobs = {job.name: job for work in works for job in work.every}
    lasts = True
    while lasts:
        left = end - now()
        chosen = choose(_steps(works, _slowness(works, record), failed), left)
        if not chosen:
            return
        job = jobs[chosen[0].jobs[0][0]]
        ahead = sum(dict(pair for step in chosen for pair in step.jobs).values())
        done = sum(one.done for one in jobs.values())
        callback.log(
            f"{done} of {plural(len(jobs), 'run')} done; next {job.name}; what fits takes about "
            f"{human_seconds(ahead)} of the {human_seconds(left)} left"
        )
        lasts = _carry_out(job, end, out, record, callback, failed, now)


def _slowness(works: Sequence[Work], record: folder.Record) -> dict[str, float]:
    """Return how many times longer than expected the finished jobs of each kind took."""
    jobs = {job.name: job for work in works for job in work.every}
    return {
        kind: folder.slowness(
            record, {job.name: job.expected for job in jobs.values() if job.done and job.kind == kind}
        )
        for kind in {job.kind for job in jobs.values()}
    }


def _carry_out(
    job: Job,
    end: float,
    out: Path,
    record: folder.Record,
    callback: Callback,
    failed: dict[str, str],
    now: Now,
) -> bool:
    """Do one job, and write down why it failed, if it did; return whether the budget lasted for it."""
    begun = now()
    try:
        job.carry_out(_Deadline(callback, end, now))
    except _BudgetSpent:
        callback.log(f"{job.name} goes on in the next call: the budget is spent")
        return False
    except FednlpError as error:
        failed[job.name] = " ".join(str(error).split())
        callback.log(f"{job.name} failed: {failed[job.name]}")
    finally:
        record.spend(job.name, now() - begun)
        folder.write(out, record)
    return True


def _steps(works: Sequence[Work], factor: Mapping[str, float], failed: Mapping[str, str]) -> list[Step]:
    """Return the unfinished steps of all entries whose jobs did not fail."""
    found = []
    for work in works:
        for seed in sorted({job.seed for job in work.every}):
            todo = [job for job in (*work.before, *_of_seed(work, seed)) if not job.done]
            if todo and not any(job.name in failed for job in todo):
                costs = {job.name: factor[job.kind] * job.expected * job.left for job in todo}
                found.append(Step(work.id, seed, tuple(costs.items())))
    return found


def _of_seed(work: Work, seed: int) -> list[Job]:
    return [job for job in work.every if job.seed == seed and job not in work.before]


def _reason(work: Work, factor: Mapping[str, float], failed: Mapping[str, str]) -> str:
    """Return why an entry is not finished; nothing where it is."""
    if work.reason:
        return work.reason
    todo = [job for job in work.every if not job.done]
    broken = [failed[job.name] for job in todo if job.name in failed]
    if broken:
        return f"failed: {broken[0]}"
    if not todo:
        return ""
    needed = sum(factor[job.kind] * job.expected * job.left for job in todo)
    return f"the call ended before it was done; about {human_seconds(needed)} of runs are left"
