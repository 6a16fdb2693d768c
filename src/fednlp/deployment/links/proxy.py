"""The proxy that connections to a server go through."""

from collections.abc import Iterable
from urllib.request import getproxies, proxy_bypass

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
CUTS = 3
"""Connections in a row of the same length that are no chance."""
_SHORTEST, _SPREAD = 3.0, 0.1
_FEWEST = 1 << 16
"""Bytes that are no chance: a limit of a proxy is rarely below."""


def proxy_for(address: str) -> str | None:
    """Return the proxy that the environment names for an address (``HTTPS_PROXY``, ``NO_PROXY``), or None."""
    host = address.rpartition(":")[0].strip("[]")
    proxy = getproxies().get("https")
    if not proxy or host in _LOOPBACK or proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def cut_by_size(sent: Iterable[int]) -> bool:
    """Return whether the last connections were all cut after as many bytes, as a proxy with a limit does.

    Args:
        sent: Bytes that each connection has sent, the last one at the end.

    >>> cut_by_size([40, 1_100_000, 1_050_000, 1_100_000]), cut_by_size([1_100_000, 900, 1_100_000])
    (True, False)
    """
    last = list(sent)[-CUTS:]
    return len(last) == CUTS and min(last) >= _FEWEST and max(last) <= 2 * min(last)


def why_no_proxy(address: str) -> str:
    """Return why :func:`proxy_for` names none."""
    if not getproxies().get("https"):
        return "HTTPS_PROXY is not set"
    host = address.rpartition(":")[0].strip("[]")
    if host in _LOOPBACK:
        return f"HTTPS_PROXY is set, and is not for {host}, which is this machine"
    return "HTTPS_PROXY is set, and NO_PROXY names the server"


def cut_regularly(seconds: Iterable[float]) -> bool:
    """Return whether the last connections were all cut after the same time, as proxies and firewalls do.

    Args:
        seconds: How long each connection lasted, the last one at the end.

    >>> cut_regularly([8.0, 60.1, 60.3, 60.0]), cut_regularly([60.1, 12.0, 60.0]), cut_regularly([60.0, 60.0])
    (True, False, False)
    """
    last = list(seconds)[-CUTS:]
    return len(last) == CUTS and min(last) >= _SHORTEST and max(last) - min(last) <= _SPREAD * max(last)
