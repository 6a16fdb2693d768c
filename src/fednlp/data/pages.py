"""Mapped files that are read once from end to end need not stay in memory."""

import ctypes
import mmap
from collections.abc import Iterable
from functools import cache
from typing import Any

_PAGE_OUT = 21  # MADV_PAGEOUT of Linux 5.4 and later, madvise(2)


def let_go(buffers: Iterable[Any]) -> None:
    """Tell the system that the pages of some Arrow buffers are not needed for now.

    Nothing is lost, whatever the buffers are: a page of a file is read again when it is touched. A system that
    cannot do so goes on holding them.

    Args:
        buffers: With an ``address`` and a ``size`` in bytes; None stands for no buffer.
    """
    advise = _madvise()
    if advise is None:
        return
    for buffer in buffers:
        if buffer is not None and buffer.size:
            start = buffer.address // mmap.PAGESIZE * mmap.PAGESIZE
            advise(start, buffer.address + buffer.size - start, _PAGE_OUT)


@cache
def _madvise() -> Any:
    try:
        function = ctypes.CDLL(None).madvise
    except (OSError, AttributeError, TypeError):  # no such function: not a Unix
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
