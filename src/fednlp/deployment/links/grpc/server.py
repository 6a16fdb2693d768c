"""The server's half of the driver over gRPC.

A server needs one thread, whatever the number of clients, and holds of each stream what gRPC's flow control lets in
(:data:`~fednlp.deployment.links.grpc.LOOKAHEAD`, or behind a load balancer
:data:`~fednlp.deployment.links.grpc.LOOKAHEAD_OF_STRANGERS`) and one frame. Of who has not proven yet who it is,
nothing is read but an enrolment, of :data:`MOST_ENROLLING` at one time.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import grpc.aio

from fednlp.deployment.identity.admission.balancer import Challenges, Proof, proven
from fednlp.deployment.identity.names import host_and_port
from fednlp.deployment.links.grpc import (
    CHALLENGE,
    ENROL,
    KEEPALIVE,
    LOOKAHEAD,
    LOOKAHEAD_OF_STRANGERS,
    MOST_DETAILS,
    MOST_STREAMS,
    PROBE,
    SERVICE,
    SESSION,
    options,
)
from fednlp.deployment.links.limited_log import limited
from fednlp.deployment.links.streams import drive, hush, report_in_lines, waker
from fednlp.deployment.links.system import allow_many_files, reuse_memory, why_not_listening
from fednlp.deployment.session.driver import MOST_ENROLMENT, Enrol, NewSession, PeerIdentity
from fednlp.deployment.session.messages import MOST_FROM_SITE, printable
from fednlp.deployment.session.probe import PATIENCE as PROBING
from fednlp.errors import FednlpError, ProtocolError, RunError

_LOST = (grpc.aio.AioRpcError, grpc.aio.InternalError, grpc.aio.UsageError, asyncio.InvalidStateError)
"""What reading and writing raise when the client is gone."""
MOST_ENROLLING = 1 << 8
"""Enrolments that are read at one time; one more ends the one that has waited longest."""
_PATIENCE = 30.0
"""Seconds for an enrolment to arrive."""
_LAST_WORDS = 2.0
"""Seconds for what is left of connections that were ended."""


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
    probe: NewSession | None = None,
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
        probe: Makes the session of a probe, as ``new_session``; None to answer none.

    Raises:
        ConfigError: The address has no port, or one above 65535, of which gRPC would take another.
        RunError: The address cannot be listened at.
    """
    host_and_port(address, "--listen")
    allow_many_files()
    reuse_memory()
    hush("grpc")
    loop = asyncio.new_event_loop()
    report_in_lines(loop, log)
    started: list[Any] = []

    async def start() -> None:
        lookahead = LOOKAHEAD if challenges is None else LOOKAHEAD_OF_STRANGERS
        # A connection without a stream is of no use, and one site could hold all that the system lets a server have.
        idle = ("grpc.max_connection_idle_ms", round(keepalive * 2000))
        given = [*options(keepalive, MOST_FROM_SITE, lookahead), idle]
        server = grpc.aio.server(options=given, maximum_concurrent_rpcs=MOST_STREAMS)
        service = _Service(new_session, enrol, limited(log), challenges, probe)
        server.add_generic_rpc_handlers((service.handlers(),))
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
        if left:  # gRPC's own end with their connections; cancelled, they print a traceback
            _, left = await asyncio.wait(left, timeout=_LAST_WORDS)
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


