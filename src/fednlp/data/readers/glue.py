"""GLUE's tables: acceptability, similarity and inference, one or two sentences a row."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fednlp.data.readers.csv_files import csv_records
from fednlp.data.readers.text_io import filled_lines
from fednlp.data.store import Row
from fednlp.errors import DataError
from fednlp.formatting.units import plural

_INFERENCE = {"entailment": "entailment", "neutral": "neutral", "contradiction": "contradiction"}


@dataclass(frozen=True)
class TableLayout:
    """Where a task's table has what.

    Attributes:
        texts: The columns of the one or two sentences, by name.
        label: The column of the label or score.
        labels: What the file writes, to the name of the label; empty for a score.
        headless: Its columns where the file has no line of names.
        extra: A further column that is kept; missing in some copies.
        torn: Whether published lines lack their end, as is known of QQP; those are left out.
    """

    texts: tuple[str, ...]
    label: str
    labels: Mapping[str, str]
    columns: tuple[str, ...]
    headless: tuple[str, ...] = ()
    extra: str | None = None
    torn: bool = False


_ONE, _TWO = ("text", "label"), ("text", "text_pair", "label")
_ENTAILED = {"entailment": "entailment", "not_entailment": "not_entailment"}
_SENTENCES = ("sentence1", "sentence2")

GLUE: Mapping[str, TableLayout] = {
    "cola": TableLayout(
        ("sentence",),
        "label",
        {"0": "unacceptable", "1": "acceptable"},
        _ONE,
        ("source", "label", "star", "sentence"),
    ),
    "sst2": TableLayout(
        ("sentence",), "label", {"0": "negative", "1": "positive"}, _ONE, ("sentence", "label")
    ),
    "mrpc": TableLayout(
        ("#1 String", "#2 String"), "Quality", {"0": "not_equivalent", "1": "equivalent"}, _TWO
    ),
    "stsb": TableLayout(_SENTENCES, "score", {}, ("text", "text_pair", "score", "genre"), extra="genre"),
    "qqp": TableLayout(
        ("question1", "question2"), "is_duplicate", {"0": "not_duplicate", "1": "duplicate"}, _TWO, torn=True
    ),
    "mnli": TableLayout(_SENTENCES, "gold_label", _INFERENCE, (*_TWO, "genre"), extra="genre"),
    "qnli": TableLayout(("question", "sentence"), "label", _ENTAILED, _TWO),
    "rte": TableLayout(_SENTENCES, "label", _ENTAILED, _TWO),
    "wnli": TableLayout(_SENTENCES, "label", {"0": "not_entailment", "1": "entailment"}, _TWO),
}
"""The layout of each GLUE task, whose ``columns`` its rows have. Source: gluebenchmark.com, the files of 2018."""

STSB_CSV_COLUMNS = ("text", "text_pair", "score")


def glue(path: Path, task: str) -> Iterator[Row]:
    """Read a table of a GLUE task that states its labels: tab-separated, nothing quoted.

    Numbers that stand for labels become their names.

    Args:
        path: ``train.tsv``, ``dev.tsv``, or MRPC's ``msr_paraphrase_train.txt``, plain or gzipped.

    Yields:
        The columns ``GLUE[task].columns``.

    Raises:
        DataError: The table has not the task's columns, or a line is not of the table.
    """
    layout = GLUE[task]
    names: tuple[str, ...] = ()
    for number, line in filled_lines(path):
        cells = line.split("\t")
        if not names:
            names = _names(cells, layout, task, f"{path}:{number}")
            if tuple(cells) == names:
                continue
        if len(cells) < len(names) and layout.torn:
            continue
        yield _row(dict(zip(names, cells, strict=False)), len(cells), layout, f"{path}:{number}", names)


def _names(cells: list[str], layout: TableLayout, task: str, where: str) -> tuple[str, ...]:
    required = (*layout.texts, layout.label)
    if all(name in cells for name in required):
        return tuple(cells)
    if len(cells) == len(layout.headless) and cells[layout.headless.index(layout.label)] in layout.labels:
        return layout.headless
    hint = ": GLUE keeps the labels of its test files, take dev.tsv" if "index" in cells else ""
    raise DataError(f"{where}: not the columns {', '.join(required)} of {task}{hint}")


def _row(row: dict[str, str], count: int, layout: TableLayout, where: str, names: tuple[str, ...]) -> Row:
    if count != len(names):
        cells, columns = plural(count, "tab-separated cell"), plural(len(names), "column")
        raise DataError(f"{where}: {cells}, and there should be {columns}")
    texts = [row[name].strip() for name in layout.texts]
    if not all(texts):
        raise DataError(f"{where}: the sentence is missing: fill it in or delete the line")
    label = row[layout.label].strip()
    if layout.labels and label not in layout.labels:
        raise DataError(f"{where}: the label is {label[:40]!r}, where there are {', '.join(layout.labels)}")
    target = layout.labels[label] if layout.labels else _score(label, where)
    return (*texts, target, *([row.get(layout.extra)] if layout.extra else []))


def _score(value: str, where: str) -> str:
    try:
        inside = 0 <= float(value) <= 5
    except ValueError:
        inside = False
    if not inside:
        raise DataError(f"{where}: the score is {value[:40]!r}, where STS-B has a number from 0 to 5")
    return value


def stsb_csv(path: Path) -> Iterator[Row]:
    """Read STS-B as CSV without a header: sentence, sentence, score from 0 to 5.

    Raises:
        DataError: A record is not that.
    """
    for number, (first, second, score) in csv_records(path, 3):
        where = f"{path}:{number}"
        if not first.strip() or not second.strip():
            raise DataError(f"{where}: a sentence is missing: fill it in or delete the line")
        yield first.strip(), second.strip(), _score(score.strip(), where)
