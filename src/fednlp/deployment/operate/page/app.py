"""The routes of the page, and who is let through to them."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Collection
from functools import cache
from importlib.resources import files
from ipaddress import ip_address
from threading import Event
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fednlp.deployment.operate.feed import Feed
from fednlp.deployment.operate.page.metrics import CONTENT_TYPE, metrics_text

MOST_STREAMS = 50
"""Streams of events at a time."""
_EVERY = 0.5
"""Seconds between two looks for an event."""
_SILENCE = 15.0
"""Seconds without an event after which a stream says that it is still there."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "connection": "close",  # one request a connection: a slow one is found by its connection's clock
}
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z._-]{1,253})(?::[0-9]{1,5})?")
_ASSETS = {"page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}


class Page:
    """A run as a page.

    Args:
        over: Set when the streams are to end.
    """

    def __init__(self, feed: Feed, over: Event) -> None:
        self._feed, self._over, self._streams = feed, over, 0

    def app(self, names: Collection[str] = ()) -> Starlette:
        """Return the page as an ASGI application.

        Args:
            names: Names that this machine is known by.
        """
        routes = [
            Route("/", _asset("page.html")),
            Route("/page.css", _asset("page.css")),
            Route("/page.js", _asset("page.js")),
            Route("/status.json", self.status),
            Route("/rounds.json", self.rounds),
            Route("/metrics", self.metrics),
            Route("/events", self.events),
        ]
        return Starlette(routes=routes, middleware=[Middleware(_Guard, names=names)])

    async def status(self, request: Request) -> Response:
        """Answer with the status."""
        self._feed.look()
        if self._feed.status is None:
            return JSONResponse({"problem": self._feed.problem or "there is no status yet"}, 503)
        return JSONResponse(self._feed.status.model_dump())

    async def rounds(self, request: Request) -> Response:
        """Answer with what is known of each round."""
        self._feed.look()
        return JSONResponse({"metric": self._feed.metric, "rounds": self._feed.points})

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics for Prometheus."""
        self._feed.look()
        return PlainTextResponse(metrics_text(self._feed, time.time()), media_type=CONTENT_TYPE)

    async def events(self, request: Request) -> Response:
        """Answer with events as they happen, until the server ends."""
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if self._streams >= MOST_STREAMS:
            text = f"{MOST_STREAMS} windows show this page already: close one.\n"
            return PlainTextResponse(text, 503, {"retry-after": "10"})
        return _Stream(self)

    def opened(self, count: int) -> None:
        """Take note that so many streams more (or fewer) are open."""
        self._streams += count

    async def happening(self) -> AsyncIterator[str]:
        """Yield events: the status when it has changed, and the rounds that are new.

        Whoever reads slowly gets fewer of them: each is made when the one before has been sent.
        """
        begun, shown, last, quiet = -1, 0, object(), 0.0
        while True:
            over = self._over.is_set()
            self._feed.look(anew=over)
            feed, sent = self._feed, False
            if feed.begun != begun or len(feed.points) > shown:
                shown = shown if feed.begun == begun else 0
                yield event("rounds", {"after": shown, "metric": feed.metric, "rounds": feed.points[shown:]})
                begun, shown, sent = feed.begun, len(feed.points), True
            if last != (feed.status, feed.problem):
                status = feed.status.model_dump() if feed.status else None
                yield event("status", {"status": status, "problem": feed.problem})
                last, sent = (feed.status, feed.problem), True
            quiet = 0.0 if sent else quiet + _EVERY
            if quiet >= _SILENCE:
                yield ": still here\n\n"
                quiet = 0.0
            if over:
                return
            await asyncio.sleep(_EVERY)


class _Stream(StreamingResponse):
    """A stream of events, which is counted as long as it is open."""

    def __init__(self, page: Page) -> None:
        super().__init__(page.happening(), media_type="text/event-stream")
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._page.opened(1)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._page.opened(-1)


def event(name: str, data: Any) -> str:
    """Return a server-sent event (WHATWG HTML, section 9.2).

    >>> event("status", {"round": 1})
    'event: status\\ndata: {"round":1}\\n\\n'
    """
    return f"event: {name}\ndata: {json.dumps(data, allow_nan=False, separators=(',', ':'))}\n\n"


def _asset(name: str) -> Any:
    async def answer(request: Request) -> Response:
        return Response(_read(name), media_type=_ASSETS[name])

    return answer


@cache
def _read(name: str) -> bytes:
    return files("fednlp.deployment.operate.page").joinpath(name).read_bytes()


class _Guard:
    """Refuses other methods than GET and HEAD, and hosts that another site's name may have been made to point at.

    Args:
        names: Names that this machine is known by; its addresses and "localhost" are always right.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app, self._names = app, {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope).getlist("host"))
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, method: str, hosts: list[str]) -> PlainTextResponse | None:
        if len(hosts) != 1 or not _is_right(hosts[0], self._names):
            text = (
                "This page is not served under that name: open it by the address that fednlp serve printed, or "
                "give it the name (--page-host).\n"
            )
            return PlainTextResponse(text, 421)
        if method not in ("GET", "HEAD"):
            return PlainTextResponse("This page can only be read: use GET.\n", 405, {"allow": "GET, HEAD"})
        return None


def _is_right(host: str, names: Collection[str]) -> bool:
    """Return whether a ``Host`` header names this machine, not a name of somebody else's that leads here.

    Args:
        names: The names that are right, in small letters; every IP address is.

    >>> [_is_right(host, {"localhost"}) for host in ("localhost:8080", "[::1]:8080", "evil.example")]
    [True, True, False]
    """
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match[1].strip("[]").lower()
    try:
        ip_address(name)
    except ValueError:
        return name in names
    return True
