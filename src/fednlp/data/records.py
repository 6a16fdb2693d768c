"""Rows of any file with all their columns, as they come, and rows written to CSV, TSV or JSON lines.

Both are streams: a file of any length takes little memory.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fednlp.data.files import file_rows, refuse_address
from fednlp.data.readers.csv_files import DELIMITER_NAMES, DELIMITERS
from fednlp.data.readers.json_files import JSON_LINES, json_objects
from fednlp.data.store import Fault, Located
from fednlp.disk import atomic
from fednlp.errors import DataError
from fednlp.formatting.suggestions import did_you_mean

_REMEDY = "choose another --out"

Write = Callable[[Iterable[Mapping[str, Any]]], None]
Record = tuple[str, dict[str, Any]]
"""A row's values by its columns' own names, after its place for people: ``"file.csv:3"``."""


def read_records(
    path: Path, configured: Mapping[str, str] = MappingProxyType({})
) -> tuple[Sequence[str], Iterator[Record], str | None]:
    """Return the columns of a file, its rows one after the other, and what separates the cells of a ``.csv`` file.

    Args:
        path: Any file that :func:`fednlp.data.files.file_rows` reads. Values are strings; those of JSON lines
            are as they stand there.
        configured: The user's own names of columns, by the canonical ones.

    Raises:
        DataError: There is no such file; or, when the rows are read, what is wrong in which line.
    """
    if not path.is_file():
        refuse_address(path)
        near = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"there is no file {path}: {did_you_mean(path.name, near)}give one that exists")
    rows = file_rows(path, None, configured)
    columns, placed = rows.read({})
    if rows.what[0] == "json lines":
        return columns, json_objects(path), None
    return columns, _records(columns, placed), rows.delimiter


def _records(columns: Sequence[str], placed: Iterator[Located]) -> Iterator[Record]:
    for where, row in placed:
        if isinstance(row, Fault):
            raise DataError(f"{where}: {row.message}")
        yield where, dict(zip(columns, row, strict=True))


def check_table(path: Path) -> None:
    """Refuse a file name that does not tell how rows are to be written.

    Raises:
        DataError: Its ending is neither a table's nor that of JSON lines.
    """
    if not is_json(path) and path.suffix.lower() not in DELIMITERS:
        raise DataError(f"--out {path}: name it .csv, .tsv or .jsonl, which says how it is written")


def is_json(path: Path) -> bool:
    """Tell whether a file of this name is written as JSON lines."""
    return path.suffix.lower() in JSON_LINES


@contextmanager
def table_writer(path: Path, columns: Sequence[str], csv_delimiter: str | None = None) -> Iterator[Write]:
    """Open a file for rows, and give the function that writes some; the file is there once it is whole.

    Args:
        path: Its ending says how: ``.csv``, ``.tsv`` or ``.tab``; ``.jsonl``, ``.ndjson`` or ``.json``.
        columns: Of a CSV or TSV file; JSON lines hold whatever each row has.
        csv_delimiter: What separates the cells of a ``.csv`` file; a comma if left out.

    Raises:
        DataError: The ending is another.
        RunError: The file cannot be written.
    """
    check_table(path)
    usual = DELIMITERS.get(path.suffix.lower())
    delimiter = csv_delimiter if csv_delimiter and usual == DELIMITERS[".csv"] else usual
    # A reader that looks for the delimiter must find no other one in the header line, such as a comma in a name.
    others = {*DELIMITER_NAMES} - {delimiter}
    quoted = delimiter != usual and any(other in name for name in columns for other in others)
    with atomic(path, _REMEDY) as file:
        if delimiter is not None:
            file.write(_csv_lines([columns], delimiter, quoted))

        def write(rows: Iterable[Mapping[str, Any]]) -> None:
            if delimiter is None:
                file.writelines(_json_line(row) for row in rows)
            else:
                cells = ([_cell(row.get(name)) for name in columns] for row in rows)
                file.write(_csv_lines(cells, delimiter))

        yield write


def _json_line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _csv_lines(rows: Iterable[Sequence[Any]], delimiter: str, quoted: bool = False) -> bytes:
    text = io.StringIO()
    csv.writer(
        text,
        delimiter=delimiter,
        lineterminator="\n",
        quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL,
    ).writerows(rows)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    """Return a value as a cell: JSON for lists and objects."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
