"""Any table before its task is known: each column with its kind, its counts and examples."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice

from fednlp.data.columns import no_names
from fednlp.data.profiling.label_issues import quoted
from fednlp.data.store import Fault, Rows

_ROWS = 10_000
_EXAMPLES = 3
_FEW = 20
_NO_TASK = "no task fits"


@dataclass(frozen=True)
class ColumnProfile:
    """A column of a table.

    Attributes:
        name: Its name.
        kind: What its values are: numbers, short values that repeat, lists, texts, or nothing.
        filled: Rows with a value.
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
        rows: Of whatever columns.
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
