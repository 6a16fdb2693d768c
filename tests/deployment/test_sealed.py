"""TLS over packets, without a broker: what one end does to the other's event loop and memory."""

import asyncio
import ssl
from collections.abc import Callable

import pytest

from fednlp.deployment.links.mqtt import sealed
from fednlp.deployment.links.mqtt.packets import MOST_PAYLOAD, WINDOW, Kind, Ordered, Packet, new_id, split
from fednlp.deployment.links.mqtt.sealed import MOST_STRANGE, Lost, SealedStream, context
from fednlp.errors import ProtocolError

from .throwaway import SERVER, Authority


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
        missing = server._ordered._arrived
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
