"""The page of a reproduction: each table and figure beside the published figures, and what agrees."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fednlp.disk import writing
from fednlp.formatting.units import DASH, human_seconds, plural
from fednlp.reports.document import Block, Document, Grid, Picture, ReportSection, Text
from fednlp.reports.html import to_html
from fednlp.reports.markdown import save_figures, to_markdown
from fednlp.reproduction.agreement import Verdict, judge, spearman
from fednlp.reproduction.jobs import Work, expected_minutes
from fednlp.reproduction.manifest import Column
from fednlp.reproduction.measures import Cells, cells, finished_runs, text_of
from fednlp.reproduction.pictures import curve_pictures, partition_pictures

_LEAD = (
    "Each table and figure at laptop size beside the published one. Models, data and rounds are smaller than the "
    "papers', so figures differ; what can agree is their direction. Figures found are means over seeds ± half of "
    "the 95 % interval, where there are several seeds."
)


@dataclass(frozen=True)
class Finding:
    """What was found of a table or figure.

    Attributes:
        work: The entry and its jobs.
        reason: Why it is not finished; empty where it is.
        cells: Figures found, by column, row and seed.
        verdicts: One for each claim.
        ranks: Spearman's correlation with the published figures by column, and of how many rows.
    """

    work: Work
    reason: str
    cells: Cells
    verdicts: Sequence[Verdict]
    ranks: Mapping[str, tuple[float, int]]

    @property
    def state(self) -> str:
        """``made``, ``begun`` or ``not made``."""
        done = [job.done for job in self.work.every]
        return "not made" if not any(done) else "made" if all(done) else "begun"


def find(work: Work, reason: str) -> Finding:
    """Return what an entry's finished jobs say."""
    found = cells(work)
    columns = work.entry.columns
    verdicts = []
    for claim in work.entry.claims:
        column = claim.column or (columns[0].name if columns else "")
        verdicts.append(judge(claim, found.get(column, {})))
    ranks = {column.name: rank for column in columns if (rank := _rank(work, column, found[column.name]))}
    return Finding(work, reason, found, verdicts, ranks)


def _rank(work: Work, column: Column, rows: Mapping[str, Mapping[int, float]]) -> tuple[float, int] | None:
    """Return Spearman's correlation of a column with what was published, and the number of rows."""
    pairs = []
    for row in work.entry.rows:
        known = [row.published[name] for name in column.against if name in row.published]
        if known and rows.get(row.name):
            pairs.append((statistics.fmean(rows[row.name].values()), statistics.fmean(known)))
    value = spearman([a for a, _ in pairs], [b for _, b in pairs])
    return None if value is None else (value, len(pairs))


def write_page(works: Sequence[Work], reasons: Mapping[tuple[str, str], str], out: Path) -> list[Path]:
    """Write the page as Markdown, HTML and JSON, with its figures.

    Args:
        works: Entries and their jobs, in the order of the page.
        reasons: Why unfinished ones are unfinished.
        out: The folder.

    Raises:
        RunError: A run directory is damaged, or the folder cannot be written.
    """
    findings = [find(work, reasons.get(work.id, "")) for work in works]
    document = _document(findings)
    text, html = to_markdown(document), to_html(document, out)
    pages = {"index.md": text, "index.html": html, "results.json": json.dumps(_values(findings), indent=1)}
    with writing(out, "choose another folder with --out"):
        for name, content in pages.items():
            (out / name).write_text(content, encoding="utf-8")
        save_figures(document, out / "figures")
    return [out / name for name in pages]


def _document(findings: Sequence[Finding]) -> Document:
    made = [finding for finding in findings if finding.state != "not made"]
    verdicts = [verdict for finding in findings for verdict in finding.verdicts]
    decided = [verdict for verdict in verdicts if verdict.holds is not None]
    tiles = [
        ("tables and figures", str(len(findings))),
        ("made", str(sum(finding.state == "made" for finding in findings))),
        ("claims that agree", f"{sum(bool(verdict.holds) for verdict in decided)} of {len(decided)}"),
        ("claims not decided", str(len(verdicts) - len(decided))),
    ]
    papers = list(dict.fromkeys(finding.work.paper.source for finding in findings))
    sections = [
        ReportSection("Papers", [Text(source) for source in papers]),
        ReportSection("Overview", [_overview(findings)]),
        *(ReportSection(_title(finding), list(_blocks(finding))) for finding in made),
        ReportSection("Not finished", [_unfinished(findings)]),
    ]
    return Document("Reproduction", _LEAD, "", tiles, sections)


