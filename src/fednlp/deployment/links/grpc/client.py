"""The client's half of the driver over gRPC."""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from fednlp.deployment.identity.admission.balancer import Prove
from fednlp.deployment.links.grpc import (
    CHALLENGE,
    ENROL,
    KEEPALIVE,
    MOST_DETAILS,
    PROBE,
    SERVICE,
    SESSION,
    options,
)
from fednlp.deployment.links.proxy import CUTS, cut_by_size, cut_regularly, proxy_for
from fednlp.deployment.links.streams import (
    GOODBYE,
    drive,
    ends_within,
    hush,
    pause,
    report_in_lines,
    waker,
)
from fednlp.deployment.links.system import reuse_memory
from fednlp.deployment.session.driver import NotAnswered, Session, Wake
from fednlp.deployment.session.messages import MOST_FRAME
from fednlp.deployment.session.probe import PATIENCE
from fednlp.errors import ProtocolError, RunError
from fednlp.formatting.units import human_bytes

_LOST = (grpc.aio.AioRpcError, grpc.aio.InternalError, grpc.aio.UsageError, asyncio.InvalidStateError)
"""What reading and writing raise when the server is gone."""
_PATIENCE = 30.0
"""Seconds for a challenge to arrive."""


async def connect(
    address: str,
    credentials: Callable[[], Any],
    session_factory: Callable[[Wake], Session],
    *,
    on_state: Callable[[str], None] = lambda line: None,
    on_failed: Callable[[int], None] = lambda failures: None,
    server_name: str | None = None,
    keepalive: float = KEEPALIVE,
    prove: Prove | None = None,
) -> None:
    """Run a client's session until it is finished; connect again, forever, when the connection is lost.

    Args:
        address: ``host:port`` of the server.
        credentials: Returns the ``grpc.ChannelCredentials`` of the next connection; an error that it raises ends this.
        session_factory: Begins a connection of the session.
        on_state: Takes a line for people.
        on_failed: Told when a connection came to nothing, and how many have in a row.
        server_name: Name in the server's certificate, if it is not the address's.
        keepalive: Seconds, see :data:`KEEPALIVE`.
        prove: Proves who this client is, where TLS does not show it.

    Raises:
        RunError: The server does not let this client in.
    """
    reuse_memory()
    hush("grpc")
    report_in_lines(asyncio.get_running_loop(), on_state)
    event, wake = waker()
    failures, cuts, lasted, sizes = 0, 0, deque[float](maxlen=CUTS), deque[int](maxlen=CUTS)
    while True:
        session, begun = session_factory(wake), time.monotonic()
        try:
            heard, sent, code, reason = await _converse(
                session,
                event,
                address,
                credentials,
                server_name=server_name,
                keepalive=keepalive,
                prove=prove,
            )
        finally:
            session.close()
        if session.finished:
            return
        if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
            raise RunError(f"{address} refuses this site: {reason}")
        failures = 0 if heard else failures + 1
        sizes.append(sent)
        cuts = cuts + 1 if heard and code is not grpc.StatusCode.OK and cut_by_size(sizes) else 0
        wait = pause(max(failures, cuts)) * (0.5 + secrets.randbelow(1000) / 1000)
        on_state(f"no connection to {address} ({reason[:MOST_DETAILS]}): next try in {wait:.0f} s")
        if failures:
            on_failed(failures)
        else:
            lasted.append(time.monotonic() - begun)
            if cuts:
                on_state(
                    f"the last {CUTS} connections were each cut once {human_bytes(sent)} were sent, which a proxy "
                    f"between does that limits a request: have that limit lifted for {address} (nginx: "
                    "client_max_body_size 0)"
                )
            elif cut_regularly(lasted):
                on_state(
                    f"the last {CUTS} connections were each cut after {lasted[-1]:.0f} s, which a proxy or firewall "
                    f"does: have connections to {address} exempted from its time limit"
                )
        if await ends_within(wait, session, event):
            return


def enrol(
    address: str,
    credentials: Any,
    request: bytes,
    *,
    server_name: str | None = None,
    timeout: float = 30.0,
    prove: Prove | None = None,
) -> bytes:
    """Return the server's answer to an enrolment.

    Args:
        address: ``host:port`` of the server.
        credentials: A ``grpc.ChannelCredentials``.
        request: What the server's ``enrol`` takes.
        server_name: Name in the server's certificate, if it is not the address's.
        timeout: Seconds.
        prove: Proves who this client is, where TLS does not show it.

    Raises:
        RunError: The server is not there, or refuses.
    """
    with grpc.secure_channel(
        address, credentials, options=_channel_options(address, server_name, KEEPALIVE)
    ) as channel:
        try:
            shown = None
            if prove is not None:
                challenge = channel.unary_unary(f"/{SERVICE}/{CHALLENGE}")(b"", timeout=timeout)
                shown = prove(ENROL, challenge, request).metadata()
            answer: bytes = channel.unary_unary(f"/{SERVICE}/{ENROL}")(
                request, timeout=timeout, metadata=shown
            )
        except grpc.RpcError as error:
            raise RunError(f"cannot enrol at {address}: {error.details()[:MOST_DETAILS]}") from None
    return answer


