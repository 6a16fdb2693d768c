"""A session over a stream of an event loop, whatever the stream is."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from fednlp.deployment.session.driver import Session, Wake
from fednlp.deployment.session.messages import printable
from fednlp.formatting.units import human_seconds, plural

GOODBYE = 5.0
"""Seconds that the other end has to end a stream."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
"""Seconds until an end tries again to connect, after the first failure and at most."""
_MOST_LINES = 10
"""Errors of a loop that are said in a minute: the other end may cause as many as it likes."""
_OTHER_HAS_ENDED = "Event loop is closed"
"""Error of gRPC, which has one queue a process, where a loop of another driver in it has ended."""


def report_in_lines(
    loop: asyncio.AbstractEventLoop, log: Callable[[str], None], seconds: float = 60.0
) -> None:
    """Have what no one waits for in a loop, and fails, said in a line for people in place of a traceback.

    At most ten lines are said in a minute, and then how many more there were.

    Args:
        seconds: Which ten lines are for.
    """
    found = 0

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal found
        error = context.get("exception")
        if isinstance(error, asyncio.CancelledError):  # it was told to end
            return
        if isinstance(error, RuntimeError) and str(error) == _OTHER_HAS_ENDED:
            return
        if not found:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(
                    loop.call_later, seconds, count_anew
                )  # any thread may have the error
        found += 1
        if found <= _MOST_LINES:
            log(printable(f"{context['message']}{'' if error is None else f': {error!r}'}"))

    def count_anew() -> None:
        nonlocal found
        more, found = found - _MOST_LINES, 0
        if more > 0:
            log(f"{plural(more, 'more error')} of the connections within {human_seconds(seconds)}")

    loop.set_exception_handler(report)


def hush(logger: str) -> None:
    """Keep a library from writing tracebacks to the terminal; whoever sets up logging gets them.

    Args:
        logger: The name of its logger.
    """
    logging.getLogger(logger).addHandler(logging.NullHandler())


async def drive(
    session: Session,
    read: Callable[[], Awaitable[Any]],
    write: Callable[[bytes], Awaitable[Any]],
    nothing_more: object,
    event: asyncio.Event,
    arrived: Callable[[], None] = lambda: None,
    turn: Callable[[], Awaitable[Any]] | None = None,
    done: Callable[[], Awaitable[Any]] | None = None,
) -> None:
    """Move frames until the session is finished, or the other end is.

    Args:
        read: Returns the next frame that arrived.
        nothing_more: What ``read`` returns when the other end has ended the stream.
        event: Set when there may be something to send.
        arrived: Called for each frame that arrived.
        turn: Waits until a frame may be made: those of many sessions would fill the memory. At once if left out.
        done: Says that nothing more is sent; the other end then has some time to end the connection itself.
    """

    async def take() -> None:
        while (data := await read()) is not nothing_more:
            arrived()
            session.receive(data)
            del data  # the next one may be a day away, and a server has as many of these as sites
            event.set()

    async def give() -> None:
        while True:
            event.clear()
            while True:
                if turn is not None:
                    await turn()
                if (frame := session.next_frame()) is None:
                    break
                await write(frame)
            if session.finished:
                if done is not None:
                    await done()
                return
            await event.wait()

    taking, giving = asyncio.create_task(take()), asyncio.create_task(give())
    try:
        await asyncio.wait((taking, giving), return_when=asyncio.FIRST_COMPLETED)
        if done is not None and not taking.done():
            await asyncio.wait((taking,), timeout=GOODBYE)
        for task in (taking, giving):
            if task.done():
                task.result()
    finally:
        for task in (taking, giving):
            task.cancel()
        await asyncio.gather(taking, giving, return_exceptions=True)


def waker() -> tuple[asyncio.Event, Wake]:
    """Return an event of the running loop, and what sets it from any thread."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(event.set)

    return event, wake


async def ends_within(seconds: float, session: Session, event: asyncio.Event) -> bool:
    """Wait, and return whether the session was finished meanwhile."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while not session.finished and (left := until - loop.time()) > 0:
        event.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), left)
    return session.finished


def pause(failures: int) -> float:
    """Return the seconds until the next try, twice as many after each failure.

    Args:
        failures: So many in a row; there may be thousands, since a site tries again for days.

    >>> [pause(failures) for failures in (0, 1, 6, 7, 100_000)]
    [0.5, 1.0, 32.0, 60.0, 60.0]
    """
    return min(FIRST_WAIT * 2.0 ** min(failures, 64), LONGEST_WAIT)
