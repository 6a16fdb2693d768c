"""What moves a session's frames holds none of them while nothing moves, and says in a line what went wrong."""

import asyncio
import gc
import weakref

from fednlp.deployment.links.streams import drive, report_in_lines


class Frame(bytearray):
    """A frame of which one can tell whether anybody holds it."""


class Listening:
    """A session that takes frames, and sends none."""

    finished = False

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def receive(self, data: bytes) -> None:
        self.lengths.append(len(data))

    def next_frame(self) -> bytes | None:
        return None

    def close(self) -> None: ...


def test_a_frame_that_was_taken_is_not_held_until_the_next_one() -> None:
    async def waits() -> tuple[list[int], bool]:
        frames, session, over = asyncio.Queue[Frame | None](), Listening(), asyncio.Event()
        driving = asyncio.create_task(drive(session, frames.get, lambda frame: over.wait(), None, over))
        frame = Frame(b"update")
        held = weakref.ref(frame)
        frames.put_nowait(frame)
        del frame
        while not session.lengths:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()
        gone = held() is None
        frames.put_nowait(None)
        await driving
        return session.lengths, gone

    assert asyncio.run(waits()) == ([6], True)


class InManyLines(Exception):
    """An error as those of gRPC are: of several lines, with the words of the other end."""

    def __repr__(self) -> str:
        return "<status = lost\n\t\x1b[2Jdetails>"


def test_a_flood_of_failures_is_ten_lines_and_how_many_more_there_were() -> None:
    lines: list[str] = []

    async def fails() -> None:
        loop = asyncio.get_running_loop()
        report_in_lines(loop, lines.append, seconds=0.0)
        for count in (13, 10):
            for number in range(count):
                loop.call_exception_handler({"message": f"failure {number}"})
            await asyncio.sleep(0.05)

    asyncio.run(fails())
    shown = [f"failure {number}" for number in range(10)]
    assert lines == [*shown, "3 more errors of the connections within 0 s", *shown]


def test_what_fails_in_a_loop_is_said_in_a_line_and_an_end_is_not() -> None:
    lines: list[str] = []

    async def fails() -> None:
        loop = asyncio.get_running_loop()
        report_in_lines(loop, lines.append)
        loop.call_soon(lambda: 1 // 0)
        loop.call_exception_handler({"message": "ended", "exception": asyncio.CancelledError()})
        closed = RuntimeError("Event loop is closed")  # of another driver in this process
        loop.call_exception_handler({"message": "queue", "exception": closed})
        loop.call_exception_handler({"message": "the socket is gone"})
        loop.call_exception_handler({"message": "lost", "exception": InManyLines()})
        await asyncio.sleep(0)

    asyncio.run(fails())
    assert lines[:2] == ["the socket is gone", "lost: <status = lost   [2Jdetails>"]
    assert "ZeroDivisionError" in lines[2]
    assert len(lines) == 3
