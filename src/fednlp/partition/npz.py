"""Arrays of an ``.npz`` file that may be damaged or a stranger's: sizes are checked before memory is taken."""

import math
import zipfile
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fednlp.disk import regular

# What a file of so many bytes may unpack to in all: offsets of empty test sets compress well, but not without end.
_UNPACKED_FLOOR, _UNPACKED_RATIO = 64 << 20, 16
_PACKED_AS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression methods of numpy; others, LZMA above all, may ask for memory without bounds."""


def read_arrays(
    path: str | PathLike[str],
    kinds: Mapping[str, tuple[str, int]],
    optional: frozenset[str] = frozenset(),
    check_shapes: Callable[[Mapping[str, tuple[int, ...]]], None] = lambda shapes: None,
) -> dict[str, NDArray[Any]]:
    """Read arrays of a file that ``numpy.savez`` wrote; no object is unpickled.

    None is read before the headers of all were found to agree with each other, and with the size of the file.

    Args:
        path: The file.
        kinds: The kinds of numpy's data types that are allowed, e.g. ``"iu"``, and the number of dimensions, of each
            array to read, by name.
        optional: Names that may be missing.
        check_shapes: Takes the shapes of the arrays by name, and raises a ValueError if they do not fit together.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, or does not hold these arrays; the message is one line.
    """
    try:
        with zipfile.ZipFile(regular(Path(path))) as archive:
            entries = _entries(archive)
            missing = [name for name in kinds if name not in entries and name not in optional]
            if missing:
                raise ValueError(f"holds no {', '.join(missing)}")
            chosen = {name: entries[name] for name in kinds if name in entries}
            room = _UNPACKED_FLOOR + _UNPACKED_RATIO * Path(path).stat().st_size
            if sum(entry.file_size for entry in chosen.values()) > room:
                raise ValueError("it unpacks to far more than it holds")
            check_shapes({name: _shape(archive, entry, name, *kinds[name]) for name, entry in chosen.items()})
            return {name: _read(archive, entry) for name, entry in chosen.items()}
    except FileNotFoundError:
        raise
    except Exception as error:  # of a damaged file, zipfile, its decompressors and numpy raise anything
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(first) from None


def _entries(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        name = entry.filename.removesuffix(".npy")
        if name in entries:
            raise ValueError(f"holds {name} twice")
        entries[name] = entry
    return entries


def _shape(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str, kinds: str, dimensions: int
) -> tuple[int, ...]:
    """Return the shape of an array, after its header was found to agree with the size of its entry."""
    if entry.compress_type not in _PACKED_AS:
        raise ValueError(f"{name} is packed in a way that numpy does not")
    with archive.open(entry) as file:
        shape, dtype = _header(file)
        length = file.tell()
    if len(shape) != dimensions or dtype.kind not in kinds:
        flat = "a flat array" if dimensions == 1 else f"an array of {dimensions} dimensions"
        raise ValueError(f"{name} must be {flat}, not {dtype} {shape}")
    size = math.prod(shape) * dtype.itemsize
    if min(shape) < 0 or dtype.itemsize == 0 or size != entry.file_size - length:
        raise ValueError(f"{name} does not have the length that it claims")
    return shape


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(entry) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype
