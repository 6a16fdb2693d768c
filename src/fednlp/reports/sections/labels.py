"""Scores by label and the confusion of labels, where runs have a ``by_label.json``."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fednlp.reports.document import Block, Fold, Grid, Heat
from fednlp.reports.groups import Groups, group_baseline
from fednlp.reports.read import Run, read_file
from fednlp.reports.render import cell_text, leaders
from fednlp.reports.table import Stat, TableColumn

MOST_SQUARE = 30
"""Of so many labels at most the confusion is a square; of more, its largest cells are a list."""

MOST_ROWS = 60
MOST_PAIRS = 20

_SCORES = ("precision", "recall", "f1")
_SHARE = TableColumn("", "", "share")


@dataclass(frozen=True, eq=False)
class LabelReport:
    """Scores of each of K labels on the whole test set, over the seeds of one method.

    Attributes:
        labels: The labels (K).
        scores: For precision, recall and F1 one number a label and seed, from 0 to 1 (seeds, K).
        support: Test examples of each label (K), of the first seed.
        confusion: Examples of each true label (rows) predicted as each label, summed over seeds (K, K); or None.
        seeds: How many runs these are.
    """

    labels: tuple[str, ...]
    scores: Mapping[str, NDArray[np.float64]]
    support: tuple[int, ...]
    confusion: NDArray[np.int64] | None
    seeds: int

    def stat(self, score: str, label: int) -> Stat:
        """Return one score of a label over the seeds."""
        return Stat(tuple(self.scores[score][:, label].tolist()))


def label_blocks(groups: Groups) -> Iterator[Block]:
    """Yield the table of scores by label, then a confusion matrix a method; nothing where no run has them.

    Raises:
        RunError: A ``by_label.json`` is damaged.
    """
    found = {label: one for label, runs in groups.items() if (one := by_label(runs))}
    if not found:
        return
    first = next(iter(found.values()))
    alike = {label: one for label, one in found.items() if one.labels == first.labels}
    methods = [label for label in alike if group_baseline(groups[label]) is None]
    yield _one_method(first) if len(alike) == 1 else _several(alike, methods)
    for label, one in alike.items():
        block = _confusion(one)
        if block is not None:
            title = f"Confusion of labels, {label}"
            yield block if len(alike) == 1 else Fold(title, [block])


def by_label(runs: Sequence[Run]) -> LabelReport | None:
    """Return the scores by label of the runs of one method; None where none has them.

    Seeds with other labels than the first are left out.

    Raises:
        RunError: A ``by_label.json`` is damaged.
    """
    read = [one for run in runs if (one := _read(run))]
    same = [one for one in read if one.labels == read[0].labels]
    if not same:
        return None
    squares = [one.confusion for one in same if one.confusion is not None]
    return LabelReport(
        same[0].labels,
        {key: np.concatenate([one.scores[key] for one in same]) for key in _SCORES},
        same[0].support,
        np.sum(squares, axis=0) if len(squares) == len(same) else None,
        len(same),
    )


def _read(run: Run) -> LabelReport | None:
    data = read_file(run.folder / "by_label.json")
    if data is None:
        return None
    square = data.get("confusion")
    scores = {key: np.array([data[key]], dtype=np.float64) for key in _SCORES}
    confusion = None if square is None else np.array(square, dtype=np.int64)
    return LabelReport(tuple(data["labels"]), scores, tuple(data["support"]), confusion, 1)


def _one_method(one: LabelReport) -> Grid:
    order, notes = _shown(one, [one])
    rows = [
        [one.labels[i], *(_percent(one.stat(key, i)) for key in _SCORES), f"{one.support[i]:,}"]
        for i in order
    ]
    return Grid(
        ["Label", "Precision", "Recall", "F1", "Support"], rows, ["Scores in %" + notes[0], *notes[1:]]
    )


def _several(alike: Mapping[str, LabelReport], methods: Sequence[str]) -> Grid:
    first = next(iter(alike.values()))
    order, notes = _shown(first, list(alike.values()))
    rows, best = [], set()
    for number, i in enumerate(order):
        stats = {place: one.stat("f1", i) for place, one in enumerate(alike.values(), start=2)}
        rows.append([first.labels[i], f"{first.support[i]:,}", *map(_percent, stats.values())])
        rivals = {
            place: stat for (place, stat), label in zip(stats.items(), alike, strict=True) if label in methods
        }
        best |= {(number, place) for place in leaders(_SHARE, rivals)}
    return Grid(["Label", "Support", *alike], rows, ["F1 in %" + notes[0], *notes[1:]], best=best)


def _shown(first: LabelReport, every: Sequence[LabelReport]) -> tuple[list[int], list[str]]:
    """Return which labels have a row, of very many the hardest, and the notes on them."""
    spread = ", mean ± standard deviation over seeds" if any(one.seeds > 1 for one in every) else ""
    note = (
        f" by label on the whole test set, after the last round{spread}. Support: test examples of the label."
    )
    count = len(first.labels)
    if count <= MOST_ROWS:
        return list(range(count)), [note]
    hardness = np.nan_to_num(np.mean([one.scores["f1"].mean(axis=0) for one in every], axis=0))
    order = np.argsort(hardness, kind="stable")[:MOST_ROWS].tolist()
    return order, [note, f"The {MOST_ROWS} labels with the lowest F1 of {count:,}; all are in by_label.json."]


def _percent(stat: Stat) -> str:
    return cell_text(_SHARE, stat if math.isfinite(stat.mean) else None)


def _confusion(one: LabelReport) -> Block | None:
    if one.confusion is None:
        return None
    sums = f", summed over {one.seeds} seeds" if one.seeds > 1 else ""
    if len(one.labels) <= MOST_SQUARE:
        note = "Test examples by true label (rows) and predicted label (columns)"
        return Heat(
            one.labels, one.confusion.tolist(), f"{note}{sums}; shaded by the share of the true label."
        )
    return _pairs(one, sums)


def _pairs(one: LabelReport, sums: str) -> Block | None:
    """Return the labels most often taken for each other."""
    square = np.array(one.confusion)
    totals = square.sum(axis=1)
    np.fill_diagonal(square, 0)
    order = np.argsort(-square, axis=None, kind="stable")[:MOST_PAIRS]
    pairs = [
        (int(i), int(j)) for i, j in zip(*np.unravel_index(order, square.shape), strict=True) if square[i, j]
    ]
    rows = [
        [one.labels[i], one.labels[j], f"{square[i, j]:,}", f"{100 * square[i, j] / max(1, totals[i]):.1f}"]
        for i, j in pairs
    ]
    heads = ["True label", "Predicted as", "Examples", "% of the true label"]
    note = f"The most frequent confusions of {len(one.labels):,} labels{sums}; all are in by_label.json."
    return Grid(heads, rows, [note], words=True) if rows else None
