"""A log for lines that strangers can cause: so many in a while, and then how many were left out."""

import time
from collections.abc import Callable

MOST = 30
"""Lines in a span at most."""
SPAN = 60.0
"""Seconds of a span."""


def limited(
    log: Callable[[str], None],
    most: int = MOST,
    seconds: float = SPAN,
    now: Callable[[], float] = time.monotonic,
) -> Callable[[str], None]:
    """Return a log that drops lines where there are too many, and says how many with the next one that it takes.

    Args:
        log: Takes a line for people.
        most: Lines in a span at most.
        seconds: Of a span, which begins with the first line after the last span.
        now: A clock that never goes back, in seconds.

    >>> clock, lines = [0.0], []
    >>> log = limited(lines.append, 2, 60, lambda: clock[0])
    >>> for number in range(5): log(f"stranger {number}")
    >>> clock[0] = 61.0
    >>> log("a site")
    >>> lines
    ['stranger 0', 'stranger 1', 'a site', '(3 lines about connections were left out before this one)']
    """
    ends, written, left_out = -seconds, 0, 0

    def take(line: str) -> None:
        nonlocal ends, written, left_out
        if now() >= ends:
            ends, written = now() + seconds, 0
        if written >= most:
            left_out += 1
            return
        written += 1
        log(line)
        if left_out:
            log(f"({left_out:,} lines about connections were left out before this one)")
            left_out = 0

    return take
