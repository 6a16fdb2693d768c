"""TLS between client and server over packets: whoever carries them can only drop or delay them.

The certificates are those of the federation, and both ends show one. Within TLS, a message is its length in four bytes,
little-endian, and its bytes.
"""

import asyncio
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from fednlp.deployment.identity.certificates import Material, show
from fednlp.deployment.links.mqtt.packets import MOST_PAYLOAD, Kind, Ordered, Packet
from fednlp.errors import ProtocolError

_LENGTH = struct.Struct("<I")
_RECORD = 1 << 14
"""Bytes of a record of TLS at most."""
_PIECE = MOST_PAYLOAD - _RECORD
"""Bytes that fill a packet, with what TLS adds to them."""
_GAP = 60.0
"""Seconds after which a packet that is missing is taken for lost."""


MOST_STRANGE = 1 << 16
"""Bytes that an end holds of another one that was not admitted yet."""


class Lost(Exception):
    """The other end is gone, or a packet is."""


@lru_cache(maxsize=4)  # a stranger's first packet has one made, and making it writes files
def context(material: Material, *, server: bool) -> ssl.SSLContext:
    """Return what one end of TLS shows and trusts; both ends have to show a certificate.

    Args:
        server: Whether this is the server's end.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    if server:
        made.num_tickets = 0  # who comes back shows its certificate again
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an invitation's certificate is a root by itself
    show(made, material)
    return made


class SealedStream:
    """One end of a connection.

    Args:
        made: From :func:`context`.
        send: Hands a packet to whoever carries it.
        server_name: The name in the server's certificate, at the client's end; None at the server's.
    """

    def __init__(
        self,
        ordered: Ordered,
        made: ssl.SSLContext,
        send: Callable[[bytes], None],
        server_name: str | None = None,
    ) -> None:
        self._ordered, self._send = ordered, send
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = made.wrap_bio(self._incoming, self._outgoing, server_name is None, server_name)
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._error: Exception | None = None
        self._admitted = False
        self._writing = asyncio.Lock()

    @property
    def gap(self) -> tuple[int, int]:
        """The number of the packet that comes next, and the bytes that have arrived and wait for it."""
        return self._ordered.next, self._ordered.early

    def arrived(self, packet: Packet) -> None:
        """Take a packet, in the thread of the event loop; those of a connection that is broken off are dropped."""
        if self._error is not None:
            return
        try:
            if packet.kind == Kind.END:
                raise Lost("the other end has ended the connection")
            if not self._admitted and self._ordered.held + len(packet.payload) > MOST_STRANGE:
                raise ProtocolError("the other end sends too much before it is let in")
            self._ordered.receive(packet)
        except (Lost, ProtocolError) as error:
            self.break_off(error)
        self._news.set()
        self._room.set()

    def admit(self) -> None:
        """Hold a whole window of the other end from now on; before, it is a stranger, who gets little memory."""
        self._admitted = True

    def break_off(self, error: Exception) -> None:
        """End the connection with an error that reading and writing then raise."""
        self._error = self._error or error
        self._news.set()
        self._room.set()

    async def handshake(self) -> bytes | None:
        """Do the handshake; return the other end's certificate, PEM.

        Raises:
            Lost: The other end is gone.
            ProtocolError: One end does not accept the other's certificate.
        """
        while True:
            try:
                self._tls.do_handshake()
                await self._flush()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                await self._more()
            except ssl.SSLError as error:
                with suppress(Lost):
                    await self._flush()  # the alert, which tells the other end
                raise ProtocolError(f"TLS was refused ({_reason(error)})") from None
        shown = self._tls.getpeercert(binary_form=True)
        return ssl.DER_cert_to_PEM_cert(shown).encode() if shown else None

    async def read(self, most: int) -> bytearray:
        """Return the next message, in memory of its own.

        Args:
            most: Bytes that it may have.

        Raises:
            Lost: The other end is gone.
            ProtocolError: It is longer, or TLS was broken.
        """
        (length,) = _LENGTH.unpack(await self._exactly(_LENGTH.size))
        if length > most:
            raise ProtocolError(f"a message of {length} bytes is longer than {most}")
        return await self._exactly(length)

    async def write(self, message: bytes) -> None:
        """Send a message, as fast as the other end takes it.

        Raises:
            Lost: The other end is gone.
        """
        async with self._writing:
            view = memoryview(message)
            pieces: list[bytes | memoryview] = [_LENGTH.pack(len(view))]
            pieces += [view[at : at + _PIECE] for at in range(0, len(view), _PIECE)]
            for piece in pieces:
                try:
                    self._tls.write(piece)
                except ssl.SSLError as error:
                    raise ProtocolError(f"TLS was broken ({_reason(error)})") from None
                if len(piece) == _PIECE:
                    await self._flush()
            await self._flush()

    def end(self) -> None:
        """Tell the other end that the connection is over."""
        self._send(self._ordered.end())

    async def _exactly(self, count: int) -> bytearray:
        whole, at = bytearray(count), 0
        while at < count:
            try:
                read: Any = self._tls.read(count - at, memoryview(whole)[at:])  # its length, with a buffer
            except ssl.SSLWantReadError:
                await self._more()
                continue
            except ssl.SSLError as error:
                raise ProtocolError(f"TLS was broken ({_reason(error)})") from None
            if not read:  # TLS was closed by the other end, which sends nothing any more
                raise Lost("the other end has ended the connection")
            at += read
        return whole

    async def _more(self) -> None:
        """Wait until packets have arrived, and hand them to TLS."""
        while True:
            found = False
            for payload in self._ordered.take():
                self._incoming.write(payload)
                found = True
            taken = self._ordered.taken()
            if taken is not None:
                self._send(taken)
            if found:
                return
            if self._error is not None:
                raise self._error
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), _GAP if self._ordered.incomplete else None)
            except TimeoutError:
                raise Lost("a packet was lost on the way") from None

    async def _flush(self) -> None:
        """Send what TLS wants to be sent, in packets, when there is room for them."""
        while self._outgoing.pending:
            while self._ordered.room <= 0:
                if self._error is not None:
                    raise self._error
                self._room.clear()
                await self._room.wait()
            self._send(self._ordered.data(self._outgoing.read(MOST_PAYLOAD)))


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "it was cut").lower().replace("_", " ")
