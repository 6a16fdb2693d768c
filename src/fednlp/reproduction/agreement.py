"""Claims of a paper, and whether figures found agree with them: one by one, by ranks, with their uncertainty."""

import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fednlp.tasks.intervals import of_mean

Values = Mapping[int, float]
"""A figure by seed."""

_LEVEL = 0.95
_WIDE = statistics.NormalDist().inv_cdf((1 + _LEVEL) / 2)
_FEWEST_RANKS = 3
_FEWEST_SEEDS = 2
LARGEST = 1e18
"""A figure, or a bound of a claim, at most."""
_T = TypeVar("_T")

Bounded = Literal["ratio", "close"]
"""Kinds of claims that have bounds."""

Standing = Literal[
    "agree clearly",
    "agree within the uncertainty of the seeds",
    "agree by one seed",
    "disagree clearly",
    "disagree within the uncertainty of the seeds",
    "disagree by one seed",
    "not decided by one seed",
    "lack a figure",
]
"""How sure it is what was found of a claim; *one seed* also stands for figures that have no seed in common."""

STANDINGS: tuple[Standing, ...] = get_args(Standing)
"""All of them: those that agree, clearly first, those that disagree in the same order, and the others."""


class Claim(BaseModel):
    """Something that the paper says of these figures and that can be checked.

    Attributes:
        kind: ``rises`` and ``falls``: from row to row; ``highest`` and ``lowest``: the first row, of all;
            ``ratio``: the first row divided by the second; ``ratios fall``: that of each pair of rows, from pair to
            pair; ``close``: the difference of the first two.
        column: A found column; the first if left out.
        tried: Why it may disagree here, and what was tried; shown where it disagrees.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    says: str
    kind: Literal["rises", "falls", "highest", "lowest", "ratio", "ratios fall", "close"]
    rows: Annotated[list[str], Field(min_length=2)]
    column: str = ""
    at_least: Annotated[float, Field(ge=0, le=LARGEST)] = 0.0
    at_most: Annotated[float, Field(ge=0)] = float("inf")
    within: Annotated[float, Field(ge=0, le=LARGEST)] = 0.0
    tried: str = ""

    @model_validator(mode="after")
    def _rows_of_its_kind(self) -> Self:
        if self.kind in ("ratio", "close") and len(self.rows) != 2:
            raise ValueError(f"{self.kind} is of two rows")
        if self.kind == "ratios fall" and (len(self.rows) < 4 or len(self.rows) % 2):
            raise ValueError("ratios fall is of two pairs of rows, or more")
        if self.at_least > self.at_most:
            raise ValueError(f"no ratio is at least {self.at_least:g} and at most {self.at_most:g}")
        return self


@dataclass(frozen=True)
class Verdict:
    """What was found of a claim.

    Attributes:
        holds: Whether it holds for the means over seeds; None where a figure is missing, or one that others are
            divided by is not positive.
        clear: Whether its differences are larger than their uncertainty: all of them where it holds, and one that
            contradicts it where it does not. The uncertainty is the 95 % interval of the mean of the differences seed
            by seed or, for one seed, of a difference of accuracies on the test set. The difference of a ratio is that
            of the first figure and the bound times the second. None where the uncertainty is not known.
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
            return "nothing to compare"
        if not self.decided:
            return "not decided by one seed"
        word = "agrees" if self.holds else "disagrees"
        if self.seeds < _FEWEST_SEEDS:
            return f"{word} ({'one seed' if self.seeds else 'no seed in common'})"
        return f"{word}, within the uncertainty of the seeds" if self.clear is False else word

    @property
    def standing(self) -> Standing:
        """How sure it is, in one of the words that claims are counted by."""
        if self.holds is None:
            return "lack a figure"
        if not self.decided:
            return "not decided by one seed"
        by_one, within = self.seeds < _FEWEST_SEEDS, self.clear is False
        return STANDINGS[(0 if self.holds else 3) + (2 if by_one else 1 if within else 0)]


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
        rows: Figures of the claim's column, by row; rows without any are missing or empty. What never came to pass
            with a seed is infinite; medians are then compared in place of means.
        errors: Standard errors of the figures on their test set, by row; they count where there is one seed. Rows
            whose error is not known are missing.
    """
    figures = _compared(claim, rows)
    if not figures:
        return Verdict(None)
    means = _middles(figures)
    known = [error for name in claim.rows if (error := (errors or {}).get(name)) is not None]
    if claim.kind == "ratios fall":
        means = [a / b for a, b in zip(means[::2], means[1::2], strict=True)]
        figures, known = _ratios(figures), []
    pairs = _pairs(claim, range(len(means)))
    if any(math.isnan(mean) for mean in means) or any(means[a] == means[b] == math.inf for a, b in pairs):
        return Verdict(None)
    seeds = min(len(figures[a].keys() & figures[b].keys()) for a, b in pairs)
    checks = [(margin, a, b) for a, b in pairs for margin in _margins(claim)]
    found = [margin.of(means[a], means[b]) for margin, a, b in checks]
    right = [one > 0 or (one == 0 and claim.kind in ("ratio", "close")) for one in found]
    if seeds < _FEWEST_SEEDS and len(known) < len(means):
        return Verdict(all(right), None, seeds)
    if seeds < _FEWEST_SEEDS:
        sizes = [_WIDE * margin.error(known[a], known[b]) for margin, a, b in checks]
        clear = [abs(one) > size for one, size in zip(found, sizes, strict=True)]
    else:
        by_seed = [_by_seed(margin.of, figures[a], figures[b]) for margin, a, b in checks]
        clear = [_is_clear(one, positive) for one, positive in zip(by_seed, right, strict=True)]
    against = [one for one, positive in zip(clear, right, strict=True) if not positive]
    return Verdict(all(right), any(against) if against else all(clear), seeds)


def measured(claim: Claim, rows: Mapping[str, Values]) -> float | None:
    """Return the ratio or the difference that the bounds of a claim are for, of the means that :func:`judge` compares.

    Args:
        claim: The claim; one of another kind has none.
        rows: Figures of the claim's column, by row.

    Returns:
        None where a figure is missing or infinite, as a row never came to what it should reach.

    >>> measured(Claim(says="", kind="ratio", rows=["a", "b"]), {"a": {0: 3.0}, "b": {0: 2.0}})
    1.5
    """
    if claim.kind not in get_args(Bounded) or not (figures := _compared(claim, rows)):
        return None
    a, b = _middles(figures)
    found = a / b if claim.kind == "ratio" else abs(a - b)
    return found if max(a, b, found) <= LARGEST else None


def _compared(claim: Claim, rows: Mapping[str, Values]) -> list[Values]:
    """Return the figures of a claim's rows; none where one is missing, or one that divides is not positive."""
    figures = [values for name in claim.rows if (values := rows.get(name))]
    divisors = figures[1::2] if claim.kind in ("ratio", "ratios fall") else []
    positive = all(value > 0 for values in divisors for value in values.values())
    return figures if positive and len(figures) == len(claim.rows) else []


