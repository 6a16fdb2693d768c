"""Which runs other reproductions have finished, as far as the figures in their ``results.json`` show it.

All tables of one ``results.json`` were found in the same runs. So a run with a figure in one table was finished, and a
cell of it that is empty in another table, such as the cost of a score that was never reached, stays empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fednlp.reproduction.agreement import Values
from fednlp.reproduction.manifest import Column, Entry, Paper, Row
from fednlp.reproduction.results import Finding, PaperResults, Results

Source = tuple[str, str, int]
"""A run: the key of the paper's runs, its method and seed. A partition: its row, no method, and 0."""


@dataclass(frozen=True)
class Known:
    """What others have of a table or figure.

    Attributes:
        sources: Its runs or partitions that they finished.
        whole: Whether one of them has made all of it.
    """

    sources: frozenset[Source] = frozenset()
    whole: bool = False

    def __contains__(self, source: Source) -> bool:
        return self.whole or source in self.sources

    def covers(self, paper: Paper, entry: Entry, part: str, most_seeds: int) -> bool:
        """Return whether nothing is left of the runs of a key, or of the partition of a row."""
        if self.whole or entry.partitions:
            return (part, "", 0) in self
        runs = paper.runs[part]
        found = [(key, method) for key, method, _ in self.sources]
        least = min(runs.seeds, most_seeds)
        return all(found.count((part, method)) >= least for method in (*runs.methods, *runs.baselines))


def known(paper: Paper, entry: Entry, joined: Sequence[Results], most_seeds: int = 100) -> Known:
    """Return what other reproductions have of a table or figure.

    Args:
        paper: The paper.
        entry: Its table or figure.
        joined: What the others found.
        most_seeds: At most so many seeds are wanted.
    """
    sources: set[Source] = set()
    whole = False
    for results in joined:
        found = results.paper(paper.name)
        finding = found.entry(entry.id) if found else None
        if found is None or finding is None:
            continue
        sources |= sources_of(paper, entry, found, finding)
        made = finding.state == "made" and finding.runs >= _number_of_runs(paper, entry, most_seeds)
        whole = whole or (made and not _lacking(entry, finding))
    return Known(frozenset(sources), whole)


def sources_of(paper: Paper, entry: Entry, found: PaperResults, finding: Finding) -> frozenset[Source]:
    """Return the runs or partitions of a table that were finished where it was found.

    A run does not count if the table has got a row or column of it since. Nor does it if a column measures it by the
    score of a method without finished runs there.

    Args:
        paper: The paper.
        entry: Its table or figure.
        found: What was found of the paper.
        finding: What was found of the table.
    """
    if entry.partitions:
        rows = [
            row.name
            for row in entry.rows
            for column in entry.columns
            if figures_in(entry, finding, row, column)
        ]
        return frozenset((row, "", 0) for row in rows)
    finished = {source for source in _finished(paper, found) if source[0] in entry.runs}
    groups = {source[:2] for source in finished}
    lacking = _lacking(entry, finding) | {
        entry.source_of(row, column)
        for row in entry.rows
        for column in entry.columns
        if (to := paper.target_of(entry, entry.source_of(row, column)[0], column)) and to not in groups
    }
    return frozenset(source for source in finished if source[:2] not in lacking)


def figures_in(entry: Entry, finding: Finding, row: Row, column: Column) -> Values:
    """Return the figures of a cell by seed; none where the column has got another measure since."""
    measure = column.measure or entry.measure
    there = [one for one in finding.columns if (one.name, one.measure) == (column.name, measure)]
    return there[0].figures.get(row.name, {}) if there else {}


def _lacking(entry: Entry, finding: Finding) -> set[tuple[str, str]]:
    """Return the runs, of all seeds, of cells that a table has got since it was found."""
    rows = {row.name for row in finding.rows}
    columns = {(column.name, column.measure) for column in finding.columns}
    return {
        entry.source_of(row, column)
        for row in entry.rows
        for column in entry.columns
        if row.name not in rows or (column.name, column.measure or entry.measure) not in columns
    }


def _finished(paper: Paper, found: PaperResults) -> set[Source]:
    """Return the runs that one of the paper's tables has a figure of."""
    entries = {entry.id: entry for entry in paper.entries if entry.runs}
    return {
        (*entry.source_of(row, column), seed)
        for finding in found.entries
        if (entry := entries.get(finding.id))
        for row in entry.rows
        for column in entry.columns
        for seed in figures_in(entry, finding, row, column)
    }


def _number_of_runs(paper: Paper, entry: Entry, most_seeds: int) -> int:
    """Return the number of runs of a table with all of its data, or of its partitions."""
    used = [paper.runs[key] for key in entry.runs]
    first = {runs.model_of for runs in used} - {"", *entry.runs}
    counts = [len([*one.methods, *one.baselines]) * min(one.seeds, most_seeds) for one in used]
    return len(entry.partitions) + len(first) + sum(counts)
