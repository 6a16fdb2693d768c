"""What tests of reproductions share: manifests, data and a callback; and what was found, made up with plain texts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fednlp.reproduction.manifest import Entry
from fednlp.reproduction.results import Finding, FoundColumn, FoundRow, FoundRun, PaperResults, Results
from fednlp.simulation.callback import NullCallback


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


def manifest_in(folder: Path, runs: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> Path:
    """Write the manifest of a paper ``mine`` and return its path."""
    named = [{"title": entry["id"].capitalize(), "shows": "things", **entry} for entry in entries]
    paper = {"name": "mine", "title": "t", "source": "somebody", "runs": runs, "entry": named}
    path = folder / "mine.toml"
    path.write_text(tomli_w.dumps(paper))
    return path


def agnews_in(folder: Path) -> Path:
    """Write made-up files of AG News and return their folder."""
    folder.mkdir()
    for name, count in (("train", 40), ("test", 8)):
        rows = [f'"{number % 4 + 1}","title {number}","text {number}"' for number in range(count)]
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    return folder


class Said(NullCallback):
    """A callback that keeps what is logged, and counts the rounds."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.rounds = 0

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Count a round."""
        self.rounds += 1

    def log(self, text: str) -> None:
        """Keep a line."""
        self.lines.append(text)
