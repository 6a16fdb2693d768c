"""CSV and TSV files as rows of strings; every fault is reported by file and line."""

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from fednlp.data.readers.text_io import LONGEST_LINE, is_gzipped, lines, numbered_lines
from fednlp.data.store import Fault, Located
from fednlp.errors import DataError
from fednlp.formatting.units import plural

DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
"""What separates the cells of a file by the ending of its name, unless its header line shows another."""

DELIMITER_NAMES = {",": "comma", "\t": "tab", ";": "semicolon", "|": "vertical bar"}
"""What people call each delimiter that is looked for."""
Quoting = Literal["double", "none"]
"""Whether a cell may be in quotes, in which a quote is doubled; or quotes are characters like any other."""

_FIRST_ROWS = 10
_SWALLOWED = 3
"""Lines of a cell, after its first, that are looked at: they may be rows which an open quote takes in."""
_EXCELS_LINE = re.compile(r'"?sep=([^"])"?')


def find_delimiter(path: Path, usual: str, quoting: Quoting = "double") -> str:
    """Return what separates the cells of a file, from its header line and its first ten rows.

    It is the usual one wherever that splits the header line. Otherwise it is that of comma, tab, semicolon and
    vertical bar which splits the header line, and the most of the first rows into as many cells, at least one
    (of a file without rows, the header line decides). Where there is no such delimiter it is the usual one.

    Args:
        path: A file with a line of column names.
        usual: The delimiter of the ending of its name.
        quoting: Whether its cells may be in quotes.

    Raises:
        DataError: Two delimiters fit equally well, or a line is not UTF-8.
    """
    if (told := _told_delimiter(path)) is not None:
        return told
    if _fitting(path, usual, quoting) is not None:
        return usual
    fits = {other: fit for other in DELIMITER_NAMES if (fit := _fitting(path, other, quoting))}
    best = [other for other, fit in fits.items() if fit == max(fits.values())]
    if len(best) > 1:
        both = " or ".join(map(repr, best))
        raise DataError(f"{path}:1: cells may be separated by {both}: say which with data.delimiter")
    return best[0] if best else usual


def _told_delimiter(path: Path) -> str | None:
    """Return the delimiter that Excel's own first line tells, ``sep=;``, or None where there is no such line."""
    _, line = next(numbered_lines(path), (1, ""))
    found = _EXCELS_LINE.fullmatch(line)
    return found[1] if found else None


def _fitting(path: Path, delimiter: str, quoting: Quoting) -> int | None:
    """Return how many of the first lines have as many cells as the header, itself included if it is the only line.

    None where the delimiter does not split the header line.
    """
    cells: list[int] = []
    try:
        for _, record in islice(_records(path, delimiter, quoting), 1 + _FIRST_ROWS):
            cells.append(len(record))
    except _NotSeparated:
        pass  # a quoted cell that does not end here, for this delimiter; the lines before it count
    if not cells or cells[0] < 2:
        return None
    return 1 if len(cells) == 1 else cells[1:].count(cells[0])


def delimiter_name(delimiter: str) -> str:
    """Return what people call a delimiter.

    >>> delimiter_name(";"), delimiter_name("^")
    ('semicolon', "'^'")
    """
    return DELIMITER_NAMES.get(delimiter, repr(delimiter))


def checked_delimiter(given: str) -> str:
    """Return a delimiter that the user gives.

    Raises:
        DataError: It is not one character that can separate cells.

    >>> checked_delimiter("tab")
    '\\t'
    """
    delimiter = "\t" if given == "tab" else given
    if len(delimiter) != 1 or delimiter in '"\r\n ':
        raise DataError(f'data.delimiter = {given!r}: give one character, such as ";", or "tab"')
    return delimiter


class _NotSeparated(DataError):
    """The quotes of a table do not go with its delimiter, or are left open."""


