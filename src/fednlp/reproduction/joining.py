"""Joins what several reproductions found of the same papers: figures by row, column and seed, runs by name."""

from collections.abc import Mapping, Sequence

from fednlp.reproduction.agreement import Values
from fednlp.reproduction.finding import found_claims, found_column, state_of
from fednlp.reproduction.known import known
from fednlp.reproduction.manifest import Column, Entry, Paper
from fednlp.reproduction.means import with_means
from fednlp.reproduction.naming import group_of, groups_of
from fednlp.reproduction.parts import FoundColumn, FoundRun
from fednlp.reproduction.pictured import joint_curves, pictures_of
from fednlp.reproduction.results import Finding, PaperResults, Results


def unite(papers: Mapping[str, Paper], here: Results, joined: Sequence[Results]) -> Results:
    """Return what was found here together with what others found.

    A figure of a row, column and seed is that of the first who has it: from here, or else of the first of the others.
    A run is that of the first who finished it, or else of the first who began it. What the manifests no longer have is
    left out. So nothing changes if the same is joined again, or what holds it already.

    Args:
        papers: The papers by name.
        here: What was found here of these papers. Its reasons say what neither was found here nor by the others.
        joined: What the others found.
    """
    every = [here, *joined]
    runs = _runs(papers, every)
    united = [_paper(papers[one.name], one, every, runs) for one in here.papers]
    names = dict.fromkeys(name for paper in united for name in paper.runs)
    return Results(runs={name: runs[name] for name in names if name in runs}, papers=united)


def _runs(papers: Mapping[str, Paper], every: Sequence[Results]) -> dict[str, FoundRun]:
    """Return the runs of the papers' tables by name: of each that of the first who finished it, or began it."""
    runs: dict[str, FoundRun] = {}
    for results in every:
        for name in (name for paper in papers if (found := results.paper(paper)) for name in found.runs):
            run = results.runs.get(name)
            if run and (name not in runs or run.finished > runs[name].finished):
                runs[name] = run
    return runs


def _paper(
    paper: Paper, own: PaperResults, every: Sequence[Results], runs: Mapping[str, FoundRun]
) -> PaperResults:
    entries = {entry.id: entry for entry in paper.entries}
    found = [one for results in every if (one := results.paper(paper.name))]
    united = [_finding(paper, entries[one.id], every, runs) for one in own.entries]
    changes = {
        "libraries": list(dict.fromkeys(text for one in found for text in one.libraries)),
        "entries": with_means(paper, united),
    }
    return own.model_copy(update=changes)


def _finding(paper: Paper, entry: Entry, every: Sequence[Results], runs: Mapping[str, FoundRun]) -> Finding:
    """Return what was found of a table or figure, here first."""
    here, *joined = every
    own, *others = findings = [one for results in every if (one := results.finding(paper.name, entry.id))]
    if not entry.by_runs:
        return own
    groups = groups_of(paper, entry)
    found = (name for one in findings for name in one.runs if group_of(name) in groups)
    names = list(dict.fromkeys(found))
    whole = {*here.finished(own), *known(paper, entry, joined)}
    left = [name for name in names if name not in whole]
    reason = own.reason or next((one.reason for one in others if left and one.reason), "")
    columns = [_column(paper, entry, column, findings) for column in entry.columns]
    curves = joint_curves(paper, entry, findings)
    pictures = [one.found for one in pictures_of(paper, entry, every, curves)]
    shown = bool(pictures) or any(one.figures for one in columns) or len(left) < len(names)
    changes = {
        "state": state_of(shown, not left and not reason),
        "reason": reason,
        "runs": names,
        "lacks": [name for name in left if name in runs and runs[name].finished],
        "columns": columns,
        "claims": found_claims(entry, columns),
        "pictures": pictures,
        "data": list(dict.fromkeys(data for one in findings for data in one.data)),
        "curves": curves,
    }
    return own.model_copy(update=changes)


def _column(paper: Paper, entry: Entry, column: Column, findings: Sequence[Finding]) -> FoundColumn:
    """Return the joint figures of a column.

    Of the errors of a row's figures the largest counts. Of each seed the first counts who has its figure, or found that
    it never reached a target.
    """
    as_now = column.name, column.measure or entry.measure
    found = [one for finding in findings for one in finding.columns if (one.name, one.measure) == as_now]
    figures: dict[str, Values] = {}
    errors: dict[str, float] = {}
    unreached: dict[str, list[int]] = {}
    for name in (row.name for row in entry.rows):
        joint: dict[int, float] = {}
        never: set[int] = set()
        for one in found:
            decided = {*joint, *never}
            new = {seed: value for seed, value in one.figures.get(name, {}).items() if seed not in decided}
            never |= {*one.unreached.get(name, [])} - joint.keys()
            joint |= new
            if new and name in one.errors:
                errors[name] = max(one.errors[name], errors.get(name, one.errors[name]))
        if joint:
            figures[name] = dict(sorted(joint.items()))
        if never:
            unreached[name] = sorted(never)
    return found_column(paper, entry, column, figures, errors, unreached)
