"""Claims of a paper, and whether figures found agree with them: one by one, by ranks, with intervals over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Values = Mapping[int, float]
"""A figure by seed."""

_LEVEL = 0.95
_FEWEST_RANKS = 3


class Claim(BaseModel):
    """Something that the paper says of these figures and that can be checked.

    Attributes:
        says: The claim.
        kind: ``rises`` and ``falls``: from row to row; ``highest`` and ``lowest``: the first row, of all;
            ``ratio``: the first row divided by the second; ``ratios fall``: that of each pair of rows, from pair to
            pair; ``close``: the difference of the first two.
        rows: Names of rows.
        column: A found column; the first if left out.
        at_least: Least ratio.
        at_most: Greatest ratio.
        within: Greatest difference.
        tried: Why it may disagree here, and what was tried; shown where it disagrees.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    says: str
    kind: Literal["rises", "falls", "highest", "lowest", "ratio", "ratios fall", "close"]
    rows: Annotated[list[str], Field(min_length=2)]
    column: str = ""
    at_least: float = 0.0
    at_most: float = float("inf")
    within: float = 0.0
    tried: str = ""

    @model_validator(mode="after")
    def _rows_of_its_kind(self) -> Self:
        if self.kind in ("ratio", "close") and len(self.rows) != 2:
            raise ValueError(f"{self.kind} is of two rows")
        if self.kind == "ratios fall" and (len(self.rows) < 4 or len(self.rows) % 2):
            raise ValueError("ratios fall is of two pairs of rows, or more")
        return self


@dataclass(frozen=True)
class Verdict:
    """What was found of a claim.

    Attributes:
        holds: Whether it holds for the means over seeds; None where a figure is missing.
        clear: Whether its differences are larger than their uncertainty, which is the 95 % interval of the mean of the
            differences seed by seed: all of them where it holds, and one that contradicts it where it does not. None
            for one seed, and for claims that are not about differences.
        seeds: Number of seeds that all of its figures have.
    """

    holds: bool | None
    clear: bool | None = None
    seeds: int = 1

    @property
    def text(self) -> str:
        """The verdict in words."""
        if self.holds is None:
            return "not decided"
        word = "agrees" if self.holds else "disagrees"
        if self.clear is None:
            return word if self.seeds > 1 else f"{word} (one seed)"
        return word if self.clear else f"{word}, within the uncertainty of the seeds"


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean, and half the width of its 95 % interval (Student's t); None for one value.

    >>> [round(number, 4) for number in interval([1.0, 2.0, 3.0])]
    [2.0, 2.4841]
    """
    from scipy.stats import t

    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    width = t.ppf((1 + _LEVEL) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, float(width)


def spearman(found: Sequence[float], published: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; None for fewer than three pairs, or where one side is all alike.

    >>> spearman([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.5
    """
    if len(found) < _FEWEST_RANKS or len(set(found)) == 1 or len(set(published)) == 1:
        return None
    from scipy.stats import spearmanr

    return round(float(spearmanr(found, published).statistic), 12)


def judge(claim: Claim, rows: Mapping[str, Values]) -> Verdict:
    """Return whether a claim holds.

    Args:
        claim: The claim.
        rows: Figures of the claim's column, by row; rows without any are missing or empty.
    """
    given = [rows.get(name) for name in claim.rows]
    figures = [values for values in given if values]
    if len(figures) < len(given):
        return Verdict(None)
    means = [statistics.fmean(values.values()) for values in figures]
    seeds = len(set.intersection(*(set(values) for values in figures)))
    if claim.kind == "ratio":
        holds = means[1] != 0 and claim.at_least <= means[0] / means[1] <= claim.at_most
        return Verdict(holds, seeds=seeds)
    if claim.kind == "ratios fall":
        ratios = [a / b if b else math.inf for a, b in zip(means[::2], means[1::2], strict=True)]
        return Verdict(all(first > second for first, second in pairwise(ratios)), seeds=seeds)
    if claim.kind == "close":
        return Verdict(abs(means[0] - means[1]) <= claim.within, seeds=seeds)
    pairs = _pairs(claim, figures)
    greater = [statistics.fmean(a.values()) > statistics.fmean(b.values()) for a, b in pairs]
    clear = [_is_clear(a, b) for a, b in pairs]
    if None in clear:
        return Verdict(all(greater), seeds=seeds)
    against = [one for one, holds in zip(clear, greater, strict=True) if not holds]
    return Verdict(not against, any(against) if against else all(clear), seeds)


def _pairs(claim: Claim, figures: Sequence[Values]) -> list[tuple[Values, Values]]:
    """Return the pairs of which the first must be the greater."""
    match claim.kind:
        case "rises":
            return [(b, a) for a, b in pairwise(figures)]
        case "falls":
            return list(pairwise(figures))
        case "highest":
            return [(figures[0], other) for other in figures[1:]]
        case _:
            return [(other, figures[0]) for other in figures[1:]]


def _is_clear(a: Values, b: Values) -> bool | None:
    shared = sorted(set(a) & set(b))
    mean, half = interval([a[seed] - b[seed] for seed in shared]) if shared else (0.0, None)
    return None if half is None else abs(mean) > half
