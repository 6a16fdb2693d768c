"""Words and tags: in columns, one word a line, as the CoNLL shared tasks have it; or a sentence a line, as WikiNER."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fednlp.data.readers.text_io import filled_lines, numbered_lines
from fednlp.data.store import Row
from fednlp.errors import DataError
from fednlp.formatting.units import plural

COLUMNS = ("words", "tags")
_SCHEMES = ("auto", "iob1", "iob2", "none")

LONGEST_SENTENCE = 100_000
"""Words of a sentence: more means that the blank lines between sentences are missing."""

_DOCUMENT = "-DOCSTART-"
_NO_COLUMN = -1
_NUMBERED = re.compile(r"\d{1,6}([-.]\d{1,6})?")
"""The number of a word; of a range of words (``1-2``), or of an empty one (``1.1``), as CoNLL-U has them."""
OUTSIDE = frozenset({"O", "o", "_", "-", "*"})
"""How files write that a word is in no span."""
_MARKED = re.compile(r"([BIESLUMW])(?:[-_](\S+))?")
"""A tag of a span: a mark, and a kind unless all are of one."""
_REVERSED = re.compile(r"(\S+)[-_]([BIESLUMW])")

_COMMENT = re.compile(r"#(\s|$|#|!|(begin|end) document|[\w.]+\s*=)")
_BLANKS = re.compile("[ \t]+")
_BEGINS, _GOES_ON, _ENDS = "BSUW", "IELM", "SUELW"


def conll(
    path: Path,
    word: int = 0,
    tag: int = -1,
    scheme: str = "auto",
    prefix: str = "",
    index: int = _NO_COLUMN,
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
    if scheme not in _SCHEMES:
        raise DataError(f"there is no tagging scheme {scheme!r}: choose from {', '.join(_SCHEMES)}")


Word = tuple[int, str, str]
"""The number of a word's line, the word, and its tag."""


def _sentences(
    path: Path, lines: Iterator[tuple[int, str]], word: int, tag: int, prefix: str, index: int, cells: int
) -> Iterator[list[Word]]:
    sentence: list[Word] = []
    first = 1
    for number, line in lines:
        if not line.strip() or line.startswith(_DOCUMENT):
            if sentence:
                yield sentence
                sentence = []
            continue
        found = _split_cells(line, cells)
        if index != _NO_COLUMN:
            place = found[index] if index < len(found) else ""
            if not _NUMBERED.fullmatch(place):
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
        if not _is_comment(line, begins, cells, tabbed, shape):
            begins = not line.strip()
            yield number, line


def _is_comment(line: str, begins: bool, cells: int, tabbed: bool, shape: str) -> bool:
    """Say whether a line is a comment, and not a word that begins with ``#``.

    Args:
        begins: Whether no word of the sentence comes before it.
        cells: How many cells a word's line has; 0 where it is not known.
        tabbed: Whether tabs separate them.
    """
    found = _COMMENT.match(line)
    if not found or not (begins or found[2]):
        return False
    parts = _split_cells(line, cells)
    if found[2] or (tabbed and "\t" not in line) or len(parts) < 2 or (cells and len(parts) != cells):
        return True
    return bool(shape) and not any(
        one in OUTSIDE or _MARKED.fullmatch(one) or _REVERSED.fullmatch(one) for one in parts
    )


def _spelt(tag: str, shape: str) -> str:
    """Return a tag as B-PER, I-PER or O, where it is one of these in another spelling."""
    if tag in OUTSIDE:
        return "O"
    found = (_MARKED if shape == "marked" else _REVERSED).fullmatch(tag)
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


