"""What the pages say of claims: how many agree and how surely, what counts as agreement, and what was tried."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from fednlp.formatting.units import DASH, capital
from fednlp.reports.document import Grid, heading_anchor
from fednlp.reproduction.agreement import STANDINGS
from fednlp.reproduction.results import Finding, FoundBounds, FoundClaim, PaperResults, Results

_JUDGED = ("Claim of the paper", "Found here", "What was tried")
"""Headings over :func:`judged`."""

_FEWEST_DIGITS, _MOST_DIGITS = 3, 18
_SMALLEST, _GREATEST = 1e-6, 1e15
"""Numbers beyond have an exponent."""


def judged(claim: FoundClaim) -> list[str]:
    """Return a claim, what was found of it, and what was tried where the figures are against it."""
    found = claim.verdict.text
    if claim.bounds:
        found += f"; {_counted(claim.bounds)}"
        found += f"; found: {_measured(claim.bounds)}" if claim.verdict.holds is not None else ""
    return [claim.says, found, claim.tried if claim.verdict.holds is False else ""]


def agreeing(entries: Iterable[Finding]) -> str:
    """Return how many claims agree, of how many that are decided."""
    decided = [claim for entry in entries for claim in entry.decided]
    return f"{sum(bool(claim.verdict.holds) for claim in decided)} of {len(decided)}" if decided else DASH


def counts(entries: Iterable[Finding]) -> list[tuple[str, str]]:
    """Return how many claims agree, and of these how surely; how many are not decided; and how many lack a figure."""
    entries = list(entries)
    undecided = [claim for entry in entries for claim in entry.undecided]
    found = Counter(claim.verdict.standing for entry in entries for claim in entry.claims)
    surely = [(f"claims that {one}", str(found[one])) for one in STANDINGS[:3]]
    return [
        ("claims that agree", agreeing(entries)),
        *(surely if any(found[one] for one in STANDINGS[:3]) else []),
        *([("claims not decided by one seed", _leaning(undecided))] if undecided else []),
        ("claims that lack a figure", str(found["lack a figure"])),
    ]


def _leaning(undecided: Sequence[FoundClaim]) -> str:
    """Return how many claims are not decided, and on which side their figures are."""
    towards = sum(bool(claim.verdict.holds) for claim in undecided)
    return f"{len(undecided)} (figures for {towards}, against {len(undecided) - towards})"


def standings(results: Results) -> Grid:
    """Return how many claims agree and disagree, and how surely: of each paper, and of all."""
    found = [*(_verdicts([paper]) for paper in results.papers), _verdicts(results.papers)]
    rows = [[capital(one), *(str(counted[one]) for counted in found)] for one in STANDINGS]
    rows.append(["All", *(str(counted.total()) for counted in found)])
    notes = [
        "By one seed: there is one seed, or the compared figures have none in common.",
        "A claim that two papers make is counted for each of them, also where they share the runs.",
    ]
    return Grid(["Claims that", *map(word_of, results.papers), "all"], rows, notes)


def against(results: Results) -> Grid:
    """Return the claims that disagree, with what was tried."""
    found = [
        (paper, entry, claim)
        for paper in results.papers
        for entry in paper.entries
        for claim in entry.claims
        if claim.disagrees
    ]
    rows = [[f"{word_of(paper)} {entry.title}", *judged(claim)] for paper, entry, claim in found]
    links = [f"{paper.stem}#{heading_anchor(entry.title)}" for paper, entry, _ in found]
    return Grid(["Table or figure", *_JUDGED], rows, words=True, links=links)


def of_entry(entry: Finding) -> Grid:
    """Return the claims of a table; what was tried only where something was, and claims disagree."""
    width = 3 if any(claim.verdict.holds is False and claim.tried for claim in entry.claims) else 2
    return Grid(_JUDGED[:width], [judged(claim)[:width] for claim in entry.claims], words=True)


def word_of(paper: PaperResults) -> str:
    """Return a paper's number and name."""
    return f"{paper.number} {paper.name}".strip()


def _verdicts(papers: Sequence[PaperResults]) -> Counter[str]:
    claims = (claim for paper in papers for entry in paper.entries for claim in entry.claims)
    return Counter(claim.verdict.standing for claim in claims)


def _counted(bounds: FoundBounds) -> str:
    """Return in words what counts as agreement.

    >>> _counted(FoundBounds(of="ratio", rows=("A", "B"), at_least=1.3, at_most=2.5))
    'counted as agreeing: a ratio of 1.3 to 2.5 (A / B)'
    >>> _counted(FoundBounds(of="close", rows=("A", "B"), at_most=1.0))
    'counted as agreeing: a difference of at most 1 (A, B)'
    """
    least, most = (one if one is None else f"{one:,.12g}" for one in (bounds.at_least, bounds.at_most))
    span = f"of {least} to {most}" if least and most else f"of at least {least}" if least else ""
    span = span or (f"of at most {most}" if most else "of any size")
    what, between = ("ratio", " / ") if bounds.of == "ratio" else ("difference", ", ")
    return f"counted as agreeing: a {what} {span} ({between.join(bounds.rows)})"


def _measured(bounds: FoundBounds) -> str:
    """Return what was found with so many digits that it stands on the same side of the bounds as the figure.

    >>> _measured(FoundBounds(of="ratio", rows=("A", "B"), at_least=0.95, found=0.94996))
    '0.94996'
    """
    found = bounds.found
    if found is None:
        return "none, as one of them did not reach the target with half of the seeds or more"
    ends = [one for one in (bounds.at_least, bounds.at_most) if one is not None]
    short = (_with_digits(found, digits) for digits in range(_FEWEST_DIGITS, _MOST_DIGITS))
    return next(
        (one for one in short if _sides(float(one.replace(",", "")), ends) == _sides(found, ends)),
        repr(found),
    )


def _sides(value: float, ends: Sequence[float]) -> list[tuple[bool, bool]]:
    return [(value < end, value > end) for end in ends]


def _with_digits(value: float, digits: int) -> str:
    """Return a number with so many significant digits.

    >>> _with_digits(1.0, 3), _with_digits(12345.6, 3), _with_digits(0.0, 3)
    ('1.00', '12,346', '0.00')
    """
    if value and not _SMALLEST <= abs(value) < _GREATEST:
        return f"{value:.{digits}g}"
    before = math.floor(math.log10(abs(value))) + 1 if value else 1
    return f"{value:,.{max(digits - before, 0)}f}"
