"""Which pictures joint pages show of a table: those drawn of joint points, or else those of one of the folders."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from fednlp.reproduction.curves import charts_of, fitting, groups_of_curves, is_of_curves, seeds_in
from fednlp.reproduction.manifest import Entry, Paper
from fednlp.reproduction.naming import group_of
from fednlp.reproduction.parts import FoundCurve, FoundPicture
from fednlp.reproduction.results import Finding, Results


@dataclass(frozen=True)
class Pictured:
    """A picture that is shown.

    Attributes:
        found: Its name and caption.
        place: The place of the one whose picture it is; None where it is drawn of joint points.
    """

    found: FoundPicture
    place: int | None


def joint_curves(paper: Paper, entry: Entry, findings: Sequence[Finding]) -> dict[str, FoundCurve]:
    """Return the points of a table's curves: of each run those of the first who has them."""
    joint: dict[str, FoundCurve] = {}
    for finding in findings:
        joint = {**finding.curves, **joint}
    return fitting(paper, entry, joint)


def pictures_of(
    paper: Paper, entry: Entry, every: Sequence[Results], curves: Mapping[str, FoundCurve]
) -> list[Pictured]:
    """Return the pictures of a table: learning curves first.

    Curves are drawn of joint points, unless somebody has pictures of more runs: pages of an earlier version have
    pictures without points. Other pictures are those of the one with such pictures and the most finished runs.

    Args:
        paper: The paper.
        entry: Its table or figure.
        every: What each one found, here first.
        curves: The joint points.
    """
    groups = groups_of_curves(paper, entry)
    found = [results.finding(paper.name, entry.id) for results in every]
    drawn = [Pictured(one, None) for one, _ in charts_of(paper, entry, curves)]
    lines = [_lines(groups, of, one) if one else 0 for of, one in zip(every, found, strict=True)]
    runs = [_runs_shown(of, one) if one else 0 for of, one in zip(every, found, strict=True)]
    if sum(one.found.curves for one in drawn) < max(lines):
        drawn = _of(found, lines.index(max(lines)), is_of_curves)
    return drawn + _of(found, runs.index(max(runs)), _is_other)


def _runs_shown(results: Results, finding: Finding) -> int:
    """Return the number of a table's finished runs if it has pictures other than curves; otherwise 0."""
    return len(results.finished(finding)) if any(_is_other(one.name) for one in finding.pictures) else 0


def _lines(groups: Collection[str], results: Results, finding: Finding) -> int:
    """Return of how many runs the curves are in the pictures of a table.

    Pages of an earlier version do not say it. There it is at most the number of finished runs, and of each method as
    many as the captions state seeds.
    """
    pictures = [one for one in finding.pictures if is_of_curves(one.name)]
    finished = [of for name in results.finished(finding) if (of := group_of(name)) in groups]
    seeds = [stated for one in pictures if (stated := seeds_in(one.caption)) is not None]
    estimated = len(set(finished)) * fmean(seeds) if seeds else len(finished)
    return min(sum(one.curves for one in pictures) or round(estimated), len(finished)) if pictures else 0


def _of(found: Sequence[Finding | None], place: int, kind: Callable[[str], bool]) -> list[Pictured]:
    """Return the pictures of a kind that one of several has of a table."""
    finding = found[place]
    return [Pictured(one, place) for one in (finding.pictures if finding else []) if kind(one.name)]


def _is_other(picture: str) -> bool:
    return not is_of_curves(picture)
