"""Text files, plain or gzipped, as lines, tables and JSON, in bounded memory."""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fednlp.data import lines as plain
from fednlp.disk import regular
from fednlp.errors import DataError

LARGEST_DOCUMENT = 512 << 20
"""Bytes of a JSON file that is read as a whole: several times the largest published one."""

# What a gzipped file may unpack to: text packs to a tenth, and a file of one repeated byte to a thousandth.
_UNPACKED_FLOOR, _UNPACKED_RATIO = 64 << 20, 100
_PACKED = b"\x1f\x8b"
# Only text with such an escape can hold half a surrogate pair, which no file can store.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def numbered(path: Path, latin1: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file without their line breaks, each with its number from 1 on.

    Args:
        path: UTF-8 text, plain or gzipped: the content decides, not the name.
        latin1: Read a line that is not UTF-8 as Latin-1, as old published files want it; else it is refused.

    Raises:
        DataError: As for :func:`fednlp.data.lines.lines`; or the gzipped file is damaged, or unpacks to more
            than any text.
    """
    found = _packed_lines(path, latin1) if is_packed(path) else plain.lines(path, latin1)
    for number, line in enumerate(found, 1):
        yield number, line.removesuffix("\n").removesuffix("\r")


def filled(path: Path, latin1: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, as :func:`numbered` does."""
    return ((number, line) for number, line in numbered(path, latin1) if line.strip())


def is_packed(path: Path) -> bool:
    """Say whether a file is gzipped.

    Raises:
        DataError: It cannot be read, or is a pipe or a device.
    """
    with reading(path), regular(path).open("rb") as file:
        return file.read(len(_PACKED)) == _PACKED


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the system or the unpacking says about a file into one line.

    Raises:
        DataError: The file cannot be read, or is damaged.
    """
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: the gzipped file is damaged or cut short ({error}): get it again") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def chunks(path: Path, size: int = 1 << 20) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces, unpacked where it is gzipped.

    Raises:
        DataError: As for :func:`numbered`, but for what concerns lines.
    """
    packed = is_packed(path)
    with reading(path), _opened(path, packed) as file:
        room = room_of(path) if packed else None
        total = 0
        while piece := file.read(size):
            total += len(piece)
            check_room(path, total, room)
            yield piece


def _opened(path: Path, packed: bool) -> BinaryIO:
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]


def room_of(path: Path) -> int:
    """Return how many bytes a packed file may unpack to."""
    return max(_UNPACKED_FLOOR, _UNPACKED_RATIO * path.stat().st_size)


def check_room(path: Path, total: int, room: int | None) -> None:
    """Refuse a file that has unpacked to more than it may.

    Raises:
        DataError: It has.
    """
    if room is not None and total > room:
        raise DataError(
            f"{path}: unpacks to more than {room >> 20} MiB, over {_UNPACKED_RATIO} times its size: "
            f"this is no text; unpack it yourself if you trust it"
        )


def _packed_lines(path: Path, latin1: bool) -> Iterator[str]:
    with reading(path), _opened(path, True) as file:
        room = room_of(path)
        number = total = 0
        while line := file.readline(plain.LONGEST_LINE + 1):
            number += 1
            total += len(line)
            check_room(path, total, room)
            if number == 1:
                line = plain.without_mark(line, path)
            yield plain.decoded(line, path, number, latin1)


def records(
    path: Path, cells: int, *, latin1: bool = False, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Yield the records of a CSV file without a header, each with the number of its first line.

    Args:
        path: Comma-separated, cells in quotes where they need it; blank lines are left out.
        cells: How many cells each record has.
        latin1: As for :func:`numbered`.
        strict: Refuse a quote within a quoted cell that is not doubled.

    Raises:
        DataError: It is no such file.
    """
    # The module's own bound of 128 KiB a cell is too low for documents; it has no other place to set it.
    csv.field_size_limit(max(csv.field_size_limit(), plain.LONGEST_LINE))
    reader = csv.reader((line + "\n" for _, line in numbered(path, latin1)), strict=strict)
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


def json_document(path: Path) -> Any:
    """Return a JSON file as a whole, plain or gzipped.

    Raises:
        DataError: It is larger than :data:`LARGEST_DOCUMENT`, not UTF-8, or not JSON.
    """
    content = bytearray()
    for piece in chunks(path):
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
            f"{path}:{line}: byte 0x{content[error.start]:02x} is not UTF-8: convert the file, "
            f"e.g. iconv -f LATIN1 -t UTF-8"
        ) from None
    del content
    return parsed(text, path, 1)


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON objects of a file that has one a line, each with its line's number.

    Raises:
        DataError: A line is not a JSON object.
    """
    for number, line in filled(path):
        item = parsed(line, path, number)
        if not isinstance(item, dict):
            raise DataError(f"{path}:{number}: not a JSON object: write one a line")
        yield number, item


def parsed(text: str, path: Path, first: int) -> Any:
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


def listed(item: Any, key: str, where: str) -> list[Any]:
    """Return the list under a key of a JSON object.

    Raises:
        DataError: There is none.
    """
    if not isinstance(item, dict) or not isinstance(item.get(key), list):
        raise DataError(f"{where}: no list {key!r}: is this a file of this format?")
    found: list[Any] = item[key]
    return found


def string(item: Any, key: str, where: str) -> str:
    """Return the string under a key of a JSON object.

    Raises:
        DataError: There is none.
    """
    if not isinstance(item, dict) or not isinstance(item.get(key), str):
        raise DataError(f"{where}: no string {key!r}: is this a file of this format?")
    return str(item[key])
