"""Joins what several reproductions found of the same papers: figures by row, column and seed, and all that follows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fednlp.reproduction.agreement import Claim, Values, Verdict
from fednlp.reproduction.finding import found_column, verdict
from fednlp.reproduction.known import figures_in, sources_of
from fednlp.reproduction.manifest import Column, Entry, Paper
from fednlp.reproduction.results import (
    LONGEST,
    MOST,
    Finding,
    FoundClaim,
    FoundColumn,
    Machine,
    PaperResults,
    Results,
    State,
)


def unite(papers: Mapping[str, Paper], here: Results, joined: Sequence[Results]) -> Results:
    """Return what was found here together with what others found.

    A figure of a row, column and seed is that of the first who has it: from here, or else of the first of the others.
    Time and machines are added, so a run that two did counts twice. What the manifests no longer have is left out.

    Args:
        papers: The papers by name.
        here: What was found here of these papers. The runs of its tables are all that are known of, and its reasons say
            what neither was found here nor by the others.
        joined: What the others found.
    """
    united = [_paper(papers[one.name], [one, *_papers_named(one.name, joined)]) for one in here.papers]
    return Results(seconds=_sum([here.seconds, *(_seconds(papers, one) for one in joined)]), papers=united)


def shown_of(findings: Sequence[Finding]) -> int:
    """Return the place of the one whose pictures are shown: it has pictures of the most finished runs."""
    counts = [one.finished if one.pictures else -1 for one in findings]
    return counts.index(max(counts))


def finding_of(results: Results, paper: str, entry: str) -> Finding | None:
    """Return what was found of a table or figure; None where nothing is said of it."""
    found = results.paper(paper)
    return None if found is None else found.entry(entry)


def _papers_named(name: str, joined: Sequence[Results]) -> list[PaperResults]:
    """Return what each of the others found of a paper, one result each."""
    return [found for results in joined if (found := results.paper(name))]


def _seconds(papers: Mapping[str, Paper], results: Results) -> float:
    """Return the time of the runs of the papers that are shown; of some papers, runs that they share count for each."""
    shown = [one.seconds for one in results.papers if one.name in papers]
    return min(results.seconds, sum(shown)) if len(shown) < len(results.papers) else results.seconds


def _paper(paper: Paper, found: Sequence[PaperResults]) -> PaperResults:
    """Return what was found of a paper, here first."""
    entries = {entry.id: entry for entry in paper.entries}
    here = found[0]
    counts: dict[tuple[str, int], int] = {}
    for machine in (machine for one in found for machine in one.machines):
        of = machine.processor, machine.cores
        counts[of] = min(counts.get(of, 0) + machine.runs, MOST)
    changes = {
        "seconds": _sum(one.seconds for one in found),
        "machines": [
            Machine(processor=name, cores=cores, runs=runs) for (name, cores), runs in counts.items()
        ],
        "libraries": list(dict.fromkeys(text for one in found for text in one.libraries)),
        "entries": [_finding(paper, entries[one.id], found) for one in here.entries],
    }
    return here.model_copy(update=changes)


def _finding(paper: Paper, entry: Entry, found: Sequence[PaperResults]) -> Finding:
    """Return what was found of a table or figure, here first."""
    own = [(one, finding) for one in found if (finding := one.entry(entry.id))]
    findings = [finding for _, finding in own]
    here, others = findings[0], findings[1:]
    if entry.impossible or not others:
        return here
    sources = [sources_of(paper, entry, one, finding) for one, finding in own]
    every = frozenset().union(*sources)
    runs = max(finding.runs for finding in findings)
    finished = max(one.finished + len(every - known) for one, known in zip(findings, sources, strict=True))
    finished = min(finished, runs)
    left = [one.reason for one in others if finished < runs and one.reason]
    reason = here.reason or next(iter(left), "")
    columns = [_column(entry, column, findings) for column in entry.columns]
    changes = {
        "state": _state(finished, reason),
        "reason": reason,
        "runs": runs,
        "finished": finished if reason or not finished else runs,
        "seconds": _sum(one.seconds for one in findings),
        "cpu_seconds": _cpu_seconds(findings),
        "columns": columns,
        "claims": [
            FoundClaim(says=claim.says, verdict=_verdict(claim, columns, findings), tried=claim.tried)
            for claim in entry.claims
        ],
        "pictures": findings[shown_of(findings)].pictures,
        "data": list(dict.fromkeys(data for one in findings for data in one.data)),
    }
    return here.model_copy(update=changes)


def _state(finished: int, reason: str) -> State:
    if not finished:
        return "not made"
    return "in part" if reason else "made"


def _cpu_seconds(findings: Sequence[Finding]) -> float | None:
    """Return the CPU time of those that took time; None where that of one is not known."""
    known = [one.cpu_seconds for one in findings if one.seconds or one.cpu_seconds]
    seconds = [one for one in known if one is not None]
    return _sum(seconds) if known and len(seconds) == len(known) else None


def _sum(seconds: Iterable[float]) -> float:
    return min(round(sum(seconds), 1), LONGEST)


def _column(entry: Entry, column: Column, findings: Sequence[Finding]) -> FoundColumn:
    """Return the joint figures of a column; of the errors of a row's figures the largest counts."""
    figures: dict[str, Values] = {}
    errors: dict[str, float] = {}
    for row in entry.rows:
        joint: dict[int, float] = {}
        for one in findings:
            new = {
                seed: value
                for seed, value in figures_in(entry, one, row, column).items()
                if seed not in joint
            }
            joint |= new
            error = next((c.errors.get(row.name) for c in one.columns if c.name == column.name), None)
            if new and error is not None:
                errors[row.name] = max(error, errors.get(row.name, error))
        if joint:
            figures[row.name] = dict(sorted(joint.items()))
    return found_column(entry, column, figures, errors)


def _verdict(claim: Claim, columns: Sequence[FoundColumn], findings: Sequence[Finding]) -> Verdict:
    """Return what the joint figures say of a claim.

    Where they are all from one, and what holds is what it stated, its own verdict stands. It may have known errors of
    the figures that it does not state by row.
    """
    judged = verdict(claim, columns)
    for stated in _stated(claim, columns, findings):
        if (stated.holds, stated.seeds) == (judged.holds, judged.seeds):
            return stated
    return judged


def _stated(claim: Claim, columns: Sequence[FoundColumn], findings: Sequence[Finding]) -> Iterator[Verdict]:
    """Yield the verdicts of those who have the joint figures of the claim's rows."""
    name = claim.column or (columns[0].name if columns else "")
    joint = next((one.figures for one in columns if one.name == name), {})
    for finding in findings:
        own = next((one.figures for one in finding.columns if one.name == name), {})
        if all(own.get(row) == joint.get(row) for row in claim.rows):
            yield from (one.verdict for one in finding.claims if one.says == claim.says)
