"""The published files of the known data sets, each in its own format, as rows with a text and a label."""

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fednlp.data.files import identity
from fednlp.data.lines import lines
from fednlp.data.store import Row, Rows
from fednlp.errors import DataError

Reader = Callable[[Path], Iterator[Row]]

AGNEWS_COLUMNS = ("text", "label", "title", "description")
TREC_COLUMNS = ("text", "label", "fine")
TEXT_LABEL = ("text", "label")

_ORANGE_HEADER = 3  # rows of names, types and roles
_AGNEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
_SST2_LABELS = {"0": "negative", "1": "positive"}
# The six types of Li and Roth (2002), in the order of the numbers that stand for them in some copies.
_TREC_TYPES = ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")


def published_rows(path: Path, reader: Reader, columns: Sequence[str], known: str | None = None) -> Rows:
    """Return the rows of one published file.

    Args:
        path: The file.
        reader: One of the readers below.
        columns: What the reader yields.
        known: SHA-256 of the file where it is pinned; else its size and time stand for its content.
    """
    shown = f"{path.name} (sha256 {known[:12]})" if known else str(path)
    return Rows(
        (reader.__name__, str(path.resolve())),
        known or identity([path]),
        shown,
        lambda: (columns, _at_least_one(path, reader)),
    )


def _at_least_one(path: Path, reader: Reader) -> Iterator[Row]:
    row = None
    for row in reader(path):
        yield row
    if row is None:
        raise DataError(f"{path}: the file is empty: it holds no example")


def newsgroups_tab(path: Path) -> Iterator[Row]:
    """Read 20 Newsgroups in Orange's format: three header rows, then ``group<TAB>text``, nothing quoted."""
    for number, line in _filled(path):
        if number > _ORANGE_HEADER:
            label, text = _two(path, number, line)
            yield text, label


def agnews_csv(path: Path) -> Iterator[Row]:
    """Read AG News: CSV ``class,title,description`` without a header, classes from 1 on."""
    reader = csv.reader(lines(path), strict=True)
    try:
        for cells in reader:
            where = f"{path}:{reader.line_num}"
            if len(cells) != 3 or cells[0] not in {"1", "2", "3", "4"}:
                raise DataError(
                    f"{where}: not class,title,description with a class from 1 to 4, as AG News has it"
                )
            number, title, description = cells
            yield f"{title} {description}", _AGNEWS_CLASSES[int(number) - 1], title, description
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not readable as CSV: {error}") from None


def sst2_tsv(path: Path) -> Iterator[Row]:
    """Read SST-2: ``sentence<TAB>label``, with GLUE's header or without, nothing quoted."""
    for number, line in _filled(path):
        text, label = _two(path, number, line)
        if (number, text, label) == (1, "sentence", "label"):
            continue
        if label not in _SST2_LABELS:
            raise DataError(
                f"{path}:{number}: the label is {label!r}, where SST-2 has 0 (negative) or 1 (positive)"
            )
        yield text, _SST2_LABELS[label]


def sst2_is_labelled(path: Path) -> bool:
    """Say whether a file of SST-2 states its labels: GLUE's test file, ``index<TAB>sentence``, does not."""
    return not next(lines(path), "").startswith("index\t")


def trec_lines(path: Path) -> Iterator[Row]:
    """Read TREC questions: ``TYPE:subtype text``, or a number for the type; old copies are Latin-1."""
    for number, line in _filled(path, latin1=True):
        tag, _, text = line.partition(" ")
        coarse = _TREC_TYPES[int(tag)] if tag in {"0", "1", "2", "3", "4", "5"} else tag.partition(":")[0]
        if coarse not in _TREC_TYPES or not text:
            raise DataError(f"{path}:{number}: not TYPE:subtype and a question, as TREC has it")
        yield text, coarse, tag if ":" in tag else None


def _filled(path: Path, latin1: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, without their line breaks, each with its number."""
    for number, line in enumerate(lines(path, latin1), 1):
        if line.strip():
            yield number, line.rstrip("\r\n")


def _two(path: Path, number: int, line: str) -> tuple[str, str]:
    cells = line.split("\t")
    if len(cells) != 2:
        raise DataError(f"{path}:{number}: {len(cells)} tab-separated cells, where this data set has 2")
    if not all(cells):
        raise DataError(f"{path}:{number}: the text or the label is missing")
    return cells[0], cells[1]
