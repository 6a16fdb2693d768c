"""TLS over packets, without a broker: what one end does to the other's event loop and memory."""

import asyncio
import random
import ssl
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.deployment.links.mqtt import sealed
from fednlp.deployment.links.mqtt.packets import MOST_PAYLOAD, WINDOW, Kind, Ordered, Packet, new_id, split
from fednlp.deployment.links.mqtt.sealed import MOST_STRANGE, Lost, SealedStream, context
from fednlp.errors import ProtocolError

from .throwaway import SERVER, Authority, name_of


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def pair(authority: Authority) -> tuple[SealedStream, SealedStream]:
    """Return the ends of a connection, the client's first, whose packets arrive at once."""
    name = new_id()
    ends: dict[str, SealedStream] = {}

    def to(end: str) -> Callable[[bytes], None]:
        return lambda data: ends[end].arrived(split(data))

    server = context(authority.material(SERVER), server=True)
    ends["server"] = SealedStream(Ordered(name), server, to("client"))
    client = context(authority.material("0"), server=False)
    ends["client"] = SealedStream(Ordered(name), client, to("server"), SERVER)
    return ends["client"], ends["server"]


async def shaken(client: SealedStream, server: SealedStream) -> None:
    await asyncio.gather(client.handshake(), server.handshake())
    for end in (client, server):
        end.admit()


@pytest.mark.parametrize("closes", ["client", "server"])
def test_an_end_that_closes_tls_is_gone_and_the_other_does_not_wait_for_it_in_a_loop(
    authority: Authority, closes: str
) -> None:
    async def run() -> None:
        client, server = pair(authority)
        await shaken(client, server)
        one, other = (client, server) if closes == "client" else (server, client)
        await one.write(b"before")
        with pytest.raises(ssl.SSLWantReadError):
            one._tls.unwrap()
        await one._flush()
        assert await other.read(10) == b"before"
        with pytest.raises(Lost, match="has ended the connection"):
            await other.read(10)

    asyncio.run(run())


@pytest.mark.parametrize("first", [0, 1])
def test_a_stranger_has_little_memory_before_its_handshake(authority: Authority, first: int) -> None:
    """The packets of a whole window, in order or with the first one missing."""

    async def run() -> None:
        _, server = pair(authority)
        for number in range(first, WINDOW):
            server.arrived(Packet(new_id(), Kind.DATA, number, bytes(MOST_PAYLOAD)))
        assert server._ordered.held <= MOST_STRANGE
        with pytest.raises(ProtocolError, match="before it is let in"):
            await server.handshake()

    asyncio.run(run())


def test_a_certificate_alone_brings_no_memory(authority: Authority) -> None:
    """Who has shown one may still be refused, or be one of thousands of connections of the same site."""

    async def run() -> None:
        client, server = pair(authority)
        await asyncio.gather(client.handshake(), server.handshake())
        missing = server._ordered.next
        for number in range(missing + 1, missing + WINDOW):
            server.arrived(Packet(new_id(), Kind.DATA, number, bytes(MOST_PAYLOAD)))
        assert server._ordered.held <= MOST_STRANGE
        with pytest.raises(ProtocolError, match="before it is let in"):
            await server.read(1)

    asyncio.run(run())


def test_who_is_admitted_may_send_a_window(authority: Authority) -> None:
    async def run() -> None:
        client, server = pair(authority)
        await shaken(client, server)
        message = bytes(3 * MOST_PAYLOAD)
        await asyncio.gather(client.write(message), server.read(len(message)))
        assert server._ordered.held == 0

    asyncio.run(run())


def test_a_context_is_made_once_for_what_is_shown(authority: Authority) -> None:
    material = authority.material(SERVER)
    assert context(material, server=True) is context(material, server=True)
    assert context(material, server=True) is not context(authority.material(SERVER), server=True)
    assert context(material, server=True) is not context(material, server=False)
    assert sealed.context.cache_info().maxsize is not None


