"""The profile of a data set before training: how it was read, its statistics, and its issues."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from fednlp.data.columns import no_names
from fednlp.data.profiling.label_issues import LONGEST_EXAMPLE, Issue, label_issues, quoted
from fednlp.data.profiling.statistics import (
    DataStatistics,
    columns_text,
    count_labels,
    sampled_inputs,
    scan,
    scripts_text,
    statistics_of,
    with_tokens,
)
from fednlp.data.profiling.text_issues import (
    Holders,
    Truncation,
    damaged_text_issues,
    duplicate_issues,
    empty_text_issues,
    missing_word_issues,
    no_text_issues,
    truncation_issue,
)
from fednlp.data.split import Numbers
from fednlp.data.store import Fault, Rows
from fednlp.data.textdata import TextData
from fednlp.formatting.units import plural

_MOST_LINES = 8
_FEW_LABELS = 5
_MOST_SILOS = 50
_ORDER = (
    "misread",
    "label-per-row",
    "one-label",
    "numeric-labels",
    "no-texts",
    "missing-value-labels",
    "similar-labels",
    "near-labels",
    "in-train-and-test",
    "contradicting-labels",
    "empty-texts",
    "cut-off",
    "damaged-texts",
    "missing-value-texts",
    "test-only-labels",
    "train-only-labels",
    "repeated-in-train",
    "repeated-in-test",
    "shared-by-clients",
    "single-example-labels",
)
"""Kinds of issues, the most serious first."""


@dataclass(frozen=True)
class DataProfile:
    """How a data set was read, its statistics and its issues.

    Attributes:
        statistics: How it was read, its labels, the lengths of its texts, some examples.
        issues: What is unusual about it, the most serious first.
    """

    statistics: DataStatistics
    issues: tuple[Issue, ...]

    def values(self, texts: bool = True) -> dict[str, Any]:
        """Return everything as values that JSON can hold.

        Args:
            texts: Whether to show examples; without them no text of the data is in it.
        """
        found = {**asdict(self.statistics), "oddities": [issue.values() for issue in self.issues]}
        if not texts:
            del found["examples"]
            for issue in found["oddities"]:
                del issue["example"]
        return found

    def lines(self) -> list[str]:
        """Return the profile in at most eight lines: how the data were read, labels, lengths, warnings."""
        statistics = self.statistics
        lines = [_read_line(statistics), *_target_lines(statistics, _FEW_LABELS), _length_line(statistics)]
        serious = [str(issue) for issue in self.issues if not issue.minor]
        room = _MOST_LINES - len(lines)
        shown = serious if len(serious) <= room else serious[: room - 1]
        lines += shown
        if more := len(serious) - len(shown):
            lines.append(f"and {plural(more, 'more warning')}: fednlp data info lists them")
        return lines

    def silo_lines(self) -> list[str]:
        """Return a line for each silo: its examples, its rows left out, and those of each label."""
        rows = list(_silo_rows(self.statistics))
        return _aligned(rows) if rows else []

    def page(self) -> str:
        """Return the profile in full."""
        statistics = self.statistics
        rows: list[tuple[str, str]] = [
            ("name", statistics.name),
            ("source", statistics.source),
            *(("found", note) for note in statistics.notes),
            ("task", statistics.task),
            ("columns", columns_text(statistics.columns)),
            ("other columns", ", ".join(statistics.others) or "none"),
            ("examples", _sizes(statistics)),
        ]
        if statistics.dropped:
            rows.append(("rows left out", f"{statistics.dropped:,}"))
        rows += _target_rows(statistics)
        rows += _silo_rows(statistics)
        rows += [(f"{name}, characters", str(spread)) for name, spread in statistics.characters.items()]
        rows += [(f"{name}, words", str(spread)) for name, spread in statistics.words.items()]
        rows.append(("scripts", scripts_text(statistics.scripts)))
        for number, example in enumerate(statistics.examples, 1):
            rows += [(f"example {number}, {name}", value) for name, value in example.items()]
        lines = _aligned(rows)
        lines += [str(issue) for issue in self.issues] or ["nothing odd was found"]
        return "\n".join(lines)


def profile(
    data: TextData,
    holders: Holders | None = None,
    tokens: Numbers | None = None,
    truncated: Truncation | None = None,
) -> DataProfile:
    """Return the profile of a data set, from one pass over its texts; it keeps 16 bytes an example meanwhile.

    Args:
        holders: The client of each training example, to find texts that several clients hold.
        tokens: How many tokens the model reads of each example, int64; left out where no model is known.
        truncated: What the model does not read of long texts.
    """
    scanned, counts = scan(data), count_labels(data)
    statistics = statistics_of(data, scanned, counts)
    if tokens is not None:
        statistics = with_tokens(statistics, tokens)
    found = [
        *label_issues(data, counts),
        *empty_text_issues(data, scanned),
        *missing_word_issues(data, scanned),
        *damaged_text_issues(data, scanned),
        *no_text_issues(sampled_inputs(data) if data.schema.kind != "tags" else []),
        *duplicate_issues(data, scanned, holders),
    ]
    if truncated is not None and (truncated.texts or truncated.cuts):
        found.append(truncation_issue(truncated))
    found.sort(key=lambda issue: (issue.minor, _ORDER.index(issue.kind)))
    return DataProfile(statistics, tuple(found))


def _read_line(statistics: DataStatistics) -> str:
    return (
        f"data: {statistics.name} read as {statistics.task} ({columns_text(statistics.columns)}): "
        f"{_sizes(statistics)}"
    )


def _sizes(statistics: DataStatistics) -> str:
    held = " (held out of the same file)" if statistics.held_out else ""
    if statistics.own_tests:
        held = " (split off each client's examples)"
    return f"{statistics.train:,} training and {statistics.test:,} test examples{held}"


def _target_lines(statistics: DataStatistics, most: int) -> Iterator[str]:
    if statistics.num_labels is not None:
        named = ", ".join(
            f"{_visible(label.name)} ({label.train + label.test:,})" for label in statistics.labels[:most]
        )
        more = statistics.num_labels - min(most, len(statistics.labels))
        noun = "tag" if statistics.task == "token-classification" else "label"
        yield f"{plural(statistics.num_labels, noun)}: {named}{f' and {more:,} more' if more else ''}"
    elif statistics.scores is not None:
        yield f"scores: {_scores(statistics.scores)}"


def _target_rows(statistics: DataStatistics) -> Iterator[tuple[str, str]]:
    if statistics.scores is not None:
        yield "scores", _scores(statistics.scores)
    if statistics.num_labels is None:
        return
    yield ("tags" if statistics.task == "token-classification" else "labels"), f"{statistics.num_labels:,}"
    for label in statistics.labels:
        yield f"  {_visible(label.name)}", f"{label.train:,} training, {label.test:,} test"
    if statistics.num_labels > len(statistics.labels):
        yield "", f"and {statistics.num_labels - len(statistics.labels):,} more"


def _aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]


def _silo_rows(statistics: DataStatistics) -> Iterator[tuple[str, str]]:
    """Yield a line for each silo: its examples, its rows left out, and those of each label."""
    if not statistics.silos:
        return
    yield "silos", f"{len(statistics.silos):,}"
    for silo in statistics.silos[:_MOST_SILOS]:
        left_out = f", {silo.dropped:,} left out" if silo.dropped else ""
        labels = ", ".join(f"{_visible(name)} {count:,}" for name, count in silo.labels.items() if count)
        more = len(statistics.labels) < (statistics.num_labels or 0)
        held = f": {labels}{', ...' if more else ''}" if labels else ""
        yield f"  {silo.name}", f"{silo.train:,} training, {silo.test:,} test{left_out}{held}"
    if len(statistics.silos) > _MOST_SILOS:
        yield "", f"and {len(statistics.silos) - _MOST_SILOS:,} more"


def _visible(name: str) -> str:
    """Return a label, in quotes where blanks around it would not show."""
    return quoted(name) if name != name.strip() or len(name) > LONGEST_EXAMPLE else name


def _scores(scores: Sequence[float]) -> str:
    low, middle, high = scores
    return f"{low:g} to {high:g}, median {middle:g}"


def _length_line(statistics: DataStatistics) -> str:
    if statistics.tokens is not None:
        return f"lengths: {statistics.tokens} tokens; script: {scripts_text(statistics.scripts)}"
    lengths = "; ".join(f"{name} {spread} words" for name, spread in statistics.words.items())
    return f"lengths: {lengths}; script: {scripts_text(statistics.scripts)}"


_ROWS = 10_000
_EXAMPLES = 3
_FEW = 20
_NO_TASK = "no task fits"


@dataclass(frozen=True)
class ColumnProfile:
    """A column of a table.

    Attributes:
        kind: What its values are: numbers, short values that repeat, lists, texts, or nothing.
        different: How many different values there are.
        examples: The first few of them.
    """

    name: str
    kind: str
    filled: int
    different: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class TableProfile:
    """The first rows of a table, and why no task reads it as it is."""

    source: str
    rows: int
    columns: tuple[ColumnProfile, ...]
    advice: str

    def values(self) -> dict[str, object]:
        """Return everything as values that JSON can hold."""
        return asdict(self)

    def page(self) -> str:
        """Return it for people."""
        width = max((len(column.name) for column in self.columns), default=0)
        head = f"first {self.rows:,} rows" if self.rows == _ROWS else f"{self.rows:,} rows"
        lines = [f"{self.source}, {head}, no task yet"]
        for column in self.columns:
            shown = ", ".join(map(quoted, column.examples))
            lines.append(
                f"  {column.name:<{width}}  {column.kind}, {column.filled:,} filled, {column.different:,} different: "
                f"{shown}"
            )
        texts = [column for column in self.columns if column.kind == "texts"]
        labels = [column for column in self.columns if column.kind == "short values" and column.different > 1]
        labels += [one for one in self.columns if one.kind == "numbers" and 1 < one.different <= _FEW]
        if texts and labels and _NO_TASK in self.advice:
            text = max(texts, key=lambda column: max(map(len, column.examples)))
            lines.append(f"perhaps: --text {shlex.quote(text.name)} --label {shlex.quote(labels[0].name)}")
        return "\n".join([*lines, f"what to do: {self.advice}"])


def table_profile(rows: Rows, advice: str) -> TableProfile:
    """Return the profile of the first 10,000 rows of a table.

    Args:
        advice: Why no task reads it, and what to type.

    Raises:
        DataError: It cannot be read.
    """
    names, placed = rows.read({})
    head = [row for _, row in islice(placed, _ROWS) if not isinstance(row, Fault)]
    values = [[row[place] or "" for row in head] for place in range(len(names))]
    columns = [_column(name, own) for name, own in zip(names, values, strict=True)]
    again = next((name for name, own in zip(names, values, strict=True) if name in own[:-1]), None)
    if again is not None and _NO_TASK in advice:
        advice = f"{advice.partition(_NO_TASK)[0]}{no_names(again, names)}"
    return TableProfile(rows.shown, len(head), tuple(columns), advice)


def _column(name: str, values: Sequence[str]) -> ColumnProfile:
    filled = [value for value in values if value.strip()]
    different = list(dict.fromkeys(filled))
    return ColumnProfile(
        name, _kind(filled, different), len(filled), len(different), tuple(different[:_EXAMPLES])
    )


def _kind(filled: Sequence[str], different: Sequence[str]) -> str:
    if not filled:
        return "empty"
    if all(value.startswith(("[", "{")) for value in different):
        return "lists or objects"
    if all(map(_is_number, different)):
        return "numbers"
    few = len(different) <= max(2, min(_FEW, len(filled) // 4))
    return "short values" if few and max(map(len, different)) <= 2 * _FEW else "texts"


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
