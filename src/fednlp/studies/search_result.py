"""What came out of a search for settings, and what may be doubted about it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fednlp.formatting.units import is_share, metric_title
from fednlp.reports.groups import algorithm_title
from fednlp.reports.table import ColumnKind, Stat, Table, TableColumn, TableRow
from fednlp.studies.trial_plan import MethodSearch, Settings, shown


@dataclass(frozen=True)
class SearchResult:
    """What came out of one method's search.

    Attributes:
        scores: Of each candidate, its validation scores after the stages that it took part in; None where it failed.
        chosen: The settings with the highest score in the last stage.
    """

    search: MethodSearch
    scores: tuple[tuple[float | None, ...], ...]
    chosen: Settings
    metric: str


def tuning_table(results: Mapping[str, SearchResult]) -> Table:
    """Return the validation scores of all trials, and the settings that were chosen.

    Args:
        results: Of the methods that were searched, from :func:`fednlp.tune`.
    """
    searched = {
        algorithm_title(method): found for method, found in results.items() if found.search.candidates
    }
    first = next(iter(searched.values()))
    kind: ColumnKind = "share" if is_share(first.metric) else "plain"
    columns = [
        TableColumn(f"round_{stage.rounds}", f"Round {stage.rounds}", kind) for stage in first.search.plan
    ]
    rows = [
        TableRow(f"{title}: {shown(candidate.changes)}", None, 1, _cells(columns, found, scores))
        for title, found in searched.items()
        for candidate, scores in zip(found.search.candidates, found.scores, strict=True)
    ]
    fraction = first.search.candidates[0].experiment.evaluation.validation_fraction
    drawn = any(len(found.search.candidates) < found.search.combinations for found in searched.values())
    caption = (
        f"Choice of settings: {metric_title(first.metric)} on {fraction:.0%} of each client's training examples, which "
        f"trials do not train on. Every method has {len(first.search.candidates)} trials"
        f"{', drawn by the seed where it has more combinations' if drawn else ''}."
    )
    notes = [f"Chosen for {title}: {shown(found.chosen)}." for title, found in searched.items()]
    notes += [f"{title}: {doubt}." for title, found in searched.items() for doubt in doubts(found)]
    return Table(tuple(columns), tuple(rows), caption, tuple(notes), head="Trial")


def doubts(found: SearchResult) -> list[str]:
    """Return why other values may be better than those chosen.

    Args:
        found: The result of a search. The best may lie beyond a number at an end of those tried, and equal scores tell
            nothing.
    """
    reasons = []
    for key, value in found.chosen.items():
        tried = [one.changes[key] for one in found.search.candidates]
        if not all(type(one) in (int, float) for one in tried) or min(tried) < value < max(tried):
            continue
        if min(tried) < max(tried):
            end, beyond = ("lowest", "lower") if value == min(tried) else ("highest", "higher")
            reasons.append(
                f"{key} = {json.dumps(value)} is the {end} value tried; {beyond} ones may be better"
            )
    stages_done = max(map(len, found.scores), default=0)
    last = [scores[-1] for scores in found.scores if len(scores) == stages_done]
    known = [score for score in last if score is not None]
    if known and known.count(max(known)) > 1:
        reasons.append("the best trials have the same score, and the training loss chose among them")
    return reasons


def _cells(
    columns: Sequence[TableColumn], found: SearchResult, scores: Sequence[float | None]
) -> dict[str, Stat | None]:
    """Return the cells of a trial; a baseline without rounds has one score, in the last column."""
    places = columns[-1:] if found.search.in_full else columns
    cells: dict[str, Stat | None] = {column.key: None for column in columns}
    known = zip(places, scores, strict=False)
    return cells | {column.key: None if score is None else Stat((score,)) for column, score in known}