@dataclass
class _Service:
    """What a client can call."""

    new_session: NewSession
    enrol: Enrol
    log: Callable[[PeerIdentity, object], None]
    challenges: Challenges | None
    probe: NewSession | None
    enrolling: deque[asyncio.Timeout] = field(default_factory=deque)  # who came first is the first

    def handlers(self) -> Any:
        methods = {
            SESSION: grpc.stream_stream_rpc_method_handler(
                self._told(partial(self._session, SESSION, self.new_session))
            ),
            # A client sends one message to these; taken as a stream, it is not read before its handler asks for it.
            ENROL: grpc.stream_unary_rpc_method_handler(self._told(self._enrol)),
        }
        if self.probe is not None:
            methods[PROBE] = grpc.stream_stream_rpc_method_handler(
                self._told(partial(self._session, PROBE, self.probe))
            )
        if self.challenges is not None:
            methods[CHALLENGE] = grpc.stream_unary_rpc_method_handler(self._told(self._challenge))
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _session(self, method: str, new_session: NewSession, requests: Any, context: Any) -> None:
        peer = _peer(context)
        event, wake = waker()
        try:
            peer = _proven(context, peer, method, b"", self.challenges)
        except RunError as error:  # it may try again at once
            await self._abort(context, grpc.StatusCode.UNAVAILABLE, error, peer)
            return
        except FednlpError as error:
            await self._abort(context, grpc.StatusCode.PERMISSION_DENIED, error, peer)
            return
        try:
            session = new_session(peer, wake)
        except FednlpError as error:
            await self._abort(context, grpc.StatusCode.PERMISSION_DENIED, error, peer)
            return
        try:
            await context.send_initial_metadata(())
            async with asyncio.timeout(PROBING if method == PROBE else None):
                await drive(session, context.read, context.write, grpc.aio.EOF, event)
        except TimeoutError:
            late = RunError(f"a probe takes {PROBING:.0f} s at most")
            await self._abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, late, peer)
        except _LOST:
            self.log(peer, "the connection was lost")
        except ProtocolError as error:
            await self._abort(context, grpc.StatusCode.INVALID_ARGUMENT, error, peer)
        except RunError as error:
            await self._abort(context, grpc.StatusCode.UNAVAILABLE, error, peer)
        finally:
            session.close()

    async def _enrol(self, requests: Any, context: Any) -> bytes:
        peer = _peer(context)
        try:
            request = await self._enrolment(context)
            return self.enrol(_proven(context, peer, ENROL, request, self.challenges), request)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the enrolment did not arrive")
        except FednlpError as error:
            await self._abort(context, grpc.StatusCode.PERMISSION_DENIED, error, peer)
        return b""

    async def _enrolment(self, context: Any) -> bytes:
        """Return an enrolment; it ends if it takes too long to arrive, or if it is the oldest of too many."""
        if len(self.enrolling) >= MOST_ENROLLING and not (oldest := self.enrolling.popleft()).expired():
            oldest.reschedule(0)  # strangers may hold these: whoever comes has a little time
        async with asyncio.timeout(_PATIENCE) as patience:
            self.enrolling.append(patience)
            try:
                request = await context.read()
            finally:
                if patience in self.enrolling:
                    self.enrolling.remove(patience)
        if request is grpc.aio.EOF:
            raise ProtocolError("an enrolment without a request")
        if len(request) > MOST_ENROLMENT:
            raise ProtocolError(f"an enrolment of {len(request)} bytes is longer than {MOST_ENROLMENT}")
        return bytes(request)

    async def _challenge(self, requests: Any, context: Any) -> bytes:
        assert self.challenges is not None
        return self.challenges.issue()

    def _told(self, handler: Callable[[Any, Any], Any]) -> Any:
        """Return a handler whose unforeseen errors are said in a line, since gRPC says them in its own log alone."""

        async def handle(requests: Any, context: Any) -> Any:
            try:
                return await handler(requests, context)
            except grpc.aio.BaseError:
                raise
            except Exception as error:
                self.log(_peer(context), f"an error that fednlp does not know: {printable(repr(error))}")
                raise

        return handle

    async def _abort(self, context: Any, code: Any, error: Exception, peer: PeerIdentity) -> None:
        self.log(peer, error)
        await context.abort(code, str(error)[:MOST_DETAILS])


def _proven(
    context: Any, peer: PeerIdentity, method: str, body: bytes, challenges: Challenges | None
) -> PeerIdentity:
    """Return who is at the other end: what TLS shows, or what it proves where TLS ends before this server."""
    if challenges is None:
        return peer
    proof = Proof.of(dict(context.invocation_metadata() or ()))
    return PeerIdentity(peer.address, proven(proof, method, body, challenges))


def _peer(context: Any) -> PeerIdentity:
    certificates = list(context.auth_context().get("x509_pem_cert", ()))
    return PeerIdentity(str(context.peer()), certificates[0] if certificates else None)
