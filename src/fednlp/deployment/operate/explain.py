"""What is likely to be wrong where a connection comes to nothing, of which gRPC says little more than that."""

import threading
import time
from collections.abc import Callable

from cryptography import x509

from fednlp.deployment.identity.access import Access
from fednlp.deployment.identity.certificates import SERVER_NAME, Clock, Material
from fednlp.deployment.operate.dial import dial
from fednlp.deployment.operate.findings import WRONG, Finding, certificate_dates
from fednlp.errors import IdentityError


def likely(
    address: str, material: Material | None, server_name: str | None = SERVER_NAME, now: float | None = None
) -> Finding | None:
    """Return what is wrong on the way to a server and what to do; None where nothing is found.

    Args:
        address: ``host:port``.
        material: What the site shows and trusts; None behind a load balancer, whose certificate is not checked here.
        server_name: Name in the server's certificate; None for that of the address.
        now: Seconds since 1970; the present if left out.
    """
    now = time.time() if now is None else now
    own = [] if material is None else x509.load_pem_x509_certificates(material.chain)[:1]
    dates = [certificate_dates("this site's", one, now) for one in own]
    for found in (*dates, *dial(address, material, now, server_name)):
        if found.state == WRONG:
            return found
    return None


class Explainer:
    """Looks for the reason when connections come to nothing, in a thread of its own, and logs each that it finds once.

    Args:
        access: How the server is reached.
        log: Called with what is found.
        now: The clock.
    """

    def __init__(self, access: Access, log: Callable[[str], None], now: Clock = time.time) -> None:
        self._access, self._log, self._now = access, log, now
        self._said: str | None = None
        self._looking = threading.Lock()

    def failed(self, failures: int) -> None:
        """Take note that a connection came to nothing.

        Args:
            failures: How many have in a row.
        """
        if failures == 1:
            self._said = None
        if self._looking.acquire(blocking=False):
            threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        access = self._access
        try:
            found = likely(access.address, access.shown(), access.server_name, self._now())
            line = None if found is None else f"{found.text}: {found.remedy}"
            if line is not None and line != self._said:
                self._said = line
                self._log(line)
        except IdentityError:
            return  # it ends the connection, with this reason
        finally:
            self._looking.release()
