"""What a broker sends is hostile until it was checked: a packet that cannot be read ends the connection, once."""

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from .driven import SOON

pytest.importorskip("paho.mqtt.client", reason="this needs paho-mqtt")
from fednlp.deployment.links.mqtt.broker import Broker

CONNACK, SUBACK = b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x01"


def publish(body: bytes, qos: int = 1, flags: int = 0) -> bytes:
    assert len(body) < 128
    return bytes([0x30 | qos << 1 | flags, len(body)]) + body


def message(topic: bytes, number: int, payload: bytes) -> bytes:
    return struct.pack("!H", len(topic)) + topic + struct.pack("!H", number) + payload


def kept(topic: str, payload: bytes) -> None:
    """Do nothing more with a message."""


async def told(
    packets: bytes, answers: int = 0, taken: Callable[[str, bytes], None] = kept
) -> tuple[list[tuple[str, bytes]], list[str], bytes]:
    """Return what arrives of packets that a broker sends, why the connection was lost, and what the broker hears.

    It lasts until the broker has heard so many bytes, or until the other end closes it.
    """
    arrived: list[tuple[str, bytes]] = []
    lost: list[str] = []
    heard, failed = bytearray(), list[object]()
    over, ended = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))

    def take(topic: str, payload: memoryview) -> None:
        arrived.append((topic, bytes(payload)))
        taken(topic, bytes(payload))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # the other end leaves without having read all
            await reader.read(1 << 10)
            writer.write(CONNACK)
            await reader.read(1 << 10)
            writer.write(SUBACK + packets)
            while data := await reader.read(1 << 10):
                heard.extend(data)
                if len(heard) >= answers > 0:
                    over.set()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        over.set()
        ended.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        broker = Broker(
            f"mqtt://127.0.0.1:{port}",
            ["t"],
            ("w", b"", False),
            take,
            lost.append,
        )
        await broker.open()
        await asyncio.wait_for(over.wait(), SOON)
        broker.close()
        await asyncio.wait_for(ended.wait(), SOON)
    assert not failed
    return arrived, lost, bytes(heard)


@pytest.mark.parametrize(
    "packet",
    [
        publish(b""),
        publish(b"\x00"),
        publish(b"\x00\x09t"),
        publish(b"\x00\x01t"),
        publish(b"\x00\x01t\x00"),
        publish(b"\x00\x00\x00\x01payload"),
        publish(b"", qos=0),
        publish(b"\x00\x09t", qos=0),
        publish(message(b"t", 1, b"kept for ever"), qos=2),
        publish(message(b"t", 1, b"of no quality"), qos=3),
        b"\x40\x00",  # an acknowledgement of nothing
        b"\x90\x00",  # a subscription that is confirmed without a number
    ],
)
def test_a_packet_that_cannot_be_read_ends_the_connection(packet: bytes) -> None:
    arrived, lost, _ = asyncio.run(told(publish(message(b"t", 7, b"before")) + packet))
    assert arrived == [("t", b"before")]
    assert len(lost) == 1


def test_what_has_come_twice_or_without_a_number_or_a_payload_is_handed_over_and_acknowledged() -> None:
    packets = [
        publish(message(b"t", 0, b"zero")),
        publish(message(b"t", 9, b"")),
        publish(message(b"t", 9, b""), flags=8),
        publish(message(b"\xff", 3, b"of no topic")),
        publish(b"\x00\x01tat most once", qos=0),
        publish(message(b"t", 65535, b"last"), flags=1),
    ]
    arrived, lost, heard = asyncio.run(told(b"".join(packets), answers=20))
    assert arrived == [("t", b"zero"), ("t", b""), ("t", b""), ("t", b"at most once"), ("t", b"last")]
    assert not lost
    numbers = [struct.unpack_from("!H", heard, at + 2)[0] for at in range(0, len(heard) - 3, 4)]
    assert numbers[:5] == [0, 9, 9, 3, 65535]


@pytest.mark.parametrize("seed", range(20))
def test_random_packets_are_taken_or_end_the_connection(seed: int) -> None:
    rng = Random(seed)
    packets = b"".join(
        bytes([rng.randrange(256), length]) + rng.randbytes(length)
        for length in (rng.randrange(16) for _ in range(50))
    )
    _, lost, _ = asyncio.run(told(packets + publish(b"")))
    assert len(lost) == 1


def test_a_message_at_which_taking_fails_ends_the_connection_once() -> None:
    """Otherwise paho would hand it over again at once, and for ever."""

    def fails(topic: str, payload: bytes) -> None:
        raise OSError(5, "Input/output\nerror")

    arrived, lost, _ = asyncio.run(told(publish(message(b"t", 7, b"once")), taken=fails))
    assert arrived == [("t", b"once")]
    assert len(lost) == 1
    assert "OSError(5, 'Input/output\\nerror')" in lost[0]
