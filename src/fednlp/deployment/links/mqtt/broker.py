"""A connection to an MQTT broker, in an event loop."""

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fednlp.deployment.identity.names import broker_scheme
from fednlp.deployment.session.driver import NotThere
from fednlp.deployment.session.messages import printable
from fednlp.errors import MissingDependency, RunError, install_command

try:
    from paho.mqtt.client import Client as PahoClient
    from paho.mqtt.client import MQTTMessage, MQTTv311
    from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
except ImportError:
    raise MissingDependency(
        f"a federation over MQTT needs paho-mqtt: run {install_command('mqtt')}"
    ) from None

KEEPALIVE = 30
"""Seconds of silence after which the broker takes this end for gone, less than twice."""
_PATIENCE = 20.0
"""Seconds for a connection to the broker."""
_LOOK = 1.0
"""Seconds between two looks at whether the broker has been silent for too long."""
MOST_HELD = 32 << 20
"""Bytes that the broker has not acknowledged, after which an end makes no further frame."""
_BESIDE = 4 << 10
"""Bytes that a message is reckoned to take beside its payload; MQTT has numbers for 65,535 messages alone."""
MOST_OWED = 4 * MOST_HELD
"""Bytes that the broker has not acknowledged, after which it is given up."""
_NOTHING_SAID = "unspecified error"
"""What paho calls the end of a connection without a word."""
_QOS, _QOS_1, _DUPLICATE, _RETAINED = 0x06, 0x02, 0x08, 0x01
_SHORT = struct.Struct("!H")
USER, PASSWORD, ROOTS = "FEDNLP_BROKER_USER", "FEDNLP_BROKER_PASSWORD", "FEDNLP_BROKER_CA"


