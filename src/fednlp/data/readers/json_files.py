"""JSON files, plain or gzipped: documents, objects a line and arrays, as values or as rows of strings."""

import codecs
import datetime
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any

from fednlp.data.columns import LISTS, check_columns
from fednlp.data.label_names import label_name
from fednlp.data.readers.class_names import class_names, named_class
from fednlp.data.readers.text_io import conversion, filled_lines, read_chunks
from fednlp.data.store import Fault, Located, Row
from fednlp.errors import DataError

JSON_LINES = (".jsonl", ".ndjson", ".json")

LARGEST_DOCUMENT = 512 << 20
"""Bytes of a JSON file that is read as a whole: several times the largest published one."""

# Only text with such an escape can hold half a surrogate pair, which no file can store.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_JSON_TYPES = (str, int, float, list, dict)

_AT_A_GLANCE = 100
_HEAD = 1 << 10


def json_names(path: Path) -> Sequence[str]:
    """Return the names in the first objects of a file; a later object may bring further ones.

    Raises:
        DataError: The file is empty or cannot be read.
    """
    return _names(path, islice(_objects(path), _AT_A_GLANCE))


def json_rows(path: Path, roles: Mapping[str, str]) -> tuple[Sequence[str], Iterator[Located]]:
    """Return the names in any object of a file, and a row an object.

    Args:
        path: UTF-8, plain or gzipped: one object a line, where blank lines are left out; or one array of objects,
            which is read as a whole and is bounded as in :func:`json_document`.
        roles: Canonical names of columns by their own; all of them must be there.

    Raises:
        DataError: It is no such file; or, when the rows are read, what is wrong in which line.
    """
    columns = _names(path, _objects(path))
    check_columns(str(path), columns, *roles)
    rows = ((where, value_row(item, columns, roles)) for where, item in _objects(path))
    return columns, rows


def json_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each object of a file as it is, after its place for people.

    Raises:
        DataError: What is wrong in which line.
    """
    yield from _objects(path)


def _names(path: Path, objects: Iterator[tuple[str, dict[str, Any]]]) -> Sequence[str]:
    columns = list(dict.fromkeys(name for _, item in objects for name in item))
    if not columns:
        raise DataError(f"{path}: the file is empty: it needs a JSON object a line")
    return columns


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a file, each with its place for people."""
    if _is_array(path):
        return _items(path, json_document(path))
    table = _table_of(path)
    return _lines(path) if table is None else _items(path, table)


def _table_of(path: Path) -> list[Any] | None:
    """Return the rows of a file that is one object, as pandas and others write tables; None for an object a line.

    ``{"data": [{...}, ...]}``, pandas' ``split`` (``columns``, ``index``, ``data``), and its default of columns, each
    with its values by the number of the row; a list of values a column, as ``datasets`` has it; rows by their names;
    and the page of a viewer of ``datasets``, ``{"features": [...], "rows": [{"row": {...}}, ...]}``.

    Raises:
        DataError: The object holds rows in several lists, such as one for each client.
    """
    head = list(islice(filled_lines(path), 2))
    if not head or not head[0][1].lstrip().startswith("{"):
        return None
    try:
        whole = json.loads(head[0][1])
        if len(head) > 1:
            return None
    except (ValueError, RecursionError):
        try:
            whole = json_document(path)
        except DataError:
            return None  # the reader of lines names the first that is wrong
    return _table_in(path, whole) if isinstance(whole, dict) else None


