"""What annotation tools export: spans of characters as words and tags, and one label a text.

doccano, Prodigy and Label Studio write such JSON, and fastText a label before each text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fednlp.data.readers.json_files import json_objects, value_row
from fednlp.data.readers.text_io import filled_lines
from fednlp.data.store import Fault, Located
from fednlp.errors import DataError
from fednlp.formatting.units import plural

_FASTTEXT = "__label__"

_AT_A_GLANCE = 100
_WORD = re.compile(r"\w+|[^\w\s]")
_BEGINS, _ENDS = ("start", "start_offset"), ("end", "end_offset")
_KINDS = ("label", "labels", "entity_group", "type")
_DECISIONS = ("accept", "reject", "ignore")

Span = tuple[int, int, str, str | None]
"""The first character, the one after the last, the kind, and the text that should stand there if it is told."""


def annotation_kind(path: Path, text: str) -> str | None:
    """Return how the objects of a JSON file are annotated, or None where they are plain rows.

    Args:
        path: The file.
        text: The column of the text.

    Returns:
        ``"spans"``, or ``"label"`` where a tool's decision or answer has to be looked at.
    """
    try:
        items = [item for _, item in islice(json_objects(path), _AT_A_GLANCE)]
    except DataError:
        return None  # the reader of rows says what is wrong
    flat = [_flat(item, text) for item in items]
    plain = [one for one in flat if isinstance(one, dict)]
    if plain and _spans_column(plain, text) is not None:
        return "spans"
    return "label" if items and any(map(_is_tool, items)) else None


def annotated_names(path: Path, text: str, kind: str) -> Sequence[str]:
    """Return the columns of annotated objects: words and tags or a label, and further ones of the objects."""
    return _layout(path, text, kind)[0]


def annotated_rows(
    path: Path, roles: Mapping[str, str], text: str, kind: str
) -> tuple[Sequence[str], Iterator[Located]]:
    """Return the columns of annotated objects, and a row an object.

    Words are runs of letters and digits, and single other characters; a word is cut where a span begins or ends in it.

    Args:
        path: A JSON file.
        roles: Canonical names of columns by their own.
        text: The column of the text.
        kind: The result of :func:`annotation_kind`.
    """
    names, column = _layout(path, text, kind)

    def rows() -> Iterator[Located]:
        for where, item in json_objects(path):
            flat = _flat(item, text)
            if isinstance(flat, dict) and column is not None:
                flat = _tagged(flat, text, column)
            yield where, flat if isinstance(flat, Fault) else value_row(flat, names, roles)

    return names, rows()


def _layout(path: Path, text: str, kind: str) -> tuple[Sequence[str], str | None]:
    items = [item for _, item in islice(json_objects(path), _AT_A_GLANCE)]
    flat = [one for item in items if isinstance(one := _flat(item, text), dict)]
    column = _spans_column(flat, text) if kind == "spans" else None
    names = dict.fromkeys(name for one in flat for name in one if name not in (column, "words", "tags"))
    return [*names, *(("words", "tags") if column is not None else ())], column


def fasttext_rows(path: Path) -> tuple[Sequence[str], Iterator[Located]]:
    """Return the rows of a file of fastText: ``__label__spam Buy now``, a line an example."""

    def rows() -> Iterator[Located]:
        for number, line in filled_lines(path):
            parts = line.split()
            labels = [part.removeprefix(_FASTTEXT) for part in parts if part.startswith(_FASTTEXT)]
            where = f"{path}:{number}"
            if len(labels) == 1 and parts[0].startswith(_FASTTEXT):
                yield where, (line.strip().partition(parts[0])[2].strip(), labels[0])
            else:
                yield where, Fault(f"{plural(len(labels), 'label')}: begin a line with one, {_FASTTEXT}NAME")

    return ("text", "label"), rows()


def is_fasttext(path: Path) -> bool:
    """Say whether a text file begins with a label of fastText."""
    return next(filled_lines(path), (0, ""))[1].startswith(_FASTTEXT)


def _is_tool(item: Mapping[str, Any]) -> bool:
    """Say whether an object is Label Studio's, or says what an annotator of Prodigy decided."""
    return _is_studio(item) or (
        item.get("answer") in _DECISIONS and ("_task_hash" in item or "spans" in item)
    )


def _is_studio(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("data"), dict) and isinstance(item.get("annotations"), list)


def _flat(item: dict[str, Any], text: str) -> dict[str, Any] | Fault:
    """Return an object as a row's values, or why it is no example."""
    if _is_studio(item):
        return _flat_studio(item, text)
    if item.get("answer") in _DECISIONS[1:] and _is_tool(item):
        return Fault(f"the annotator's answer is {item['answer']!r}: no example")
    accepted = item.get("accept")
    if _is_tool(item) and "label" not in item and isinstance(accepted, list) and "options" in item:
        return {**{key: item[key] for key in item if key not in ("accept", "options")}, "label": accepted}
    return item


def _flat_studio(item: dict[str, Any], text: str) -> dict[str, Any] | Fault:
    done = [one for one in item["annotations"] if isinstance(one, dict) and not one.get("was_cancelled")]
    if len(done) != 1:
        return Fault(f"{plural(len(done), 'annotation')}: one an example is read")
    data = {key: value for key, value in item["data"].items() if isinstance(value, str | int | float)}
    if text not in data:
        texts = [key for key, value in data.items() if isinstance(value, str)]
        if len(texts) == 1:
            data[text] = data.pop(texts[0])
    results = [one for one in done[0].get("result") or () if isinstance(one, dict)]
    values = [one["value"] for one in results if isinstance(one.get("value"), dict)]
    choices = [choice for value in values for choice in value.get("choices") or ()]
    if choices:
        return {**data, "label": choices}
    return {**data, "spans": [value for value in values if "labels" in value]}


def _spans_column(items: Sequence[Mapping[str, Any]], text: str) -> str | None:
    """Return the one column whose values are lists of spans, some not empty, beside a text."""
    if not all(isinstance(item.get(text), str) for item in items):
        return None
    names = dict.fromkeys(name for item in items for name in item)
    found = [
        name
        for name in names
        if any(item.get(name) for item in items)
        and all(isinstance(spans := item.get(name, []), list) and all(map(_span, spans)) for item in items)
    ]
    own = [name for name in found if name in ("spans", "entities", "label", "labels")] or found
    return own[0] if own else None


def _span(value: Any) -> Span | None:
    if isinstance(value, list) and len(value) == 3:
        begin, end, kind, told = (*value, None)
    elif isinstance(value, dict):
        begin, end, kind = (
            next((value[name] for name in names if name in value), None) for names in (_BEGINS, _ENDS, _KINDS)
        )
        told = value.get("text")
        kind = kind[0] if isinstance(kind, list) and len(kind) == 1 else kind
    else:
        return None
    right = type(begin) is int and type(end) is int and isinstance(kind, str) and kind != ""
    return (begin, end, kind, told if isinstance(told, str) else None) if right else None


def _tagged(item: dict[str, Any], text: str, column: str) -> dict[str, Any] | Fault:
    whole, written = item.get(text), item.get(column) or []
    spans = [_span(one) for one in written] if isinstance(written, list) else [None]
    if not isinstance(whole, str) or None in spans:
        return Fault(
            f"{column!r} is no list of spans of {text!r}: write [first character, end, kind] for each"
        )
    before = 0
    cuts: list[tuple[int, int, str]] = []
    for begin, end, kind, told in sorted(one for one in spans if one is not None):
        if not 0 <= begin < end <= len(whole):
            return Fault(f"the span {begin} to {end} is not within the {len(whole)} characters of the text")
        if told is not None and told != whole[begin:end]:
            return Fault(
                f"at characters {begin} to {end} stands {whole[begin:end][:40]!r}, not the span's text {told[:40]!r}"
            )
        if begin < before:
            return Fault(f"the span {begin} to {end} overlaps another: a word has one tag")
        cuts += [(before, begin, ""), (begin, end, kind)]
        before = end
    words: list[str] = []
    tags: list[str] = []
    for begin, end, kind in [*cuts, (before, len(whole), "")]:
        found = _WORD.findall(whole[begin:end])
        words += found
        tags += [f"{'I' if place else 'B'}-{kind}" if kind else "O" for place in range(len(found))]
    return {**{key: value for key, value in item.items() if key != column}, "words": words, "tags": tags}
