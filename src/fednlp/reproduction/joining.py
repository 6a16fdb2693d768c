"""Joins the parts of a reproduction that others made, from their pages; fills in tables that are means of others."""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fednlp.errors import ConfigError
from fednlp.formatting.units import plural
from fednlp.reports.document import Picture
from fednlp.reproduction.agreement import Values
from fednlp.reproduction.curves import charts_of, fitting, groups_of_curves, is_of_curves
from fednlp.reproduction.finding import found_claims, found_column, state_of
from fednlp.reproduction.manifest import TO_TARGET, Column, Entry, Paper, Row
from fednlp.reproduction.naming import (
    cells_of,
    group_of,
    group_of_cell,
    group_of_target,
    groups_of,
    name_of,
    name_of_cell,
    seed_of,
)
from fednlp.reproduction.pictures import draw_curves
from fednlp.reproduction.results import (
    Finding,
    FoundColumn,
    FoundCurve,
    FoundPicture,
    FoundRun,
    PaperResults,
    Results,
)
from fednlp.reproduction.write import RESULTS, read_results, with_pictures


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
    pages: Iterable[str], out: Path, settings: Mapping[str, str], log: Callable[[str], None]
) -> tuple[list[Results], dict[str, bytes]]:
    """Return the results of folders of pages and their pictures by name, each of the first folder that has it.

    Args:
        pages: The folders.
        out: The folder of this reproduction.
        settings: Digests of the settings here by name of the run; a run of others is left out.
        log: Takes what is to be said.

    Raises:
        DamagedError: A ``results.json`` that cannot be used.
    """
    remedy = (
        "write it again there with fednlp reproduce --budget 0s, or leave it out of --join and of "
        f"{out / 'reproduction.json'}"
    )
    joined: list[Results] = []
    pictures: dict[str, bytes] = {}
    for page in dict.fromkeys(map(Path, pages)):
        results, found = with_pictures(read_results(page, remedy), page)
        other = {
            name
            for name, run in results.runs.items()
            if run.settings and settings.get(name, run.settings) != run.settings
        }
        if other:
            log(f"{page}: {plural(len(other), 'run')} had other settings than here and are left out")
        joined.append(_without(results, other))
        pictures = {**found, **pictures}
    return joined, pictures


def _without(results: Results, other: set[str]) -> Results:
    """Return results without some runs, and without the pictures of their tables."""
    papers = []
    for paper in results.papers:
        entries = [
            one.model_copy(update={"pictures": []}) if other.intersection(one.runs) else one
            for one in paper.entries
        ]
        papers.append(paper.model_copy(update={"entries": entries}))
    runs = {name: run for name, run in results.runs.items() if name not in other}
    return Results(runs=runs, papers=papers)


def known(paper: Paper, entry: Entry, joined: Sequence[Results]) -> frozenset[str]:
    """Return the names of a table's runs or partitions that need not be made: joined results have their figures."""
    return frozenset(
        name
        for results in joined
        if (finding := results.finding(paper.name, entry.id))
        for name in _whole(paper, entry, finding, results.finished(finding))
    )


def _whole(paper: Paper, entry: Entry, finding: Finding, finished: Sequence[str]) -> list[str]:
    """Return those of the finished runs of which the table has every row and column, and a figure."""
    columns = {(one.name, one.measure): one for one in finding.columns}
    rows, groups = {row.name for row in finding.rows}, {"", *map(group_of, finished)}
    lacking: set[str] = set()
    shown: dict[str, bool] = {}
    for column in entry.columns:
        found, cells = (
            columns.get((column.name, column.measure or entry.measure)),
            cells_of(paper, entry, column),
        )
        for row in entry.rows:
            here = cells.get(row.name)
            if (
                row.name not in rows
                or found is None
                or found.cells.get(row.name, here) != here
                or group_of_target(paper, entry, row, column) not in groups
            ):
                lacking.add(group_of_cell(paper, entry, row, column))
            elif found.measure not in TO_TARGET:  # a run may never reach a target
                for name in finished:
                    if name_of_cell(paper, entry, row, column, seed_of(name)) == name:
                        figures = found.figures.get(row.name, {})
                        shown[name] = shown.get(name, False) or seed_of(name) in figures
    whole = groups_of(paper, entry) - lacking
    return [name for name in finished if group_of(name) in whole and shown.get(name, True)]