def _name(finding: Finding) -> str:
    paper = finding.work.paper
    return f"{paper.number or paper.name} {finding.work.entry.title}"


def _title(finding: Finding) -> str:
    return f"{_name(finding)}: {finding.work.entry.shows}"


def _overview(findings: Sequence[Finding]) -> Grid:
    rows = [
        [_name(finding), finding.work.entry.shows, finding.state, _agreeing(finding), _ranks(finding)]
        for finding in findings
    ]
    return Grid(
        ["Table or figure", "Shows", "State", "Claims that agree", "Rank correlation"], rows, words=True
    )


def _agreeing(finding: Finding) -> str:
    decided = [verdict for verdict in finding.verdicts if verdict.holds is not None]
    return f"{sum(bool(verdict.holds) for verdict in decided)} of {len(decided)}" if decided else DASH


def _ranks(finding: Finding) -> str:
    return ", ".join(f"{value:.2f}" for value, _ in finding.ranks.values()) or DASH


def _unfinished(findings: Sequence[Finding]) -> Grid:
    rows = []
    for finding in findings:
        if finding.reason:
            minutes, measured = expected_minutes(finding.work.paper, finding.work.entry)
            how = "measured" if measured else "estimated"
            expected = f"{human_seconds(60 * minutes)} ({how})" if minutes else DASH
            rows.append([_name(finding), finding.work.entry.shows, finding.reason, expected])
    return Grid(["Table or figure", "Shows", "Why", "Time of all of it"], rows, words=True)


def _blocks(finding: Finding) -> Iterator[Block]:
    entry = finding.work.entry
    if entry.here:
        yield Text(f"Here: {entry.here}")
    if finding.reason:
        yield Text(f"Not finished: {finding.reason}.")
    if entry.rows:
        yield _table(finding)
    if entry.claims:
        verdicts = zip(entry.claims, finding.verdicts, strict=True)
        rows = [[claim.says, verdict.text] for claim, verdict in verdicts]
        yield Grid(["Claim of the paper", "Found here"], rows, words=True)
    yield from _pictures(finding.work)


def _pictures(work: Work) -> Iterator[Picture]:
    yield from partition_pictures(work)
    if work.entry.curves:
        yield from curve_pictures(work, finished_runs(work))


def _table(finding: Finding) -> Grid:
    """Return the rows with the published figures first, then those found."""
    entry = finding.work.entry
    published = entry.published_columns
    heads = ["", *(f"{name} (paper)" for name in published), *(f"{c.name} (here)" for c in entry.columns)]
    rows = []
    for row in entry.rows:
        paper = [f"{row.published[name]:,.10g}" if name in row.published else DASH for name in published]
        rows.append([row.name, *paper, *(_cell(finding, column, row.name) for column in entry.columns)])
    seeds = max((len(v) for rows in finding.cells.values() for v in rows.values()), default=0)
    notes = [f"{plural(seeds, 'seed')} here."] if seeds and not entry.partitions else []
    for name, (value, number) in finding.ranks.items():
        notes.append(f"{name}: Spearman's rank correlation with the paper over {number} rows is {value:.2f}.")
    return Grid(heads, rows, notes)


def _cell(finding: Finding, column: Column, row: str) -> str:
    values = finding.cells[column.name].get(row)
    return text_of(column.measure or finding.work.entry.measure, values) if values else DASH


def _values(findings: Sequence[Finding]) -> list[dict[str, object]]:
    """Return the findings as JSON values; what is unknown is None."""
    return [
        {
            "paper": finding.work.paper.name,
            "id": finding.work.entry.id,
            "state": finding.state,
            "reason": finding.reason,
            "found": finding.cells,
            "published": {row.name: row.published for row in finding.work.entry.rows},
            "claims": [
                {"says": claim.says, "holds": verdict.holds, "clear": verdict.clear}
                for claim, verdict in zip(finding.work.entry.claims, finding.verdicts, strict=True)
            ],
            "spearman": {name: value for name, (value, _) in finding.ranks.items()},
        }
        for finding in findings
    ]
