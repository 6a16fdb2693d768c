"""HDF5 files from untrusted sources: only strings and numbers inside the file, sizes checked before reading.

The HDF5 library itself is not proof against bytes that were altered with intent; nothing here can make it so.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.disk import regular, writing
from fednlp.errors import DataError, MissingDependency, install_command

LARGEST = 1 << 30
"""Bytes of one dataset: more is refused before it is read."""

# Deflate, shuffle, Fletcher's checksum, LZF: anything else is a plugin, that is code of somebody else.
_FILTERS = {1, 2, 3, 32000}
_FLOOR, _RATIO = 1 << 20, 1100
_AT_ONCE = 1024
_BYTES_AT_ONCE = 256 << 20


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open an HDF5 file for reading.

    Raises:
        MissingDependency: ``h5py`` is not installed.
        DataError: It is no such file, or is damaged.
    """
    h5py = _h5py(path)
    try:
        with h5py.File(regular(path), "r", locking=False) as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"there is no file {path}: give the path of an HDF5 file") from None
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, UnicodeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise DataError(f"{path}: not HDF5, or damaged ({reason}): get the file again") from None


def _h5py(path: Path) -> Any:
    try:
        import h5py
    except ImportError:
        raise MissingDependency(
            f"{path} is an HDF5 file, which needs an optional library: run {install_command('h5')}"
        ) from None
    return h5py


def child(group: Any, name: str, kind: str, where: str) -> Any:
    """Return a group or dataset that lies in a group itself: links to elsewhere are refused.

    Args:
        name: Its name in the group, without a slash.
        kind: ``"group"`` or ``"dataset"``.
        where: The file, for messages.

    Raises:
        DataError: There is none, or it is another kind of thing.
    """
    import h5py

    link = group.get(name, getlink=True)
    at = f"{where}:{group.name.rstrip('/')}/{name[:80]}"
    if link is None:
        raise DataError(f"{at} is missing: is this a file of this format?")
    if not isinstance(link, h5py.HardLink):
        raise DataError(
            f"{at} points elsewhere: such a file is not read; ask for one that holds its data itself"
        )
    found = group[name]
    if not isinstance(found, h5py.Group if kind == "group" else h5py.Dataset):
        raise DataError(f"{at} is no {kind}: is this a file of this format?")
    if kind == "dataset":
        _check(found, at)
    return found


def _check(dataset: Any, at: str) -> None:
    """Refuse a dataset that is stored elsewhere, needs foreign code, or would take too much memory."""
    properties = dataset.id.get_create_plist()
    filters = {properties.get_filter(place)[0] for place in range(properties.get_nfilters())}
    if dataset.external or dataset.is_virtual or not filters <= _FILTERS:
        raise DataError(
            f"{at} is stored elsewhere or by a plugin: such a file is not read; write it again with h5py"
        )
    if dataset.shape is None or len(dataset.shape) > 1:
        raise DataError(f"{at} has the shape {dataset.shape}: only single values and lists are read")
    claimed = dataset.size * dataset.dtype.itemsize
    # What was never written takes no room in the file, and deflate packs to a thousandth at best.
    if claimed > LARGEST or claimed > _FLOOR + _RATIO * dataset.id.get_storage_size():
        raise DataError(
            f"{at} claims {dataset.size:,} entries, more than the file can hold: is this file whole?"
        )


def text(dataset: Any) -> str:
    """Return the one string of a dataset.

    Raises:
        DataError: It holds something else.
    """
    if dataset.shape != ():
        raise DataError(f"{_at(dataset)} is a list, where there should be one string")
    _check_strings(dataset)
    return _decoded(dataset[()], dataset)


def texts(dataset: Any, most: int = LARGEST) -> Iterator[str]:
    """Yield the strings of a list, some at a time.

    Args:
        most: Bytes of them all: strings may share their bytes in the file, but not without end.

    Raises:
        DataError: It holds something else, or more.
    """
    if len(dataset.shape) != 1:
        raise DataError(f"{_at(dataset)} is one value, where there should be a list")
    _check_strings(dataset)
    taken = 0
    # All strings may be one and the same in the file, and as long as that: in memory they are not.
    longest = dataset.file.id.get_filesize() if dataset.dtype.kind == "O" else dataset.dtype.itemsize
    at_once = min(_AT_ONCE, max(1, _BYTES_AT_ONCE // longest))
    for start in range(0, dataset.shape[0], at_once):
        for value in dataset[start : start + at_once]:
            taken += len(value)
            if taken > most:
                raise DataError(
                    f"{_at(dataset)} holds more than {most >> 20} MiB of text: is this file whole?"
                )
            yield _decoded(value, dataset)


def _check_strings(dataset: Any) -> None:
    import h5py

    if h5py.check_string_dtype(dataset.dtype) is None:
        raise DataError(f"{_at(dataset)} holds {dataset.dtype}, where there should be strings")


def _decoded(value: Any, dataset: Any) -> str:
    try:
        found = value.decode("utf-8") if isinstance(value, bytes) else str(value)
        found.encode()
    except UnicodeError:
        raise DataError(f"{_at(dataset)} is not UTF-8: write the file again from UTF-8 text") from None
    return str(found)


def whole_numbers(dataset: Any) -> NDArray[np.int64]:
    """Return the whole numbers of a list (n,), or of a single value as a list of one; empty lists may be of floats.

    Raises:
        DataError: It holds something else.
    """
    if dataset.dtype.kind not in "iu" and dataset.size:
        raise DataError(f"{_at(dataset)} holds {dataset.dtype}, where there should be whole numbers")
    values = np.atleast_1d(dataset[()])
    if values.dtype.kind == "u" and values.size and values.max() > np.iinfo(np.int64).max:
        raise DataError(f"{_at(dataset)} holds numbers beyond int64")
    return values.astype(np.int64)


def number(dataset: Any) -> float:
    """Return the one number of a dataset.

    Raises:
        DataError: It holds something else.
    """
    if dataset.shape != () or dataset.dtype.kind not in "iuf":
        raise DataError(
            f"{_at(dataset)} holds {dataset.dtype} {dataset.shape}, where there should be a number"
        )
    return float(dataset[()])


def _at(dataset: Any) -> str:
    return f"{dataset.file.filename}:{dataset.name[:120]}"


@contextmanager
def replaced(path: Path, keep: bool) -> Iterator[Any]:
    """Open an HDF5 file for writing; it takes its name once it is whole.

    Args:
        path: The file to write.
        keep: Whether to begin with the content of the file of this name, where there is one.

    Raises:
        DataError: ``keep``, and the file is no HDF5 file.
        RunError: The disk is full, or the folder cannot be written.
        MissingDependency: ``h5py`` is not installed.
    """
    h5py = _h5py(path)
    with writing(path.parent, "choose another folder"):
        work = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            if keep and path.exists():
                with opened(path):
                    shutil.copyfile(path, work)
            with h5py.File(work, "a") as file:
                yield file
            os.replace(work, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(work)
