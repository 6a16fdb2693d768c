"""A stream of bytes over messages that a broker may repeat, reorder, delay or lose.

A packet is 16 bytes for the connection, one for its kind, eight for its number, little-endian, and a payload. The
numbers of data packets go up from 0. The receiver puts them in order, drops what it has seen, and acknowledges what its
reader has taken. The sender has at most :data:`WINDOW` packets on their way that are not acknowledged. So neither end
holds more than that of a connection, whatever the other one does. A packet that is lost ends the connection.
"""

import secrets
import struct
from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from fednlp.errors import ProtocolError

MOST_PAYLOAD = 1 << 18
"""Bytes of a payload at most: what fits in a processor's own cache is copied several times as fast."""
WINDOW = 32
"""Packets of a connection on their way at most."""
_ID_BYTES = 16

_MOST_EARLY = 64 << 20
"""Bytes of packets that wait for one before them, of all connections."""
_HEAD = struct.Struct(f"<{_ID_BYTES}sBQ")
MOST_PACKET = _HEAD.size + MOST_PAYLOAD


class Kind(IntEnum):
    """What a packet is: bytes of the stream; how many packets were taken; the end of the connection."""

    DATA = 0
    TAKEN = 1
    END = 2


class Packet(NamedTuple):
    """A packet; the number of one of kind TAKEN is how many data packets were taken so far."""

    connection: bytes
    kind: Kind
    number: int
    payload: bytes | memoryview = b""


def new_id() -> bytes:
    """Return the name of a new connection, which nobody can guess."""
    return secrets.token_bytes(_ID_BYTES)


def join(packet: Packet) -> bytes:
    """Return the bytes of a packet.

    >>> join(Packet(bytes(16), Kind.TAKEN, 7))[16:]
    b'\\x01\\x07\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
    """
    return _HEAD.pack(packet.connection, packet.kind, packet.number) + packet.payload


def split(data: bytes | memoryview) -> Packet:
    """Return the parts of a packet; its payload is a view of the bytes.

    Raises:
        ProtocolError: It is cut short, too long, or of no kind that is known.
    """
    if not _HEAD.size <= len(data) <= MOST_PACKET:
        raise ProtocolError(f"a packet of {len(data)} bytes is cut short or too long")
    connection, kind, number = _HEAD.unpack_from(data)
    if kind not in list(Kind) or (kind != Kind.DATA and len(data) > _HEAD.size):
        raise ProtocolError("a packet of no kind that is known")
    return Packet(connection, Kind(kind), number, memoryview(data)[_HEAD.size :])


class Ordered:
    """Both directions of one connection, without a clock or a network.

    Attributes:
        early: Bytes that have arrived while a packet before them is missing.
        next: The number of the packet that comes next.
    """

    def __init__(self, connection: bytes) -> None:
        self.connection = connection
        self._sent = self._acknowledged = 0
        self.next = self._taken = self._told = 0
        self.early = 0
        self._early: dict[int, bytes | memoryview] = {}
        self._ready: deque[bytes | memoryview] = deque()

    @property
    def room(self) -> int:
        """How many data packets may be sent now."""
        return WINDOW - (self._sent - self._acknowledged)

    @property
    def held(self) -> int:
        """Bytes that have arrived, and that the reader has not taken."""
        return self.early + sum(map(len, self._ready))

    @property
    def incomplete(self) -> bool:
        """Whether a packet is missing before one that has arrived."""
        return bool(self._early)

    def data(self, payload: bytes | memoryview) -> bytes:
        """Return the next data packet; there has to be room for it."""
        if self.room <= 0 or len(payload) > MOST_PAYLOAD:
            raise ProtocolError("there is no room for a packet of this length")
        self._sent += 1
        return join(Packet(self.connection, Kind.DATA, self._sent - 1, payload))

    def end(self) -> bytes:
        """Return the packet that ends the connection."""
        return join(Packet(self.connection, Kind.END, 0))

    def receive(self, packet: Packet) -> None:
        """Take a packet that is not the end.

        Raises:
            ProtocolError: It cannot be of an honest peer: it is beyond the window, or acknowledges what was not sent.
        """
        number = packet.number
        if packet.kind == Kind.TAKEN:
            if number > self._sent:
                raise ProtocolError("a packet was acknowledged that was not sent")
            self._acknowledged = max(self._acknowledged, number)
            return
        if number >= self._taken + WINDOW:
            raise ProtocolError("a packet is beyond the window")
        if number >= self.next and number not in self._early:
            self._early[number] = packet.payload
            self.early += len(packet.payload)
        while self.next in self._early:
            payload = self._early.pop(self.next)
            self.early -= len(payload)
            self._ready.append(payload)
            self.next += 1

    def take(self) -> Iterator[bytes | memoryview]:
        """Yield the payloads that are there, in order."""
        while self._ready:
            self._taken += 1
            yield self._ready.popleft()

    def taken(self) -> bytes | None:
        """Return the packet that says what was taken; None where little has been since the last."""
        if self._taken - self._told < WINDOW // 4:
            return None
        self._told = self._taken
        return join(Packet(self.connection, Kind.TAKEN, self._taken))


class Gaps:
    """The connections that miss a packet, in the order in which they began to: bounded, and the first of them pays.

    A broker that delays a packet closes the gap soon. A device that leaves one open has waited longest, so its own
    connection is the one that ends, and not that of another device. A connection alone holds no more than its window.

    Args:
        most: Bytes of all of them.

    >>> gaps = Gaps(most=10)
    >>> gaps.looked_at(b"bad", missing=3, early=8), gaps.looked_at(b"good", missing=0, early=4)
    (None, b'bad')
    """

    def __init__(self, most: int = _MOST_EARLY) -> None:
        self._most, self._bytes = most, 0
        self._open: dict[bytes, tuple[int, int]] = {}

    def looked_at(self, connection: bytes, missing: int, early: int) -> bytes | None:
        """Take note of what a connection holds; return the one that has to end, or None while there is room.

        Args:
            missing: The number of the packet that comes next.
            early: Bytes that wait for it.
        """
        before, held = self._open.get(connection, (missing, 0))
        self._bytes += early - held
        if before != missing or not early:  # that gap is closed
            self._open.pop(connection, None)
        if early:
            self._open[connection] = missing, early
        return next(iter(self._open)) if self._bytes > self._most else None

    def end(self, connection: bytes) -> None:
        """Take note that a connection is over."""
        self._bytes -= self._open.pop(connection, (0, 0))[1]
