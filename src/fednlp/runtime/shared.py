"""Tensors and a counter that several processes of one machine share, as mapped files."""

import fcntl
import mmap
import os
import shutil
import struct
import tempfile
from io import FileIO
from pathlib import Path

import torch
from torch import Tensor

from fednlp.errors import RunError


def scratch_folder(wanted_bytes: int) -> Path:
    """Make a new folder for shared files: in memory where there is room, else on disk.

    Raises:
        RunError: There is room nowhere.
    """
    for root in ("/dev/shm", tempfile.gettempdir()):
        if (
            Path(root).is_dir()
            and os.access(root, os.W_OK)
            and shutil.disk_usage(root).free > 1.5 * wanted_bytes
        ):
            return Path(tempfile.mkdtemp(prefix="fednlp-", dir=root))
    raise RunError(
        f"workers need {wanted_bytes / 2**20:.0f} MB of shared scratch space and there is none: free some of "
        f"{tempfile.gettempdir()}, set TMPDIR, or run with runtime.workers = 1"
    )


def _shared_tensor(path: Path, numel: int, dtype: torch.dtype) -> Tensor:
    """Map a file as a tensor; whoever opens the same file sees the same numbers. A new file holds zeros."""
    if numel == 0:
        return torch.zeros(0, dtype=dtype)
    size = numel * dtype.itemsize
    if not path.exists():
        with path.open("wb") as file:
            file.truncate(size)
    return torch.from_file(str(path), shared=True, size=numel, dtype=dtype)


def remove_scratch(folder: Path) -> None:
    """Remove a scratch folder, and the names of files that were shared along with it."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in Path(tempfile.gettempdir()).glob(f"{folder.name}-*"):
        path.unlink(missing_ok=True)


class PrivateRoom:
    """Room in the memory of this process alone."""

    def tensor(self, name: str, numel: int, dtype: torch.dtype) -> Tensor:
        """Return a new tensor of zeros."""
        return torch.zeros(numel, dtype=dtype)

    def file(self, name: str) -> FileIO:
        """Return a new empty file without a name, in the temporary folder."""
        return tempfile.TemporaryFile("w+b", buffering=0)


class SharedRoom:
    """Room in mapped files of one folder, which processes share.

    Args:
        folder: From :func:`scratch_folder`.
        owner: Whose room it is: names of different owners are different.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        self._folder, self._owner = folder, owner

    def tensor(self, name: str, numel: int, dtype: torch.dtype) -> Tensor:
        """Return the tensor of that name; zeros at first."""
        return _shared_tensor(self._folder / f"{self._owner}-{name}", numel, dtype)

    def file(self, name: str) -> FileIO:
        """Return the file of that name, in the temporary folder; it is empty at first.

        Two processes share it, and the second that opens it removes its name: nothing was written before.
        """
        path = Path(tempfile.gettempdir()) / f"{self._folder.name}-{self._owner}-{name}"
        try:
            return FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+")
        except FileExistsError:
            file = FileIO(path, "r+")
            path.unlink()
            return file


class Counter:
    """A number that processes take in turn, so that each piece of work is claimed once."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(struct.pack("<q", 0))
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), 8)

    def take(self) -> int:
        """Return the number, and add one for the next."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            (value,) = struct.unpack("<q", self._map[:8])
            self._map[:8] = struct.pack("<q", value + 1)
            return int(value)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()
        self._file.close()

    def reset(self) -> None:
        """Start from 0 again; only while nobody takes."""
        self._map[:8] = struct.pack("<q", 0)
