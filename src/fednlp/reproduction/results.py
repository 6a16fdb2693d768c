"""What was found of papers' tables and figures, as data: ``results.json``, of which the pages are made."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from fednlp.reproduction.parts import (
    FoundClaim,
    FoundColumn,
    FoundCurve,
    FoundData,
    FoundPicture,
    FoundRow,
    FoundRun,
    Part,
    RunName,
)

State = Literal["made", "in part", "not made", "impossible"]


class Finding(Part):
    """A table or figure: what was published, and what was found.

    Attributes:
        id: As in the manifest.
        title: As in the paper.
        shows: What it shows.
        here: How it is made here.
        command: What makes it alone.
        state: Whether all, some or none of its runs are finished, or there is nothing to make.
        reason: Why it is not finished; empty where it is.
        runs: Names of its runs or partitions, also of those that were not begun.
        lacks: Those that were finished by others, of whom not every figure of the table is known.
        expected: Seconds that the manifest expects of all runs together.
        measured: Whether those were measured; otherwise they are an estimate.
        rows: Rows with the published figures.
        columns: Columns with the figures found.
        claims: The paper's claims.
        pictures: Pictures of what was found.
        data: The data of its finished runs or partitions.
        curves: The points of the curves of its finished runs, by name; where there are none, they are not known.
    """

    id: str
    title: str
    shows: str
    here: str
    command: str
    state: State
    reason: str
    runs: list[RunName]
    lacks: list[RunName] = Field(default_factory=list)
    expected: float
    measured: bool
    rows: list[FoundRow]
    columns: list[FoundColumn]
    claims: list[FoundClaim]
    pictures: list[FoundPicture]
    data: list[FoundData] = Field(default_factory=list)
    curves: dict[RunName, FoundCurve] = Field(default_factory=dict)

    @property
    def published(self) -> list[str]:
        """The columns of the paper's table, in the order of their first figures."""
        return list(dict.fromkeys(name for row in self.rows for name in row.published))

    @property
    def decided(self) -> list[FoundClaim]:
        """The claims of which figures tell if they hold."""
        return [claim for claim in self.claims if claim.verdict.decided]

    @property
    def undecided(self) -> list[FoundClaim]:
        """The claims whose figures differ by less than their uncertainty on one seed."""
        return [
            claim for claim in self.claims if claim.verdict.holds is not None and not claim.verdict.decided
        ]


class PaperResults(Part):
    """A paper and what was found of its tables and figures.

    Attributes:
        number: As on the command line; empty for a manifest of the user's.
        name: A word for it.
        title: The paper's title.
        source: Authors, year and address.
        command: What makes all of it.
        libraries: Versions of libraries that they used.
        entries: Tables and figures, in the paper's order.
    """

    number: Annotated[str, Field(pattern=r"^[0-9A-Za-z]*$", max_length=8)]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=80)]
    title: str
    source: str
    command: str
    libraries: list[str]
    entries: list[Finding]

    @property
    def stem(self) -> str:
        """The name of its page, without the ending."""
        return f"{self.number or 'paper'}-{self.name}"

    @property
    def runs(self) -> list[str]:
        """Names of the runs and partitions of its tables and figures, each once."""
        return list(dict.fromkeys(name for entry in self.entries for name in entry.runs))

    def entry(self, name: str) -> Finding | None:
        """Return what was found of a table or figure, by its id; None where nothing is said of it."""
        return next((one for one in self.entries if one.id == name), None)


@dataclass(frozen=True)
class Ran:
    """Runs and partitions that were begun, each once, and what follows from them."""

    runs: Sequence[FoundRun]

    @property
    def seconds(self) -> float:
        """What they took."""
        return round(math.fsum(run.seconds for run in self.runs), 1)

    @property
    def cpu_seconds(self) -> float | None:
        """CPU seconds of those that took time; None where those of one are not known."""
        taken = [run.cpu_seconds for run in self.runs if run.finished or run.seconds]
        known = [seconds for seconds in taken if seconds is not None]
        return round(math.fsum(known), 1) if known and len(known) == len(taken) else None

    @property
    def machines(self) -> dict[tuple[str, int], int]:
        """The number of finished runs by processor and number of cores."""
        return Counter((run.processor, run.cores) for run in self.runs if run.finished and run.processor)


class Results(Part):
    """``results.json``: all that the pages show but the drawn pictures.

    Attributes:
        runs: What was begun of the papers' runs and partitions, by name.
        papers: The papers.
    """

    runs: dict[RunName, FoundRun]
    papers: list[PaperResults]

    def paper(self, name: str) -> PaperResults | None:
        """Return what was found of a paper; None where nothing is said of it."""
        return next((one for one in self.papers if one.name == name), None)

    def finding(self, paper: str, entry: str) -> Finding | None:
        """Return what was found of a table or figure; None where nothing is said of it."""
        found = self.paper(paper)
        return None if found is None else found.entry(entry)

    def finished(self, finding: Finding) -> list[str]:
        """Return the finished runs of a table, without those of which it lacks a figure."""
        lacks = set(finding.lacks)
        names = [name for name in dict.fromkeys(finding.runs) if name in self.runs and name not in lacks]
        return [name for name in names if self.runs[name].finished]

    def ran(self, *parts: PaperResults | Finding) -> Ran:
        """Return those runs of papers or tables that were begun."""
        names = dict.fromkeys(name for part in parts for name in part.runs)
        return Ran([self.runs[name] for name in names if name in self.runs])

    def to_json(self) -> str:
        """Return it as JSON: what holds no further list or table stands on a line."""
        text = self.model_dump_json(indent=1)
        return re.sub(r"([\[{])\n([^][{}]*)\n\s*([\]}])", _on_a_line, text) + "\n"


def _on_a_line(found: re.Match[str]) -> str:
    return found[1] + " ".join(line.strip() for line in found[2].split("\n")) + found[3]
