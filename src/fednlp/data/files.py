"""Users' own files as rows of strings: CSV, TSV, JSON lines, and a folder of text files a class."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fednlp.data.lines import LONGEST_LINE, lines, whole
from fednlp.data.names import did_you_mean
from fednlp.data.store import Row, Rows
from fednlp.errors import DataError

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_JSON = (".jsonl", ".ndjson", ".json")
_LONGEST_NAME = 40
SUFFIXES = (*_DELIMITERS, *_JSON)


def file_rows(path: Path, text: str = "text", label: str = "label") -> Rows:
    """Return the rows of a CSV, TSV or JSON-lines file, told apart by the ending of its name.

    Every column is kept, as strings.

    Args:
        path: The file.
        text: Column with the texts.
        label: Column with the labels; none may be empty.

    Raises:
        DataError: It is no such file; or, when the rows are read, what is wrong in which line.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: cannot tell what kind of file this is: name it {', '.join(SUFFIXES)}")
    read = _json_reader if suffix in _JSON else _csv_reader
    return Rows(
        ("file", str(path.resolve()), text, label),
        identity([path]),
        str(path),
        lambda: read(path, text, label),
    )


def identity(paths: Sequence[Path]) -> str:
    """Return what changes when a file of these is written: their sizes and times."""
    statuses = [path.stat() for path in paths]
    return " ".join(f"{status.st_size}:{status.st_mtime_ns}" for status in statuses)


def check_columns(where: str, columns: Sequence[str], *wanted: str) -> None:
    """Refuse columns that lack a wanted one, with the nearest there is.

    Raises:
        DataError: A column is missing or stands there twice.
    """
    for name in wanted:
        if name not in columns:
            listed = ", ".join(repr(_shortened(column)) for column in columns)
            raise DataError(
                f"{where}: no column {name!r}: {did_you_mean(name, columns)}the columns are {listed}"
            )
    twice = next((column for number, column in enumerate(columns) if column in columns[:number]), None)
    if twice is not None:
        raise DataError(f"{where}: the column {twice!r} stands there twice: rename one")


def _shortened(name: str) -> str:
    """Return the beginning of what may be a whole text, where a file lacks its line of column names."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def _csv_reader(path: Path, text: str, label: str) -> tuple[Sequence[str], Iterator[Row]]:
    # The module's own bound of 128 KiB a cell is too low for documents; it has no other place to set it.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    delimiter = _DELIMITERS[path.suffix.lower()]
    records = _records(path, delimiter)
    start, header = next(records, (1, []))
    if not header:
        raise DataError(f"{path}: the file is empty: it needs a line of column names and a line an example")
    try:
        check_columns(f"{path}:{start}", header, text, label)
    except DataError as error:
        raise DataError(f"{error} (the first line is taken for the column names)") from None
    return header, _csv_rows(path, delimiter, header, header.index(label), records)


def _records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the records of a CSV file, each with the number of its first line; blank lines are left out."""
    reader = csv.reader(lines(path), delimiter=delimiter, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{path}:{start}: {_csv_fault(str(error), delimiter)}") from None
        if record is None:
            return
        if record:
            yield start, record


def _csv_fault(said: str, delimiter: str) -> str:
    named = "tab" if delimiter == "\t" else "comma"
    if "unexpected end of data" in said or "field limit" in said:
        return 'a quote (") is opened and never closed: close it, or write a quote within quotes as ""'
    if "expected after" in said:
        return f'a closing quote (") is not followed by a {named}: write a quote within quotes as ""'
    if "new-line character" in said:
        return "a carriage return within a line: end lines with a line feed, or put the cell in quotes"
    return f"not readable as a table: {said}"


def _csv_rows(
    path: Path, delimiter: str, header: Sequence[str], label: int, records: Iterator[tuple[int, list[str]]]
) -> Iterator[Row]:
    named = "tab" if delimiter == "\t" else "comma"
    found = False
    for start, record in records:
        found = True
        if len(record) != len(header):
            raise DataError(
                f"{path}:{start}: {_count(len(record), 'cell')} where the header has {len(header)}: "
                f"put a cell that holds a {named} in quotes"
            )
        if not record[label].strip():
            raise DataError(
                f"{path}:{start}: the label is missing: fill in {header[label]!r} or delete the line"
            )
        yield record
    if not found:
        raise DataError(f"{path}: no example below the column names: add a line an example")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _json_reader(path: Path, text: str, label: str) -> tuple[Sequence[str], Iterator[Row]]:
    columns = list(dict.fromkeys(name for _, item in _json_objects(path) for name in item))
    if not columns:
        raise DataError(f"{path}: the file is empty: it needs a JSON object a line")
    check_columns(str(path), columns, text, label)
    return columns, _json_rows(path, columns, text, label)


def _json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}:{number}: not JSON ({error.msg}): write one JSON object a line"
            ) from None
        except (ValueError, RecursionError):
            raise DataError(f"{path}:{number}: nested too deeply, or a number too long to read") from None
        if not isinstance(item, dict):
            raise DataError(f"{path}:{number}: a JSON {_kind(item)}: write one JSON object a line")
        if "\\u" in line:
            _check_characters(f"{path}:{number}", item)
        yield number, item


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "array"
    if isinstance(value, str):
        return "string"
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else json.dumps(value)


