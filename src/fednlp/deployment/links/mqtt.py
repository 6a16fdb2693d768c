"""The driver over MQTT: both ends are clients of a broker, which need not be trusted.

A site sends to ``fednlp/<channel>/up/<connection>``, and the server to ``fednlp/<channel>/down/<connection>``. What
they send is TLS between the two (:mod:`fednlp.deployment.links.sealed`) in packets
(:mod:`fednlp.deployment.links.packets`), so that the broker can drop and delay, and nothing else. Each end leaves a
will with the broker, so that the other one hears when it is gone. A connection ends with that to the broker, and the
session goes on in the next one.
"""

import asyncio
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from cryptography import x509

from fednlp.deployment.certificates import Material, fingerprint
from fednlp.deployment.frames import MOST_FRAME
from fednlp.deployment.links import Session, Wake
from fednlp.deployment.links.broker import Broker
from fednlp.deployment.links.grpc import MOST_ENROLMENT, Enrol, NewSession, PeerIdentity
from fednlp.deployment.links.packets import WINDOW, Kind, Ordered, Packet, new_id, split
from fednlp.deployment.links.sealed import Lost, SealedStream, context
from fednlp.deployment.links.streams import GOODBYE, drive, ends_within, pause, waker
from fednlp.deployment.messages import printable
from fednlp.errors import FednlpError, IdentityError, ProtocolError, RunError

HANDSHAKE = 30.0
"""Seconds that the other end has for the handshake."""
_SESSION, _ENROL = b"S", b"E"
_ACCEPTED, _REFUSED = b"+", b"-"
_MOST_STATUS = 1000
_PRESENCE = "server"
_TELL_AGAIN = 1.0
"""Seconds after which the server says again that it is there, where something else was said."""
_MOST_CONNECTIONS, _MOST_HALF_OPEN = 1 << 14, 1 << 8
_MOST_ENDED = 1 << 12
"""Connections that are remembered as ended: late packets do not begin them again."""
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0


def channel_of(material: Material) -> str:
    """Return what a federation's topics are called: by its authority, which is the first that both ends trust."""
    authority = x509.load_pem_x509_certificates(material.roots)[0]
    return fingerprint(authority)[:16]


class RunningServer:
    """A server in a thread of its own; made by :func:`serve`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, thread: threading.Thread, over: asyncio.Event
    ) -> None:
        self._loop, self._thread, self._over = loop, thread, over

    def stop(self, grace: float = 1.0) -> None:
        """End all connections."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()


def serve(
    address: str,
    material: Callable[[], Material],
    new_session: NewSession,
    enrol: Enrol,
    *,
    log: Callable[[str], None] = lambda line: None,
) -> RunningServer:
    """Answer clients by way of a broker.

    Args:
        address: ``mqtts://host:port`` of the broker.
        material: Returns what the server shows and trusts, at each handshake.
        new_session: Makes the session of a new connection; an error that it raises refuses the client.
        enrol: Answers an enrolment; an error that it raises refuses it.
        log: Takes a line for people about a connection that was ended.

    Raises:
        RunError: The broker is not reached.
    """
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[_Server, asyncio.Event]:
        server = _Server(address, material, new_session, enrol, log)
        await server.open()
        return server, asyncio.Event()

    try:
        server, over = loop.run_until_complete(begin())
    except BaseException:
        loop.close()
        raise

    def run() -> None:
        try:
            loop.run_until_complete(server.run(over))
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="fednlp-server", daemon=True)
    thread.start()
    return RunningServer(loop, thread, over)


def connect(
    address: str,
    material: Callable[[], Material],
    session_factory: Callable[[Wake], Session],
    *,
    on_state: Callable[[str], None] = lambda line: None,
    server_name: str,
) -> None:
    """Run a client's session until it is finished; connect again, forever, when the connection is lost.

    Args:
        address: ``mqtts://host:port`` of the broker.
        material: Returns what the next connection shows and trusts.
        session_factory: Begins a connection of the session.
        on_state: Takes a line for people.
        server_name: Name in the server's certificate.

    Raises:
        RunError: The server does not let this client in.
    """
    asyncio.run(connecting(address, material, session_factory, on_state=on_state, server_name=server_name))


async def connecting(
    address: str,
    material: Callable[[], Material],
    session_factory: Callable[[Wake], Session],
    *,
    on_state: Callable[[str], None] = lambda line: None,
    server_name: str,
) -> None:
    """Do as :func:`connect`, in an event loop that may have other sessions."""
    event, wake = waker()
    failures = 0
    while True:
        session, heard = session_factory(wake), False

        def arrived() -> None:
            nonlocal heard
            heard = True

        try:
            async with _Line(address, material(), server_name, _SESSION) as line:
                await drive(session, line.frame, line.stream.write, None, event, arrived)
                await line.settle()
                reason = line.reason
        except (Lost, ProtocolError, RunError) as error:
            if isinstance(error, _NotLetIn):
                raise RunError(f"{address} refuses this site: {error}") from None
            reason = str(error)
        finally:
            session.close()
        if session.finished:
            return
        failures = 0 if heard else failures + 1
        wait = pause(failures, _FIRST_WAIT, _LONGEST_WAIT) * (0.5 + secrets.randbelow(1000) / 1000)
        on_state(f"no connection by way of {address} ({reason}): next try in {wait:.0f} s")
        if await ends_within(wait, session, event):
            return