def _split_cells(line: str, count: int = 0) -> list[str]:
    """Return the cells of a line, cut at its tabs, or at its blanks where it has none.

    Args:
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


CONLLU = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
"""The columns of CoNLL-U, the format of Universal Dependencies (CoNLL-X has them under similar names)."""

_CHUNKS = frozenset(["ADJP", "ADVP", "CONJP", "INTJ", "LST", "NP", "PP", "PRT", "SBAR", "UCP", "VP"])
"""The phrases of CoNLL-2000, which CoNLL-2003 has in a column before that of the entities."""

_LINES = 20_000
_FEW = 20
_MOST_SHOWN = 20
"""Columns that a message names."""
_NAMES = re.compile(r"#\s*global\.columns\s*=\s*(.+)")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)?:")
_NUMBER = re.compile(r"-?[1-9]\d?")
_BRACKET = re.compile(r"\([^\s()*]+(\*\)?|\))")
_BRACKETED = re.compile(r"(\([^\s()*]+)*(\*\)*|\))")
"""A cell of CoNLL-2005 and CoNLL-2012: brackets of phrases, spans or roles around a word."""
_MARKS = "/_|#"
_INLINE_LINES, _FEWEST_WORDS, _MOST_PARTS = 200, 20, 3

_HEADER = (
    frozenset(("form", "token", "tokens", "word", "words")),
    frozenset(
        ("bio", "entity", "iob", "label", "labels", "ner", "ner_tag", "ner_tags", "pos", "tag", "tags")
    ),
)
"""Names of the columns of words and of tags, where the first line has them."""

Sentence = list[list[str]]


@dataclass(frozen=True)
class Layout:
    """Where the words and the tags of a file stand.

    Attributes:
        options: Arguments of :func:`fednlp.data.readers.conll.conll`.
        columns: What to call the words and the tags: as the user does, else by their canonical names.
        note: What was found, for people; empty for a word first and its tag last.
    """

    options: Mapping[str, str | int | bool]
    columns: tuple[str, str] = ("words", "tags")
    note: str = ""


def is_tagged(path: Path) -> bool:
    """Say whether a text file, of whatever ending, has words and tags in columns.

    Its lines have as many cells each, and one column holds tags such as ``B-PER`` and ``O``; or its words are
    numbered, or it begins as a file of the CoNLL shared tasks.

    Raises:
        DataError: A line is not UTF-8.
    """
    lines = [line for _, line in islice(numbered_lines(path), 200)]
    first = next((line for line in lines if line.strip()), "")
    if first.startswith(_DOCUMENT) or _NAMES.match(first):
        return True
    sentences, count, _ = _cut(lines)
    rows = [cells for sentence in sentences for cells in sentence]
    if count < 2 or not rows or len(rows[0]) != count:
        return False
    alike = [cells for cells in rows[_has_header(rows) :] if len(cells) == count]
    if not alike or 2 * len(alike) < len(rows):
        return False
    if count > 2 and any(line.strip() == "" for line in lines) and _index_of(sentences, count) != _NO_COLUMN:
        return True
    return any(
        all(_is_tag(cells[place]) for cells in alike) and _begins_with_tag(alike[0][place])
        for place in range(count)
    )


def inline_marks(path: Path) -> tuple[str, int] | None:
    """Return what stands before the tags of a text with a sentence a line, and the parts of a word and its tags.

    Nine words in ten are written ``word/TAG``, or with another mark, and there are far fewer tags than words; of a
    text without such tags the result is None.

    Raises:
        DataError: A line is not UTF-8.
    """
    words = [word for _, line in islice(filled_lines(path), _INLINE_LINES) for word in line.split()]
    for mark in _MARKS if len(words) >= _FEWEST_WORDS else "":
        found = [parts for word in words if all(parts := word.rsplit(mark, 1)) and len(parts) == 2]
        if 10 * len(found) >= 9 * len(words) and 4 * len({tag for _, tag in found}) <= len(words):
            counts = Counter(len(word.split(mark)) for word in words)
            return mark, min(counts.most_common(1)[0][0], _MOST_PARTS)
    return None


def is_column_number(own: str) -> bool:
    """Say whether the user names a column by its number: 1, 2 ... or -1."""
    return _NUMBER.fullmatch(own) is not None


def _begins_with_tag(cell: str) -> bool:
    found = _MARKED.fullmatch(cell)
    return cell == "O" or (found is not None and found[2] is not None)


def layout_of(path: Path, configured: Mapping[str, str]) -> Layout:
    """Return the layout of a file of words and tags, from its first 20,000 lines.

    The tags are the column of ``B-PER``, ``I-PER`` and ``O``, in whatever scheme. Of several such columns they are the
    last, as in CoNLL-2003, and the first where the words are numbered, as in GermEval; in CoNLL-U they are UPOS; in
    other files, the last column. The words are the first column with letters.

    Args:
        path: The file.
        configured: The user's own columns for ``words`` and ``tags``: a number from 1, -1 for the last, or a name of
            CoNLL-U or of the file's own line ``# global.columns``.

    Raises:
        DataError: It cannot be told which column is which; or there is none of the user's.
    """
    numbered = list(islice(numbered_lines(path), _LINES))
    sentences, count, tabbed = _cut([line for _, line in numbered])
    rows = [cells for sentence in sentences for cells in sentence if len(cells) == count]
    header = _has_header(rows)
    first, rows = rows[:header], rows[header:]
    if header:
        sentences = [sentences[0][1:], *sentences[1:]]
    named = next((_NAMES.match(line) for _, line in numbered if line.strip()), None)
    index = _index_of(sentences, count) if rows else _NO_COLUMN
    if index != _NO_COLUMN:
        rows = [cells for cells in rows if cells[index].isdecimal()]
    names = tuple(named[1].split()) if named else CONLLU if index == 0 and tabbed and count == 10 else ()
    known = names or tuple(name for cells in first for name in cells)
    chosen = {role: _place(path, role, own, known) for role, own in configured.items() if role in _ROLES}
    columns = (configured.get("words", "words"), configured.get("tags", "tags"))
    if not rows:
        return Layout({"word": chosen.get("words", 0), "tag": chosen.get("tags", -1)}, columns)
    values = [[cells[place] for cells in rows] for place in range(count)]
    _refuse_brackets(path, values, chosen)
    shown = _shown(path, numbered, rows[0])
    tag = chosen["tags"] if "tags" in chosen else _tag_column(values, index, names, chosen, shown)
    taken = {index, tag % count}
    word = chosen["words"] if "words" in chosen else _word_column(values, sentences, names, taken, shown)
    tags, words = values[tag % count], values[word % count]
    if bracket := next((cell for cell in tags if _BRACKET.fullmatch(cell)), None):
        raise DataError(_of_brackets(path, "the tags", bracket))
    prefix = _language(words)
    if "words" not in chosen and not _has_letters(words) and "tags" not in chosen and index != _NO_COLUMN:
        raise DataError(shown)
    options: dict[str, str | int | bool] = {
        "word": word,
        "tag": -1 if tag == count - 1 else tag,
        "prefix": prefix,
        "index": index,
        "cells": 0 if chosen else count,
        "tabbed": tabbed,
        "shape": _shape(tags),
        "comments": True,
        **({"header": True} if header else {}),
    }
    usual = index == _NO_COLUMN and (word, tag % count) == (0, count - 1)
    return Layout(
        options, columns, _note(word % count, tag % count, count, known, prefix, usual or len(chosen) == 2)
    )


_ROLES = ("words", "tags")


def _refuse_brackets(path: Path, values: Sequence[Sequence[str]], chosen: Mapping[str, int]) -> None:
    """Refuse columns of brackets where no other column has tags of spans, and the user names none.

    Raises:
        DataError: It is so.
    """
    found = [
        place
        for place, cells in enumerate(values)
        if all(_BRACKETED.fullmatch(cell) for cell in cells) and any(cell[0] == "(" for cell in cells)
    ]
    if found and "tags" not in chosen and not any(map(_is_shaped, values)):
        example = next(cell for cell in values[found[-1]] if cell[0] == "(")
        numbers = ", ".join(str(place + 1) for place in found)
        raise DataError(_of_brackets(path, f"{'columns' if found[1:] else 'column'} {numbers}", example))


def _of_brackets(path: Path, what: str, example: str) -> str:
    verb = "holds" if what.startswith("column ") else "are" if what == "the tags" else "hold"
    return (
        f"{path}: {what} {verb} brackets, such as {example[:40]!r}, as CoNLL-2005 and CoNLL-2012 have them: write "
        "spans as B-PERSON, I-PERSON and O, or name columns of words and other tags, such as columns = {words = 4, "
        "tags = 5}"
    )


def _cut(lines: Sequence[str]) -> tuple[list[Sentence], int, bool]:
    """Return sentences of cells without comments, how many cells most lines have, and whether tabs separate them."""
    plain = [line for line in lines if line.strip() and not line.startswith(_DOCUMENT)]
    plain = [line for line in plain if not line.startswith("#")] or plain
    tabbed = 2 * sum("\t" in line for line in plain) > len(plain)
    counts = Counter(len(_split_cells(line)) for line in plain)
    count = counts.most_common(1)[0][0] if counts else 0
    if tabbed and count > 2 and all(line.endswith("\t") for line in plain if line.count("\t") == count - 1):
        count -= 1  # every line ends in a tab
    sentences: list[Sentence] = []
    sentence: Sentence = []
    for line in lines:
        if not line.strip() or line.startswith(_DOCUMENT):
            if sentence:
                sentences.append(sentence)
            sentence = []
        elif not _is_comment(line, not sentence, count, tabbed, ""):
            sentence.append(_split_cells(line, count))
    return ([*sentences, sentence] if sentence else sentences), count, tabbed


def _has_header(rows: Sequence[Sequence[str]]) -> bool:
    """Say whether the first line names the columns, and is no word."""
    names = {name.strip().lower() for name in rows[0]} if rows else set()
    return len(rows) > 1 and all(names & known for known in _HEADER)


def _index_of(sentences: Sequence[Sentence], count: int) -> int:
    """Return the column that counts the words of every sentence from 0 or 1, or none."""
    if max(map(len, sentences), default=0) < 2:
        return _NO_COLUMN
    return next((place for place in range(count - 1) if _counts(sentences, place, count)), _NO_COLUMN)


def _counts(sentences: Sequence[Sentence], place: int, count: int) -> bool:
    goes_on = False
    for sentence in sentences:
        before = None
        for cells in sentence:
            if len(cells) != count:
                continue
            value = cells[place]
            if not _NUMBERED.fullmatch(value):
                return False
            if value.isdecimal():
                if int(value) > 1 and (before is None or int(value) != before + 1):
                    return False
                goes_on = goes_on or (before is not None and int(value) == before + 1)
                before = int(value)
    return goes_on


def _place(path: Path, role: str, own: str, names: Sequence[str]) -> int:
    """Return the column that the user names, from 0, or below 0 from the end."""
    if own in names:
        return names.index(own)
    if not is_column_number(own):
        shown = [name[:30] for name in names[:_MOST_SHOWN]] + ["..."] * (len(names) > _MOST_SHOWN)
        known = f" or a name of {', '.join(shown)}" if names else ""
        raise DataError(
            f"{path}: no column {own!r}: give its number, the first is 1 and the last -1{known}, such as "
            "columns = {words = 1, tags = 2}"
        )
    number = int(own)
    return number - 1 if number > 0 else number


def _tag_column(
    values: Sequence[Sequence[str]],
    index: int,
    names: Sequence[str],
    chosen: Mapping[str, int],
    shown: str,
) -> int:
    count = len(values)
    taken = {index, *(place % count for place in chosen.values())}
    free = [place for place in range(count) if place not in taken]
    shaped = [place for place in free if _is_shaped(values[place])]
    kinds = [_kinds(values[place]) for place in shaped]
    if shaped and set(values[-1]) == {"O"} and set().union(*kinds) <= _CHUNKS:
        return count - 1
    if len(shaped) > 1 and kinds[-1] & set().union(*kinds[:-1]):
        if index == _NO_COLUMN:
            raise DataError(shown)
        return shaped[0]
    if shaped:
        return shaped[-1]
    if "UPOS" in names and set(values[names.index("UPOS")]) != {"_"}:
        return names.index("UPOS")
    if names or not free or (index != _NO_COLUMN and len(free) + len(chosen) > 2):
        raise DataError(shown)
    tags, others = set(values[free[-1]]), [set(values[place]) for place in free[:-1]]
    many = len(values[0]) >= _FEW
    if not _has_letters(values[free[-1]]) and all(cell in "_-*" for cell in tags):
        raise DataError(shown)
    if many and others and len(tags) > min(len(others[0]), len(values[0]) // 2):
        raise DataError(shown)  # more tags than words: the other way round, or no tags
    return free[-1]


def _word_column(
    values: Sequence[Sequence[str]],
    sentences: Sequence[Sentence],
    names: Sequence[str],
    taken: set[int],
    shown: str,
) -> int:
    if "FORM" in names:
        return names.index("FORM")
    free = [place for place in range(len(values)) if place not in taken]
    lettered = [place for place in free if _has_letters(values[place])] or free
    if len(values[0]) >= _FEW:
        same = {place for place in lettered if all(_is_constant(sentence, place) for sentence in sentences)}
        lettered = [place for place in lettered if place not in same] or lettered
    if not lettered:
        raise DataError(shown)
    return lettered[0]


def _is_constant(sentence: Sentence, place: int) -> bool:
    return len({cells[place] for cells in sentence if len(cells) > place}) <= 1


def _has_letters(values: Sequence[str]) -> bool:
    return any(any(map(str.isalpha, cell)) for cell in values)


def _is_tag(cell: str) -> bool:
    return cell in OUTSIDE or _MARKED.fullmatch(cell) is not None


def _is_shaped(values: Sequence[str]) -> bool:
    return _shape(values) != ""


def _shape(values: Sequence[str]) -> str:
    """Return how tags are written, a mark and a kind or the other way round; empty where they are of another kind."""
    marked = {cell for cell in values if cell not in OUTSIDE}
    if marked and all(_MARKED.fullmatch(cell) for cell in marked):
        return "marked"
    if marked and all(found := [_REVERSED.fullmatch(cell) for cell in marked]):
        return "reversed" if {one[2] for one in found if one} & {"B", "S", "U"} else ""
    return ""


def _kinds(values: Sequence[str]) -> set[str]:
    return {found[2] or "" for cell in set(values) if cell != "O" and (found := _MARKED.fullmatch(cell))}


def _language(words: Sequence[str]) -> str:
    """Return what every word begins with, as WikiANN's language, or nothing."""
    found = _LANGUAGE.match(words[0])
    return found[0] if found and len(words) > 2 and all(word.startswith(found[0]) for word in words) else ""


def _shown(path: Path, numbered: Sequence[tuple[int, str]], row: Sequence[str]) -> str:
    """Return the question which column is which, with a line of the file."""
    number = next((number for number, line in numbered if _split_cells(line, len(row)) == row), 1)
    cells = ", ".join(f"{place} is {cell[:30]!r}" for place, cell in enumerate(row[:_MOST_SHOWN], 1))
    more = f", and {len(row) - _MOST_SHOWN:,} more" if len(row) > _MOST_SHOWN else ""
    return (
        f"{path}:{number}: cannot tell which columns hold the words and their tags ({cells}{more}): say which, such as "
        f"columns = {{words = 1, tags = {len(row)}}}"
    )


def _note(word: int, tag: int, count: int, names: Sequence[str], prefix: str, usual: bool) -> str:
    def place(column: int) -> str:
        return f"column {column + 1}" + (f" ({names[column]})" if column < len(names) else "")

    parts = [] if usual else [f"the words are {place(word)} and the tags {place(tag)} of {count}"]
    return "; ".join([*parts, *([f"{prefix!r} is taken off every word"] if prefix else [])])