def unite(papers: Mapping[str, Paper], here: Results, joined: Sequence[Results]) -> Results:
    """Return what was found here together with joined results.

    A figure of a row, column and seed is that made here, or else of the first of the others that has it. A run is that
    of the first that finished it, or else of the first that began it. So nothing changes if the same is joined again.

    Args:
        here: What was found here of these papers.
    """
    every = [here, *joined]
    runs: dict[str, FoundRun] = {}
    for results in every:
        for name in (name for paper in papers if (one := results.paper(paper)) for name in one.runs):
            run = results.runs.get(name)
            if run and (name not in runs or run.finished > runs[name].finished):
                runs[name] = run
    united = [_paper(papers[one.name], one, every, runs) for one in here.papers]
    names = dict.fromkeys(name for paper in united for name in paper.runs)
    return Results(runs={name: runs[name] for name in names if name in runs}, papers=united)


def _paper(
    paper: Paper, own: PaperResults, every: Sequence[Results], runs: Mapping[str, FoundRun]
) -> PaperResults:
    entries = {entry.id: entry for entry in paper.entries}
    found = [one for results in every if (one := results.paper(paper.name))]
    united = [_finding(paper, entries[one.id], every, runs) for one in own.entries]
    changes = {
        "libraries": list(dict.fromkeys(text for one in found for text in one.libraries)),
        "entries": _with_means(paper, united),
    }
    return own.model_copy(update=changes)


def _finding(paper: Paper, entry: Entry, every: Sequence[Results], runs: Mapping[str, FoundRun]) -> Finding:
    found = [(one, results) for results in every if (one := results.finding(paper.name, entry.id))]
    own, here = found[0]
    if not entry.by_runs:
        return own
    groups = groups_of(paper, entry)
    names = list(dict.fromkeys(name for one, _ in found for name in one.runs if group_of(name) in groups))
    whole = {*here.finished(own), *known(paper, entry, every[1:])}
    left = [name for name in names if name not in whole]
    columns = [_column(paper, entry, column, found) for column in entry.columns]
    curves = {
        name: curve
        for one, results in reversed(found)
        for name, curve in one.curves.items()
        if name in results.runs and results.runs[name].finished
    }
    curves = fitting(paper, entry, {name: curves[name] for name in names if name in curves})
    pictures = _pictures(paper, entry, [one for one, _ in found], whole, curves)
    shown = bool(pictures) or any(one.figures for one in columns) or len(left) < len(names)
    changes = {
        "state": state_of(shown, not left and not own.reason),
        "runs": names,
        "lacks": [name for name in left if name in runs and runs[name].finished],
        "columns": columns,
        "claims": found_claims(entry, columns),
        "pictures": pictures,
        "data": list(dict.fromkeys(data for one, _ in found for data in one.data)),
        "curves": curves,
    }
    return own.model_copy(update=changes)


def _pictures(
    paper: Paper,
    entry: Entry,
    findings: Sequence[Finding],
    names: Iterable[str],
    curves: Mapping[str, FoundCurve],
) -> list[FoundPicture]:
    """Return the pictures of a table: learning curves first.

    Curves are drawn of the joint points. Where those of a finished run are not known, pages of an earlier version have
    pictures without points, and these stay. Other pictures are those made here, or else of the first that has any.
    """
    drawn = [one for one, _ in charts_of(paper, entry, curves)]
    groups = groups_of_curves(paper, entry)
    if any(group_of(name) in groups and name not in curves for name in names):
        drawn = _first(findings[1:], is_of_curves) or drawn
    return drawn + _first(findings, lambda name: not is_of_curves(name))


