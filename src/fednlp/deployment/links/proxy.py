"""The proxy that connections to a server go through."""

from collections.abc import Iterable
from urllib.request import getproxies, proxy_bypass

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
CUTS = 3
"""Connections in a row of the same length that are no chance."""
_SHORTEST, _SPREAD = 3.0, 0.1


def proxy_for(address: str) -> str | None:
    """Return the proxy that the environment names for an address (``HTTPS_PROXY``, ``NO_PROXY``), or None."""
    host = address.rpartition(":")[0].strip("[]")
    proxy = getproxies().get("https")
    if not proxy or host in _LOOPBACK or proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def cut_regularly(seconds: Iterable[float]) -> bool:
    """Return whether the last connections were all cut after the same time, as proxies and firewalls do.

    Args:
        seconds: How long each connection lasted, the last one at the end.

    >>> cut_regularly([8.0, 60.1, 60.3, 60.0]), cut_regularly([60.1, 12.0, 60.0]), cut_regularly([60.0, 60.0])
    (True, False, False)
    """
    last = list(seconds)[-CUTS:]
    return len(last) == CUTS and min(last) >= _SHORTEST and max(last) - min(last) <= _SPREAD * max(last)
