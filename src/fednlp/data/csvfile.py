"""CSV and TSV files as rows of strings, with every fault named by file and line."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from fednlp.data.lines import LONGEST_LINE, lines
from fednlp.data.readers.opening import is_packed, numbered
from fednlp.data.store import Fault, Placed
from fednlp.errors import DataError

DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}


def csv_names(path: Path, delimiter: str) -> Sequence[str]:
    """Return the column names in the first line of a CSV file.

    Raises:
        DataError: The file is empty or cannot be read.
    """
    return _header(path, _records(path, delimiter))


def csv_rows(path: Path, delimiter: str) -> tuple[Sequence[str], Iterator[Placed]]:
    """Return the column names of a CSV file, and its rows.

    Args:
        path: UTF-8, plain or gzipped, the first line with the column names; blank lines are left out.
        delimiter: Comma or tab.

    Raises:
        DataError: It is no such file; or, when the rows are read, what is wrong in which line.
    """
    records = _records(path, delimiter)
    header = _header(path, records)
    return header, _rows(path, delimiter, header, records)


def _header(path: Path, records: Iterator[tuple[int, list[str]]]) -> Sequence[str]:
    _, header = next(records, (1, []))
    if not header:
        raise DataError(f"{path}: the file is empty: it needs a line of column names and a line an example")
    return header


def _records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the records of a CSV file, each with the number of its first line; blank lines are left out."""
    # The module's own bound of 128 KiB a cell is too low for documents; it has no other place to set it.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    found = (f"{line}\n" for _, line in numbered(path)) if is_packed(path) else lines(path)
    reader = csv.reader(found, delimiter=delimiter, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{path}:{start}: {_fault(str(error), delimiter)}") from None
        if record is None:
            return
        if record:
            yield start, record


def _fault(said: str, delimiter: str) -> str:
    named = "tab" if delimiter == "\t" else "comma"
    if "unexpected end of data" in said or "field limit" in said:
        return 'a quote (") is opened and never closed: close it, or write a quote within quotes as ""'
    if "expected after" in said:
        return f'a closing quote (") is not followed by a {named}: write a quote within quotes as ""'
    if "new-line character" in said:
        return "a carriage return within a line: end lines with a line feed, or put the cell in quotes"
    return f"not readable as a table: {said}"


def _rows(
    path: Path, delimiter: str, header: Sequence[str], records: Iterator[tuple[int, list[str]]]
) -> Iterator[Placed]:
    named = "tab" if delimiter == "\t" else "comma"
    start = None
    for start, record in records:
        if len(record) == len(header):
            yield f"{path}:{start}", record
        else:
            cells = f"{len(record)} cell{'' if len(record) == 1 else 's'}"
            yield (
                f"{path}:{start}",
                Fault(
                    f"{cells} where the header has {len(header)}: put a cell that holds a {named} in quotes"
                ),
            )
    if start is None:
        raise DataError(f"{path}: no example below the column names: add a line an example")
