"""Where a process's time goes: at each moment it is in one part, so the parts sum to the whole.

A clock runs in the context of the code that it measures (:mod:`contextvars`), so that no function takes it as an
argument. Code outside such a context is not measured. Reading the time costs about a microsecond, and it is read a few
times for each client or batch of test examples, never for each step.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

IMPORTS, DATA, MODEL = "imports", "data", "model"
STEPS, SUMS, MESSAGES = "local steps", "sums", "messages"
EVALUATION, DISK, IDLE, OTHER = "evaluation", "disk", "idle", "other"

PARTS = {
    IMPORTS: "starting Python and importing libraries",
    DATA: "reading texts, tokenising them, partitioning them",
    MODEL: "building the model, and writing it at the end",
    STEPS: "the clients' training",
    SUMS: "encoding updates, adding them, the server's step",
    MESSAGES: "requests and answers between processes",
    EVALUATION: "predictions and their scores",
    DISK: "clients' records, round lines, checkpoints",
    IDLE: "waiting for other workers",
    OTHER: "everything else",
}
"""What time is spent on, and what it means."""


class Clock:
    """Says how many nanoseconds were spent on each part.

    Args:
        began: When it began, by :func:`time.monotonic_ns`, which all processes of a machine share; None for now.

    >>> clock = Clock(IMPORTS, began=time.monotonic_ns() - 1000)
    >>> clock.switch(DISK)
    'imports'
    >>> spent = clock.spent(until=time.monotonic_ns() + 5)
    >>> spent["imports"] >= 1000 and spent["disk"] >= 5
    True
    """

    def __init__(self, part: str = OTHER, began: int | None = None) -> None:
        self.began = time.monotonic_ns() if began is None else began
        self._part, self._since = part, self.began
        self._spent: dict[str, int] = {}

    def switch(self, part: str) -> str:
        """Begin a part, and return the one that ends."""
        now, before = time.monotonic_ns(), self._part
        self._spent[before] = self._spent.get(before, 0) + now - self._since
        self._part, self._since = part, now
        return before

    def spent(self, until: int | None = None) -> dict[str, int]:
        """Return the nanoseconds of each part so far; they sum to the time since the clock began.

        Args:
            until: The end, by :func:`time.monotonic_ns`; None for now.
        """
        now = time.monotonic_ns() if until is None else until
        found = dict.fromkeys(PARTS, 0) | self._spent
        found[self._part] += now - self._since
        return found


_running: ContextVar[Clock | None] = ContextVar("clock", default=None)


@contextmanager
def running(clock: Clock | None = None) -> Iterator[Clock]:
    """Measure a block by a clock; without one, by the clock that runs, or by a new one.

    >>> with running() as clock, running() as same:
    ...     same is clock
    True
    """
    clock = clock or _running.get() or Clock()
    token = _running.set(clock)
    try:
        yield clock
    finally:
        _running.reset(token)


@contextmanager
def timed(part: str) -> Iterator[None]:
    """Count the time of a block, or of a function's calls, to a part; blocks within it count to theirs.

    >>> with running() as clock, timed(DISK):
    ...     with timed(SUMS):
    ...         time.sleep(0.001)
    >>> spent = clock.spent()
    >>> spent[SUMS] >= 10**6 > spent[MESSAGES] == 0
    True
    """
    clock = _running.get()
    if clock is None:
        yield
        return
    before = clock.switch(part)
    try:
        yield
    finally:
        clock.switch(before)


def process_began() -> int:
    """Return when this process was started, by :func:`time.monotonic_ns`; now where the system does not say."""
    now = time.monotonic_ns()
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started * 10**9 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - max(age, 0)


def in_seconds(spent: Mapping[str, int]) -> dict[str, Any]:
    """Return the parts that took time, in seconds, and their ``total``.

    >>> in_seconds({"disk": 1500000, "sums": 0})
    {'disk': 0.0015, 'total': 0.0015}
    """
    parts = {part: nanoseconds for part, nanoseconds in spent.items() if nanoseconds}
    return {part: one / 10**9 for part, one in {**parts, "total": sum(parts.values())}.items()}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, and of its workers that have ended, as those of a run have after it."""
    return sum(os.times()[:4])