def _table_in(path: Path, whole: dict[str, Any]) -> list[Any] | None:
    columns, rows = whole.get("columns"), whole.get("data")
    if isinstance(columns, list) and isinstance(rows, list) and whole.keys() <= {"columns", "index", "data"}:
        if all(isinstance(row, list) and len(row) == len(columns) for row in rows):
            return [dict(zip(map(str, columns), row, strict=True)) for row in rows]
        raise DataError(f"{path}: 'columns' and 'data' of pandas, with a row of another length: mend it")
    values = list(whole.values())
    if values and all(isinstance(one, dict) and one and all(map(str.isdecimal, one)) for one in values):
        numbers = list(dict.fromkeys(number for one in values for number in one))
        return [{name: one.get(number) for name, one in whole.items()} for number in numbers]
    if len(values) > 1 and all(isinstance(one, dict) and not _holds_lists(one) for one in values):
        return values
    if _are_columns(whole):
        return [dict(zip(whole, row, strict=True)) for row in zip(*values, strict=True)]
    lists = [
        name for name, one in whole.items() if one and isinstance(one, list) and isinstance(one[0], dict)
    ]
    if isinstance(rows := whole.get("rows"), list) and rows and all(map(_is_viewed, rows)):
        names = class_names(whole.get("features"))
        return [
            {key: named_class(value, names[key]) if key in names else value for key, value in row.items()}
            for row in (one["row"] for one in rows)
        ]
    if len(lists) == 1 and lists[0] in _ROW_LISTS:
        return list(whole[lists[0]])
    parts = lists if len(lists) == len(whole) else list(whole) if all(map(_is_part, values)) else []
    if len(parts) > 1:
        shown = ", ".join(map(repr, parts[:3]))
        raise DataError(
            f"{path}: lists of rows under {shown}{' ...' if len(parts) > 3 else ''}: write each to a file of its own, "
            "which are clients, or train and test; or, if these are labels, write an object a row with its label"
        )
    if len(whole) == 1 and isinstance(values[0], dict):
        return _table_in(path, values[0])
    return None


_ROW_LISTS = frozenset(
    (
        "data",
        "rows",
        "examples",
        "records",
        "items",
        "results",
        "documents",
        "instances",
        "samples",
        "common_examples",
    )
)
_LISTS_OF_A_ROW = LISTS | {"tokens", "ner_tags", "pos_tags", "labels"}


def _are_columns(whole: dict[str, Any]) -> bool:
    """Say whether an object has a list of values for each column, and is not one row of words and tags."""
    values = list(whole.values())
    alike = len(values) > 1 and all(isinstance(one, list) and len(one) > 1 for one in values)
    if not alike or len(set(map(len, values))) > 1:
        return False
    return not whole.keys() <= _LISTS_OF_A_ROW or all(
        isinstance(one, list) for items in values for one in items
    )


def _holds_lists(item: dict[str, Any]) -> bool:
    return not item or all(isinstance(one, list) for one in item.values())


def _is_viewed(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("row"), dict)


def _is_part(value: Any) -> bool:
    """Say whether a value holds rows: a list of lists or texts, or lists for each column."""
    if isinstance(value, dict):
        return bool(value) and _holds_lists(value)
    return (
        isinstance(value, list)
        and value != []
        and all(isinstance(one, list) or _is_sentence(one) for one in value)
    )


def _is_sentence(value: Any) -> bool:
    return isinstance(value, str) and " " in value.strip()


