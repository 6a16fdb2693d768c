"""Serves the page in a thread beside the run."""

import socket
import threading
from collections.abc import Callable, Collection
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fednlp.deployment.identity.names import host_and_port
from fednlp.deployment.operate.feed import Feed
from fednlp.errors import ConfigError, MissingDependency, RunError, install_command
from fednlp.formatting.safe_text import clean

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from fednlp.deployment.operate.page.app import Page
except ImportError:
    raise MissingDependency(
        f"the page needs starlette and uvicorn: run {install_command('deployment')}"
    ) from None

MOST_CONNECTIONS = 200
PATIENCE = 10.0
"""Seconds that a request may take to arrive, and for which a reader may read nothing."""
_GRACE = 2
_UNREAD = 1 << 16
"""Bytes that wait for a reader before it counts as slow."""


class PageServer:
    """A page about a run, served for the time of a block.

    Attributes:
        url: Where it is.

    Args:
        address: ``host:port``; port 0 for any that is free.
        log: Told where the page is, and of what is to be considered.
        hosts: Names under which a proxy serves the page.

    Raises:
        RunError: The address cannot be listened at.
        ConfigError: It is no address.
    """

    def __init__(
        self, run: Path, address: str, log: Callable[[str], None], hosts: Collection[str] = ()
    ) -> None:
        self._over = threading.Event()
        host, port = _split(address)
        self._socket = _listen(host, port)
        shown, port = f"[{host}]" if ":" in host else host, self._socket.getsockname()[1]
        self.url = f"http://{shown}:{port}/"
        log(f"the page of this run is at {self.url}")
        if not is_loopback(host):
            log(
                f"warning: the page has no login, and whoever reaches {shown}:{port} sees the names of the sites and "
                "the scores: use 127.0.0.1 and ssh -L, or a proxy with a login"
            )
        names = {host, socket.gethostname(), socket.getfqdn()} if not is_loopback(host) else {host}
        names.update(hosts)
        config = uvicorn.Config(
            Page(Feed(run), self._over).app(names),
            http=_Connection,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="fednlp-page", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.should_exit = True
        self._thread.join()

    def _run(self) -> None:
        with closing(self._socket):
            self._server.run([self._socket])


class _Connection(H11Protocol):
    """A connection for one request, dropped if the request does not arrive, or the answer is not read."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._unread = 0
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        else:
            self._clock = self.loop.call_later(PATIENCE, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if hasattr(self, "_clock"):
            self._clock.cancel()

    def _look(self) -> None:
        unread = self.transport.get_write_buffer_size()
        waiting = unread > _UNREAD or (unread and self.transport.is_closing())
        if self.cycle is None or (waiting and unread >= self._unread > 0):
            self.transport.abort()
            return
        self._unread = unread
        self._clock = self.loop.call_later(PATIENCE, self._look)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _split(address: str) -> tuple[str, int]:
    host, port = host_and_port(address, "--page")
    if not host:
        raise ConfigError(f"--page {clean(address)[:80]}: write host:port, for example 127.0.0.1:8080")
    return host, port


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(place[:2], family=family)
    except OSError as error:
        raise RunError(
            f"cannot serve the page at {host}:{port} ({error.strerror or error}): choose another port with --page"
        ) from None
