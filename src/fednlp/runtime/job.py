"""A process for jobs: ``python -m fednlp.runtime.job CORE,CORE,...``, started by :class:`JobProcess`.

It reads orders as JSON lines from standard input: a function and its arguments. While the function runs, what it says
goes to standard output line by line, and each line waits for an answer, which may tell it to stop. The last line of an
order has the result. The process ends when its input does.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from fednlp import errors
from fednlp.clock import cpu_seconds
from fednlp.errors import ConfigError, DamagedError, FednlpError
from fednlp.plugins import ELSEWHERE, place_of
from fednlp.runtime.allocator import release_freed_memory
from fednlp.runtime.child import answers_to_parent, function_named, write_line

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
    lines = answers_to_parent()
    for order in _orders():
        before = cpu_seconds()
        try:
            answer: dict[str, Any] = {"result": _done(order, lines)}
        except (Stopped, KeyboardInterrupt):
            answer = {"stopped": True}
        except FednlpError as error:
            answer = {"error": as_message(error)}
        except Exception as error:
            answer = {"fault": _as_fault(error)}
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

    return function_named(order["function"])(say=say, **order["arguments"])


def _write(lines: IO[bytes], message: dict[str, Any]) -> None:
    """Write a line.

    Raises:
        Stopped: Nobody reads it any more.
    """
    try:
        write_line(lines, message)
    except BrokenPipeError:
        raise Stopped from None


class Fault(Exception):
    """An error in another process that fednlp does not foresee.

    Its class has the name of the other's, and :func:`fednlp.plugins.place_of` finds where it was raised.
    """


def as_message(error: FednlpError) -> dict[str, Any]:
    """Return an error of fednlp as a JSON value, with the names of its class and of those that this derives from.

    >>> as_message(ConfigError("no such key", ["a", "b"]))
    {'kinds': ['ConfigError', 'FednlpError'], 'text': 'no such key', 'problems': ['a', 'b'], 'what': ''}
    """
    kinds = [one.__name__ for one in type(error).__mro__ if issubclass(one, FednlpError)]
    problems = error.problems if isinstance(error, ConfigError) else []
    what = error.what if isinstance(error, DamagedError) else ""
    return {"kinds": kinds, "text": str(error), "problems": problems, "what": what}


def as_error(message: Mapping[str, Any]) -> FednlpError:
    """Return the error that :func:`as_message` made a message of.

    >>> as_error({"kinds": ["DataError"], "text": "no rows", "problems": [], "what": ""})
    DataError('no rows')
    """
    kind = next(getattr(errors, name) for name in message["kinds"] if hasattr(errors, name))
    if kind is ConfigError:
        return ConfigError(message["text"], message["problems"])
    error: FednlpError = kind(message["text"])
    if isinstance(error, DamagedError):
        error.what = message["what"]
    return error


def _as_fault(error: Exception) -> dict[str, Any]:
    """Return an error that fednlp does not foresee as a JSON value, with its place in the user's own code."""
    come = "".join(traceback.format_exception(error))
    return {"kind": type(error).__name__, "text": str(error), "place": place_of(error), "traceback": come}


def as_exception(message: Mapping[str, Any]) -> Fault:
    """Return the error that :func:`_as_fault` made a message of.

    >>> as_exception({"kind": "ValueError", "text": "too short", "place": "mine.py, line 3", "traceback": ""})
    ValueError('too short')
    """
    error: Fault = type(message["kind"], (Fault,), {})(message["text"])
    setattr(error, ELSEWHERE, message["place"])
    error.add_note(message["traceback"])
    return error


if __name__ == "__main__":
    main([int(core) for core in sys.argv[1].split(",") if core])
