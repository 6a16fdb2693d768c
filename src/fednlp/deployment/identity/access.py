"""How a site reaches its server and shows who it is: by what it got when it enrolled, or an organisation's files."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fednlp.checked_json import damaged
from fednlp.deployment.identity.ca import REMEDY, SERVER_NAME, Clock
from fednlp.deployment.identity.certificates import Material
from fednlp.deployment.identity.names import server_address
from fednlp.deployment.identity.organisation import Files, Replaceable, read_certificates
from fednlp.deployment.identity.site_identity import SiteIdentity
from fednlp.disk import regular, write_private

IDENTITY = "identity"
"""In a federation's folder at a site: the key and the certificate."""
_ORGANISATION, _BALANCER = "organisation.json", "balancer.json"


@dataclass(frozen=True)
class Balancer:
    """A load balancer before the server, which ends TLS.

    Attributes:
        ca: File of the authorities of its certificate, PEM; None for those that gRPC trusts.
    """

    ca: Path | None = None

    def roots(self) -> bytes | None:
        """Return the authorities' certificates, PEM; None for those that gRPC trusts.

        Raises:
            IdentityError: The file cannot be read, or holds no certificates.
        """
        return None if self.ca is None else read_certificates(self.ca)


@dataclass(frozen=True)
class Access:
    """A site's way to its server.

    Attributes:
        site: The site's name.
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


class _Balancer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    ca: str | None


class _Organisation(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    site: str
    address: str
    ca: str
    cert: str
    key: str


def has_joined(folder: Path) -> bool:
    """Return whether a folder is that of a federation which this machine has joined, or began to join."""
    return (folder / IDENTITY).is_dir() or (folder / _ORGANISATION).is_file()


def store_organisation(folder: Path, address: str, files: Files) -> None:
    """Store that a site reaches its server with an organisation's files.

    Args:
        folder: Of the federation at this site.
        address: ``host:port`` of the server.
        files: The site's.

    Raises:
        IdentityError: The address or a file is not valid.
        RunError: The folder cannot be written.
    """
    ca, cert, key = (str(path.absolute()) for path in (files.ca, files.cert, files.key))
    stored = _Organisation(site=files.site(), address=server_address(address), ca=ca, cert=cert, key=key)
    write_private(folder / _ORGANISATION, stored.model_dump_json(indent=1).encode(), REMEDY)


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
    path = folder / _ORGANISATION
    if path.is_file():
        try:
            stored = _Organisation.model_validate_json(regular(path).read_bytes())
        except ValidationError:
            error = ValueError("it does not say how the server is reached")
            raise damaged(path, error, "delete it and join again") from None
        files = Files(Path(stored.ca), Path(stored.cert), Path(stored.key))
        return Access(stored.site, stored.address, None, Replaceable(files, log).material)
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


def store_balancer(folder: Path, balancer: Balancer | None) -> None:
    """Store that a site reaches its server through a load balancer which ends TLS, or that it does not.

    Args:
        folder: Of the federation at this site.
        balancer: The balancer; None without one.

    Raises:
        IdentityError: The file of authorities cannot be read, or holds no certificates.
        RunError: The folder cannot be written.
    """
    if balancer is None:
        (folder / _BALANCER).unlink(missing_ok=True)
        return
    balancer.roots()
    stored = _Balancer(ca=None if balancer.ca is None else str(balancer.ca.absolute()))
    write_private(folder / _BALANCER, stored.model_dump_json(indent=1).encode(), REMEDY)


def stored_balancer(folder: Path) -> Balancer | None:
    """Return the load balancer that a site reaches its server through; None without one.

    Raises:
        RunError: The file that names it is damaged.
    """
    path = folder / _BALANCER
    if not path.is_file():
        return None
    try:
        stored = _Balancer.model_validate_json(regular(path).read_bytes())
    except ValidationError:
        error = ValueError("it does not say how the server is reached")
        raise damaged(path, error, "delete it and join again with --behind-proxy") from None
    return Balancer(None if stored.ca is None else Path(stored.ca))
