"""What was found of papers' tables and figures, as data: ``results.json``, of which the pages are made."""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fednlp.reproduction.agreement import Verdict
from fednlp.reproduction.manifest import Measure

State = Literal["made", "in part", "not made", "impossible"]
MOST, LONGEST = 2**53, 1e12
"""Limits of a count and of a time in seconds."""
Count = Annotated[int, Field(ge=0, le=MOST)]
Seconds = Annotated[float, Field(ge=0, le=LONGEST)]
Figure = Annotated[float, Field(ge=-1e18, le=1e18)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class FoundColumn(_Part):
    """A column of found figures.

    Attributes:
        name: Its heading.
        measure: What its cells show.
        figures: By row and seed.
        spearman: Spearman's correlation with the published figures; None where there is none.
        ranked: Number of rows that it is of.
        errors: By row, the standard error of its accuracies on their test set, in points; without other figures.
    """

    name: str
    measure: Measure
    figures: dict[str, dict[int, Figure]]
    spearman: float | None = None
    ranked: Count = 0
    errors: dict[str, Figure] = {}

    @model_validator(mode="before")
    @classmethod
    def _one_error_for_all_rows(cls, given: Any) -> Any:
        """Read what earlier versions wrote: the column's largest error, which then counts for each of its rows."""
        if not isinstance(given, dict) or "error" not in given:
            return given
        error, figures = given["error"], given.get("figures")
        rows = figures if isinstance(figures, dict) and error is not None else {}
        return {key: value for key, value in given.items() if key != "error"} | {
            "errors": dict.fromkeys(rows, error)
        }

    @property
    def error(self) -> float | None:
        """The largest of the standard errors; None where there is none."""
        return max(self.errors.values(), default=None)


class FoundRow(_Part):
    """A row and the paper's figures in it, by the paper's columns."""

    name: str
    published: dict[str, Figure]


class FoundClaim(_Part):
    """A claim of the paper and what was found of it.

    Attributes:
        says: The claim.
        verdict: What was found.
        tried: Why it may disagree, and what was tried; empty where nothing was.
    """

    says: str
    verdict: Verdict
    tried: str = ""

    @property
    def disagrees(self) -> bool:
        """Whether what was found contradicts it."""
        return self.verdict.decided and not self.verdict.holds


class FoundPicture(_Part):
    """A picture: the stem of its file, and what it shows."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=200)]
    caption: str


class FoundData(_Part):
    """A data set as a table's runs or partitions used it.

    Attributes:
        name: Its name.
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


class Finding(_Part):
    """A table or figure: what was published, and what was found.

    Attributes:
        id: As in the manifest.
        title: As in the paper.
        shows: What it shows.
        here: How it is made here.
        command: What makes it alone.
        state: Whether all, some or none of its runs are finished, or there is nothing to make.
        reason: Why it is not finished; empty where it is.
        runs: Number of its runs, or partitions.
        finished: How many are finished.
        seconds: What these and the begun ones took, measured.
        cpu_seconds: CPU seconds of their processes; None where that of one of them is not known.
        expected: Seconds that the manifest expects of all runs together.
        measured: Whether those were measured; otherwise they are an estimate.
        rows: Rows with the published figures.
        columns: Columns with the figures found.
        claims: The paper's claims.
        pictures: Pictures of what was found.
        data: The data of its finished runs or partitions.
    """

    id: str
    title: str
    shows: str
    here: str
    command: str
    state: State
    reason: str
    runs: Count
    finished: Count
    seconds: Seconds
    cpu_seconds: Seconds | None = None
    expected: float
    measured: bool
    rows: list[FoundRow]
    columns: list[FoundColumn]
    claims: list[FoundClaim]
    pictures: list[FoundPicture]
    data: list[FoundData] = []

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


class Machine(_Part):
    """A machine, and how many runs it did."""

    processor: str
    cores: Count
    runs: Count


class PaperResults(_Part):
    """A paper and what was found of its tables and figures.

    Attributes:
        number: As on the command line; empty for a manifest of the user's.
        name: A word for it.
        title: The paper's title.
        source: Authors, year and address.
        command: What makes all of it.
        seconds: What its runs took, each counted once.
        machines: Where they ran.
        libraries: Versions of libraries that they used.
        entries: Tables and figures, in the paper's order.
    """

    number: Annotated[str, Field(pattern=r"^[0-9A-Za-z]*$", max_length=8)]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=80)]
    title: str
    source: str
    command: str
    seconds: Seconds
    machines: list[Machine]
    libraries: list[str]
    entries: list[Finding]

    @property
    def stem(self) -> str:
        """The name of its page, without the ending."""
        return f"{self.number or 'paper'}-{self.name}"

    def entry(self, name: str) -> Finding | None:
        """Return what was found of a table or figure, by its id; None where nothing is said of it."""
        return next((one for one in self.entries if one.id == name), None)


class Results(_Part):
    """``results.json``: all that the pages show but the drawn pictures.

    Attributes:
        seconds: What all runs took, each counted once.
        papers: The papers.
    """

    seconds: Seconds
    papers: list[PaperResults]

    def paper(self, name: str) -> PaperResults | None:
        """Return what was found of a paper; None where nothing is said of it."""
        return next((one for one in self.papers if one.name == name), None)

    def to_json(self) -> str:
        """Return it as JSON: what holds no further list or table stands on a line."""
        text = self.model_dump_json(indent=1)
        return re.sub(r"([\[{])\n([^][{}]*)\n\s*([\]}])", _on_a_line, text) + "\n"


def _on_a_line(found: re.Match[str]) -> str:
    return found[1] + " ".join(line.strip() for line in found[2].split("\n")) + found[3]
