"""What a driver and a session know of each other: a driver moves frames, and knows nothing of what is in them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fednlp.errors import RunError

Wake = Callable[[], None]
"""Tells a driver, from any thread, to ask its session for frames again."""


class Session(Protocol):
    """One end of a connection, without threads, clocks or sockets: a driver moves its frames."""

    def receive(self, data: bytes) -> None:
        """Take a frame that has arrived.

        Raises:
            ProtocolError: It is not valid; the connection has to be closed.
            RunError: It cannot be stored; the connection has to be closed, and may be tried again later.
        """

    def next_frame(self) -> bytes | None:
        """Return the next frame to send, or None if there is none until something arrives or the driver is woken.

        Raises:
            RunError: The session cannot go on; the connection has to be closed, and may be tried again later.
        """

    @property
    def finished(self) -> bool:
        """Whether nothing more will be sent or taken."""

    def close(self) -> None:
        """Let go of what the connection held: it is gone."""


class Running(Protocol):
    """A server that answers in a thread of its own."""

    def stop(self, grace: float = 1.0) -> None:
        """End all connections.

        Args:
            grace: Seconds that they get to end by themselves.
        """


class NotThere(RunError):
    """The other end, or what leads to it, was not reached, and may be later."""


class NotAnswered(RunError):
    """The other end does not know of what it is asked."""


@dataclass(frozen=True)
class PeerIdentity:
    """Who is at the other end of a connection.

    Attributes:
        address: Where it connects from, as the driver writes it.
        certificate: Its certificate in PEM, which TLS has checked; None without TLS or without a certificate.
    """

    address: str
    certificate: bytes | None


NewSession = Callable[[PeerIdentity, Wake], Session]
"""Makes the session of a new connection; an error that it raises refuses the client."""
Enrol = Callable[[PeerIdentity, bytes], bytes]
"""Answers an enrolment; an error that it raises refuses it."""
MOST_ENROLMENT = 16 << 10
"""Bytes of an enrolment at most."""
