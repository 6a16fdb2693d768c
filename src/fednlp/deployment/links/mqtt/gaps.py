"""What waits for a packet that is missing, over all connections: bounded, and whoever has waited longest pays."""

MOST_EARLY = 64 << 20
"""Bytes of packets that wait for one before them, of all connections."""


class Gaps:
    """The connections that miss a packet, in the order in which they began to.

    A broker that delays a packet closes the gap soon. A device that leaves one open has waited longest, so its own
    connection is the one that ends, and not that of another device. A connection alone holds no more than its window.

    Args:
        most: Bytes of all of them.

    >>> gaps = Gaps(most=10)
    >>> gaps.looked_at(b"bad", missing=3, early=8), gaps.looked_at(b"good", missing=0, early=4)
    (None, b'bad')
    """

    def __init__(self, most: int = MOST_EARLY) -> None:
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
