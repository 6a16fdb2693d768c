"""What was found, made up for tests: tables and pages with plain texts."""

from collections.abc import Mapping, Sequence
from typing import Any

from fednlp.reproduction.manifest import Entry
from fednlp.reproduction.parts import FoundColumn, FoundRow, FoundRun
from fednlp.reproduction.results import Finding, PaperResults, Results


def table_of(entry: Entry, runs: Sequence[str], columns: Sequence[FoundColumn], **changes: Any) -> Finding:
    """Return a table that was made, without claims and pictures but for what ``changes`` says."""
    plain = Finding(
        id=entry.id,
        title=entry.title,
        shows=entry.shows,
        here="",
        command="",
        state="made",
        reason="",
        runs=list(runs),
        expected=1.0,
        measured=True,
        rows=[FoundRow(name=row.name, published=row.published) for row in entry.rows],
        columns=list(columns),
        claims=[],
        pictures=[],
    )
    return plain.model_copy(update=changes)


def pages_of(name: str, tables: Sequence[Finding], runs: Mapping[str, FoundRun], **changes: Any) -> Results:
    """Return the results of one paper."""
    plain = PaperResults(
        number="", name=name, title="t", source="s", command="", libraries=[], entries=list(tables)
    )
    return Results(runs=dict(runs), papers=[plain.model_copy(update=changes)])
