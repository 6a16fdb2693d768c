"""Finds the results of papers' tables and figures in what their jobs left."""

import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fednlp.reports.read import Run
from fednlp.reproduction.agreement import LARGEST, Claim, Values, Verdict, centre, judge, measured, spearman
from fednlp.reproduction.curves import charts_of, found_curves
from fednlp.reproduction.folder import Record
from fednlp.reproduction.jobs import Job, Work
from fednlp.reproduction.manifest import Column, Entry, Paper
from fednlp.reproduction.measures import cells, errors, unreached
from fednlp.reproduction.naming import cells_of
from fednlp.reproduction.needs import expected_minutes, needed_data
from fednlp.reproduction.outcomes import Outcomes, used_data
from fednlp.reproduction.results import (
    Finding,
    FoundBounds,
    FoundClaim,
    FoundColumn,
    FoundPicture,
    FoundRow,
    FoundRun,
    PaperResults,
    Results,
    State,
)
from fednlp.studies.same_data import digest_of

_LIBRARIES = ("fednlp", "torch", "transformers", "numpy", "python")


@dataclass(frozen=True)
class Evidence:
    """What is known of the jobs of a folder.

    Attributes:
        reasons: Why unfinished tables and figures are unfinished, by paper and id.
        pictures: Pictures of tables and figures but those of curves, by paper and id.
    """

    outcomes: Outcomes
    record: Record
    reasons: Mapping[tuple[str, str], str]
    pictures: Mapping[tuple[str, str], Sequence[FoundPicture]]

    def run(self, job: Job) -> FoundRun:
        """Return what is known of a begun job; a run that none of the recorded calls did is taken at its own word."""
        run = self.outcomes.runs.get(job.name)
        where = run.environment if run else {}
        cores = where.get("cpu_count")
        made = self.outcomes.partitions.get(job.name)
        return FoundRun(
            finished=job in self.outcomes,
            seconds=round(self.record.seconds.get(job.name, run.total("seconds") if run else 0.0), 2),
            cpu_seconds=self.record.cpu_seconds.get(job.name),
            processor=" + ".join(str(where[key]) for key in ("processor", "gpu") if where.get(key)),
            cores=cores if isinstance(cores, int) else 0,
            settings=job.settings,
            data=digest_of(run.folder) if run else made.content if made else "",
        )


def find_results(papers: Mapping[str, Paper], works: Sequence[Work], evidence: Evidence) -> Results:
    """Return what was found.

    Args:
        papers: Papers by their words on the command line.
        evidence: What is known of the jobs.
    """
    return Results(
        runs={
            job.label: evidence.run(job)
            for job in _jobs(works)
            if job in evidence.outcomes or job.name in evidence.record.seconds
        },
        papers=[
            _paper(word, paper, [work for work in works if work.paper.name == paper.name], evidence)
            for word, paper in papers.items()
        ],
    )


def _paper(word: str, paper: Paper, works: Sequence[Work], evidence: Evidence) -> PaperResults:
    jobs = _jobs(works)
    runs = [run for job in jobs if (run := evidence.outcomes.runs.get(job.name))]
    data = [name for work in works for name in needed_data(paper, work.entry)]
    return PaperResults(
        number=paper.number,
        name=paper.name,
        title=paper.title,
        source=paper.source,
        command=_command(word, [], data),
        libraries=_libraries(runs),
        entries=[_finding(word, work, evidence) for work in works],
    )


def _jobs(works: Sequence[Work]) -> list[Job]:
    """Return the jobs of tables and figures, each once."""
    return list({job.name: job for work in works for job in work.every}.values())


def _finding(word: str, work: Work, evidence: Evidence) -> Finding:
    entry = work.entry
    columns = list(_columns(work, evidence.outcomes))
    jobs = _jobs([work])
    done = evidence.outcomes.runs
    curves = found_curves(work.paper, entry, {job.label: done[job.name] for job in jobs if job.name in done})
    drawn = [picture for picture, _ in charts_of(work.paper, entry, curves)]
    finished = sum(job in evidence.outcomes for job in jobs)
    reason = evidence.reasons.get(work.id, "")
    minutes, measured = expected_minutes(work.paper, [entry])
    return Finding(
        id=entry.id,
        title=entry.title,
        shows=entry.shows,
        here=entry.here,
        command=""
        if entry.impossible
        else entry.benchmark or _command(word, [entry.id], needed_data(work.paper, entry)),
        state="impossible"
        if entry.impossible
        else state_of(finished > 0 or bool(entry.benchmark), finished == len(jobs) and not reason),
        reason=reason,
        runs=[job.label for job in jobs],
        expected=60 * minutes,
        measured=measured,
        rows=[FoundRow(name=row.name, published=row.published) for row in entry.rows],
        columns=columns,
        claims=found_claims(entry, columns),
        pictures=[*drawn, *evidence.pictures.get(work.id, [])],
        data=used_data(work, evidence.outcomes),
        curves=curves,
    )