class HostileBroker:
    """Carries the packets of some connections as it likes: it has seen all of them, and knows their names.

    Args:
        authority: Of all ends.
        connections: How many there are.
        rng: Its choices.
        harm: The share of packets that it does not carry as they are.
    """

    def __init__(self, authority: Authority, connections: int, rng: random.Random, harm: float) -> None:
        self.rng, self.harm = rng, harm
        self.seen: list[bytes] = []
        self.ends: list[SealedStream] = []
        self.names = [new_id() for _ in range(connections)]
        for number, name in enumerate(self.names):
            made = (
                context(authority.material(str(number)), server=False),
                context(authority.material(SERVER), server=True),
            )
            for side in (0, 1):
                carry = partial(self.carry, 2 * number + 1 - side)
                self.ends.append(SealedStream(Ordered(name), made[side], carry, None if side else SERVER))

    def carry(self, to: int, data: bytes) -> None:
        self.seen.append(data)
        if self.rng.random() < self.harm:
            for _ in range(self.rng.randrange(3)):
                self.deliver(self.rng.randrange(len(self.ends)), self.altered(self.rng.choice(self.seen)))
            if self.rng.random() < 0.5:
                return
        self.deliver(to, data)

    def altered(self, data: bytes) -> Packet:
        """A packet that was seen: again, of another connection, at another place, cut short, or changed."""
        packet = split(data)
        payload = bytes(packet.payload)
        match self.rng.randrange(5):
            case 0:
                return packet._replace(connection=self.rng.choice(self.names))
            case 1 if packet.kind != Kind.END:
                return packet._replace(number=max(0, packet.number + self.rng.randrange(-2, 3)))
            case 2:
                return packet._replace(payload=payload[: self.rng.randrange(len(payload) + 1)])
            case 3 if payload:
                place = self.rng.randrange(len(payload))
                changed = bytes([payload[place] ^ 1 << self.rng.randrange(8)])
                return packet._replace(payload=payload[:place] + changed + payload[place + 1 :])
        return packet

    def deliver(self, to: int, packet: Packet | bytes) -> None:
        self.ends[to].arrived(split(packet) if isinstance(packet, bytes) else packet)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.1, 0.5]))
@pytest.mark.whole
def test_a_broker_can_only_drop_and_delay(authority: Authority, seed: int, harm: float) -> None:
    """Each end reads from the beginning what its own peer has written, in order and unchanged, or less of it.

    Packets are repeated, reordered, altered, cut short, and carried to other ends and into other connections.
    """

    async def run() -> None:
        broker = HostileBroker(authority, 2, random.Random(seed), harm)
        said = [[b"%d says %d " % (end, number) * 999 for number in range(6)] for end in range(4)]
        heard: list[list[bytes]] = [[] for _ in range(4)]
        shown: list[bytes | None] = [None] * 4

        async def live(end: int) -> None:
            stream = broker.ends[end]
            shown[end] = await stream.handshake()
            stream.admit()
            for message in said[end]:
                await stream.write(message)
                heard[end].append(await stream.read(1 << 20))

        done = asyncio.gather(*(live(end) for end in range(4)), return_exceptions=True)
        for _ in range(200):  # what still waits then waits for packets that were dropped
            await asyncio.sleep(0)
        for stream in broker.ends:
            stream.break_off(Lost("the test is over"))
        errors = await done
        assert all(error is None or isinstance(error, Lost | ProtocolError) for error in errors)
        for end in range(4):
            peer = end ^ 1
            assert heard[end] == said[peer][: len(heard[end])]
            certificate = SERVER if peer % 2 else str(peer // 2)
            assert shown[end] is None or name_of(shown[end]) == certificate
            assert shown[end] or not heard[end]
        if not harm:
            assert heard == [said[end ^ 1] for end in range(4)]

    asyncio.run(run())