def _is_array(path: Path) -> bool:
    return next(read_chunks(path, _HEAD), b"").removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def _items(path: Path, items: Sequence[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, item in enumerate(items, 1):
        where = f"{path}: item {number}"
        if not isinstance(item, dict):
            raise DataError(f"{where}: a JSON {_kind(item)}: write an array of JSON objects")
        yield where, item


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in filled_lines(path):
        where = f"{path}:{number}"
        try:
            item = json.loads(line)
        except json.JSONDecodeError as error:
            comma = line.rstrip().endswith(",")
            how = "remove the comma at the end of each line" if comma else "write one JSON object a line"
            raise DataError(f"{where}: not JSON ({error.msg}): {how}") from None
        except (ValueError, RecursionError):
            raise DataError(f"{where}: nested too deeply, or a number too long to read") from None
        if not isinstance(item, dict):
            raise DataError(f"{where}: a JSON {_kind(item)}: write one JSON object a line")
        if "\\u" in line:
            _check_characters(where, item)
        yield where, item


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "array"
    if isinstance(value, str):
        return "string"
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else json.dumps(value)


def _check_characters(where: str, item: dict[str, Any]) -> None:
    try:
        json.dumps(item, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{where}: half a surrogate pair (\\ud800 to \\udfff) is no character: remove it"
        ) from None


def value_row(item: Mapping[str, Any], columns: Sequence[str], roles: Mapping[str, str]) -> Row | Fault:
    """Return an object's values as strings, or what is wrong with one of them.

    Args:
        columns: Names, in the order of the row.
        roles: Canonical names of columns by their own.

    >>> value_row({"label": 3.0, "words": ["a"]}, ["label", "words"], {"label": "label", "words": "words"})
    ['3', '["a"]']
    """
    row: list[str | None] = []
    for column in columns:
        value, role = _json_value(item.get(column)), roles.get(column)
        if role == "label":
            fault = _label_fault(value, column)
            if fault is not None:
                return Fault(fault)
            value = as_label(value)
        elif role is not None and role not in LISTS and isinstance(value, (list, dict, bytes)):
            return Fault(f"the text is missing: {column!r} must be a string")
        row.append(as_text(value))
    return row


def _json_value(value: Any) -> Any:
    """Return a value as one that JSON has too: dates in ISO 8601, bytes as UTF-8, decimals and others as text.

    A midnight is its date, since tables store dates as such. Bytes that are not UTF-8 are returned unchanged.

    >>> _json_value(datetime.datetime(2024, 2, 1)), _json_value(b"Befund"), _json_value(3)
    ('2024-02-01', 'Befund', 3)
    """
    if value is None or isinstance(value, _JSON_TYPES):
        return value
    if isinstance(value, datetime.datetime) and value.timetz() == datetime.time():
        value = value.date()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return str(value)


def as_text(value: Any) -> str | None:
    """Return a value as a string: JSON for anything that is neither a string nor missing."""
    if value is None or isinstance(value, str):
        return value
    return str(value) if type(value) is int else json.dumps(value, ensure_ascii=False, default=str)


def _label_fault(value: Any, column: str) -> str | None:
    """Say what is wrong with a label: it is neither missing, nor a string or a number."""
    if isinstance(value, list) and len(value) != 1:
        return f"there are {len(value)} labels in {column!r}: an example has one"
    if not isinstance(_only(value), (str, int, float, NoneType)):
        return f"the label in {column!r} is neither a string nor a number: write it as one of the two"
    return None


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def as_label(value: Any) -> str:
    """Return a label in its one spelling, so that 3, 3.0, "3" and a list of one of them are one; empty where missing.

    >>> as_label(3.0), as_label(True), as_label(None), as_label(["spam"])
    ('3', 'true', '', 'spam')
    """
    value = _only(value)
    if value is None or value != value:
        return ""
    return label_name(as_text(value) or "")


def json_document(path: Path) -> Any:
    """Return a JSON file as a whole, plain or gzipped.

    Raises:
        DataError: It is larger than :data:`LARGEST_DOCUMENT`, not UTF-8, or not JSON.
    """
    content = bytearray()
    for piece in read_chunks(path):
        content += piece
        if len(content) > LARGEST_DOCUMENT:
            raise DataError(
                f"{path}: more than {LARGEST_DOCUMENT >> 20} MiB, too much to read as one JSON document: "
                f"split it into several files"
            )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line}: byte 0x{content[error.start]:02x} is not UTF-8: {conversion(path)}"
        ) from None
    del content
    return parse_json(text, path, 1)


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON objects of a file that has one a line, each with its line's number.

    Raises:
        DataError: A line is not a JSON object.
    """
    for number, line in filled_lines(path):
        item = parse_json(line, path, number)
        if not isinstance(item, dict):
            raise DataError(f"{path}:{number}: not a JSON object: write one a line")
        yield number, item


def parse_json(text: str, path: Path, first: int) -> Any:
    """Return JSON as what it stands for.

    Args:
        text: JSON.
        path: Its file, for messages.
        first: The number of the text's first line in the file.

    Raises:
        DataError: It is not JSON, or holds what cannot be stored.
    """
    try:
        item = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(item, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        line = first + error.lineno - 1
        raise DataError(
            f"{path}:{line}: not JSON ({error.msg}, column {error.colno}): mend it there"
        ) from None
    except UnicodeEncodeError:
        raise DataError(
            f"{path}:{first}: half a surrogate pair (\\ud800 to \\udfff) is no character: remove it"
        ) from None
    except (ValueError, RecursionError):
        raise DataError(f"{path}:{first}: nested too deeply, or a number too long to read") from None
    return item


def list_at(item: Any, key: str, where: str) -> list[Any]:
    """Return the list under a key of a JSON object.

    Raises:
        DataError: There is none.
    """
    if not isinstance(item, dict) or not isinstance(item.get(key), list):
        raise DataError(f"{where}: no list {key!r}: is this a file of this format?")
    found: list[Any] = item[key]
    return found


def string_at(item: Any, key: str, where: str) -> str:
    """Return the string under a key of a JSON object.

    Raises:
        DataError: There is none.
    """
    if not isinstance(item, dict) or not isinstance(item.get(key), str):
        raise DataError(f"{where}: no string {key!r}: is this a file of this format?")
    return str(item[key])
