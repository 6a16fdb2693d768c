"""Lines of a text file, one at a time, with every fault of the bytes named by file and line."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from fednlp.disk import regular
from fednlp.errors import DataError

# Longer than any example; a file without line breaks must not fill the memory.
LONGEST_LINE = 64 << 20


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
                    line = without_mark(line, path)
                yield decoded(line, path, number, latin1)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def without_mark(line: bytes, path: Path) -> bytes:
    """Return a file's first line without the mark of UTF-8.

    Raises:
        DataError: The mark is that of UTF-16.
    """
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path}:1: the file is UTF-16, not UTF-8: convert it, e.g. iconv -f UTF-16 -t UTF-8")
    return line.removeprefix(codecs.BOM_UTF8)


def decoded(line: bytes, path: Path, number: int, latin1: bool) -> str:
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
            f"convert the file, e.g. iconv -f LATIN1 -t UTF-8"
        ) from None


def whole(path: Path, latin1: bool = False) -> str:
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
