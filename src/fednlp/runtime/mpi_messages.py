"""Messages between ranks, as JSON; nothing is pickled.

MPI's own waiting calls keep a core busy. So whoever waits for long asks at intervals, and sleeps in between.
"""

import fcntl
import json
import os
import stat
import sys
import termios
import time
from contextlib import suppress
from typing import Any

import numpy as np

from fednlp.errors import MissingDependency, install_command

ORDER, NEXT, NUMBER, ANSWERS, TOTAL, BUILT = range(1, 7)
"""Tags of messages."""
NAP, SHORT_NAP = 2e-3, 2e-4
"""Seconds between two looks for a message: between rounds, and within one."""


def world() -> Any:
    """Return the communicator of all ranks.

    Raises:
        MissingDependency: mpi4py is not installed.
    """
    try:
        from mpi4py import MPI
    except ImportError:
        raise MissingDependency(f"MPI needs mpi4py: run {install_command('mpi')}") from None
    return MPI.COMM_WORLD


def end_all(comm: Any) -> None:
    """Stop all ranks at once; what went wrong has been said, and MPI adds nothing to it."""
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        # A stream may be closed, or its disk full: the ranks are stopped all the same.
        with suppress(OSError, ValueError):
            stream.flush()
            _wait_for_reader(number)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    comm.Abort(1)


def _wait_for_reader(number: int) -> None:
    """Wait until a pipe has been read, 2 seconds at most: the launcher drops the rest when ranks are stopped."""
    if not stat.S_ISFIFO(os.fstat(number).st_mode):
        return
    unread, end = bytearray(4), time.monotonic() + 2
    while time.monotonic() < end:
        fcntl.ioctl(number, termios.FIONREAD, unread, True)
        if not any(unread):
            return
        time.sleep(NAP)


def next_number(comm: Any) -> int:
    """Ask rank 0 for the number of the next request."""
    comm.Send(bytearray(1), 0, NEXT)
    wait_for(comm, 0, NUMBER, SHORT_NAP)
    number = np.empty(1, dtype=np.int64)
    comm.Recv(number, 0, NUMBER)
    return int(number[0])


def send(comm: Any, rank: int, message: dict[str, Any], tag: int = ORDER) -> None:
    """Send a message of JSON values."""
    comm.Send(bytearray(json.dumps(message).encode()), rank, tag)


def received(comm: Any, rank: int, tag: int, nap: float = SHORT_NAP) -> dict[str, Any]:
    """Return the next message of a rank, when it is there."""
    data = bytearray(wait_for(comm, rank, tag, nap))
    comm.Recv(data, rank, tag)
    message: dict[str, Any] = json.loads(data)
    return message


def wait_for(comm: Any, rank: int, tag: int, nap: float) -> int:
    """Wait for a message, asleep; return its length in bytes."""
    from mpi4py import MPI

    status = MPI.Status()
    while not comm.Iprobe(rank, tag, status):
        time.sleep(nap)
    count: int = status.Get_count(MPI.BYTE)
    return count
