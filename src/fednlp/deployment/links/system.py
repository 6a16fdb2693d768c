"""What a driver asks of the operating system."""

import resource
import socket
from contextlib import suppress

from fednlp.runtime.allocator import keep_freed_memory, share_freed_memory

_KEPT = 64 << 20
"""Bytes of freed memory that a process keeps for the next messages, as far as the C library is told so."""


def reuse_memory() -> None:
    """Have the memory of messages used again by the next ones, whichever threads take and free it.

    One thread of gRPC receives, and another one frees what it has read. With a heap for each thread, each would take
    the memory of a whole transfer from the system. Called before a driver starts threads.
    """
    share_freed_memory()
    keep_freed_memory(_KEPT)


def why_not_listening(address: str) -> str | None:
    """Return the system's reason why an address cannot be listened at, where gRPC tells none; None if it has none."""
    host, _, port = address.rpartition(":")
    try:
        family, *_, place = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as listener:
            listener.bind(place)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def allow_many_files() -> None:
    """Raise the limit of open files to what the system allows: each client needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
