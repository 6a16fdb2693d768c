"""How a site reaches its server and shows who it is: by what it got when it enrolled, or an organisation's files."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fednlp.checked_json import damaged
from fednlp.deployment.ca import REMEDY, SERVER_NAME, Clock
from fednlp.deployment.certificates import Material
from fednlp.deployment.identity import SiteIdentity
from fednlp.deployment.names import server_address
from fednlp.deployment.organisation import Files, Replaceable
from fednlp.disk import write_private

IDENTITY = "identity"
"""In a federation's folder at a site: the key and the certificate."""
_ORGANISATION = "organisation.json"


@dataclass(frozen=True)
class Access:
    """A site's way to its server.

    Attributes:
        site: The site's name.
        address: ``host:port`` of the server.
        server_name: Name in the server's certificate; None for that of the address.
        material: Returns what the next connection shows and trusts; raises IdentityError where that has expired.
        identity: What the site enrolled with; None with an organisation's files, which nobody renews here.
    """

    site: str
    address: str
    server_name: str | None
    material: Callable[[], Material]
    identity: SiteIdentity | None = None


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
            stored = _Organisation.model_validate_json(path.read_bytes())
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

    return Access(member.site, member.address, SERVER_NAME, current, identity)
