"""Words and tags in columns, one word a line, as the CoNLL shared tasks have it; and WikiNER's lines."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fednlp.data.readers.text_io import filled_lines, numbered_lines
from fednlp.data.store import Row
from fednlp.errors import DataError
from fednlp.formatting.units import plural

COLUMNS = ("words", "tags")
SCHEMES = ("auto", "iob1", "iob2", "none")

LONGEST_SENTENCE = 100_000
"""Words of a sentence: more means that the blank lines between sentences are missing."""

_DOCUMENT = "-DOCSTART-"
_BLANKS = re.compile("[ \t]+")
_BEGINS, _GOES_ON, _ENDS = "BSU", "IEL", "SUEL"


def conll(path: Path, word: int = 0, tag: int = -1, scheme: str = "auto", prefix: str = "") -> Iterator[Row]:
    """Read words and tags in columns; a blank line or ``-DOCSTART-`` ends a sentence.

    CoNLL-2003, W-NUT 2017, WikiANN (``prefix="en:"``) and OntoNotes 5 in CoNLL columns are such files. A line
    with a tab is cut at its tabs, any other at its blanks.

    Args:
        path: Plain or gzipped.
        word: The column of words, from 0; -1 is the last.
        tag: The column of tags.
        scheme: ``"iob1"`` (CoNLL-2003 as published), ``"iob2"``, ``"auto"`` to make IOB2 of whatever is not
            (IOB1, IOBES, BILOU), or ``"none"`` to leave tags of another kind as they are.
        prefix: Taken off every word, as WikiANN's language; a word without it is refused.

    Yields:
        Words and tags, each a JSON list of strings.

    Raises:
        DataError: A line has no such column, or a tag is not of the scheme.
    """
    _check_scheme(scheme)
    for start, sentence in _sentences(path, word, tag, prefix):
        words, tags = zip(*sentence, strict=True)
        yield _row(words, tags, scheme, [f"{path}:{start + place}" for place in range(len(tags))])


def wikiner(path: Path, scheme: str = "auto") -> Iterator[Row]:
    """Read WikiNER (Nothman et al., 2013): a sentence a line, ``word|POS|tag`` between blanks, IOB1.

    Raises:
        DataError: A word has no such parts, or a tag is not of the scheme.
    """
    _check_scheme(scheme)
    for number, line in filled_lines(path):
        where = f"{path}:{number}"
        parts = [item.rsplit("|", 2) for item in _BLANKS.split(line.strip(" \t"))]
        if any(len(part) != 3 or not part[0] or not part[2] for part in parts):
            raise DataError(f"{where}: not word|POS|tag between blanks, as WikiNER has it")
        yield _row([part[0] for part in parts], [part[2] for part in parts], scheme, [where] * len(parts))


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Return tags in IOB2, from IOB1, IOBES, BILOU or IOB2; tags of no such scheme stay.

    An entity begins where a tag says so, where its kind changes, and after the end of another.
    Source: Tjong Kim Sang and Veenstra (1999), Representing text chunks.

    >>> to_iob2(["I-ORG", "O", "I-PER", "I-PER", "B-PER"])
    ['B-ORG', 'O', 'B-PER', 'I-PER', 'B-PER']
    >>> to_iob2(["S-LOC", "B-PER", "I-PER", "E-PER"])
    ['B-LOC', 'B-PER', 'I-PER', 'I-PER']
    """
    converted = []
    inside: str | None = None
    for tag in tags:
        mark, kind = _parts(tag)
        if not mark:
            inside = None
            converted.append(tag)
            continue
        begins = mark in _BEGINS or inside != kind
        converted.append(("B" if begins else "I") + tag[1:])
        inside = None if mark in _ENDS else kind
    return converted


def _parts(tag: str) -> tuple[str, str]:
    """Return a tag's mark (empty where it has none) and kind."""
    mark, dash, kind = tag.partition("-")
    if mark in {"B", "I"} or (dash and len(mark) == 1 and mark in _BEGINS + _GOES_ON):
        return mark, kind
    return "", tag


def _row(words: Sequence[str], tags: Sequence[str], scheme: str, places: Sequence[str]) -> Row:
    if scheme != "none":
        converted = to_iob2(tags)
        place = _misplaced(tags, converted, scheme)
        if place is not None:
            raise DataError(
                f"{places[place]}: the tag {tags[place]!r} cannot stand here in {scheme.upper()}: "
                f'say scheme="auto"'
            )
        tags = converted
    return json.dumps(list(words), ensure_ascii=False), json.dumps(list(tags), ensure_ascii=False)


def _misplaced(tags: Sequence[str], converted: Sequence[str], scheme: str) -> int | None:
    """Return the place of the first tag that the scheme does not have there."""
    for place, (old, new) in enumerate(zip(tags, converted, strict=True)):
        if (scheme == "iob2" and old != new) or (scheme == "iob1" and old[0] not in {new[0], "I"}):
            return place
    return None


def _check_scheme(scheme: str) -> None:
    if scheme not in SCHEMES:
        raise DataError(f"there is no tagging scheme {scheme!r}: choose from {', '.join(SCHEMES)}")


def _sentences(path: Path, word: int, tag: int, prefix: str) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    sentence: list[tuple[str, str]] = []
    start = 0
    for number, line in numbered_lines(path):
        if not line.strip() or line.startswith(_DOCUMENT):
            if sentence:
                yield start, sentence
                sentence = []
            continue
        if not sentence:
            start = number
        sentence.append(_cells(line, f"{path}:{number}", word, tag, prefix))
        if len(sentence) > LONGEST_SENTENCE:
            raise DataError(
                f"{path}:{start}: a sentence of more than {LONGEST_SENTENCE:,} words: put a blank line "
                f"between sentences"
            )
    if sentence:
        yield start, sentence


def _too_few(count: int, word: int, tag: int) -> str:
    """Say that a line lacks its word or its tag; people count columns from 1."""
    named = {-1: "the last column"}
    places = [
        named.get(one, f"column {one + 1}" if one >= 0 else f"column {-one} from the end")
        for one in (word, tag)
    ]
    there = f"the line has {plural(count, 'column')}"
    return f"{there}: write the word in {places[0]} and its tag in {places[1]}"


def _cells(line: str, where: str, word: int, tag: int, prefix: str) -> tuple[str, str]:
    cells = line.split("\t") if "\t" in line else _BLANKS.split(line.strip(" "))
    count = len(cells)
    if count < 2 or not (-count <= word < count and -count <= tag < count):
        raise DataError(f"{where}: {_too_few(count, word, tag)}")
    found, name = cells[word].strip(" "), cells[tag].strip(" ")
    if not found.startswith(prefix):
        raise DataError(f"{where}: the word {found[:40]!r} does not begin with {prefix!r}, as all others do")
    if not name or not found:
        raise DataError(f"{where}: the word or the tag is missing: write a word and its tag")
    return found.removeprefix(prefix), name