def enrol(
    address: str, material: Material, request: bytes, *, server_name: str, timeout: float = 60.0
) -> bytes:
    """Return the server's answer to an enrolment.

    Args:
        address: ``mqtts://host:port`` of the broker.
        material: What this client shows and trusts.
        request: What the server's ``enrol`` takes.
        server_name: Name in the server's certificate.
        timeout: Seconds.

    Raises:
        RunError: The broker or the server is not there, or refuses.
    """

    async def ask() -> bytes:
        async with _Line(address, material, server_name, _ENROL) as line:
            await line.stream.write(request)
            return _accepted(await line.stream.read(1 + MOST_ENROLMENT))

    try:
        return asyncio.run(asyncio.wait_for(ask(), timeout))
    except TimeoutError:
        reason = "the server does not answer"
    except (Lost, FednlpError) as error:
        reason = str(error)
    raise RunError(f"cannot enrol by way of {address}: {reason}")


class _NotLetIn(RunError):
    """The server does not let this client in."""


def _accepted(status: bytes) -> bytes:
    """Return what the server says beyond that it accepts.

    Raises:
        RunError: It refuses.
    """
    if status[:1] != _ACCEPTED:
        raise _NotLetIn(printable(status[1:].decode(errors="replace")))
    return status[1:]


class _Line:
    """A client's connection to the server, for the time of a block.

    Args:
        address: Of the broker.
        material: What this client shows and trusts.
        server_name: Name in the server's certificate.
        purpose: What the connection is for.

    Attributes:
        stream: What is said on it.
        reason: Why it is over.
    """

    def __init__(self, address: str, material: Material, server_name: str, purpose: bytes) -> None:
        ordered, topics = Ordered(new_id()), f"fednlp/{channel_of(material)}"
        name = ordered.connection.hex()
        self._purpose, self._up, self._presence = purpose, f"{topics}/up/{name}", f"{topics}/{_PRESENCE}"
        self._server: bytes | None = None
        self._there = asyncio.Event()
        self.reason = ""
        will = self._up, ordered.end(), False
        self._broker = Broker(
            address,
            [f"{topics}/down/{name}", self._presence],
            will,
            self._arrived,
            lambda why: self.stream.break_off(Lost(why)),
            name=name,
        )
        self.stream = SealedStream(
            ordered,
            context(material, server=False),
            lambda packet: self._broker.send(self._up, packet),
            server_name,
        )

    async def frame(self) -> bytes | None:
        """Return the next frame; None once the server has ended the connection."""
        try:
            return await self.stream.read(MOST_FRAME)
        except Lost as error:
            self.reason = str(error)
            return None

    async def settle(self) -> None:
        """Wait until what was sent is with the broker."""
        await self._broker.flush(GOODBYE)

    async def __aenter__(self) -> "_Line":
        await self._broker.open()
        try:
            try:
                await asyncio.wait_for(self._there.wait(), HANDSHAKE)
                await asyncio.wait_for(self.stream.handshake(), HANDSHAKE)
                await self.stream.write(self._purpose)
                status = await asyncio.wait_for(self.stream.read(_MOST_STATUS), HANDSHAKE)
            except TimeoutError:
                raise RunError("the server is not there, and the broker is") from None
            _accepted(status)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stream.end()
        await self._broker.flush(GOODBYE)
        self._broker.close()

    def _arrived(self, topic: str, payload: bytes) -> None:
        if topic == self._presence:
            if self._server is not None and payload != self._server:
                self.stream.break_off(Lost("the server is gone, or has been started again"))
            elif payload:
                self._server = payload
                self._there.set()
            return
        with suppress(ProtocolError):
            self.stream.arrived(split(payload))


