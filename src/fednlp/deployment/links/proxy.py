"""The proxy that connections to a server go through."""

from urllib.request import getproxies, proxy_bypass

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def proxy_for(address: str) -> str | None:
    """Return the proxy that the environment names for an address (``HTTPS_PROXY``, ``NO_PROXY``), or None."""
    host = address.rpartition(":")[0].strip("[]")
    proxy = getproxies().get("https")
    if not proxy or host in _LOOPBACK or proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
