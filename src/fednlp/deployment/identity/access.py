"""How a site reaches its server and shows who it is: by what it got when it enrolled, or an organisation's files."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fednlp.deployment.identity.admission.balancer import Balancer, Prove, prove, stored_balancer
from fednlp.deployment.identity.admission.organisation import FILE, Replaceable, stored_organisation
from fednlp.deployment.identity.certificates import SERVER_NAME, Clock, Material
from fednlp.deployment.identity.site_identity import SiteIdentity

IDENTITY = "identity"
"""In a federation's folder at a site: the key and the certificate."""


@dataclass(frozen=True)
class Access:
    """A site's way to its server.

    Attributes:
        address: ``host:port`` of the server.
        server_name: Name in the server's certificate; None for that of the address.
        material: Returns what the next connection shows and trusts; raises IdentityError where that has expired.
        identity: What the site enrolled with; None with an organisation's files, which nobody renews here.
        balancer: The load balancer that ends TLS; None without one.
    """

    site: str
    address: str
    server_name: str | None
    material: Callable[[], Material]
    identity: SiteIdentity | None = None
    balancer: Balancer | None = None

    def shown(self) -> Material | None:
        """Return what the next connection shows in TLS and trusts; None where a load balancer ends TLS."""
        return self.material() if self.balancer is None else None

    @property
    def prove(self) -> Prove | None:
        """Proves who this site is where TLS does not show it; None where it does."""
        if self.balancer is None:
            return None
        return lambda method, challenge, body: prove(self.material(), method, challenge, body)


def has_joined(folder: Path) -> bool:
    """Return whether a folder is that of a federation which this machine has joined, or began to join."""
    return (folder / IDENTITY).is_dir() or (folder / FILE).is_file()


def access_of(
    folder: Path, log: Callable[[str], None] = lambda line: None, now: Clock = time.time
) -> Access | None:
    """Return how a site reaches the server of a federation; None before it has enrolled.

    Args:
        folder: Of the federation at this site.
        log: Told when an organisation's files were replaced by some that do not fit.
        now: The clock.

    Raises:
        IdentityError: An organisation's file cannot be read or does not fit.
        RunError: A file of the folder is damaged.
    """
    organised = stored_organisation(folder)
    if organised is not None:
        material = Replaceable(organised.files, log).material
        return Access(organised.site, organised.address, None, material)
    identity = SiteIdentity(folder / IDENTITY, now)
    member = identity.membership
    if member is None:
        return None

    def current() -> Material:
        identity.require_current()
        return identity.material()

    balancer = stored_balancer(folder)
    name = SERVER_NAME if balancer is None else None
    return Access(member.site, member.address, name, current, identity, balancer)
