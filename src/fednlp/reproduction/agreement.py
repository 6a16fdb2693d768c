"""Claims of a paper, and whether figures found agree with them: one by one, by ranks, with their uncertainty."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

Values = Mapping[int, float]
"""A figure by seed."""

_LEVEL = 0.95
_WIDE = statistics.NormalDist().inv_cdf((1 + _LEVEL) / 2)
_FEWEST_RANKS = 3
_FEWEST_SEEDS = 2
_T = TypeVar("_T")


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
        clear: Whether its differences are larger than their uncertainty: all of them where it holds, and one that
            contradicts it where it does not. The uncertainty is the 95 % interval of the mean of the differences seed
            by seed or, for one seed, of a difference of accuracies on the test set. None where that is not known.
        seeds: The fewest seeds that two of the compared figures share.
    """

    holds: bool | None
    clear: bool | None = None
    seeds: int = 1

    @property
    def decided(self) -> bool:
        """Whether figures tell if it holds; those of one seed do not within the uncertainty of the test set."""
        return self.holds is not None and (self.clear is not False or self.seeds >= _FEWEST_SEEDS)

    @property
    def text(self) -> str:
        """The verdict in words."""
        if self.holds is None:
            return "a figure is missing"
        if not self.decided:
            return "not decided by one seed"
        word = "agrees" if self.holds else "disagrees"
        if self.seeds < _FEWEST_SEEDS:
            return f"{word} (one seed)"
        return f"{word}, within the uncertainty of the seeds" if self.clear is False else word


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


def standard_error(accuracy: float, examples: int) -> float:
    """Return the standard error of a share of test examples, 0 to 1.

    One more right and one more wrong answer are counted (Agresti and Caffo 2000), so that it is not zero where all are
    right, or none.

    >>> round(standard_error(0.8, 98), 4), round(standard_error(1.0, 98), 4)
    (0.0404, 0.0099)
    """
    share = (accuracy * examples + 1) / (examples + 2)
    return math.sqrt(share * (1 - share) / (examples + 2))


def judge(claim: Claim, rows: Mapping[str, Values], errors: Mapping[str, float] | None = None) -> Verdict:
    """Return whether a claim holds.

    Args:
        claim: The claim.
        rows: Figures of the claim's column, by row; rows without any are missing or empty.
        errors: Standard errors of the figures on their test set, by row; they count where there is one seed. Rows
            whose error is not known are missing.
    """
    given = [rows.get(name) for name in claim.rows]
    figures = [values for values in given if values]
    if len(figures) < len(given):
        return Verdict(None)
    means = [statistics.fmean(values.values()) for values in figures]
    pairs = _pairs(claim, figures)
    seeds = min(len(a.keys() & b.keys()) for a, b in pairs)
    holds = _holds(claim, means)
    if seeds < _FEWEST_SEEDS:
        known = [error for name in claim.rows if (error := (errors or {}).get(name)) is not None]
        return Verdict(holds, _is_decided(claim, holds, means, known), seeds)
    if claim.kind in ("ratio", "ratios fall", "close"):
        return Verdict(holds, seeds=seeds)
    greater = [a > b for a, b in _pairs(claim, means)]
    clear = [
        _is_clear(a, b) if right else _is_clear(b, a) for (a, b), right in zip(pairs, greater, strict=True)
    ]
    against = [one for one, right in zip(clear, greater, strict=True) if not right]
    return Verdict(holds, any(against) if against else all(clear), seeds)


def _holds(claim: Claim, means: Sequence[float]) -> bool:
    match claim.kind:
        case "ratio":
            return means[1] != 0 and claim.at_least <= means[0] / means[1] <= claim.at_most
        case "ratios fall":
            ratios = [a / b if b else math.inf for a, b in zip(means[::2], means[1::2], strict=True)]
            return all(first > second for first, second in pairwise(ratios))
        case "close":
            return abs(means[0] - means[1]) <= claim.within
        case _:
            return all(a > b for a, b in _pairs(claim, means))


def _pairs(claim: Claim, figures: Sequence[_T]) -> list[tuple[_T, _T]]:
    """Return the pairs that are compared; of an order, the first must be the greater."""
    match claim.kind:
        case "rises":
            return [(b, a) for a, b in pairwise(figures)]
        case "falls" | "ratios fall":
            return list(pairwise(figures))
        case "highest" | "ratio" | "close":
            return [(figures[0], other) for other in figures[1:]]
        case "lowest":
            return [(other, figures[0]) for other in figures[1:]]


def _is_decided(claim: Claim, holds: bool, means: Sequence[float], errors: Sequence[float]) -> bool | None:
    """Return whether one seed decides: all differences, or one that contradicts, are larger than their 95 % interval.

    The errors of two figures count as independent. As the test examples are the same, the interval is rather too wide.
    None where an error is not known.
    """
    if len(errors) < len(means) or claim.kind == "ratios fall":
        return None
    found = _differences(claim, means, errors)
    if holds:
        return all(size > _WIDE * error for size, error in found)
    return any(-size > _WIDE * error for size, error in found)


def _differences(claim: Claim, means: Sequence[float], errors: Sequence[float]) -> list[tuple[float, float]]:
    """Return the differences that are positive where a claim holds, each with its standard error."""
    pairs = _pairs(claim, list(zip(means, errors, strict=True)))
    if claim.kind == "ratio":
        bounds = [(1, claim.at_least), (-1, claim.at_most)]
        return [
            (sign * (a - bound * b), math.hypot(of_a, bound * of_b))
            for (a, of_a), (b, of_b) in pairs
            for sign, bound in bounds
            if 0 < bound < math.inf
        ]
    found = [(a - b, math.hypot(of_a, of_b)) for (a, of_a), (b, of_b) in pairs]
    return [(claim.within - abs(gap), error) for gap, error in found] if claim.kind == "close" else found


def _is_clear(a: Values, b: Values) -> bool:
    """Return whether the first is the greater, seed by seed, by more than the 95 % interval of the difference."""
    mean, half = interval([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])
    return half is not None and mean > half
