"""Parquet files as rows of strings, a batch of rows at a time."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from fednlp.data.columns import check_columns
from fednlp.data.readers.class_names import class_names_in, named_class
from fednlp.data.readers.json_files import value_row
from fednlp.data.readers.text_io import check_unpacked, unpacked_limit
from fednlp.data.store import Fault, Located
from fednlp.errors import DataError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

PARQUET = (".parquet",)

_ROWS_AT_ONCE = 100
_BYTES_AT_ONCE = 512 << 20
_UNREADABLE = (OSError, ValueError, NotImplementedError, OverflowError, MemoryError)
"""What Arrow raises for damaged files, for types it does not know, and for dates and sizes beyond the machine's."""


def parquet_names(path: Path) -> Sequence[str]:
    """Return the column names of a Parquet file.

    Raises:
        DataError: It is no such file.
    """
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def parquet_rows(path: Path, roles: Mapping[str, str]) -> tuple[Sequence[str], Iterator[Located]]:
    """Return the column names of a Parquet file, and its rows.

    Args:
        path: The file.
        roles: Canonical names of columns by their own; all of them must be there.

    Raises:
        DataError: It is no such file; or, when the rows are read, it is damaged, unpacks to more than any text,
            or holds none.
    """
    columns = parquet_names(path)
    check_columns(str(path), columns, *roles)
    return columns, _rows(path, columns, roles)


def _rows(path: Path, columns: Sequence[str], roles: Mapping[str, str]) -> Iterator[Located]:
    place = count(1)
    room, total = unpacked_limit(path), 0
    with _opened(path) as file:
        names = class_names_in(file.schema_arrow.metadata or {}, path.with_name("dataset_info.json"), columns)
        try:
            for batch in file.iter_batches(rows_at_once(file)):
                for item in batch.to_pylist():
                    for column, of_column in names.items():
                        item[column] = named_class(item[column], of_column)
                    row = value_row(item, columns, roles)
                    total += 0 if isinstance(row, Fault) else sum(len(cell or "") for cell in row)
                    check_unpacked(path, total, room)
                    yield f"{path}: row {next(place)}", row
        except _UNREADABLE as error:
            raise _damaged(path, error) from None
    if next(place) == 1:
        raise DataError(f"{path}: the file holds no example")


def rows_at_once(file: "pq.ParquetFile") -> int:
    """Return how many rows fit into memory together, even if each holds the longest value that there can be.

    A value that is repeated in thousands of rows is stored once, so the size of the file says nothing of theirs.
    """
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    longest = max((group.total_byte_size for group in groups), default=0)
    return min(_ROWS_AT_ONCE, max(1, _BYTES_AT_ONCE // max(1, longest)))


def _opened(path: Path) -> "pq.ParquetFile":
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, memory_map=True)
    except _UNREADABLE as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> DataError:
    why = (str(error).strip() or type(error).__name__).splitlines()[0]
    return DataError(f"{path}: not a whole Parquet file ({why}): write it again")