def csv_names(path: Path, delimiter: str, quoting: Quoting = "double") -> Sequence[str]:
    """Return the column names in the first line of a CSV file.

    Columns without a name at the end of the line are left out.

    Raises:
        DataError: The file is empty or cannot be read.
    """
    names = _named(_header(path, _records(path, delimiter, quoting)))
    if len(names) == 1:
        _refuse_title(path, names[0], delimiter, quoting)
    return names


def _refuse_title(path: Path, name: str, delimiter: str, quoting: Quoting) -> None:
    """Refuse a first line of one cell above rows of several: a title, or the like, and no line of column names.

    Raises:
        DataError: It is one.
    """
    try:
        records = list(islice(_records(path, delimiter, quoting), 2, 2 + _FIRST_ROWS))
    except DataError:
        return  # said when the rows are read
    widths = {sum(map(bool, map(str.strip, record))) for _, record in records}
    if len(records) >= _SWALLOWED and len(widths) == 1 and max(widths) > 1:
        raise DataError(
            f"{path}:1: {name[:40]!r} stands alone above rows of {max(widths)} cells: remove what stands above the "
            "line of column names"
        )


def unnamed_columns(path: Path, delimiter: str, quoting: Quoting = "double") -> int:
    """Return how many columns at the end of the first line have no name, and are left out."""
    header = _header(path, _records(path, delimiter, quoting))
    return len(header) - len(_named(header))


def _named(header: Sequence[str]) -> Sequence[str]:
    """Return the column names up to the last that is one; all of them where none is."""
    count = max((place for place, name in enumerate(header, 1) if name.strip()), default=len(header))
    return header[:count]


def csv_rows(
    path: Path, delimiter: str, quoting: Quoting = "double"
) -> tuple[Sequence[str], Iterator[Located]]:
    """Return the column names of a CSV file, and its rows.

    Args:
        path: UTF-8, plain or gzipped, the first line with the column names; blank lines are left out.
        delimiter: What separates the cells, one character.
        quoting: Whether cells may be in quotes.

    Raises:
        DataError: It is no such file; or, when the rows are read, what is wrong in which line.
    """
    records = _records(path, delimiter, quoting)
    header = _header(path, records)
    named = _named(header)
    rows = _rows(path, delimiter, header, records)
    if len(named) < len(header):
        rows = ((where, row if isinstance(row, Fault) else row[: len(named)]) for where, row in rows)
    return named, rows


def _header(path: Path, records: Iterator[tuple[int, list[str]]]) -> Sequence[str]:
    _, header = next(records, (1, []))
    if not header:
        raise DataError(f"{path}: the file is empty: it needs a line of column names and a line an example")
    return header


def _records(path: Path, delimiter: str, quoting: Quoting = "double") -> Iterator[tuple[int, list[str]]]:
    """Yield the records of a CSV file, each with the number of its first line; blank lines are left out."""
    _allow_long_cells()
    found = (f"{line}\n" for _, line in numbered_lines(path)) if is_gzipped(path) else lines(path)
    reader = csv.reader(
        _after_excels_line(found),
        delimiter=delimiter,
        strict=True,
        quoting=csv.QUOTE_MINIMAL if quoting == "double" else csv.QUOTE_NONE,
    )
    width = longer = shorter = 0
    while True:
        start = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise _NotSeparated(f"{path}:{start}: {_fault(str(error), delimiter)}") from None
        if record is None:
            return
        if record:
            width = width or len(record)
            if reader.line_num - start >= _SWALLOWED and longer * 10 <= shorter:
                _check_swallowed(f"{path}:{start}", record, width, delimiter)
            longer, shorter = longer + (reader.line_num > start), shorter + 1
            yield start, record


def _after_excels_line(found: Iterator[str]) -> Iterator[str]:
    """Yield lines, with a blank one in place of Excel's own first line, so that the numbers stay."""
    first = next(found, None)
    if first is not None:
        told = _EXCELS_LINE.fullmatch(first.rstrip("\r\n"))
        yield "\n" if told else first
        if told and (names := next(found, None)) is not None:
            yield names.removeprefix("\ufeff")  # the mark of the file that the line was put before
        yield from found


