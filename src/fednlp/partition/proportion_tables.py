"""Tables of label shares per client, from a CSV, TSV or JSON file."""

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from os import PathLike
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fednlp.disk import read_whole
from fednlp.errors import PartitionError
from fednlp.formatting.units import plural

_CLIENT_COLUMN = "client"
_LARGEST = 256 << 20
"""Bytes of a file at most: a share of each of 100 labels for 100,000 clients has some 100 MB."""
_SHIPPED = Path(__file__).parent.parent / "experiments" / "proportions"
# Published tables are rounded: FedSplitBERT's Table II has a row of 51 % and 48 %.
_ROUNDING = 0.02
_Row = tuple[str, list[str]]


@dataclass(frozen=True)
class Proportions:
    """Label shares per client.

    Args:
        shares: (C, K); by ``"client"`` each row sums to 1, by ``"label"`` each column does.
        labels: The names of the K columns.
        clients: The names of the C rows, None where the table has none.
        by: ``"client"``: the make-up of each client (FedSplitBERT, Tables I and II);
            ``"label"``: how each label is split over the clients.
    """

    shares: NDArray[np.float64]
    labels: tuple[str, ...]
    clients: tuple[str, ...] | None
    by: Literal["client", "label"]


def read_proportions(path: str | PathLike[str]) -> Proportions:
    """Read a table: a header of label names, one row a client, optionally a column ``client`` of names.

    CSV (``.csv``), TSV (``.tsv``) or JSON (``.json``: a list of objects with the same names). Shares are
    fractions or percent (``0.8``, ``80`` or ``80%``). Where each row adds up to 1 or 100 %, a row is the
    make-up of its client, as in FedSplitBERT, Tables I and II; otherwise each column must, and says how that
    label is split over the clients. Sums may be off by 2 % (rounded tables) and are made exact. Lines that
    begin with a hash and a space, above the header of a CSV or TSV file, are comments.

    Args:
        path: The file, or the name of a table that comes with fednlp, e.g. ``"mrpc-3"``.

    Raises:
        PartitionError: The file cannot be read as such a table; the message says where.

    >>> read_proportions("rte-3").shares.tolist()
    [[0.8, 0.2], [0.5, 0.5], [0.2, 0.8]]
    """
    source = _shipped(Path(path))
    try:
        text = read_whole(source, _LARGEST).decode("utf-8-sig")
    except FileNotFoundError:
        raise PartitionError(f"there is no file of proportions {source}: {_nearest(source)}") from None
    except UnicodeDecodeError as error:
        raise PartitionError(f"{source} is not UTF-8 (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise PartitionError(f"{source} cannot be read ({error.strerror})") from None
    header, rows = _from_json(text, source) if source.suffix == ".json" else _from_csv(text, source)
    return _table(header, rows, source)


def _shipped(path: Path) -> Path:
    """Return the file of a table that comes with fednlp, unless there is a file of that path."""
    inside = _SHIPPED / f"{path.name}.csv"
    is_name = path == Path(path.name) and not path.suffix
    return inside if is_name and not path.is_file() and inside.is_file() else path


def _nearest(path: Path) -> str:
    """Return what may have been meant by a file that is not there."""
    from fednlp.formatting.suggestions import did_you_mean

    names = sorted(file.stem for file in _SHIPPED.glob("*.csv"))
    return (
        f"{did_you_mean(path.stem, names)}say partition.proportions with a path, or one of {', '.join(names)}"
    )


def _from_csv(text: str, source: Path) -> tuple[list[str], list[_Row]]:
    written = list(io.StringIO(text, newline=""))
    above = sum(1 for _ in takewhile(lambda line: line.startswith("# "), written))
    reader = csv.reader(written[above:], delimiter="\t" if source.suffix == ".tsv" else ",")
    try:
        lines = [
            (f"{source}:{above + reader.line_num}", [cell.strip() for cell in row])
            for row in reader
            if any(row)
        ]
    except csv.Error as error:
        raise PartitionError(f"{source}:{above + reader.line_num} cannot be read ({error})") from None
    if not lines:
        raise PartitionError(f"{source} is empty: give a header of label names and one row a client")
    header = lines[0][1]
    for where, cells in lines[1:]:
        if len(cells) != len(header):
            raise PartitionError(
                f"{where} has {plural(len(cells), 'column')}, the header has {len(header)}: make them equal"
            )
    return header, lines[1:]


def _from_json(text: str, source: Path) -> tuple[list[str], list[_Row]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise PartitionError(f"{source}:{line} is no JSON: give a list of objects, one a client") from None
    if not isinstance(found, list) or not found or not all(isinstance(row, dict) for row in found):
        raise PartitionError(
            f"{source} must be a list of objects, one a client, such as {{label: share, ...}}"
        )
    header = list(found[0])
    rows = []
    for number, row in enumerate(found):
        where = f"{source}, client {number}"
        if set(row) != set(header):
            odd = ", ".join(sorted(set(row) ^ set(header)))
            raise PartitionError(
                f"{where} does not have the labels of the first client ({odd}): make them equal"
            )
        rows.append((where, [str(row[name]) for name in header]))
    return header, rows


def _table(header: list[str], rows: list[_Row], source: Path) -> Proportions:
    names = None
    if _CLIENT_COLUMN in header:
        column = header.index(_CLIENT_COLUMN)
        names = tuple(cells[column] for _, cells in rows)
        if not all(names) or len(set(names)) < len(names):
            raise PartitionError(
                f"{source}: the names in the column {_CLIENT_COLUMN!r} must all be there and differ"
            )
        header = header[:column] + header[column + 1 :]
        rows = [(where, cells[:column] + cells[column + 1 :]) for where, cells in rows]
    if not header or not rows:
        raise PartitionError(f"{source} must have a header of label names and at least one row of shares")
    if not all(header) or len(set(header)) < len(header):
        raise PartitionError(f"{source}: the label names in the header must all be there and differ")
    shares = np.array(
        [
            [_share(cell, where, name) for cell, name in zip(cells, header, strict=True)]
            for where, cells in rows
        ]
    )
    by, exact = _exact(shares, [where for where, _ in rows], header)
    return Proportions(exact, tuple(header), names, by)


def _share(cell: str, where: str, name: str) -> float:
    try:
        value = float(cell.removesuffix("%")) / (100 if cell.endswith("%") else 1)
    except ValueError:
        raise PartitionError(f"{where}: {cell!r} under {name!r} is no share: write 0.8, 80 or 80%") from None
    if not math.isfinite(value) or value < 0:
        raise PartitionError(f"{where}: {cell!r} under {name!r} is no share: write a number of 0 or more")
    return value


def _exact(
    shares: NDArray[np.float64], places: Sequence[str], header: Sequence[str]
) -> tuple[Literal["client", "label"], NDArray[np.float64]]:
    """Return which way the table adds up, and the table with sums of 1."""
    by_row, by_column = shares.sum(axis=1, keepdims=True), shares.sum(axis=0, keepdims=True)
    if _whole(by_row).all():
        return "client", shares / by_row
    if _whole(by_column).all():
        return "label", shares / by_column
    row, column = int(np.argmin(_whole(by_row))), int(np.argmin(_whole(by_column)))
    raise PartitionError(
        f"{places[row]}: the shares add up to {by_row[row, 0]:.4g}, and the column {header[column]!r} to "
        f"{by_column[0, column]:.4g}: make each row (or each column) add up to 1 or 100"
    )


def _whole(sums: NDArray[np.float64]) -> NDArray[np.bool_]:
    flat = sums.ravel()
    return (np.abs(flat - 1) <= _ROUNDING) | (np.abs(flat - 100) <= 100 * _ROUNDING)


def columns_in_order(labels: Iterable[str], table: Proportions) -> NDArray[np.float64]:
    """Return the shares with their columns in the order of the data's labels.

    Raises:
        PartitionError: The table's labels are not the data's.
    """
    from fednlp.formatting.suggestions import did_you_mean

    expected = list(labels)
    for name in table.labels:
        if name not in expected:
            near = did_you_mean(name, expected)
            raise PartitionError(
                f"the proportions name a label {name!r} that the data does not have: {near}"
                f"its labels are {', '.join(expected[:20])}"
            )
    missing = [name for name in expected if name not in table.labels]
    if missing:
        raise PartitionError(
            f"the proportions have no column for the label {missing[0]!r}: add it, with 0 if need be"
        )
    return table.shares[:, [table.labels.index(name) for name in expected]]