def _middles(figures: Sequence[Values]) -> list[float]:
    """Return the mean of each row, or its median where any of all is infinite."""
    finite = all(math.isfinite(value) for values in figures for value in values.values())
    middle = statistics.fmean if finite else statistics.median
    return [middle(values.values()) for values in figures]


def centre(values: Sequence[float]) -> float:
    """Return the mean, or the median where some are infinite.

    >>> centre([1.0, 2.0, 6.0]), centre([1.0, 4.0, math.inf]), centre([1.0, math.inf, math.inf])
    (3.0, 4.0, inf)
    """
    return statistics.fmean(values) if all(map(math.isfinite, values)) else statistics.median(values)


@dataclass(frozen=True)
class _Margin:
    """By how much a claim of two figures holds: ``sign * (a - scale * b) + offset``, negative where it does not."""

    sign: float = 1.0
    scale: float = 1.0
    offset: float = 0.0

    def of(self, a: float, b: float) -> float:
        return self.sign * (a - self.scale * b) + self.offset

    def error(self, of_a: float, of_b: float) -> float:
        """Return its standard error; those of the figures count as independent: on one test set it is rather wide."""
        return math.hypot(of_a, self.scale * of_b)


def _margins(claim: Claim) -> list[_Margin]:
    """Return what must be positive of each pair of figures."""
    match claim.kind:
        case "ratio":
            bounds = [(1.0, claim.at_least), (-1.0, claim.at_most)]
            return [_Margin(sign, bound) for sign, bound in bounds if 0 < bound < math.inf]
        case "close":
            return [_Margin(sign, offset=claim.within) for sign in (1.0, -1.0)]
        case _:
            return [_Margin()]


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


def _by_seed(of: Callable[[float, float], float], a: Values, b: Values) -> Values:
    """Return a function of two figures for the seeds that both have."""
    return {seed: of(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())}


def _ratios(figures: Sequence[Values]) -> list[Values]:
    """Return the ratio of each pair of rows, by seed."""
    return [_by_seed(operator.truediv, a, b) for a, b in zip(figures[::2], figures[1::2], strict=True)]


def _is_clear(margins: Values, positive: bool) -> bool:
    """Return whether margins by seed are on one side of zero by more than the 95 % interval of their mean."""
    if not all(map(math.isfinite, margins.values())):
        return set(margins.values()) == {math.inf if positive else -math.inf}
    mean, half = of_mean(list(margins.values()))
    return half is not None and (mean if positive else -mean) > half