def _columns(work: Work, outcomes: Outcomes) -> Iterator[FoundColumn]:
    """Yield the columns of a table with what its jobs left, or what its benchmark measured."""
    paper, entry = work.paper, work.entry
    for column in entry.columns:
        if entry.benchmark:
            once = {row.name: {0: row.found[column.name]} for row in entry.rows if column.name in row.found}
            yield found_column(paper, entry, column, once, {})
        else:
            figures, uncertain = cells(work, outcomes, column), errors(work, outcomes, column)
            yield found_column(paper, entry, column, figures, uncertain, unreached(work, outcomes, column))


def found_claims(entry: Entry, columns: Sequence[FoundColumn]) -> list[FoundClaim]:
    """Return the claims of a table with what its found columns say of them."""
    return [
        FoundClaim(
            says=claim.says,
            verdict=verdict(claim, columns),
            tried=claim.tried,
            bounds=found_bounds(claim, columns),
        )
        for claim in entry.claims
    ]


def state_of(shown: bool, finished: bool) -> State:
    """Return the state of a table that can be made.

    Args:
        shown: Some of it is there.
    """
    if not shown:
        return "not made"
    return "made" if finished else "in part"


def found_column(
    paper: Paper,
    entry: Entry,
    column: Column,
    figures: Mapping[str, Values],
    uncertain: Mapping[str, float],
    never: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> FoundColumn:
    """Return a column with Spearman's correlation with what was published.

    Args:
        never: By row, the seeds that never reached the column's target.
    """
    found = _with_never(figures, never)
    rows = [row for row in entry.rows if row.name in found and row.published.keys() & set(column.against)]
    shared = [name for name in column.against if all(name in row.published for row in rows)]
    pairs = []
    for row in rows:
        known = [row.published[name] for name in shared or column.against if name in row.published]
        pairs.append((centre(list(found[row.name].values())), statistics.fmean(known)))
    rank = spearman([a for a, _ in pairs], [b for _, b in pairs])
    return FoundColumn(
        name=column.name,
        measure=column.measure or entry.measure,
        figures={name: dict(values) for name, values in figures.items()},
        spearman=rank,
        ranked=0 if rank is None else len(pairs),
        errors={name: round(error, 4) for name, error in uncertain.items()},
        unreached={name: sorted(seeds) for name, seeds in never.items()},
        cells=cells_of(paper, entry, column),
    )


def verdict(claim: Claim, columns: Sequence[FoundColumn]) -> Verdict:
    """Return what columns say of a claim; of the first, where it names none."""
    column = _column_of(claim, columns)
    if column is None:
        return Verdict(None)
    return judge(claim, _with_never(column.figures, column.unreached), column.errors)


def found_bounds(claim: Claim, columns: Sequence[FoundColumn]) -> FoundBounds | None:
    """Return the bounds of a claim and what columns have that they are for; None of a claim without bounds."""
    column = _column_of(claim, columns)
    found = measured(claim, _with_never(column.figures, column.unreached)) if column else None
    rows = claim.rows[0], claim.rows[1]
    match claim.kind:
        case "ratio":
            least, most = claim.at_least or None, claim.at_most
            at_most = most if 0 < most <= LARGEST else None
            return FoundBounds(of="ratio", rows=rows, at_least=least, at_most=at_most, found=found)
        case "close":
            return FoundBounds(of="close", rows=rows, at_most=claim.within, found=found)
        case _:
            return None


def _column_of(claim: Claim, columns: Sequence[FoundColumn]) -> FoundColumn | None:
    """Return the column that a claim is about: the first, where it names none."""
    named = claim.column or (columns[0].name if columns else "")
    return next((column for column in columns if column.name == named), None)


def _with_never(figures: Mapping[str, Values], never: Mapping[str, Sequence[int]]) -> dict[str, Values]:
    """Return the figures of a column by row, infinite for the seeds that never reached its target."""
    return {
        name: dict.fromkeys(never.get(name, ()), math.inf) | dict(figures.get(name, {}))
        for name in figures.keys() | never.keys()
    }


def _command(word: str, only: Sequence[str], data: Sequence[str]) -> str:
    flags = [f" --only {one}" for one in only] + [f" --data {name}=DIR" for name in dict.fromkeys(data)]
    return f"fednlp reproduce {shlex.quote(word)}{''.join(flags)}"


def _libraries(runs: Sequence[Run]) -> list[str]:
    """Return the versions of libraries, each set of them once."""
    found = (
        ", ".join(f"{name} {run.environment[name]}" for name in _LIBRARIES if run.environment.get(name))
        for run in runs
    )
    return [text for text in dict.fromkeys(found) if text]
