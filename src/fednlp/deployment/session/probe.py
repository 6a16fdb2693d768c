"""A probe of the way between a site and its server: some megabytes there and back, in pieces as a round has them.

A proxy's limit on a request, or a broker's on a message, is not met by a handshake and an enrolment.
"""

import os
from collections import deque
from collections.abc import Callable

from fednlp.deployment.session.messages import CHUNK
from fednlp.errors import ProtocolError, RunError

PIECES = 4
"""Pieces of :data:`~fednlp.deployment.session.messages.CHUNK` bytes."""
WHOLE = PIECES * CHUNK
"""Bytes in each direction."""
PATIENCE = 120.0
"""Seconds that a probe may take."""
MOST_AT_ONCE = 16
"""Probes that a server answers at a time; each may hold :data:`WHOLE`."""
_AHEAD = 2
"""Pieces that are sent before the first has come back, so that both directions are in use at once."""


class Echo:
    """The server's end: what arrives goes back, and no more than :data:`WHOLE`.

    Args:
        ended: Told once, when it is over.

    >>> echo = Echo()
    >>> echo.receive(b"piece")
    >>> echo.next_frame(), echo.next_frame(), echo.finished
    (b'piece', None, False)
    """

    def __init__(self, ended: Callable[[], object] = lambda: None) -> None:
        self._held, self._arrived, self._ended = deque[bytes](), 0, ended

    def receive(self, data: bytes) -> None:
        """Take a piece.

        Raises:
            ProtocolError: It is empty, too long, or more than a probe has.
        """
        self._arrived += len(data)
        if not 0 < len(data) <= CHUNK or self._arrived > WHOLE:
            raise ProtocolError(
                f"a probe has at most {WHOLE} bytes in each direction, in pieces of at most {CHUNK}"
            )
        self._held.append(bytes(data))

    def next_frame(self) -> bytes | None:
        """Return the next piece that goes back; None where there is none."""
        return self._held.popleft() if self._held else None

    @property
    def finished(self) -> bool:
        """Whether all has gone back."""
        return self._arrived == WHOLE and not self._held

    def close(self) -> None:
        """Let go of what has not gone back."""
        self._held.clear()
        self._ended()
        self._ended = lambda: None


class Echoes:
    """Answers probes, and not too many at once.

    >>> echoes = Echoes()
    >>> held = [echoes.begin() for _ in range(MOST_AT_ONCE)]
    >>> held.pop().close()
    >>> held.append(echoes.begin())
    >>> echoes.begin()
    Traceback (most recent call last):
        ...
    fednlp.errors.RunError: others are being answered: try again in two minutes
    """

    def __init__(self) -> None:
        self._free = MOST_AT_ONCE

    def begin(self) -> Echo:
        """Return what answers one more.

        Raises:
            RunError: There are too many.
        """
        if not self._free:
            raise RunError("others are being answered: try again in two minutes")
        self._free -= 1
        return Echo(self._end)

    def _end(self) -> None:
        self._free += 1


class Probe:
    """The site's end: it sends pieces that no proxy can make shorter, and compares what comes back.

    Attributes:
        sent: Bytes that were handed to the connection.
        back: Bytes that have come back.

    >>> echo, probe = Echo(), Probe()
    >>> while not probe.finished:
    ...     echo.receive(probe.next_frame())
    ...     probe.receive(echo.next_frame())
    >>> probe.sent == probe.back == WHOLE, echo.finished
    (True, True)
    """

    def __init__(self) -> None:
        self.sent = self.back = 0
        self._away = deque[bytes]()

    def receive(self, data: bytes) -> None:
        """Take a piece that has come back.

        Raises:
            ProtocolError: It is not the one that was sent.
        """
        if not self._away or self._away.popleft() != data:
            raise ProtocolError("other bytes came back than were sent")
        self.back += len(data)

    def next_frame(self) -> bytes | None:
        """Return the next piece; None while enough are on their way."""
        if self.sent == WHOLE or len(self._away) == _AHEAD:
            return None
        self._away.append(os.urandom(CHUNK))
        self.sent += CHUNK
        return self._away[-1]

    @property
    def finished(self) -> bool:
        """Whether all has come back."""
        return self.back == WHOLE

    def close(self) -> None:
        """Let go of what has not come back."""
        self._away.clear()
