"""Large tensors whose memory is taken when it is written, and given back when it is no longer needed."""

import ctypes
import mmap
import os
import tempfile
from contextlib import suppress
from io import FileIO
from pathlib import Path
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fednlp.disk import writing

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_IN_FILES: WeakValueDictionary[int, Tensor] = WeakValueDictionary()


def lazy_zeros(numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a flat tensor of zeros in pages of its own; a page takes memory once something is written to it.

    Args:
        numel: Number of its elements.
    """
    if numel == 0:
        return torch.zeros(0, dtype=dtype)
    pages = mmap.mmap(-1, numel * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype)


def huge_zeros(numel: int) -> Tensor:
    """Return a flat float32 tensor of zeros in pages of its own, in huge ones where the system has them.

    The system then makes a page ready for each 2 MiB and not for each 4 KiB, which takes a fraction of the time. All of
    the memory is taken at once, and goes back with the tensor.

    Args:
        numel: Number of its elements, at least 1.
    """
    pages = mmap.mmap(-1, numel * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.float32).zero_()


class LeanRoom:
    """Room in the memory of this process alone, for totals that give their memory back between two rounds."""

    def tensor(self, name: str, numel: int, dtype: torch.dtype) -> Tensor:
        """Return a new tensor of zeros."""
        return lazy_zeros(numel, dtype)

    def file(self, name: str) -> FileIO:
        """Return a new empty file without a name, in the temporary folder."""
        return tempfile.TemporaryFile("w+b", buffering=0)


class DiskRoom:
    """Room in files without a name, for vectors that need not be in memory while nobody looks at them.

    Args:
        folder: On the disk that takes them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tensor(self, name: str, numel: int, dtype: torch.dtype) -> Tensor:
        """Return a new tensor of zeros; room for all of it is taken on the disk.

        Raises:
            RunError: The disk is full, or cannot be written.
        """
        if numel == 0:
            return torch.zeros(0, dtype=dtype)
        with writing(self.folder, "then start it again"), tempfile.TemporaryFile(dir=self.folder) as file:
            os.posix_fallocate(file.fileno(), 0, numel * dtype.itemsize)
            made = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=dtype)
        _IN_FILES[made.data_ptr()] = made
        return made

    def file(self, name: str) -> FileIO:
        """Return a new empty file without a name."""
        return tempfile.TemporaryFile("w+b", buffering=0, dir=self.folder)


def set_aside(vector: Tensor) -> None:
    """Let a vector of a :class:`DiskRoom` be on the disk alone until it is looked at; another tensor stays as it is."""
    if vector.data_ptr() in _IN_FILES:
        give_back(vector)


def give_back(flat: Tensor) -> None:
    """Give back the whole pages under a stretch of a tensor.

    Args:
        flat: Contiguous. One from :func:`lazy_zeros` has zeros there afterwards, but for the parts of pages at its
            ends, which stay as they are. One in a file that is mapped is read again when it is needed.
    """
    size = mmap.PAGESIZE
    first = -(-flat.data_ptr() // size) * size
    last = (flat.data_ptr() + flat.numel() * flat.element_size()) // size * size
    if last > first:
        _LIBC.madvise(first, last - first, mmap.MADV_DONTNEED)