def _first(findings: Sequence[Finding], kind: Callable[[str], bool]) -> list[FoundPicture]:
    """Return the pictures of a kind of the first that has any."""
    kinds = ([one for one in finding.pictures if kind(one.name)] for finding in findings)
    return next((found for found in kinds if found), [])


def _column(
    paper: Paper, entry: Entry, column: Column, found: Sequence[tuple[Finding, Results]]
) -> FoundColumn:
    """Return the joint figures of a column.

    Of the errors of a row's figures the largest counts. Of each seed the first counts that has its figure, or found
    that it never reached a target.
    """
    cells = cells_of(paper, entry, column)
    figures: dict[str, Values] = {}
    errors: dict[str, float] = {}
    unreached: dict[str, list[int]] = {}
    for row in entry.rows:
        joint: dict[int, float] = {}
        never: set[int] = set()
        for finding, results in found:
            for one in finding.columns:
                here = cells.get(row.name)
                same = one.cells.get(row.name, here) == here
                if not same or (one.name, one.measure) != (column.name, column.measure or entry.measure):
                    continue
                new = {
                    seed: value
                    for seed, value in one.figures.get(row.name, {}).items()
                    if seed not in joint.keys() | never and _is_of(paper, entry, row, column, seed, results)
                }
                never |= {
                    seed
                    for seed in one.unreached.get(row.name, [])
                    if seed not in joint and _is_of(paper, entry, row, column, seed, results)
                }
                joint |= new
                if new and row.name in one.errors:
                    errors[row.name] = max(one.errors[row.name], errors.get(row.name, 0.0))
        if joint:
            figures[row.name] = dict(sorted(joint.items()))
        if never:
            unreached[row.name] = sorted(never)
    return found_column(paper, entry, column, figures, errors, unreached)


def _is_of(paper: Paper, entry: Entry, row: Row, column: Column, seed: int, results: Results) -> bool:
    """Return whether results have finished the run of a figure, and the one that it is measured by."""
    target = group_of_target(paper, entry, row, column)
    names = [name_of_cell(paper, entry, row, column, seed), *([name_of(target, seed)] if target else [])]
    return all(name in results.runs and results.runs[name].finished for name in names)


def _with_means(paper: Paper, findings: Sequence[Finding]) -> list[Finding]:
    """Return what was found of a paper's tables, with the figures of those that are means over others.

    Args:
        findings: Of all of its tables, as they are joined.
    """
    found = {one.id: one for one in findings}
    means = {entry.id: entry for entry in paper.entries if entry.mean_of}
    return [_mean(paper, means[one.id], one, found) if one.id in means else one for one in findings]


def _mean(paper: Paper, entry: Entry, own: Finding, found: Mapping[str, Finding]) -> Finding:
    """Return a table whose columns are means of other tables' first columns."""
    parts = {column.name: [found[name] for name in column.mean_of] for column in entry.columns}
    columns = [_mean_column(paper, entry, column, parts[column.name]) for column in entry.columns]
    reasons = (
        why for one in columns for why in _reasons(entry, parts[one.name], {*one.figures, *one.unreached})
    )
    reason = "; ".join(dict.fromkeys(reasons))
    groups, every = _groups_of_mean(paper, entry), [found[name] for name in entry.mean_of]
    changes = {
        "state": state_of(any(one.figures or one.unreached for one in columns), not reason),
        "reason": reason,
        "runs": _of_groups(groups, (name for part in every for name in part.runs)),
        "lacks": _of_groups(groups, (name for part in every for name in part.lacks)),
        "columns": columns,
        "claims": found_claims(entry, columns),
    }
    return own.model_copy(update=changes)


