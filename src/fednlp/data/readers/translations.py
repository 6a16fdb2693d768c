"""Translations out of their tools: TMX memories, and gettext's .po and .mo catalogues."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from fednlp.data.readers.text_io import LONGEST_LINE, numbered_lines, read_chunks
from fednlp.data.readers.xml import elements
from fednlp.data.store import Row
from fednlp.errors import DataError

COLUMNS = ("source", "target")

_LARGEST_CATALOGUE = 256 << 20
"""Bytes of a compiled catalogue, which is read as a whole."""

# Inline elements of TMX 1.4b that hold the codes of the original format, not text.
_CODES = {"bpt", "ept", "ph", "it", "ut"}
_STRING = re.compile(
    r'(?:(?:(?P<word>msgctxt|msgid_plural|msgid|msgstr)(?P<form>\[\d{1,3}\])?\s*)?"(?P<text>(?:[^"\\]|\\.)*)")?'
)
_ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def tmx(path: Path, source: str, target: str) -> Iterator[Row]:
    """Read a translation memory: units that have a segment in both languages and blank in neither.

    Args:
        path: TMX 1.4, plain or gzipped; no entities, and no DTD is fetched.
        source: A language; ``"en"`` takes ``en-GB`` as well, any case.

    Raises:
        DataError: The XML is not well-formed; or there is no such pair at all.
    """
    found = False
    languages: set[str] = set()
    for _, unit in elements(path, {"tu"}):
        segments: dict[str, str] = {}
        for variant in unit.iter("tuv"):
            language = (variant.get("xml:lang") or variant.get("lang") or "").lower()
            segment = variant.find("seg")
            if segment is not None:
                segments.setdefault(language, _text(segment).strip())
        if len(languages) < 20:
            languages.update(segments)
        pair = _segment(segments, source), _segment(segments, target)
        if all(pair):
            found = True
            yield pair
    if not found:
        listed = ", ".join(sorted(languages)) or "none"
        raise DataError(f"{path}: no unit in {source!r} and {target!r}: the languages are {listed}")


def _text(element: Element) -> str:
    parts = [element.text or ""]
    for child in element:
        if child.tag not in _CODES:
            parts.append(_text(child))
        parts.append(child.tail or "")
    return "".join(parts)


def _segment(segments: dict[str, str], chosen: str) -> str:
    chosen = chosen.lower()
    for language, text in segments.items():
        if language == chosen or language.startswith((f"{chosen}-", f"{chosen}_")):
            return text
    return ""


def po(path: Path, plurals: bool = True) -> Iterator[Row]:
    """Read a gettext catalogue: its translated entries, neither fuzzy nor obsolete.

    A plural is a pair of its own, with the second of the translation's forms.
    Source: GNU gettext manual, "The Format of PO Files".

    Args:
        path: The catalogue, plain or gzipped.
        plurals: Whether to yield those pairs.

    Raises:
        DataError: A line is not of this format.
    """
    entry: dict[str, str] = {}
    fuzzy, key = False, ""
    for number, line in numbered_lines(path):
        line = line.strip()
        if line.startswith("#"):  # comments come before their entry; an obsolete entry is one as well
            if entry:
                yield from _pairs(entry, fuzzy, plurals)
                entry, fuzzy, key = {}, False, ""
            fuzzy = fuzzy or (line.startswith("#,") and "fuzzy" in line)
            continue
        match = _STRING.fullmatch(line)
        if match is None or not (match["word"] or key or not line):
            raise DataError(f'{path}:{number}: not msgid "..." or msgstr "...", as a .po file has it')
        if not line:
            continue
        word = match["word"]
        if (word == "msgctxt" or (word == "msgid" and "msgid" in entry)) and entry:
            yield from _pairs(entry, fuzzy, plurals)
            entry, fuzzy = {}, False
        key = word + (match["form"] or "").replace("[0]", "") if word else key
        entry[key] = entry.get(key, "") + _ESCAPE.sub(_unescaped, match["text"])
        if len(entry[key]) > LONGEST_LINE:
            raise DataError(
                f"{path}:{number}: a text of more than {LONGEST_LINE >> 20} MiB: is this a .po file?"
            )
    yield from _pairs(entry, fuzzy, plurals)


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "01234567":
        return chr(int(code, 8))
    return chr(int(code[1:], 16)) if code[0] == "x" and len(code) > 1 else _ESCAPES.get(code, code)


def _pairs(entry: dict[str, str], fuzzy: bool, plurals: bool) -> Iterator[Row]:
    """Yield what an entry translates; the header, whose source is empty, is no text."""
    if fuzzy or not entry.get("msgid"):
        return
    for source, target in (("msgid", "msgstr"), ("msgid_plural", "msgstr[1]"))[: 1 + plurals]:
        if entry.get(source, "").strip() and entry.get(target, "").strip():
            yield entry[source], entry[target], entry.get("msgctxt")


def mo(path: Path, plurals: bool = True) -> Iterator[Row]:
    """Read a compiled gettext catalogue, as :func:`po` reads its source.

    Source: GNU gettext manual, "The Format of GNU MO Files".

    Args:
        path: The compiled catalogue, plain or gzipped.
        plurals: As for :func:`po`.

    Raises:
        DataError: It is no such file, or its tables point outside of it.
    """
    content = b"".join(_bounded(path))
    order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(content[:4])
    if order is None or len(content) < 20:
        raise DataError(f"{path}: not a compiled gettext catalogue (.mo): is it the .po?")
    _, count, sources, targets = struct.unpack_from(f"{order}4I", content, 4)
    if max(sources, targets) + 8 * count > len(content):
        raise DataError(f"{path}: cut short or damaged: its tables lie beyond its end; get it again")
    taken = 0
    for place in range(count):
        found = []
        for table in (sources, targets):
            length, start = struct.unpack_from(f"{order}2I", content, table + 8 * place)
            taken += length
            # Entries that share their bytes could ask for far more than the file holds.
            if start + length > len(content) or taken > 2 * len(content):
                raise DataError(
                    f"{path}: entry {place} lies beyond the end, or overlaps others: get it again"
                )
            found.append(_utf8(content[start : start + length], path, place))
        context, mark, ids = found[0].rpartition("\x04")
        source, _, plural = ids.partition("\0")
        singular, _, forms = found[1].partition("\0")
        entry = {
            "msgid": source,
            "msgid_plural": plural,
            "msgstr": singular,
            "msgstr[1]": forms.split("\0")[0],
        }
        yield from _pairs({**entry, "msgctxt": context} if mark else entry, False, plurals)


def _bounded(path: Path) -> Iterator[bytes]:
    total = 0
    for piece in read_chunks(path, as_utf8=False):
        total += len(piece)
        if total > _LARGEST_CATALOGUE:
            raise DataError(f"{path}: more than {_LARGEST_CATALOGUE >> 20} MiB: is this a .mo file?")
        yield piece


def _utf8(text: bytes, path: Path, place: int) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}: entry {place} is not UTF-8: compile it from a .po file in UTF-8") from None
