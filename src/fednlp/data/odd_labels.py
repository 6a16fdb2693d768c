"""What is odd about the labels of a data set."""

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fednlp.data.misread import misread
from fednlp.data.oddity import Oddity, number, quoted
from fednlp.data.schema import SCHEMAS
from fednlp.data.split import Numbers
from fednlp.data.textdata import Split, TextData

_FEWEST_ROWS = 10
_MANY_NUMBERS = 30
_FRACTIONS = 10
_MINOR = 0.01
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)\s*")


def odd_labels(data: TextData, counts: Mapping[Split, Numbers]) -> Iterator[Oddity]:
    """Yield what is odd about labels or tags; where the column holds none, that alone.

    Args:
        data: The data set.
        counts: Examples of each label (words of each tag) by split.
    """
    kind, names = SCHEMAS[data.task].kind, data.label_names
    if kind == "tags":
        yield from _unseen(names, counts, "tag", "word")
    if kind != "class":
        return
    column, rows = data.columns["label"], len(data.train_numbers) + len(data.test_numbers)
    unfit = _no_classes(data, column, rows)
    if unfit is not None:
        yield unfit
        return
    if len(names) == 1:
        yield Oddity(
            "one-label",
            1,
            "every example has the same label",
            quoted(names[0]),
            "a model learns nothing from it; add examples of other labels, or choose another column for the label",
        )
    yield from _similar(names)
    yield from _single(names, counts["train"] + counts["test"])
    yield from _unseen(names, counts, "label", "example")


def _no_classes(data: TextData, column: str, rows: int) -> Oddity | None:
    """Return why a column of labels holds no classes, if it seems so."""
    names = data.label_names
    if fault := misread(data):
        return Oddity("misread", len(names), fault.said, fault.example, fault.remedy)
    if _are_a_scale(names, rows):
        return Oddity(
            "numeric-labels",
            len(names),
            f"{len(names):,} labels that are all numbers",
            quoted(names[len(names) // 2]),
            f'if {column!r} is a score, use task.name = "text-regression" with columns = {{score = "{column}"}}',
        )
    if rows >= _FEWEST_ROWS and 2 * len(names) > rows:
        return Oddity(
            "label-per-row",
            len(names),
            f"{len(names):,} labels for {rows:,} examples",
            quoted(names[0]),
            f"the column {column!r} does not group examples into classes; choose another column for the label",
        )
    return None


def _are_a_scale(names: Sequence[str], rows: int) -> bool:
    """Say whether labels are numbers of a scale: fractions, or too many of them for the examples."""
    if len(names) < _FRACTIONS or not all(_NUMBER.fullmatch(name) for name in names):
        return False
    fractions = any(not float(name).is_integer() for name in names)
    return fractions or (len(names) > _MANY_NUMBERS and 10 * len(names) > rows)


def _unseen(names: Sequence[str], counts: Mapping[Split, Numbers], what: str, unit: str) -> Iterator[Oddity]:
    """Find labels that only the test set has."""
    unseen = np.flatnonzero((counts["train"] == 0) & (counts["test"] > 0))
    if len(unseen):
        first = int(unseen[0])
        yield Oddity(
            "test-only-labels",
            len(unseen),
            f"{number(len(unseen), what)} in the test set that training does not have",
            f"{quoted(names[first])} ({number(int(counts['test'][first]), unit)})",
            "always counted as errors; add training examples, or remove them",
        )


def _similar(names: Sequence[str]) -> Iterator[Oddity]:
    """Find labels that differ by case or blanks alone."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(" ".join(name.casefold().split()), []).append(name)
    alike = [group for group in groups.values() if len(group) > 1]
    if alike:
        count = sum(map(len, alike))
        yield Oddity(
            "similar-labels",
            count,
            f"{count:,} labels differ from another only by case or blanks",
            f"{quoted(alike[0][0])} and {quoted(alike[0][1])}",
            "they are learnt as different labels; write each in one way",
        )


def _single(names: Sequence[str], counts: Numbers) -> Iterator[Oddity]:
    once = np.flatnonzero(counts == 1)
    if len(once):
        yield Oddity(
            "single-example-labels",
            len(once),
            f"{number(len(once), 'label')} with a single example",
            quoted(names[int(once[0])]),
            "it is either trained on or tested, never both; add examples, or merge rare labels",
            minor=len(once) < _MINOR * counts.sum(),
        )