def _mean_column(paper: Paper, entry: Entry, column: Column, parts: Sequence[Finding]) -> FoundColumn:
    """Return the mean of some tables' first columns, by row and by those seeds that all of the tables have.

    A seed that never reached the target in one of the tables has no mean, as it never reached that of all.
    """
    figures: dict[str, Values] = {}
    errors: dict[str, float] = {}
    unreached: dict[str, list[int]] = {}
    for name in (row.name for row in entry.rows):
        never = {seed for part in parts for seed in part.columns[0].unreached.get(name, [])}
        shared = set.intersection(*(_seeds(part, name) for part in parts))
        seeds = sorted(shared - never)
        if shared & never:
            unreached[name] = sorted(shared & never)
        if seeds:
            every = [part.columns[0].figures[name] for part in parts]
            figures[name] = {seed: statistics.fmean(one[seed] for one in every) for seed in seeds}
        known = [error for part in parts if (error := part.columns[0].errors.get(name)) is not None]
        if seeds and len(known) == len(parts):
            errors[name] = math.hypot(*known) / len(known)
    return found_column(paper, entry, column, figures, errors, unreached)


def _groups_of_mean(paper: Paper, entry: Entry) -> set[str]:
    """Return the groups of the runs of a mean's rows in the tables that it is of."""
    names = {row.name for row in entry.rows}
    parts = [one for one in paper.entries if one.id in entry.mean_of]
    return {
        group_of_cell(paper, part, row, part.columns[0])
        for part in parts
        for row in part.rows
        if row.name in names
    }


def _of_groups(groups: Collection[str], names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for name in names if group_of(name) in groups))


def _reasons(entry: Entry, parts: Sequence[Finding], having: Collection[str]) -> Iterator[str]:
    """Yield why rows have no mean, together where the same tables lack them, and which tables have fewer seeds."""
    rows: dict[str, list[str]] = {}
    for name in (row.name for row in entry.rows if row.name not in having):
        lacking = [part.title for part in parts if not _seeds(part, name)]
        why = f"no figure in {'; '.join(lacking)}" if lacking else "no seed that all tables have"
        rows.setdefault(why, []).append(name)
    yield from (f"{'; '.join(names)}: {why}" for why, names in rows.items())
    fewer = [
        part.title for part in parts if any(_seeds(part, name) < _every_seed(parts, name) for name in having)
    ]
    if fewer:
        yield f"fewer seeds in {'; '.join(fewer)}"


def _seeds(part: Finding, row: str) -> set[int]:
    """Return the seeds of a row that have a figure, or never reached the target."""
    column = part.columns[0]
    return {*column.figures.get(row, {}), *column.unreached.get(row, [])}


def _every_seed(parts: Sequence[Finding], row: str) -> set[int]:
    return set().union(*(_seeds(part, row) for part in parts))


def shown_pictures(
    papers: Iterable[Paper],
    united: Results,
    here: Results,
    drawn: Mapping[str, Picture],
    joined: Mapping[str, bytes],
) -> dict[str, Picture]:
    """Return the pictures by name that joint pages show: drawn of joint points, drawn here, or as they were joined.

    Args:
        papers: The papers that are shown.
        united: What was found here and in the joined folders.
        drawn: The pictures drawn here, without learning curves.
        joined: PNG files by name.
    """
    from matplotlib.figure import Figure

    shown: dict[str, Picture] = {}
    for paper, entry in ((of, entry) for of in papers for entry in of.entries):
        finding, own = (of.finding(paper.name, entry.id) for of in (united, here))
        if finding is None or own is None or not finding.pictures:
            continue
        charts = {(one.name, one.caption): one for one in draw_curves(paper, entry, finding.curves)}
        of_points = [one for one, _ in charts_of(paper, entry, finding.curves)]
        for one in finding.pictures:
            if one in of_points:
                shown[one.name] = charts[one.name, one.caption]
            elif one in own.pictures and one.name in drawn:
                shown[one.name] = drawn[one.name]
            else:
                shown[one.name] = Picture(one.name, one.caption, Figure(), png=joined[one.name])
    return shown
