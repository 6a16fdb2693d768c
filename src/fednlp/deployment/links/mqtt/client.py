"""The client's half of the driver over MQTT."""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress

from fednlp.deployment.identity.certificates import Material
from fednlp.deployment.links import mqtt
from fednlp.deployment.links.mqtt import ACCEPTED, ENROL, MOST_STATUS, PRESENCE, PROBE, SESSION, channel_of
from fednlp.deployment.links.mqtt.broker import Broker
from fednlp.deployment.links.mqtt.packets import Ordered, new_id, split
from fednlp.deployment.links.mqtt.sealed import Lost, SealedStream, context
from fednlp.deployment.links.streams import GOODBYE, drive, ends_within, pause, report_in_lines, waker
from fednlp.deployment.links.system import reuse_memory
from fednlp.deployment.session.driver import MOST_ENROLMENT, NotThere, Session, Wake
from fednlp.deployment.session.messages import MOST_FRAME, printable
from fednlp.deployment.session.probe import PATIENCE
from fednlp.errors import FednlpError, ProtocolError, RunError


async def connect(
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
    reuse_memory()
    report_in_lines(asyncio.get_running_loop(), on_state)
    event, wake = waker()
    failures = 0
    while True:
        session, heard = session_factory(wake), False

        def arrived() -> None:
            nonlocal heard
            heard = True

        try:
            async with _Line(address, material(), server_name, SESSION) as line:
                await drive(session, line.frame, line.stream.write, None, event, arrived, line.turn)
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
        wait = pause(failures) * (0.5 + secrets.randbelow(1000) / 1000)
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
        NotThere: The broker or the server is not there, or the connection was lost.
        RunError: The broker or the server refuses.
    """

    async def ask() -> bytes:
        async with _Line(address, material, server_name, ENROL) as line:
            await line.stream.write(request)
            return bytes(_accepted(await line.stream.read(1 + MOST_ENROLMENT)))

    kind: type[RunError] = NotThere
    try:
        return asyncio.run(asyncio.wait_for(ask(), timeout))
    except (TimeoutError, Lost, NotThere) as error:
        reason = str(error) or "the server does not answer"
    except FednlpError as error:
        kind, reason = RunError, str(error)
    raise kind(f"cannot enrol by way of {address}: {reason}")


def probe(
    address: str, material: Material, session: Session, *, server_name: str, timeout: float = PATIENCE
) -> None:
    """Carry a probe to the server and back.

    Args:
        address: ``mqtts://host:port`` of the broker.
        material: What this client shows and trusts.
        session: The probe, which is then finished.
        server_name: Name in the server's certificate.
        timeout: Seconds.

    Raises:
        NotThere: The broker or the server is not there.
        RunError: The probe came to nothing.
    """

    async def ask() -> str:
        event, _ = waker()
        async with _Line(address, material, server_name, PROBE) as line:
            await drive(session, line.frame, line.stream.write, None, event, turn=line.turn)
            return line.reason

    try:
        reason = asyncio.run(asyncio.wait_for(ask(), timeout))
    except TimeoutError:
        reason = f"nothing more within {timeout:.0f} s"
    except (Lost, ProtocolError) as error:
        reason = str(error)
    if not session.finished:
        raise RunError(reason)


class _NotLetIn(RunError):
    """The server does not let this client in."""


def _accepted(status: bytearray) -> bytearray:
    """Return what the server says beyond that it accepts.

    Raises:
        RunError: It refuses.
    """
    if status[:1] != ACCEPTED:
        raise _NotLetIn(printable(status[1:].decode(errors="replace")))
    return status[1:]


class _Line:
    """A client's connection to the server, for the time of a block.

    Args:
        material: What this client shows and trusts.
        server_name: Name in the server's certificate.
        purpose: What the connection is for.

    Attributes:
        stream: What is said on it.
    """

    def __init__(self, address: str, material: Material, server_name: str, purpose: bytes) -> None:
        ordered, topics = Ordered(new_id()), f"fednlp/{channel_of(material)}"
        name = ordered.connection.hex()
        self._purpose, self._up, self._presence = purpose, f"{topics}/up/{name}", f"{topics}/{PRESENCE}"
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

    async def frame(self) -> bytearray | None:
        """Return the next frame; None once the server has ended the connection."""
        try:
            return await self.stream.read(MOST_FRAME)
        except Lost as error:
            self.reason = str(error)
            return None

    async def turn(self) -> None:
        """Wait until the broker has room for one frame more."""
        await self._broker.turn()

    async def settle(self) -> None:
        """Wait until what was sent is with the broker."""
        await self._broker.flush(GOODBYE)

    async def __aenter__(self) -> "_Line":
        await self._broker.open()
        try:
            try:
                await asyncio.wait_for(self._there.wait(), mqtt.HANDSHAKE)
                await asyncio.wait_for(self.stream.handshake(), mqtt.HANDSHAKE)
                self.stream.admit()
                await self.stream.write(self._purpose)
                status = await asyncio.wait_for(self.stream.read(MOST_STATUS), mqtt.HANDSHAKE)
            except TimeoutError:
                raise NotThere("the server is not there, and the broker is") from None
            _accepted(status)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stream.end()
        await self._broker.flush(GOODBYE)
        self._broker.close()

    def _arrived(self, topic: str, payload: memoryview) -> None:
        if topic == self._presence:
            if self._server is not None and payload != self._server:
                self.stream.break_off(Lost("the server is gone, or has been started again"))
            elif payload:
                self._server = bytes(payload)
                self._there.set()
            return
        with suppress(ProtocolError):
            self.stream.arrived(split(payload))
