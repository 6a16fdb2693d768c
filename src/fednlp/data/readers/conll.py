"""Words and tags: in columns, one word a line, as the CoNLL shared tasks have it; or a sentence a line, as WikiNER."""

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

DOCUMENT = "-DOCSTART-"
NO_COLUMN = -1
NUMBERED = re.compile(r"\d{1,6}([-.]\d{1,6})?")
"""The number of a word; of a range of words (``1-2``), or of an empty one (``1.1``), as CoNLL-U has them."""
OUTSIDE = frozenset({"O", "o", "_", "-", "*"})
"""How files write that a word is in no span."""
MARKED = re.compile(r"([BIESLUMW])(?:[-_](\S+))?")
"""A tag of a span: a mark, and a kind unless all are of one."""
REVERSED = re.compile(r"(\S+)[-_]([BIESLUMW])")

_COMMENT = re.compile(r"#(\s|$|#|!|(begin|end) document|[\w.]+\s*=)")
_BLANKS = re.compile("[ \t]+")
_BEGINS, _GOES_ON, _ENDS = "BSUW", "IELM", "SUELW"


def conll(
    path: Path,
    word: int = 0,
    tag: int = -1,
    scheme: str = "auto",
    prefix: str = "",
    index: int = NO_COLUMN,
    cells: int = 0,
    tabbed: bool = False,
    shape: str = "",
    comments: bool = False,
    header: bool = False,
) -> Iterator[Row]:
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
        index: The column that counts the words of a sentence, if there is one: ranges and empty words are left out.
        cells: How many cells each line has; 0 for any number.
        tabbed: Whether tabs separate the cells, for the sake of comments.
        shape: ``"marked"`` for B-PER, ``"reversed"`` for PER-B, also with an underscore, which becomes B-PER;
            empty to leave tags as they are written.
        comments: Whether lines before a sentence may be comments, which begin with ``#``.
        header: Whether the first line has the names of the columns.

    Yields:
        Words and tags, each a JSON list of strings.

    Raises:
        DataError: A line has no such column, or a tag is not of the scheme.
    """
    _check_scheme(scheme)
    lines = _without_comments(path, cells, tabbed, shape) if comments else numbered_lines(path)
    if header:
        next((line for _, line in lines if line.strip()), None)
    for sentence in _sentences(path, lines, word, tag, prefix, index, cells):
        numbers, words, written = zip(*sentence, strict=True)
        tags = [_spelt(one, shape) for one in written] if shape else written
        yield _row(words, tags, scheme, [f"{path}:{number}" for number in numbers])


def inline(path: Path, scheme: str = "auto", mark: str = "|", parts: int = 3) -> Iterator[Row]:
    """Read a sentence a line, its words between blanks with the tag after a mark.

    By default this is WikiNER (Nothman et al., 2013): ``word|POS|tag``, IOB1. The Brown corpus, and taggers such as
    Stanford's, write ``word/TAG`` or ``word_TAG``.

    Args:
        path: Plain or gzipped.
        scheme: As for :func:`conll`.
        mark: What stands before the tag; a word may hold it too.
        parts: How many parts a word and its tags have together; the last one is the tag.

    Raises:
        DataError: A word has no such parts, or a tag is not of the scheme.
    """
    _check_scheme(scheme)
    for number, line in filled_lines(path):
        where = f"{path}:{number}"
        found = [item.rsplit(mark, parts - 1) for item in line.split()]
        wrong = next((part for part in found if len(part) != parts or not part[0] or not part[-1]), None)
        if wrong is not None:
            written = mark.join(["word", *["POS"] * (parts - 2), "tag"])
            raise DataError(
                f"{where}: {mark.join(wrong)[:40]!r} is not {written}, as other words are written"
            )
        words, tags = [part[0] for part in found], [part[-1] for part in found]
        yield _row(words, tags, scheme, [where] * len(found))


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Return tags in IOB2, from IOB1, IOBES, BILOU, BMEWO or IOB2; tags of no such scheme stay.

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


Word = tuple[int, str, str]
"""The number of a word's line, the word, and its tag."""