class _Server:
    """The server's end of all connections."""

    def __init__(
        self,
        address: str,
        material: Callable[[], Material],
        new_session: NewSession,
        enrol: Enrol,
        log: Callable[[str], None],
    ) -> None:
        self._address, self._material = address, material
        self._topics = f"fednlp/{channel_of(material())}"
        self._new_session, self._enrol, self._log = new_session, enrol, log
        self._instance, self._telling = new_id(), False
        self._streams: dict[bytes, SealedStream] = {}
        self._half_open: OrderedDict[bytes, None] = OrderedDict()
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect to the broker."""
        presence = f"{self._topics}/{_PRESENCE}"
        self._lost = asyncio.Event()
        self._broker = Broker(
            self._address,
            [f"{self._topics}/up/+", presence],
            (presence, b"", True),
            self._arrived,
            self._lose,
            (presence, self._instance),
        )
        await self._broker.open()

    async def run(self, over: asyncio.Event) -> None:
        """Answer until it is over; connect to the broker again where the connection is lost."""
        ending, failures = asyncio.create_task(over.wait()), 0
        while not over.is_set():
            losing = asyncio.create_task(self._lost.wait())
            await asyncio.wait((ending, losing), return_when=asyncio.FIRST_COMPLETED)
            losing.cancel()
            while self._lost.is_set() and not over.is_set():
                wait = pause(failures, _FIRST_WAIT, _LONGEST_WAIT)
                await asyncio.wait((ending,), timeout=wait)
                try:
                    self._broker.close()
                    await self.open()
                    failures = 0
                except RunError as error:
                    self._lost.set()
                    failures += 1
                    self._log(f"{error}: next try in {pause(failures, _FIRST_WAIT, _LONGEST_WAIT):.0f} s")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._telling = True  # nothing more is said after this
        self._broker.send(f"{self._topics}/{_PRESENCE}", b"", retained=True)
        await self._broker.flush(GOODBYE)
        self._broker.close()

    def _lose(self, reason: str) -> None:
        self._log(reason)
        for stream in self._streams.values():
            stream.break_off(Lost(reason))
        self._lost.set()

    def _arrived(self, topic: str, payload: bytes) -> None:
        if topic.rpartition("/")[2] == _PRESENCE:
            if payload != self._instance and not self._telling:
                self._telling = True
                asyncio.get_running_loop().call_later(_TELL_AGAIN, self._tell)
            return
        try:
            packet = split(payload)
        except ProtocolError:
            return  # of nobody whom anything could be told
        name = packet.connection
        if topic.rpartition("/")[2] != name.hex():
            return
        stream = self._streams.get(name) or self._begun(packet)
        if stream is not None:
            stream.arrived(packet)

    def _tell(self) -> None:
        """Say again that the server is there: the will of one that was before it, or somebody else, said otherwise."""
        self._telling = False
        if not self._lost.is_set():
            self._broker.send(f"{self._topics}/{_PRESENCE}", self._instance, retained=True)

    def _begun(self, packet: Packet) -> SealedStream | None:
        """Begin a connection with its first packet; None for what begins none."""
        name = packet.connection
        first = packet.kind == Kind.DATA and packet.number < WINDOW
        if not first or name in self._ended or len(self._streams) >= _MOST_CONNECTIONS:
            return None
        if len(self._half_open) >= _MOST_HALF_OPEN:  # strangers hold these: whoever comes has a little time
            oldest, _ = self._half_open.popitem(last=False)
            self._streams[oldest].break_off(Lost("others came"))
        down = f"{self._topics}/down/{name.hex()}"
        try:
            made = context(self._material(), server=True)
        except (
            OSError,
            FednlpError,
        ) as error:  # a full disk, a file of an organisation that is being replaced
            self._log(f"no connection can be begun: {error}")
            return None
        stream = SealedStream(Ordered(name), made, lambda data: self._broker.send(down, data))
        self._streams[name] = stream
        self._half_open[name] = None
        task = asyncio.get_running_loop().create_task(self._talk(name, stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream

    async def _talk(self, name: bytes, stream: SealedStream) -> None:
        who = f"connection {name.hex()[:8]} of the broker"
        try:
            async with asyncio.timeout(HANDSHAKE):
                certificate = await stream.handshake()
                purpose = await stream.read(len(_SESSION))
            self._half_open.pop(name, None)
            await self._do(PeerIdentity(who, certificate), stream, purpose)
        except TimeoutError:
            self._log(f"{who}: it did not finish its handshake")
        except Lost:
            pass  # it comes back
        except FednlpError as error:
            self._log(f"{who}: {error}")
        finally:
            stream.end()
            self._half_open.pop(name, None)
            del self._streams[name]
            self._ended[name] = None
            if len(self._ended) > _MOST_ENDED:
                self._ended.popitem(last=False)

    async def _do(self, peer: PeerIdentity, stream: SealedStream, purpose: bytes) -> None:
        """Do what a connection is for."""
        event, wake = waker()
        try:
            if purpose == _ENROL:
                await stream.write(_ACCEPTED)
                async with asyncio.timeout(HANDSHAKE):
                    request = await stream.read(MOST_ENROLMENT)
                answer = self._enrol(peer, request)
                await stream.write(_ACCEPTED + answer)
                return
            session = self._new_session(peer, wake)
        except (IdentityError, RunError) as error:
            await stream.write(_REFUSED + str(error).encode()[: _MOST_STATUS - 1])
            raise
        try:
            await stream.write(_ACCEPTED)

            async def frame() -> bytes | None:
                try:
                    return await stream.read(MOST_FRAME)
                except Lost:
                    return None

            await drive(session, frame, stream.write, None, event)
        finally:
            session.close()