class Broker:
    """A connection to a broker, in the event loop that makes it: all is called there, and calls back there.

    Args:
        address: ``mqtts://host:port`` of the broker.
        will: Topic, payload and whether it is retained, of what the broker says when this end is gone.
        on_message: Told the topic and the payload of each message; the payload is not used again.
        on_lost: Told why the connection was lost, once.
        hello: Topic and payload of what is said first, retained.
        name: Of this end at the broker; nothing for one that the broker makes up.
    """

    def __init__(
        self,
        address: str,
        topics: list[str],
        will: tuple[str, bytes, bool],
        on_message: Callable[[str, memoryview], None],
        on_lost: Callable[[str], None],
        hello: tuple[str, bytes] | None = None,
        name: str = "",
    ) -> None:
        self._loop = asyncio.get_running_loop()
        scheme = broker_scheme(address)
        self._where, self._topics, self._hello = address.removeprefix(scheme), topics, hello
        self._on_message, self._on_lost = on_message, on_lost
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._over = False
        self._last: Any = None
        self._held: dict[int, int] = {}
        self._held_bytes = 0
        self._turn, self._room = asyncio.Lock(), asyncio.Event()
        client = _Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTv311, reconnect_on_failure=False)
        client.max_inflight_messages_set(1 << 10)
        client.max_queued_messages_set(0)
        topic, payload, retained = will
        client.will_set(topic, payload, qos=1, retain=retained)
        if os.environ.get(USER):
            client.username_pw_set(os.environ[USER], os.environ.get(PASSWORD))
        if scheme == "mqtts://":
            client.tls_set_context(ssl.create_default_context(cafile=os.environ.get(ROOTS)))
        client.on_connect, client.on_subscribe = self._connected, self._subscribed
        client.on_message, client.on_disconnect = self._arrived, self._disconnected
        client.on_publish, client.on_socket_open = self._acknowledged, _at_once
        self._client = client

    async def open(self) -> None:
        """Connect and subscribe.

        Raises:
            NotThere: The broker is not reached.
            RunError: It refuses, or shows a certificate that is not trusted.
        """
        where = self._where
        host, _, port = where.rpartition(":")
        try:
            await asyncio.to_thread(self._client.connect, host.strip("[]"), int(port), KEEPALIVE)
            self._listen()
            await asyncio.wait_for(self._ready, _PATIENCE)
        except (OSError, TimeoutError, ValueError) as error:
            self.close()
            reason = getattr(error, "strerror", None) or str(error) or "it does not answer"
            kind = (
                RunError if isinstance(error, ValueError) else NotThere
            )  # such as a certificate that is not trusted
            raise kind(f"the broker at {where} is not reached: {reason}") from None
        except RunError:
            self.close()
            raise

    def send(self, topic: str, payload: bytes, *, retained: bool = False) -> None:
        """Send a message: at least once, while the connection holds."""
        if self._over:
            return
        self._last = self._client.publish(topic, payload, qos=1, retain=retained)
        self._held[self._last.mid] = size = len(payload) + _BESIDE
        self._held_bytes += size
        self._client.loop_write()  # at once: the broker passes it on while the next one is made
        if self._held_bytes > MOST_OWED:  # strangers have answers to what they send, which no turn holds back
            self._lost("the broker does not acknowledge what it is sent")

    async def turn(self) -> None:
        """Wait until the broker has acknowledged enough for one frame more; who has waited longest is the next.

        Whoever has the turn sends without waiting, as far as the other end has room.
        """
        async with self._turn:
            while self._held_bytes >= MOST_HELD and not self._over:
                self._room.clear()
                await self._room.wait()

    async def flush(self, seconds: float) -> None:
        """Wait until the broker has what was sent."""
        if self._last is not None:
            with suppress(RuntimeError, ValueError):
                await asyncio.to_thread(self._last.wait_for_publish, seconds)

    def close(self) -> None:
        """End the connection."""
        self._over = True
        self._room.set()
        with suppress(Exception):
            self._client.disconnect()
            self._client.loop_write()
        connection = self._client.socket()
        if connection is not None:
            self._forget(connection)
            connection.close()

    # What paho asks of an event loop.

    def _listen(self) -> None:
        client, loop = self._client, self._loop
        connection = client.socket()
        if connection is None:
            raise OSError("it has ended the connection")
        client.on_socket_register_write = lambda _, data, one: loop.add_writer(one, client.loop_write)
        client.on_socket_unregister_write = lambda _, data, one: loop.remove_writer(one)
        client.on_socket_close = lambda _, data, one: self._forget(one)
        loop.add_reader(connection, self._read)
        self._look()

    def _forget(self, connection: Any) -> None:
        if connection.fileno() >= 0:
            self._loop.remove_reader(connection)
            self._loop.remove_writer(connection)

    def _read(self) -> None:
        try:
            self._read_all()
        except Exception as error:  # paho would meet the same packet again, for ever
            self._lost(f"what the broker at {self._where} has sent cannot be read ({printable(repr(error))})")
            self.close()

    def _read_all(self) -> None:
        self._client.loop_read()
        while (connection := self._client.socket()) is not None:
            if not (isinstance(connection, ssl.SSLSocket) and connection.pending()):
                return  # TLS to the broker has read what is left, and the event loop would not see it
            self._client.loop_read()

    def _look(self) -> None:
        if not self._over:
            self._client.loop_misc()
            self._loop.call_later(_LOOK, self._look)

    # What paho calls.

    def _connected(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        if code.is_failure:
            _settle(
                self._ready,
                RunError(
                    f"the broker at {self._where} refuses this machine: {code}. Set {USER} and "
                    f"{PASSWORD} if it wants a login"
                ),
            )
            return
        client.subscribe([(topic, 1) for topic in self._topics])
        if self._hello is not None:
            client.publish(self._hello[0], self._hello[1], qos=1, retain=True)

    def _subscribed(self, client: Any, data: Any, number: int, codes: Any, properties: Any) -> None:
        refused = [topic for topic, code in zip(self._topics, codes, strict=False) if code.is_failure]
        why = RunError(f"the broker does not let this machine read {', '.join(refused)}") if refused else None
        _settle(self._ready, why)

    def _arrived(self, client: Any, data: Any, message: Any) -> None:
        try:
            topic, payload = message.topic, memoryview(message.payload)
        except UnicodeDecodeError:
            return  # no topic of ours
        if not self._over:
            self._on_message(topic, payload)

    def _acknowledged(self, client: Any, data: Any, number: int, code: Any, properties: Any) -> None:
        self._held_bytes -= self._held.pop(number, 0)
        self._room.set()

    def _disconnected(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        what = str(code).lower()
        said = "" if what == _NOTHING_SAID else f" ({what})"
        self._lost(
            f"the broker at {self._where} has ended the connection, or the network has{said}: see whether the broker "
            "runs, and start it if it does not; nothing is lost"
        )

    def _lost(self, reason: str) -> None:
        if not self._over:
            self._over = True
            self._room.set()
            _settle(self._ready, OSError(reason))
            self._on_lost(reason)


def _at_once(client: Any, data: Any, connection: Any) -> None:
    """Have small messages sent at once: the other end waits for them."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _settle(future: "asyncio.Future[None]", error: Exception | None) -> None:
    """Say how something ended, unless it has ended before."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class _Client(PahoClient):  # type: ignore[misc]
    """paho's client, which here copies a large message once where it otherwise copies it five times.

    Payloads are views, of memory that is not used again. It replaces two of paho's own methods, and does the same as
    they do. Where a later paho no longer calls them, messages are copied more often, and nothing else changes.
    """

    def _packet_queue(self, command: int, packet: Any, mid: int, qos: int, info: Any = None) -> Any:
        """Queue a packet as a view, since paho slices what it has not sent yet again and again."""
        return super()._packet_queue(command, memoryview(packet), mid, qos, info)

    def _handle_publish(self) -> Any:
        """Hand a message of quality of service 1 over as it lies in the packet."""
        command, packet = self._in_packet["command"], memoryview(self._in_packet["packet"])
        start = 2 * _SHORT.size + (_SHORT.unpack_from(packet)[0] if len(packet) >= _SHORT.size else 0)
        if (
            command & _QOS > _QOS_1
        ):  # nobody subscribes to more, and paho would hold such messages without a bound
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if command & _QOS != _QOS_1 or not 2 * _SHORT.size < start <= len(packet):
            packet.release()  # paho's own method grows it no more, and slices it
            return super()._handle_publish()
        (number,) = _SHORT.unpack_from(packet, start - _SHORT.size)
        message = MQTTMessage(mid=number, topic=bytes(packet[_SHORT.size : start - _SHORT.size]))
        message.payload = packet[start:]
        message.dup, message.retain = bool(command & _DUPLICATE), bool(command & _RETAINED)
        message.qos = 1
        self._handle_on_message(message)
        return self._send_puback(number)
