"""The federation's folder on its server: how the sites reach it, how they show who they are, and how one is let in."""

import shlex
import time
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from fednlp.checked_json.stored import read_stored
from fednlp.deployment.identity.admission import Kind
from fednlp.deployment.identity.certificates import (
    REMEDY,
    Authority,
    Clock,
)
from fednlp.deployment.identity.names import server_address, site_name
from fednlp.deployment.identity.site_registry import Register
from fednlp.deployment.identity.tokens import ENDING, JoinToken
from fednlp.disk import write_private
from fednlp.errors import ConfigError, IdentityError, RunError

FOLDER = "federation"
"""In the server's run directory: the authority, the register of sites, and what arrived from them."""
_SERVER_FILE = "server.json"
_TOKENS = "tokens"
"""In that folder: the tokens, in a file each."""
_OPTIONS: dict[Kind, str] = {
    "tokens": "without --ca, --cert, --key and --behind-proxy",
    "organisation": "with --ca, --cert and --key",
    "balancer": "with --behind-proxy",
}


def _address(text: str) -> str:
    try:
        return server_address(text)
    except IdentityError as error:
        raise ValueError(str(error)) from None


class _ServerFile(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    address: Annotated[str, AfterValidator(_address)]
    kind: Kind = "tokens"


def federation_folder(run: Path) -> Path:
    """Return the federation's folder of a server's run directory.

    Raises:
        RunError: There is none.
    """
    folder = run / FOLDER
    if not folder.is_dir():
        raise RunError(f"{run} holds no federation: name the folder given to fednlp serve --out")
    return folder


def store_address(folder: Path, address: str, kind: Kind = "tokens") -> None:
    """Store how the sites reach the server.

    Args:
        folder: The federation's folder.
        kind: How sites show who they are.

    Raises:
        IdentityError: It is no address.
        RunError: It cannot be stored.
    """
    stored = _ServerFile(address=server_address(address), kind=kind)
    write_private(folder / _SERVER_FILE, stored.model_dump_json(indent=1).encode(), REMEDY)


def require_same_kind(folder: Path, kind: Kind) -> None:
    """Refuse to go on in another way than a federation began with: no site could come back.

    Args:
        folder: The federation's folder.
        kind: How sites show who they are now.

    Raises:
        ConfigError: It is another way.
        RunError: The file that says so is damaged.
    """
    began = _server(folder).kind if (folder / _SERVER_FILE).is_file() else kind
    if began != kind:
        ways = f"began {_OPTIONS[began]}, and not {_OPTIONS[kind]}"
        raise ConfigError(f"{folder.parent} {ways}: start it as it began, or choose another --out")


def stored_address(folder: Path) -> str:
    """Return the address by which the sites reach the server.

    Raises:
        RunError: None is stored, or the file is damaged.
    """
    return _server(folder).address


def kind_of(folder: Path) -> Kind:
    """Return how the sites of a federation show who they are.

    Raises:
        RunError: The server has never run, or the file is damaged.
    """
    return _server(folder).kind


def _server(folder: Path) -> _ServerFile:
    path, what = folder / _SERVER_FILE, 'it holds no "address"'
    stored = read_stored(path, _ServerFile, what, "start fednlp serve again")
    if stored is None:
        raise RunError(f"{folder.parent} has no address for sites yet: start fednlp serve once")
    return stored


def invite(folder: Path, name: str, days: float = 7, now: Clock = time.time) -> JoinToken:
    """Invite a site, and return the token that it joins with; an earlier open token of the same site is void.

    Args:
        folder: The federation's folder.
        days: How long the token is good.
        now: The clock.

    Raises:
        IdentityError: The name or the days are not valid.
        RunError: The server has never run, or the folder cannot be written.
    """
    address = stored_address(folder)
    authority = Authority.open(folder, now).der
    secret, expires = Register(folder, now).invite(name, days)
    return JoinToken(site_name(name), address, authority, secret, expires)


def typed_by(folder: Path, name: str, days: float = 7) -> str:
    """Let a site take part, and return what it types after ``fednlp join``: a token's file, or how to reach the server.

    A token is a secret, which every user of a machine could read in its list of processes. So it lies in a file.

    Args:
        folder: The federation's folder.
        name: The site's name, as an organisation's certificate says it.
        days: How long the token is good.

    Raises:
        IdentityError: The name is not valid.
        RunError: The server has never run, or the folder cannot be written.
    """
    kind = kind_of(folder)
    if kind != "organisation":
        token = invite(folder, name, days)
        path = folder / _TOKENS / f"{token.site}{ENDING}"
        write_private(path, f"{token}\n".encode(), REMEDY)
        return f"{shlex.quote(str(path))}{' --behind-proxy' if kind == 'balancer' else ''}"
    site = Register(folder).expect(name)
    return f"{stored_address(folder)} --ca CA.pem --cert {site.name}.pem --key {site.name}.key"
