"""The driver over gRPC: one bidirectional stream a client, and one call for enrolment; bytes in, bytes out.

No code is generated: handlers take and give the bytes of frames. A server needs one thread, whatever the number of
clients, and holds of each stream what gRPC's flow control lets in (:data:`LOOKAHEAD`) and one frame.
"""

import asyncio
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fednlp.deployment.links import Session, Wake
from fednlp.deployment.links.proving import CHALLENGE, Prove, metadata, proven_certificate, stream_metadata
from fednlp.deployment.links.proxy import CUTS, cut_regularly, proxy_for
from fednlp.deployment.links.streams import GOODBYE, drive, ends_within, pause, waker
from fednlp.deployment.links.system import allow_many_files, keep_freed_memory, why_not_listening
from fednlp.deployment.proofs import Challenges
from fednlp.errors import FednlpError, MissingDependency, ProtocolError, RunError

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it logs is raised too
try:
    import grpc
    import grpc.aio
except ImportError:
    raise MissingDependency("a deployment needs gRPC: run pip install 'fednlp[deployment]'") from None

SERVICE, SESSION, ENROL = "fednlp.v1", "Session", "Enrol"
LOOKAHEAD = 16 << 20
"""Bytes that a peer may send of one stream before they are read."""
KEEPALIVE = 30.0
"""Seconds without a word after which an end asks whether the other is there; it has twice that to answer."""
MOST_MESSAGE = 6 << 20
MOST_ENROLMENT = 16 << 10
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
_MOST_DETAILS = 500
_LOST = (grpc.aio.AioRpcError, grpc.aio.InternalError, grpc.aio.UsageError, asyncio.InvalidStateError)
"""What reading and writing raise when the other end is gone."""


@dataclass(frozen=True)
class PeerIdentity:
    """Who is at the other end of a connection.

    Attributes:
        address: Where it connects from, as gRPC writes it.
        certificate: Its certificate in PEM, which TLS has checked; None without TLS or without a certificate.
    """

    address: str
    certificate: bytes | None


NewSession = Callable[[PeerIdentity, Wake], Session]
Enrol = Callable[[PeerIdentity, bytes], bytes]


