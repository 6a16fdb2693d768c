"""Text files, plain or gzipped, line by line in bounded memory; every damaged byte is reported by file and line."""

import codecs
import gzip
import shlex
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fednlp.disk import regular
from fednlp.errors import DataError

LONGEST_LINE = 64 << 20
"""Bytes of a line: longer than any example; a file without line breaks must not fill the memory."""

# What a gzipped file may unpack to: text packs to a tenth, and a file of one repeated byte to a thousandth.
_UNPACKED_FLOOR, _UNPACKED_RATIO = 64 << 20, 100
_PACKED = b"\x1f\x8b"

_OTHER_CODE_PAGES = "or WINDOWS-1254 for Turkish, WINDOWS-1250 for Central European"


def lines(path: Path, latin1: bool = False) -> Iterator[str]:
    """Yield the lines of a UTF-8 file with their line breaks; only ``\\n`` ends a line.

    A byte order mark at the beginning is left out.

    Args:
        path: The file.
        latin1: Read a line that is not UTF-8 as Latin-1, as old published files want it; else it is refused.

    Raises:
        DataError: The file cannot be read, or a line is not UTF-8, holds a NUL byte, or is too long.
    """
    try:
        with regular(path).open("rb") as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if number == 1:
                    line = without_bom(line, path)
                yield decode_line(line, path, number, latin1)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def without_bom(line: bytes, path: Path) -> bytes:
    """Return a file's first line without the mark of UTF-8, however often it stands there.

    Raises:
        DataError: The mark, or the NUL bytes of its letters, are those of UTF-16 or UTF-32.
    """
    encoding = next((name for mark, name in _MARKS if line.startswith(mark)), None) or _unmarked(line)
    if encoding is not None:
        looks = "the file looks like" if encoding.endswith("E") else "the file is"
        raise DataError(f"{path}:1: {looks} {encoding}, not UTF-8: {conversion(path, encoding)}")
    while line.startswith(codecs.BOM_UTF8):
        line = line.removeprefix(codecs.BOM_UTF8)
    return line


# The mark of UTF-32 begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def _unmarked(line: bytes) -> str | None:
    """Return UTF-16 or UTF-32 without a mark, by where its first letters have NUL bytes."""
    head = line[:64]
    if len(head) < 4 or b"\0" not in head:
        return None
    nul = [sum(byte == 0 for byte in head[place::4]) * 4 > 0.7 * len(head) for place in range(4)]
    return {
        (False, True, True, True): "UTF-32LE",
        (True, True, True, False): "UTF-32BE",
        (False, True, False, True): "UTF-16LE",
        (True, False, True, False): "UTF-16BE",
    }.get((nul[0], nul[1], nul[2], nul[3]))


def decode_line(line: bytes, path: Path, number: int, latin1: bool) -> str:
    """Return a line as text.

    Raises:
        DataError: It is too long, holds a NUL byte, or is not UTF-8, nor meant to be Latin-1.
    """
    if len(line) > LONGEST_LINE:
        raise DataError(
            f"{path}:{number}: the line is longer than {LONGEST_LINE >> 20} MiB: is this a text file?"
        )
    if b"\0" in line:
        raise DataError(f"{path}:{number}: a NUL byte: the file is damaged here, or is not a text file")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        if latin1:
            return line.decode("latin-1")
        raise DataError(
            f"{path}:{number}: byte 0x{line[error.start]:02x} at position {error.start + 1} is not UTF-8: "
            f"{conversion(path)}"
        ) from None


def conversion(path: Path, encoding: str = "WINDOWS-1252") -> str:
    """Return what to type where a file is not UTF-8.

    >>> conversion(Path("my notes.csv"), "UTF-16")
    "convert the file, such as with: iconv -f UTF-16 -t UTF-8 'my notes.csv' > 'utf8-my notes.csv'"
    """
    made = path.with_name(f"utf8-{path.name.removesuffix('.gz')}")
    read = f"zcat {shlex.quote(str(path))} | " if path.suffix == ".gz" else ""
    file = "" if read else f"{shlex.quote(str(path))} "
    command = f"{read}iconv -f {encoding} -t UTF-8 {file}> {shlex.quote(str(made))}"
    others = f" ({_OTHER_CODE_PAGES})" if encoding == "WINDOWS-1252" else ""
    return f"convert the file, such as with: {command}{others}"


def read_text(path: Path, latin1: bool = False) -> str:
    """Return a whole text file as one string, checked as by :func:`lines`.

    Raises:
        DataError: As for :func:`lines`, or the file is too long for one example.
    """
    parts = []
    length = 0
    for line in lines(path, latin1):
        length += len(line)
        if length > LONGEST_LINE:
            raise DataError(
                f"{path}: longer than {LONGEST_LINE >> 20} MiB, too long for one example: split it"
            )
        parts.append(line)
    return "".join(parts)


def numbered_lines(path: Path, latin1: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file without their line breaks, each with its number from 1 on.

    Args:
        path: UTF-8 text, plain or gzipped: the content decides, not the name.
        latin1: Read a line that is not UTF-8 as Latin-1, as old published files want it; else it is refused.

    Raises:
        DataError: As for :func:`lines`; or the gzipped file is damaged, or unpacks to more than any text.
    """
    found = _packed_lines(path, latin1) if is_gzipped(path) else lines(path, latin1)
    for number, line in enumerate(found, 1):
        yield number, line.removesuffix("\n").removesuffix("\r")


def filled_lines(path: Path, latin1: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, as :func:`numbered_lines` does."""
    return ((number, line) for number, line in numbered_lines(path, latin1) if line.strip())


def is_gzipped(path: Path) -> bool:
    """Say whether a file is gzipped.

    Raises:
        DataError: It cannot be read, or is a pipe or a device.
    """
    with data_errors(path), regular(path).open("rb") as file:
        return file.read(len(_PACKED)) == _PACKED


@contextmanager
def data_errors(path: Path) -> Iterator[None]:
    """Turn errors of reading or unpacking a file into a message of one line.

    Raises:
        DataError: The file cannot be read, or is damaged.
    """
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: the gzipped file is damaged or cut short ({error}): get it again") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def read_chunks(path: Path, size: int = 1 << 20) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces, unpacked where it is gzipped.

    Raises:
        DataError: As for :func:`numbered_lines`, but for what concerns lines.
    """
    packed = is_gzipped(path)
    with data_errors(path), _opened(path, packed) as file:
        room = unpacked_limit(path) if packed else None
        total = 0
        while piece := file.read(size):
            total += len(piece)
            check_unpacked(path, total, room)
            yield piece


def _opened(path: Path, packed: bool) -> BinaryIO:
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]


def unpacked_limit(path: Path) -> int:
    """Return how many bytes a packed file may unpack to."""
    return max(_UNPACKED_FLOOR, _UNPACKED_RATIO * path.stat().st_size)


def check_unpacked(path: Path, total: int, room: int | None) -> None:
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
    with data_errors(path), _opened(path, True) as file:
        room = unpacked_limit(path)
        number = total = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            total += len(line)
            check_unpacked(path, total, room)
            if number == 1:
                line = without_bom(line, path)
            yield decode_line(line, path, number, latin1)