def _sentences(
    path: Path, lines: Iterator[tuple[int, str]], word: int, tag: int, prefix: str, index: int, cells: int
) -> Iterator[list[Word]]:
    sentence: list[Word] = []
    first = 1
    for number, line in lines:
        if not line.strip() or line.startswith(DOCUMENT):
            if sentence:
                yield sentence
                sentence = []
            continue
        found = split_cells(line, cells)
        if index != NO_COLUMN:
            place = found[index] if index < len(found) else ""
            if not NUMBERED.fullmatch(place):
                raise DataError(
                    f"{path}:{number}: column {index + 1} counts the words, and here it is {place[:40]!r}: "
                    "write the number of the word"
                )
            if not place.isdecimal():
                continue
            if sentence and int(place) == first:
                yield sentence
                sentence = []
            first = first if sentence else int(place)
        sentence.append((number, *_word(found, f"{path}:{number}", word, tag, prefix, cells)))
        if len(sentence) > LONGEST_SENTENCE:
            raise DataError(
                f"{path}:{sentence[0][0]}: a sentence of more than {LONGEST_SENTENCE:,} words: put a blank line "
                f"between sentences"
            )
    if sentence:
        yield sentence


def _without_comments(path: Path, cells: int, tabbed: bool, shape: str) -> Iterator[tuple[int, str]]:
    begins = True
    for number, line in numbered_lines(path):
        if not is_comment(line, begins, cells, tabbed, shape):
            begins = not line.strip()
            yield number, line


def is_comment(line: str, begins: bool, cells: int, tabbed: bool, shape: str) -> bool:
    """Say whether a line is a comment, and not a word that begins with ``#``.

    Args:
        line: The line.
        begins: Whether no word of the sentence comes before it.
        cells: How many cells a word's line has; 0 where it is not known.
        tabbed: Whether tabs separate them.
        shape: Of the tags.
    """
    found = _COMMENT.match(line)
    if not found or not (begins or found[2]):
        return False
    parts = split_cells(line, cells)
    if found[2] or (tabbed and "\t" not in line) or len(parts) < 2 or (cells and len(parts) != cells):
        return True
    return bool(shape) and not any(
        one in OUTSIDE or MARKED.fullmatch(one) or REVERSED.fullmatch(one) for one in parts
    )


def _spelt(tag: str, shape: str) -> str:
    """Return a tag as B-PER, I-PER or O, where it is one of these in another spelling."""
    if tag in OUTSIDE:
        return "O"
    found = (MARKED if shape == "marked" else REVERSED).fullmatch(tag)
    if found is None:
        return tag
    mark, kind = (found[1], found[2]) if shape == "marked" else (found[2], found[1])
    return f"{mark}-{kind}" if kind else mark


def _too_few(count: int, word: int, tag: int) -> str:
    """Say that a line lacks its word or its tag; people count columns from 1."""
    named = {-1: "the last column"}
    places = [
        named.get(one, f"column {one + 1}" if one >= 0 else f"column {-one} from the end")
        for one in (word, tag)
    ]
    there = f"the line has {plural(count, 'column')}"
    return f"{there}: write the word in {places[0]} and its tag in {places[1]}"


def split_cells(line: str, count: int = 0) -> list[str]:
    """Return the cells of a line, cut at its tabs, or at its blanks where it has none.

    Args:
        line: The line.
        count: How many there should be: a line may end in a tab beyond them.
    """
    cells = line.split("\t") if "\t" in line else _BLANKS.split(line.strip(" "))
    return cells[:-1] if count and len(cells) == count + 1 and not cells[-1].strip() else cells


def _word(cells: Sequence[str], where: str, word: int, tag: int, prefix: str, wanted: int) -> tuple[str, str]:
    count = len(cells)
    if count < 2 or not (-count <= word < count and -count <= tag < count):
        raise DataError(f"{where}: {_too_few(count, word, tag)}")
    if wanted and count != wanted:
        raise DataError(
            f"{where}: {plural(count, 'column')} where other lines have {wanted} ({' '.join(cells)[:60]!r}): separate "
            "columns by one tab, or say which count: columns = {words = 1, tags = -1}"
        )
    found, name = cells[word].strip(" "), cells[tag].strip(" ")
    if not found.startswith(prefix):
        raise DataError(f"{where}: the word {found[:40]!r} does not begin with {prefix!r}, as all others do")
    if not name or not found:
        raise DataError(f"{where}: the word or the tag is missing: write a word and its tag")
    return found.removeprefix(prefix), name
