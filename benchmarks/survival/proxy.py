"""A TCP proxy on loopback that is a bad network: it delays, is slow, loses packets, or cuts connections."""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Self

SEGMENT = 1448
"""Bytes of a TCP segment in an Ethernet frame."""
_QUEUE = 45
"""Segments that wait for the line at most, as in a router; the sender waits where TCP would lose them."""
_PIECE = 1 << 14
_ROOM = 1 << 16
"""Bytes that a connection may have waiting here before its sender has to wait."""


@dataclass(frozen=True)
class Line:
    """What a network does to what goes through it, in each direction.

    Attributes:
        delay: Seconds that a segment is on its way.
        rate: Bytes a second.
        loss: Share of the segments that are lost. TCP sends one again once the other end has told of its absence: what
            comes after it waits for one round trip, and for a rest of the queue.
    """

    delay: float
    rate: float
    loss: float


class Proxy:
    """Passes connections on to a server.

    Args:
        target: ``host:port`` of the server.
        line: What the network is like; None for loopback as it is.
        cut: Asked before each piece that goes to the server; where it returns True the connection is cut.
        seed: Of the segments that are lost.

    Attributes:
        address: Where it listens.
        up: Bytes that it passed on to the server.
        lost: Segments that were lost.
        cuts: Connections that were cut.
    """

    def __init__(
        self, target: str, line: Line | None = None, cut: Callable[[], bool] = lambda: False, seed: int = 0
    ) -> None:
        self.target, self.line, self.cut = target, line, cut
        self.up = self.lost = self.cuts = 0
        self._random = Random(seed)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._free = [0.0, 0.0]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        listening = asyncio.start_server(self._connected, sock=self._listening)
        server = self._loop.run_until_complete(listening)
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._end())

    async def _end(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _connected(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            far, on = await asyncio.open_connection(host, int(port))
        except OSError:
            back.transport.abort()
            return
        pumps = [
            asyncio.create_task(self._pump(near, on, 0)),
            asyncio.create_task(self._pump(far, back, 1)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for writer in (on, back):
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: int) -> None:
        """Pass on what comes, until an end closes or the connection is cut."""
        with suppress(OSError):
            if self.line is not None:
                await self._slowly(reader, writer, way, self.line)
                return
            while data := await reader.read(_PIECE):
                if way == 0 and self.cut():
                    self.cuts += 1
                    return
                writer.write(data)
                await writer.drain()
                self.up += len(data) if way == 0 else 0
                await asyncio.sleep(0.001 if way == 0 else 0)  # so that little is on its way when it is cut

    async def _slowly(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: int, line: Line
    ) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE)
        clock = self._loop.time

        async def arrive() -> None:
            while (item := await queue.get())[1]:
                await asyncio.sleep(max(0.0, item[0] - clock()))
                writer.write(item[1])
                await writer.drain()
                self.up += len(item[1]) if way == 0 else 0

        arriving = asyncio.create_task(arrive())
        latest = 0.0
        try:
            while data := await reader.read(SEGMENT):
                self._free[way] = max(self._free[way], clock()) + len(data) / line.rate
                latest = max(latest, self._free[way] + line.delay)
                if self._random.random() < line.loss:
                    self.lost += 1
                    latest += 2 * line.delay
                await queue.put((latest, data))
                await asyncio.sleep(max(0.0, self._free[way] - clock() - _QUEUE * SEGMENT / line.rate))
            await queue.put((0.0, b""))
            await arriving
        finally:
            arriving.cancel()
