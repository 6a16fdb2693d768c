"""A process for jobs: ``python -m fednlp.runtime.job CORE,CORE,...``, started by :class:`JobProcess`.

It reads orders as JSON lines from standard input: a function and its arguments. While the function runs, what it says
goes to standard output line by line, and each line waits for an answer, which may tell it to stop. The last line of an
order has the result. The process ends when its input does.
"""

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

from fednlp.clock import cpu_seconds
from fednlp.errors import FednlpError
from fednlp.runtime.allocator import release_freed_memory
from fednlp.runtime.job_errors import as_fault, as_message

Say = Callable[[dict[str, Any]], None]
"""Tells the process that gave the order something, and raises :class:`Stopped` if that wants no more."""


class Stopped(Exception):
    """Whoever gave the order wants no more of it."""


def main(cores: Sequence[int]) -> None:
    """Carry out one order after the other until the input ends.

    Args:
        cores: Those that this process and its workers are to use; none for all.
    """
    if cores and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # they were taken from the parent in between
            os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
    lines = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints goes to the log, not among the lines
    for order in _orders():
        before = cpu_seconds()
        try:
            answer: dict[str, Any] = {"result": _done(order, lines)}
        except (Stopped, KeyboardInterrupt):
            answer = {"stopped": True}
        except FednlpError as error:
            answer = {"error": as_message(error)}
        except Exception as error:
            answer = {"fault": as_fault(error)}
        try:
            _write(lines, answer | {"cpu_seconds": cpu_seconds() - before})
        except Stopped:
            return
        release_freed_memory()


def _orders() -> Iterator[dict[str, Any]]:
    while line := sys.stdin.buffer.readline():
        yield json.loads(line)


def _done(order: dict[str, Any], lines: IO[bytes]) -> Any:
    """Carry out an order; return its result."""

    def say(message: dict[str, Any]) -> None:
        _write(lines, {"said": message})
        answer = sys.stdin.buffer.readline()
        if not answer or not json.loads(answer)["go"]:
            raise Stopped

    module, _, name = order["function"].partition(":")
    function = getattr(importlib.import_module(module), name)
    return function(say=say, **order["arguments"])


def _write(lines: IO[bytes], message: dict[str, Any]) -> None:
    """Write a line.

    Raises:
        Stopped: Nobody reads it any more.
    """
    try:
        lines.write(json.dumps(message).encode() + b"\n")
        lines.flush()
    except BrokenPipeError:
        raise Stopped from None


if __name__ == "__main__":
    main([int(core) for core in sys.argv[1].split(",") if core])
