"""Lets through to the page only what a browser on the right address asks for, and adds the headers of each answer."""

import re
from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "connection": "close",  # one request a connection: a slow one is found by its connection's clock
}
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z._-]{1,253})(?::[0-9]{1,5})?")


class Guard:
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
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope).getlist("host"))
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, method: str, hosts: list[str]) -> PlainTextResponse | None:
        if len(hosts) != 1 or not is_right(hosts[0], self._names):
            text = (
                "This page is not served under that name: open it by the address that fednlp serve printed, or "
                "give it the name (--page-host).\n"
            )
            return PlainTextResponse(text, 421)
        if method not in ("GET", "HEAD"):
            return PlainTextResponse("This page can only be read: use GET.\n", 405, {"allow": "GET, HEAD"})
        return None


def is_right(host: str, names: Collection[str]) -> bool:
    """Return whether a ``Host`` header names this machine, not a name of somebody else's that leads here.

    Args:
        names: The names that are right, in small letters; every IP address is.

    >>> [is_right(host, {"localhost"}) for host in ("localhost:8080", "[::1]:8080", "evil.example")]
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