def _json_rows(path: Path, columns: Sequence[str], text: str, label: str) -> Iterator[Row]:
    place = columns.index(label)
    for number, item in _json_objects(path):
        where = f"{path}:{number}"
        if item.get(text) is None or isinstance(item[text], (list, dict)):
            raise DataError(f"{where}: the text is missing: {text!r} must be a string")
        row = [as_text(item.get(column)) for column in columns]
        row[place] = as_label(item.get(label), where, label)
        yield row


def _check_characters(where: str, item: dict[str, Any]) -> None:
    try:
        json.dumps(item, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{where}: half a surrogate pair (\\ud800 to \\udfff) is no character: remove it"
        ) from None


def as_text(value: Any) -> str | None:
    """Return a value as a string: JSON for anything that is neither a string nor missing."""
    if value is None or isinstance(value, str):
        return value
    return str(value) if type(value) is int else json.dumps(value, ensure_ascii=False, default=str)


def as_label(value: Any, where: str, column: str) -> str:
    """Return a label as a string, so that 3, 3.0 and "3" are one label.

    Raises:
        DataError: It is missing, empty, or neither a string nor a number.

    >>> as_label(3.0, "line 1", "label"), as_label(True, "line 1", "label")
    ('3', 'true')
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or value != value or (isinstance(value, str) and not value.strip()):
        raise DataError(f"{where}: the label is missing: fill in {column!r} or delete the line")
    if not isinstance(value, (str, int, float)):
        raise DataError(f"{where}: the label {column!r} is neither a string nor a number")
    return value if isinstance(value, str) else str(as_text(value))


def folder_rows(
    folder: Path, text: str = "text", label: str = "label", *, latin1: bool = False, known: str | None = None
) -> Rows:
    """Return the rows of a folder of text files a class: the name of a folder is the label of its files.

    The examples are in the order of the labels, then of the file names; the column ``file`` names the file.

    Args:
        folder: Holds a folder a class; hidden files, and files beside the class folders, are left out.
        text: What to call the column of texts.
        label: What to call the column of labels.
        latin1: As for :func:`fednlp.data.lines.lines`.
        known: Identity of the content where it is known better than by sizes and times.

    Raises:
        DataError: There are no such files; or, when the rows are read, what is wrong in which file.
    """
    paths = _class_files(folder)
    if not paths:
        raise DataError(
            f"{folder}: no examples: give a file ({', '.join(SUFFIXES)}) or a folder "
            f"that holds a folder of text files for each class"
        )
    names = [f"{path.parent.name}/{path.name}" for path in paths]
    if known is None:
        known = json.dumps([names, identity(paths)])
    columns = (text, label, "file")
    check_columns(str(folder), columns)
    return Rows(
        ("folder", str(folder.resolve()), text, label, str(latin1)),
        known,
        str(folder),
        lambda: (columns, _folder_rows(paths, names, latin1)),
    )


def _class_files(folder: Path) -> list[Path]:
    try:
        classes = sorted(
            entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        )
        return [
            path
            for entry in classes
            for path in sorted(entry.iterdir())
            if path.is_file() and not path.name.startswith(".")
        ]
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror}") from None


def _folder_rows(paths: Sequence[Path], names: Sequence[str], latin1: bool) -> Iterator[Row]:
    for path, name in zip(paths, names, strict=True):
        text = whole(path, latin1)
        if not text.strip():
            raise DataError(f"{path}: the file is empty: delete it or write its text")
        yield text, path.parent.name, name
