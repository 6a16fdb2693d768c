"""What was found of papers' tables and figures, as data: ``results.json``, of which the pages are made."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fednlp.reproduction.agreement import LARGEST, Bounded, Verdict
from fednlp.reproduction.manifest import Curves, Measure

Count = Annotated[int, Field(ge=0, le=2**53)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Figure = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Spent = Annotated[float, Field(ge=0, le=LARGEST)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]
RunName = Annotated[str, Field(min_length=1, max_length=5000)]
"""As :mod:`fednlp.reproduction.naming` has it."""
MOST_POINTS = 1000
"""Points of a curve at most."""
LONGEST_NAME = 200
"""Characters of a curve's metric, and of its data set's name, at most."""


class Part(BaseModel):
    """Data that may come from anyone."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class FoundRun(Part):
    """A run or partition that was begun.

    Attributes:
        cpu_seconds: CPU seconds of its processes; None where they are not known.
        processor: Of the machine of a finished run; empty for others and for partitions. A GPU that trained stands
            behind a plus sign.
        settings: A digest of what decides its result; empty where it is not known, and for partitions.
        data: A digest of the content of its data; empty where it is not known.
    """

    finished: bool
    seconds: Seconds
    cpu_seconds: Seconds | None = None
    processor: str = ""
    cores: Count = 0
    settings: Annotated[str, Field(pattern=r"^([0-9a-f]{8})?$")] = ""
    data: Annotated[str, Field(pattern=r"^([0-9a-f]{8})?$")] = ""


class FoundColumn(Part):
    """A column of found figures.

    Attributes:
        spearman: Spearman's correlation with the published figures; None where there is none.
        ranked: Number of rows that it is of.
        errors: By row, the standard error of its accuracies on their test set, in points; without other figures.
        unreached: By row, the seeds whose run is finished and never reached the target; without other figures.
        cells: By row, a digest of what the figures are of (:func:`fednlp.reproduction.naming.cells_of`); empty of a
            mean, and where it is not known.
    """

    name: str
    measure: Measure
    figures: dict[str, dict[int, Figure]]
    spearman: float | None = None
    ranked: Count = 0
    errors: dict[str, Spent] = {}
    unreached: dict[str, list[Seed]] = {}
    cells: dict[str, Digest] = {}

    @property
    def error(self) -> float | None:
        """The largest of the standard errors; None where there is none."""
        return max(self.errors.values(), default=None)


class FoundRow(Part):
    """A row and the paper's figures in it, by the paper's columns."""

    name: str
    published: dict[str, Figure]


class FoundBounds(Part):
    """What counts as agreement of a claim with bounds, and what was found.

    Attributes:
        of: A ratio, or a difference (``close``).
        rows: The two rows that are compared.
        at_least: The least; None where there is no such bound.
        found: The ratio or difference of the means that were compared; None where one is missing or infinite.
    """

    of: Bounded
    rows: tuple[str, str]
    at_least: Spent | None = None
    at_most: Spent | None = None
    found: Figure | None = None


class FoundClaim(Part):
    """A claim of the paper and what was found of it.

    Attributes:
        tried: Why it may disagree, and what was tried; empty where nothing was.
        bounds: What counts as agreement; None where the claim has no bounds, or they are not known.
    """

    says: str
    verdict: Verdict
    tried: str = ""
    bounds: FoundBounds | None = None

    @property
    def disagrees(self) -> bool:
        """Whether what was found contradicts it."""
        return self.verdict.decided and not self.verdict.holds


class FoundPicture(Part):
    """A picture.

    Attributes:
        name: The stem of its file.
        curves: The number of curves whose points it is drawn of; 0 of other pictures, and where it is not known.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=200)]
    caption: str
    curves: Count = 0


class FoundCurve(Part):
    """The points of a run's learning curve, rounded to six digits.

    Attributes:
        of: What was measured, as in the manifest.
        metric: The metric of the run's task.
        data: The name of its data set.
        rounds: The rounds of the points, rising; there are none where nothing was measured.
        seconds: The simulated time up to each of them; empty where the run does not count it.
    """

    of: Curves
    metric: Annotated[str, Field(max_length=LONGEST_NAME)]
    data: Annotated[str, Field(max_length=LONGEST_NAME)]
    rounds: Annotated[list[Count], Field(max_length=MOST_POINTS)]
    values: Annotated[list[Figure], Field(max_length=MOST_POINTS)]
    seconds: Annotated[list[Spent], Field(max_length=MOST_POINTS)] = []

    @model_validator(mode="after")
    def _points(self) -> Self:
        if len(self.values) != len(self.rounds) or len(self.seconds) not in (0, len(self.rounds)):
            raise ValueError("a curve has not as many values, or seconds, as rounds")
        if any(a >= b for a, b in pairwise(self.rounds)) or any(a > b for a, b in pairwise(self.seconds)):
            raise ValueError("the rounds or the seconds of a curve do not rise")
        return self


class FoundData(Part):
    """A data set as a table's runs or partitions used it.

    Attributes:
        train: Training examples used; None where it is not known.
        test: Test examples used.
        own_tests: Whether the test examples were split off the clients' training examples.
        published_train: Training examples as published; None where the catalogue does not say.
        published_test: Test examples as published.
    """

    name: str
    train: Count | None = None
    test: Count | None = None
    own_tests: bool = False
    published_train: Count | None = None
    published_test: Count | None = None


State = Literal["made", "in part", "not made", "impossible"]


class Finding(Part):
    """A table or figure: what was published, and what was found.

    Attributes:
        here: How it is made here.
        state: Whether all, some or none of its runs are finished, or there is nothing to make.
        reason: Why it is not finished; empty where it is.
        runs: Names of its runs or partitions, also of those that were not begun.
        lacks: Those that were finished by others, of whom not every figure of the table is known.
        expected: Seconds that the manifest expects of all runs together.
        measured: Whether those were measured; otherwise they are an estimate.
        rows: Rows with the published figures.
        columns: Columns with the figures found.
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