def _check_swallowed(where: str, record: Sequence[str], width: int, delimiter: str) -> None:
    """Refuse a cell whose lines are rows themselves: a quote that opens it was not meant to.

    Raises:
        _NotSeparated: All lines of the cell but the first and the last have as many cells as the header.
    """
    for cell in record:
        inside = cell.split("\n")[1:-1]
        if (
            width > 1
            and len(inside) >= _SWALLOWED - 1
            and all(line.count(delimiter) == width - 1 for line in inside)
        ):
            raise _NotSeparated(
                f'{where}: a quote (") opened here takes the next {len(inside) + 1} lines into one cell, and they look '
                f'like rows: write it as "" within quotes{_NO_QUOTES}'
            )


_NO_QUOTES = ', or say data.quoting = "none" where quotes are characters like any other'


def _fault(message: str, delimiter: str) -> str:
    if "unexpected end of data" in message or "field limit" in message:
        return (
            'a quote (") is opened and never closed: close it, or write a quote within quotes as ""'
            + _NO_QUOTES
        )
    if "expected after" in message:
        named = delimiter_name(delimiter)
        return (
            f'a closing quote (") is not followed by a {named}: write a quote within quotes as ""'
            + _NO_QUOTES
        )
    if "new-line character" in message:
        return "a carriage return within a line: end lines with a line feed, or put the cell in quotes"
    return f"not readable as a table: {message}"


def _rows(
    path: Path, delimiter: str, header: Sequence[str], records: Iterator[tuple[int, list[str]]]
) -> Iterator[Located]:
    named = delimiter_name(delimiter)
    start = None
    head = list(islice(records, _FIRST_ROWS))
    width = len(head[0][1]) if head else 0
    # Every row ends in delimiters that the line of column names lacks.
    ends = all(len(record) == width and not any(record[len(header) :]) for _, record in head)
    # As R writes them, every row begins with a name of its own, for which the line of column names has none.
    longer = all(len(record) == len(header) + 1 for _, record in head)
    numbered = longer and len({record[0] for _, record in head}) == len(head) > 1
    for start, record in chain(head, records):
        if len(record) == len(header):
            again = record == header
            yield f"{path}:{start}", Fault("the line of column names again: remove it") if again else record
        elif ends and len(record) == width > len(header) and not any(record[len(header) :]):
            yield f"{path}:{start}", record[: len(header)]
        else:
            cells = plural(len(record), "cell")
            how = f"put a cell that holds a {named} in quotes"
            if numbered:
                how = "if each row begins with a number or a name of its own, give that column a name too"
            yield f"{path}:{start}", Fault(f"{cells} where the header has {len(header)}: {how}")
    if start is None:
        raise DataError(f"{path}: no example below the column names: add a line an example")


def csv_records(
    path: Path, cells: int, *, latin1: bool = False, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Yield the records of a CSV file without a header, each with the number of its first line.

    Args:
        path: Comma-separated, cells in quotes where they need it; blank lines are left out.
        cells: How many cells each record has.
        latin1: As for :func:`numbered_lines`.
        strict: Refuse a quote within a quoted cell that is not doubled.

    Raises:
        DataError: It is no such file.
    """
    _allow_long_cells()
    reader = csv.reader((line + "\n" for _, line in numbered_lines(path, latin1)), strict=strict)
    while True:
        start = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise DataError(
                f"{path}:{start}: not readable as CSV ({error}): close every quote, and write one within "
                f'quotes as ""'
            ) from None
        if record is None:
            return
        if record and len(record) != cells:
            raise DataError(
                f"{path}:{start}: {len(record)} comma-separated cells, where this data set has {cells}"
            )
        if record:
            yield start, record


def _allow_long_cells() -> None:
    """Raise the csv module's own bound of 128 KiB a cell, which is too low for documents; it is one for all readers."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
