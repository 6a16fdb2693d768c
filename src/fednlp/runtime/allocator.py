"""What a process asks of the C library's allocator while it trains.

A step of training takes up to some hundred megabytes and frees them. glibc gives the top of its heap back to the
system as soon as up to 64 MB of it are free (mallopt(3), M_TRIM_THRESHOLD), and the next step faults every page in
again.
"""

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of the settings in malloc.h."""
_MOST = 2**31 - 1
_BLOCK = 32 << 20
"""Larger blocks are pages of their own, which go back once they are freed: as far as glibc goes by itself."""


def keep_freed_memory() -> None:
    """Have the C library keep the memory that a step frees for the next one; nothing where it is not glibc."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _MOST)
        mallopt(_MMAP_THRESHOLD, _BLOCK)


def release_freed_memory() -> None:
    """Give the memory that was kept back to the system."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
