"""A log for lines that peers can cause: so many of each peer in a while, and then how many were left out.

One that is noisy is cut short without a line of another one being lost. Sites, whose certificates TLS has checked, are
counted apart from strangers.
"""

import time
from collections import Counter
from collections.abc import Callable

from fednlp.deployment.session.driver import PeerIdentity

MOST_OF_ONE = 6
"""Lines of one peer in a span at most; a stranger is known by the address without its port."""
MOST_OF_STRANGERS = 30
"""Lines of all peers without a certificate in a span at most."""
MOST_OF_SITES = 240
"""Lines of all peers with one in a span at most."""
SPAN = 60.0
"""Seconds of a span."""


def limited(
    log: Callable[[str], None], now: Callable[[], float] = time.monotonic
) -> Callable[[PeerIdentity, object], None]:
    """Return a log that drops lines where there are too many, and says how many with the next one that it takes.

    Args:
        log: Takes a line for people.
        now: A clock that never goes back, in seconds; a span begins with the first line after the last one.

    >>> clock, lines = [0.0], []
    >>> log = limited(lines.append, lambda: clock[0])
    >>> for number in range(10): log(PeerIdentity(f"ipv4:192.0.2.7:{number}", None), "no certificate")
    >>> len(lines)
    6
    >>> log(PeerIdentity("ipv4:192.0.2.8:1", b"of a site"), "the connection was lost")
    >>> lines[6:]
    ['ipv4:192.0.2.8:1: the connection was lost', '(4 lines about connections were left out before this one)']
    """
    ends, left_out = now(), 0
    of_one, of_kind = Counter[bytes | str](), Counter[bool]()

    def take(peer: PeerIdentity, text: object) -> None:
        nonlocal ends, left_out
        if now() >= ends:
            ends = now() + SPAN
            of_one.clear()
            of_kind.clear()
        site = peer.certificate is not None
        source = peer.certificate or peer.address.rpartition(":")[0] or peer.address
        if of_one[source] >= MOST_OF_ONE or of_kind[site] >= (MOST_OF_STRANGERS, MOST_OF_SITES)[site]:
            left_out += 1
            return
        of_one[source] += 1
        of_kind[site] += 1
        log(f"{peer.address}: {text}")
        if left_out:
            log(f"({left_out:,} lines about connections were left out before this one)")
            left_out = 0

    return take