def options(keepalive: float) -> list[tuple[str, Any]]:
    """Return gRPC's options, which are the same for both ends.

    Args:
        keepalive: Seconds, see :data:`KEEPALIVE`.
    """
    return [
        ("grpc.http2.lookahead_bytes", LOOKAHEAD),
        ("grpc.max_receive_message_length", MOST_MESSAGE),
        ("grpc.max_send_message_length", MOST_MESSAGE),
        ("grpc.keepalive_time_ms", round(keepalive * 1000)),
        ("grpc.keepalive_timeout_ms", round(keepalive * 2000)),
        ("grpc.http2.ping_timeout_ms", round(keepalive * 2000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", round(keepalive * 500)),
        ("grpc.max_concurrent_streams", 4),
        ("grpc.so_reuseport", 0),  # a second server at the same port is an error
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each client
    ]


class RunningServer:
    """A server in a thread of its own; made by :func:`serve`.

    Attributes:
        port: Where it listens.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, thread: threading.Thread, server: Any, port: int
    ) -> None:
        self.port = port
        self._loop, self._thread, self._server = loop, thread, server

    def stop(self, grace: float = 1.0) -> None:
        """End all connections.

        Args:
            grace: Seconds that they get to end by themselves.
        """
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._server.stop(grace), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


def serve(
    address: str,
    credentials: Any,
    new_session: NewSession,
    enrol: Enrol,
    *,
    keepalive: float = KEEPALIVE,
    log: Callable[[str], None] = lambda line: None,
    challenges: Challenges | None = None,
) -> RunningServer:
    """Listen for clients.

    Args:
        address: ``host:port``; port 0 for any that is free.
        credentials: A ``grpc.ServerCredentials``; None without TLS, which ends before this server.
        new_session: Makes the session of a new connection; an error that it raises refuses the client.
        enrol: Answers an enrolment; an error that it raises refuses it.
        keepalive: Seconds, see :data:`KEEPALIVE`.
        log: Takes a line for people about a connection that was ended.
        challenges: By which sites prove who they are where TLS does not show it; None where it does.

    Raises:
        RunError: The address cannot be listened at.
    """
    allow_many_files()
    keep_freed_memory()
    loop = asyncio.new_event_loop()
    started: list[Any] = []

    async def start() -> None:
        server = grpc.aio.server(options=options(keepalive))
        server.add_generic_rpc_handlers((_handlers(new_session, enrol, log, challenges),))
        if credentials is None:
            started.extend((server, server.add_insecure_port(address)))
        else:
            started.extend((server, server.add_secure_port(address, credentials)))
        await server.start()

    try:
        loop.run_until_complete(start())
    except RuntimeError as error:
        loop.close()
        why = why_not_listening(address) or error
        raise RunError(
            f"cannot listen at {address} ({why}): stop what uses the port, or choose another one with --listen"
        ) from None

    async def end() -> None:
        await started[0].stop(None)  # which also keeps the server, whatever becomes of what is returned
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def run() -> None:
        try:
            loop.run_forever()
            loop.run_until_complete(end())
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="fednlp-server", daemon=True)
    thread.start()
    return RunningServer(loop, thread, *started)


def connect(
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
    asyncio.run(
        connecting(
            address,
            credentials,
            session_factory,
            on_state=on_state,
            on_failed=on_failed,
            server_name=server_name,
            keepalive=keepalive,
            prove=prove,
        )
    )


async def connecting(
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
    """Do as :func:`connect`, in an event loop that may have other sessions."""
    keep_freed_memory()
    event, wake = waker()
    failures, lasted = 0, deque[float](maxlen=CUTS)
    while True:
        session, heard, code, begun = session_factory(wake), False, None, time.monotonic()

        def arrived() -> None:
            nonlocal heard
            heard = True

        try:
            async with grpc.aio.secure_channel(
                address, credentials(), options=_channel_options(address, server_name, keepalive)
            ) as channel:
                shown = await stream_metadata(channel, SERVICE, SESSION, prove)
                call = channel.stream_stream(f"/{SERVICE}/{SESSION}")(metadata=shown)
                with suppress(*_LOST):  # the status says more
                    await call.initial_metadata()  # a refusal that comes while something is sent is lost
                    await drive(
                        session, call.read, call.write, grpc.aio.EOF, event, arrived, call.done_writing
                    )
                code, reason = await _status(call)
        except (ProtocolError, RunError) as error:
            reason = str(error)
        finally:
            session.close()
        if session.finished:
            return
        if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
            raise RunError(f"{address} refuses this site: {reason}")
        failures = 0 if heard else failures + 1
        wait = pause(failures, _FIRST_WAIT, _LONGEST_WAIT) * (0.5 + secrets.randbelow(1000) / 1000)
        on_state(f"no connection to {address} ({reason[:_MOST_DETAILS]}): next try in {wait:.0f} s")
        if failures:
            on_failed(failures)
        else:
            lasted.append(time.monotonic() - begun)
            if cut_regularly(lasted):
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
                shown = metadata(prove(ENROL, challenge, request))
            answer: bytes = channel.unary_unary(f"/{SERVICE}/{ENROL}")(
                request, timeout=timeout, metadata=shown
            )
        except grpc.RpcError as error:
            raise RunError(f"cannot enrol at {address}: {error.details()[:_MOST_DETAILS]}") from None
    return answer


def _channel_options(address: str, server_name: str | None, keepalive: float) -> list[tuple[str, Any]]:
    proxy = proxy_for(address)  # gRPC itself reads the names in small letters alone
    more: list[tuple[str, Any]] = [("grpc.http_proxy", proxy)] if proxy else [("grpc.enable_http_proxy", 0)]
    if server_name is not None:
        more.append(("grpc.ssl_target_name_override", server_name))
    return options(keepalive) + more


def _handlers(
    new_session: NewSession, enrol: Enrol, log: Callable[[str], None], challenges: Challenges | None
) -> Any:
    async def session_handler(requests: Any, context: Any) -> None:
        peer = _peer(context)
        event, wake = waker()
        try:
            peer = _proven(context, peer, SESSION, b"", challenges)
        except RunError as error:  # it may try again at once
            await _abort(context, grpc.StatusCode.UNAVAILABLE, error, peer, log)
            return
        except FednlpError as error:
            await _abort(context, grpc.StatusCode.PERMISSION_DENIED, error, peer, log)
            return
        try:
            session = new_session(peer, wake)
        except FednlpError as error:
            await _abort(context, grpc.StatusCode.PERMISSION_DENIED, error, peer, log)
            return
        try:
            await context.send_initial_metadata(())
            await drive(session, context.read, context.write, grpc.aio.EOF, event)
        except _LOST:
            log(f"{peer.address}: the connection was lost")
        except ProtocolError as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, error, peer, log)
        except RunError as error:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, error, peer, log)
        finally:
            session.close()

    async def enrol_handler(request: bytes, context: Any) -> bytes:
        peer = _peer(context)
        try:
            if len(request) > MOST_ENROLMENT:
                raise ProtocolError(f"an enrolment of {len(request)} bytes is longer than {MOST_ENROLMENT}")
            return enrol(_proven(context, peer, ENROL, request, challenges), request)
        except FednlpError as error:
            await _abort(context, grpc.StatusCode.PERMISSION_DENIED, error, peer, log)
            return b""

    async def challenge_handler(request: bytes, context: Any) -> bytes:
        assert challenges is not None
        return challenges.issue()

    methods = {
        SESSION: grpc.stream_stream_rpc_method_handler(session_handler),
        ENROL: grpc.unary_unary_rpc_method_handler(enrol_handler),
    }
    if challenges is not None:
        methods[CHALLENGE] = grpc.unary_unary_rpc_method_handler(challenge_handler)
    return grpc.method_handlers_generic_handler(SERVICE, methods)


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


async def _abort(
    context: Any, code: Any, error: Exception, peer: PeerIdentity, log: Callable[[str], None]
) -> None:
    log(f"{peer.address}: {error}")
    await context.abort(code, str(error)[:_MOST_DETAILS])


def _proven(
    context: Any, peer: PeerIdentity, method: str, body: bytes, challenges: Challenges | None
) -> PeerIdentity:
    """Return who is at the other end: what TLS shows, or what it proves where TLS ends before this server."""
    if challenges is None:
        return peer
    return PeerIdentity(peer.address, proven_certificate(context, method, body, challenges))


def _peer(context: Any) -> PeerIdentity:
    certificates = list(context.auth_context().get("x509_pem_cert", ()))
    return PeerIdentity(str(context.peer()), certificates[0] if certificates else None)