def probe(
    address: str,
    credentials: Any,
    session: Session,
    *,
    server_name: str | None = None,
    timeout: float = PATIENCE,
    prove: Prove | None = None,
) -> None:
    """Carry a probe to the server and back.

    Args:
        address: ``host:port`` of the server.
        credentials: A ``grpc.ChannelCredentials``.
        session: The probe, which is then finished.
        server_name: Name in the server's certificate, if it is not the address's.
        timeout: Seconds.
        prove: Proves who this client is, where TLS does not show it.

    Raises:
        NotAnswered: The server does not know of probes.
        RunError: The probe came to nothing.
    """

    async def ask() -> tuple[bool, int, Any, str]:
        event, _ = waker()
        return await _converse(
            session,
            event,
            address,
            lambda: credentials,
            server_name=server_name,
            keepalive=KEEPALIVE,
            prove=prove,
            method=PROBE,
        )

    hush("grpc")
    try:
        *_, code, reason = asyncio.run(asyncio.wait_for(ask(), timeout))
    except TimeoutError:
        raise RunError(f"nothing more within {timeout:.0f} s") from None
    if session.finished:
        return
    if code is grpc.StatusCode.UNIMPLEMENTED:
        raise NotAnswered("the server does not answer probes")
    raise RunError(reason[:MOST_DETAILS])


def _channel_options(address: str, server_name: str | None, keepalive: float) -> list[tuple[str, Any]]:
    proxy = proxy_for(address)  # gRPC itself reads the names in small letters alone
    more: list[tuple[str, Any]] = [("grpc.http_proxy", proxy)] if proxy else [("grpc.enable_http_proxy", 0)]
    if server_name is not None:
        more.append(("grpc.ssl_target_name_override", server_name))
    return options(keepalive, MOST_FRAME) + more


async def _converse(
    session: Session,
    event: asyncio.Event,
    address: str,
    credentials: Callable[[], Any],
    *,
    server_name: str | None,
    keepalive: float,
    prove: Prove | None,
    method: str = SESSION,
) -> tuple[bool, int, Any, str]:
    """Carry a session over one connection.

    Returns:
        Whether the server was heard, the bytes that were sent, and how and why it ended.
    """
    heard, sent = False, 0

    def arrived() -> None:
        nonlocal heard
        heard = True

    async def write(frame: bytes) -> None:
        nonlocal sent
        sent += len(frame)
        await call.write(frame)

    try:
        async with grpc.aio.secure_channel(
            address, credentials(), options=_channel_options(address, server_name, keepalive)
        ) as channel:
            shown = None if prove is None else await _proof(channel, method, prove)
            call = channel.stream_stream(f"/{SERVICE}/{method}")(metadata=shown)
            with suppress(*_LOST):  # the status says more
                await call.initial_metadata()  # a refusal that comes while something is sent is lost
                await drive(session, call.read, write, grpc.aio.EOF, event, arrived, done=call.done_writing)
            return heard, sent, *await _status(call)
    except (ProtocolError, RunError) as error:
        return heard, sent, None, str(error)


async def _proof(channel: Any, method: str, prove: Prove) -> tuple[tuple[str, bytes], ...]:
    """Return the metadata of a stream that prove who this client is.

    Raises:
        RunError: The server gives no challenge.
    """
    try:
        challenge = await channel.unary_unary(f"/{SERVICE}/{CHALLENGE}")(b"", timeout=_PATIENCE)
    except grpc.aio.AioRpcError as error:
        raise RunError(str(error.details())) from None
    return prove(method, challenge, b"").metadata()


async def _status(call: Any) -> tuple[Any, str]:
    """Return how a call ended, which it is told to do if it has not."""
    try:
        code = await asyncio.wait_for(call.code(), GOODBYE)
    except TimeoutError:
        call.cancel()
        return grpc.StatusCode.CANCELLED, "the server does not answer"
    if code is grpc.StatusCode.OK:
        return code, "the server ended the connection"
    if code is grpc.StatusCode.INTERNAL:  # of this end: it was sending when the other one ended the stream
        return code, "the server ended the connection, and tells why where it runs"
    return code, await call.details() or code.name.lower().replace("_", " ")
