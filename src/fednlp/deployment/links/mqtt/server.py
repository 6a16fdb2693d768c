"""The server's half of the driver over MQTT."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable

from fednlp.deployment.identity.certificates import Material
from fednlp.deployment.links import mqtt
from fednlp.deployment.links.limited_log import limited
from fednlp.deployment.links.mqtt import (
    ACCEPTED,
    ENROL,
    MOST_STATUS,
    PRESENCE,
    PROBE,
    REFUSED,
    SESSION,
    channel_of,
)
from fednlp.deployment.links.mqtt.broker import Broker
from fednlp.deployment.links.mqtt.packets import WINDOW, Gaps, Kind, Ordered, Packet, new_id, split
from fednlp.deployment.links.mqtt.sealed import Lost, SealedStream, context
from fednlp.deployment.links.streams import GOODBYE, drive, pause, report_in_lines, waker
from fednlp.deployment.links.system import reuse_memory
from fednlp.deployment.session.driver import MOST_ENROLMENT, Enrol, NewSession, PeerIdentity
from fednlp.deployment.session.messages import MOST_FROM_SITE
from fednlp.deployment.session.probe import PATIENCE as PROBING
from fednlp.errors import FednlpError, IdentityError, ProtocolError, RunError

_TELL_AGAIN = 1.0
"""Seconds after which the server says again that it is there, where something else was said."""
_MOST_CONNECTIONS, _MOST_HALF_OPEN = 1 << 14, 1 << 8
_MOST_ENDED = 1 << 12
"""Connections that are remembered as ended: late packets do not begin them again."""


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
    probe: NewSession | None = None,
) -> RunningServer:
    """Answer clients by way of a broker.

    Args:
        address: ``mqtts://host:port`` of the broker.
        material: Returns what the server shows and trusts, at each handshake.
        new_session: Makes the session of a new connection; an error that it raises refuses the client.
        enrol: Answers an enrolment; an error that it raises refuses it.
        log: Takes a line for people about a connection that was ended.
        probe: Makes the session of a probe, as ``new_session``; None to answer none.

    Raises:
        RunError: The broker is not reached.
    """
    reuse_memory()
    loop = asyncio.new_event_loop()
    report_in_lines(loop, log)

    async def begin() -> tuple[_Server, asyncio.Event]:
        server = _Server(address, material, new_session, enrol, log, probe)
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


class _Server:
    """The server's end of all connections."""

    def __init__(
        self,
        address: str,
        material: Callable[[], Material],
        new_session: NewSession,
        enrol: Enrol,
        log: Callable[[str], None],
        probe: NewSession | None,
    ) -> None:
        self._address, self._material = address, material
        self._topics = f"fednlp/{channel_of(material())}"
        self._new_session, self._enrol, self._probe = new_session, enrol, probe
        self._log, self._log_of_peers = log, limited(log)
        self._instance, self._telling = new_id(), False
        self._gaps = Gaps()
        self._streams: dict[bytes, SealedStream] = {}
        self._half_open: OrderedDict[bytes, None] = OrderedDict()
        self._admitted: dict[bytes | None, SealedStream] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect to the broker."""
        presence = f"{self._topics}/{PRESENCE}"
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
                wait = pause(failures)
                await asyncio.wait((ending,), timeout=wait)
                try:
                    self._broker.close()
                    await self.open()
                    failures = 0
                except RunError as error:
                    self._lost.set()
                    failures += 1
                    self._log(f"{error}: next try in {pause(failures):.0f} s")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._telling = True  # nothing more is said after this
        self._broker.send(f"{self._topics}/{PRESENCE}", b"", retained=True)
        await self._broker.flush(GOODBYE)
        self._broker.close()

    def _lose(self, reason: str) -> None:
        self._log(reason)
        for stream in self._streams.values():
            stream.break_off(Lost(reason))
        self._lost.set()

    def _arrived(self, topic: str, payload: memoryview) -> None:
        if topic.rpartition("/")[2] == PRESENCE:
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
            waits = self._gaps.looked_at(name, *stream.gap)
            if waits is not None:
                self._streams[waits].break_off(Lost("too many packets wait for one that is missing"))

    def _tell(self) -> None:
        """Say again that the server is there: the will of one that was before it, or somebody else, said otherwise."""
        self._telling = False
        if not self._lost.is_set():
            self._broker.send(f"{self._topics}/{PRESENCE}", self._instance, retained=True)

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
            self._log_of_peers(_peer(name), f"it cannot be begun: {error}")
            return None
        stream = SealedStream(Ordered(name), made, lambda data: self._broker.send(down, data))
        self._streams[name] = stream
        self._half_open[name] = None
        task = asyncio.get_running_loop().create_task(self._talk(name, stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream

    async def _talk(self, name: bytes, stream: SealedStream) -> None:
        peer = _peer(name)
        try:
            async with asyncio.timeout(mqtt.HANDSHAKE):
                peer = _peer(name, await stream.handshake())
                purpose = await stream.read(len(SESSION))
            await self._do(name, peer, stream, purpose)
        except TimeoutError:
            self._log_of_peers(peer, "it did not finish its handshake, or its probe, in time")
        except Lost:
            pass  # it comes back
        except FednlpError as error:
            self._log_of_peers(peer, error)
        finally:
            stream.end()
            self._gaps.end(name)
            self._half_open.pop(name, None)
            del self._streams[name]
            self._ended[name] = None
            if len(self._ended) > _MOST_ENDED:
                self._ended.popitem(last=False)

    async def _do(
        self, name: bytes, peer: PeerIdentity, stream: SealedStream, purpose: bytes | bytearray
    ) -> None:
        """Do what a connection is for."""
        event, wake = waker()
        try:
            if purpose == ENROL:
                await stream.write(ACCEPTED)
                async with asyncio.timeout(mqtt.HANDSHAKE):
                    request = bytes(await stream.read(MOST_ENROLMENT))
                answer = self._enrol(peer, request)
                await stream.write(ACCEPTED + answer)
                return
            probe = self._probe if purpose == PROBE else None
            session = (probe or self._new_session)(peer, wake)
        except (IdentityError, RunError) as error:
            await stream.write(REFUSED + str(error).encode()[: MOST_STATUS - 1])
            raise
        try:
            if probe is not None:  # beside the connection by which the site takes part
                stream.admit()
            else:
                self._admit(name, peer, stream)
            await stream.write(ACCEPTED)

            async def frame() -> bytearray | None:
                try:
                    return await stream.read(MOST_FROM_SITE)
                except Lost:
                    return None

            async with asyncio.timeout(None if probe is None else PROBING):
                await drive(session, frame, stream.write, None, event, turn=self._turn)
        finally:
            session.close()
            if self._admitted.get(peer.certificate) is stream:
                del self._admitted[peer.certificate]

    async def _turn(self) -> None:
        """Wait until the broker has room for one frame more; the connection to it may have been made anew."""
        await self._broker.turn()

    def _admit(self, name: bytes, peer: PeerIdentity, stream: SealedStream) -> None:
        """Give a client that takes part a window; what it had before ends, also where it reads nothing any more."""
        self._half_open.pop(name, None)
        before = self._admitted.get(peer.certificate)
        if before is not None:
            ended = Lost("it has connected again")
            asyncio.get_running_loop().call_later(GOODBYE, before.break_off, ended)
        self._admitted[peer.certificate] = stream
        stream.admit()


def _peer(name: bytes, certificate: bytes | None = None) -> PeerIdentity:
    return PeerIdentity(f"connection {name.hex()[:8]} of the broker", certificate)
