"""Text files, plain or gzipped, line by line in bounded memory; every damaged byte is reported by file and line."""

import codecs
import gzip
import io
import shlex
import unicodedata
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PosixPath
from typing import Any, BinaryIO

from fednlp.disk import regular
from fednlp.errors import DataError

LONGEST_LINE = 64 << 20
"""Bytes of a line: longer than any example; a file without line breaks must not fill the memory."""

# What a gzipped file may unpack to: text packs to a tenth, and a file of one repeated byte to a thousandth.
_UNPACKED_FLOOR, _UNPACKED_RATIO = 64 << 20, 100
_PACKED = b"\x1f\x8b"

_OTHER_CODE_PAGES = "or cp1254 for Turkish, cp1250 for Central European"
_MARKS = {  # the longer ones first: that of UTF-16 begins that of UTF-32
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_NO_TEXT = {"unicode_escape", "raw_unicode_escape", "idna", "punycode", "undefined", "utf_7"}
"""Codecs of Python that no text file is written in."""


class _EncodedPath(PosixPath):
    """The path of a text file of another encoding than UTF-8."""

    encoding: str


@dataclass(frozen=True)
class Encodings:
    """The encodings of files that are not UTF-8.

    Attributes:
        default: Of all files that are not named; None for UTF-8, or UTF-16 or UTF-32 with a mark.
        by_name: Of files by their names, or by patterns of names.
    """

    default: str | None = None
    by_name: Mapping[str, str] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set, compare=False, repr=False)

    @classmethod
    def given(cls, option: str | Mapping[str, str] | None) -> "Encodings":
        """Return the encodings that the option ``data.encoding`` names.

        Raises:
            DataError: There is no such encoding.
        """
        named = {"": option} if isinstance(option, str) else dict(option or {})
        for encoding in named.values():
            try:
                text = (
                    " ".encode(encoding) != b""
                    and codecs.lookup(encoding).name.replace("-", "_") not in _NO_TEXT
                )
            except (LookupError, ValueError, TypeError, UnicodeError):
                text = False
            if not text:
                raise DataError(
                    f'data.encoding = "{encoding}": there is no such encoding of texts: type one such as "cp1252", '
                    '"latin-1" or "utf-16-le"'
                )
        composed = {unicodedata.normalize("NFC", name): encoding for name, encoding in named.items() if name}
        return cls(named.get(""), composed)

    def of(self, path: Path) -> Path:
        """Return a path, with its encoding where one is named."""
        name = unicodedata.normalize("NFC", path.name)
        key = (
            name
            if name in self.by_name
            else next((one for one in self.by_name if fnmatchcase(name, one)), "")
        )
        self._used.add(key)
        encoding = self.by_name.get(key, self.default)
        if encoding is None:
            return path
        encoded = _EncodedPath(path)
        encoded.encoding = encoding
        return encoded

    def require_all_used(self, where: Path) -> None:
        """Refuse names that no file has.

        Raises:
            DataError: There is one.
        """
        for name in self.by_name:
            if name not in self._used:
                raise DataError(
                    f"data.encoding: no file of {where} is called {name!r}: name the files as they are called"
                )


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
        with _opened(path, False) as file:
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
    encoding = next((name for mark, name in _MARKS.items() if line.startswith(mark)), None) or _unmarked(line)
    if encoding is not None:
        raise DataError(f"{path}:1: the file looks like {encoding}, not UTF-8: {conversion(path, encoding)}")
    while line.startswith(codecs.BOM_UTF8):
        line = line.removeprefix(codecs.BOM_UTF8)
    return line


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


def conversion(path: Path, encoding: str = "cp1252") -> str:
    """Return what to type where a file is not UTF-8.

    >>> print(conversion(Path("notes.csv"), "UTF-16LE"))  # doctest: +NORMALIZE_WHITESPACE
    convert the file, such as with: iconv -f UTF-16LE -t UTF-8 notes.csv > converted && mv converted notes.csv, or, for
    data of your own, say data.encoding = { "notes.csv" = "UTF-16LE" }
    """
    quoted = shlex.quote(str(path))
    packed = path.suffix == ".gz"
    read = (
        f"zcat {quoted} | iconv -f {encoding} -t UTF-8 | gzip"
        if packed
        else f"iconv -f {encoding} -t UTF-8 {quoted}"
    )
    made = shlex.quote(str(path.with_name("converted")))
    others = f" ({_OTHER_CODE_PAGES})" if encoding == "cp1252" else ""
    return (
        f"convert the file, such as with: {read} > {made} && mv {made} {quoted}, or, for data of your own, say "
        f'data.encoding = {{ "{path.name}" = "{encoding}" }}{others}'
    )


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


def read_chunks(path: Path, size: int = 1 << 20, *, as_utf8: bool = True) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces, unpacked where it is gzipped; as they are unless ``as_utf8``.

    Raises:
        DataError: As for :func:`numbered_lines`, but for what concerns lines.
    """
    packed = is_gzipped(path)
    with data_errors(path), _opened(path, packed) if as_utf8 else _unpacked(path, packed) as file:
        room = unpacked_limit(path) if packed else None
        total = 0
        while piece := file.read(size):
            total += len(piece)
            check_unpacked(path, total, room)
            yield piece


def _opened(path: Path, packed: bool) -> BinaryIO:
    """Open a file whose bytes, whatever its encoding is, are read as UTF-8."""
    with _unpacked(path, packed) as file:
        head = file.read(4)
    marked = next((encoding for mark, encoding in _MARKS.items() if head.startswith(mark)), None)
    encoding = getattr(path, "encoding", marked)
    file = _unpacked(path, packed)
    return file if encoding is None else io.BufferedReader(_Recoded(path, file, encoding))


def _unpacked(path: Path, packed: bool) -> BinaryIO:
    return gzip.open(path, "rb") if packed else regular(path).open("rb")  # type: ignore[return-value]


class _Recoded(io.RawIOBase):
    """The bytes of a text file of another encoding, as UTF-8."""

    def __init__(self, path: Path, file: BinaryIO, encoding: str) -> None:
        self._path, self._file, self._encoding = path, file, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._left = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with UTF-8; return how many bytes it has, 0 at the end."""
        while not self._left and not self._ended:
            piece = self._file.read(len(buffer))
            self._ended = not piece
            try:
                self._left = self._decoder.decode(piece, final=self._ended).encode()
            except (UnicodeError, ValueError) as error:
                raise DataError(
                    f"{self._path}: the file is not {self._encoding} throughout ({error}): name the encoding "
                    "that it has in data.encoding"
                ) from None
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


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
