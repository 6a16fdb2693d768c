"""Excel workbooks (.xlsx) as rows of strings; the one sheet that holds anything is the table."""

import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fednlp.data.columns import check_columns
from fednlp.data.readers.json_files import LARGEST_DOCUMENT, value_row
from fednlp.data.store import Fault, Located
from fednlp.errors import DataError, MissingDependency, install_command

EXCEL = (".xlsx",)

_MOST_ROWS = 1 << 20
"""No workbook has more rows. A file may claim that one has a number far beyond them."""
_MOST_CELLS = 1 << 26
"""Held in memory at once: 512 MiB of pointers. A row with one cell far to the right is as wide as that cell is far."""

Cells = tuple[Any, ...]
_Table = list[tuple[int, Cells]]


def excel_names(path: Path) -> Sequence[str]:
    """Return the column names of a workbook: the first row that holds anything.

    Raises:
        DataError: It is no workbook, or does not hold exactly one sheet with a row.
        MissingDependency: ``openpyxl`` is not installed.
    """
    return _header(path, _table(path))


def excel_rows(path: Path, roles: Mapping[str, str]) -> tuple[Sequence[str], Iterator[Located]]:
    """Return the column names of a workbook, and its rows; blank rows are left out.

    Dates become text as ISO 8601 writes them, and formulas the value that was last computed.

    Args:
        path: The file; it is read as a whole, and may unpack to half a gigabyte.
        roles: Canonical names of columns by their own; all of them must be there.

    Raises:
        DataError: As for :func:`excel_names`; or there is no row below the column names.
        MissingDependency: ``openpyxl`` is not installed.
    """
    table = _table(path)
    columns = _header(path, table)
    check_columns(str(path), columns, *roles)
    if len(table) == 1:
        raise DataError(f"{path}: no example below the column names: add a row an example")
    return columns, _rows(path, columns, table[1:], roles)


def _rows(path: Path, columns: Sequence[str], table: _Table, roles: Mapping[str, str]) -> Iterator[Located]:
    for number, cells in table:
        where = f"{path}:{number}"
        if any(cell is not None for cell in cells[len(columns) :]):
            yield where, Fault(f"more cells than the {len(columns)} column names: name every column")
        else:
            item = dict(zip(columns, cells, strict=False))
            yield where, value_row(item, columns, roles)


def _header(path: Path, table: _Table) -> Sequence[str]:
    number, cells = table[0]
    names = list(cells)
    while names[-1] is None:
        names.pop()
    filled = {sum(cell is not None for cell in row) for _, row in table[2:12]}
    if len(names) == 1 and len(filled) == 1 and max(filled) > 1:
        raise DataError(
            f"{path}:{number}: {str(names[0])[:40]!r} stands alone above rows of {max(filled)} cells: remove what "
            "stands above the row of column names"
        )
    if None in names:
        raise DataError(f"{path}:{number}: column {names.index(None) + 1} has no name: name every column")
    return [str(name) for name in names]


def _table(path: Path) -> _Table:
    """Return the rows of the one sheet that holds anything, each with its number, without the blank ones."""
    openpyxl = _openpyxl(path)
    _check_size(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles and extensions that do not concern the cells
        try:
            book = openpyxl.load_workbook(path, read_only=True, data_only=True)
            sheets = {sheet.title: table for sheet in book.worksheets if (table := _filled(sheet))}
            book.close()
        except Exception as error:  # the library raises whatever its parsers of ZIP and XML raise
            why = " ".join(f"{error}".split()) or type(error).__name__
            raise DataError(
                f"{path}: not an Excel workbook to be read ({why:.200}): save it as CSV"
            ) from None
    if len(sheets) != 1:
        held = f"{len(sheets)} sheets hold something ({', '.join(sheets)})" if sheets else "it holds nothing"
        raise DataError(f"{path}: {held}: keep one sheet with a table")
    return next(iter(sheets.values()))


def _filled(sheet: Any) -> _Table:
    sheet.reset_dimensions()  # what the file claims, which some programs get wrong
    table, held = [], 0
    for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
        if number > _MOST_ROWS:
            raise ValueError(f"it has a row after number {_MOST_ROWS:,}")
        if any(cell is not None for cell in cells):
            table.append((number, cells))
            held += len(cells)
        if held > _MOST_CELLS:
            raise ValueError(f"it is a table of more than {_MOST_CELLS >> 20} million cells")
    return table


def _check_size(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{path}: not an Excel workbook ({error}): save it as .xlsx") from None
    if unpacked > LARGEST_DOCUMENT:
        raise DataError(f"{path}: unpacks to more than {LARGEST_DOCUMENT >> 20} MiB: save it as CSV")


def _openpyxl(path: Path) -> Any:
    try:
        import openpyxl
    except ImportError:
        raise MissingDependency(
            f"{path} is an Excel workbook, which needs an optional library: run {install_command('xlsx')}, "
            "or save it as CSV"
        ) from None
    return openpyxl
