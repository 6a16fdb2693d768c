"""The server's half of joining: who may connect, who may enrol, and what the answer is.

A peer that shows an invitation's certificate may enrol; one that shows a certificate of the federation's authority may
take part, and renew it. Both are told apart by the certificates themselves. :class:`Admission` is all that a server
needs of identities, whether the federation has an authority of its own (:class:`FederationAdmission`) or uses that of
an organisation (:mod:`fednlp.deployment.identity.organisation`).
"""

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fednlp.checked_json import damaged
from fednlp.deployment.identity.ca import REMEDY, Authority, Clock
from fednlp.deployment.identity.certificates import (
    MOST_BYTES,
    Material,
    certificate_pem,
    key_id,
    load_certificate,
    load_request,
    public_key,
    require_shown,
)
from fednlp.deployment.identity.names import server_address, site_name
from fednlp.deployment.identity.site_registry import Register, Site
from fednlp.deployment.identity.tokens import ENDING, JoinToken
from fednlp.disk import regular, write_private
from fednlp.errors import ConfigError, IdentityError, RunError

VERSION = 1
"""Of the messages of enrolment."""
MOST_MESSAGE_BYTES = 16 * 1024
"""Longest message of enrolment, either way."""
FOLDER = "federation"
"""In the server's run directory: the authority, the register of sites, and what arrived from them."""
_SERVER_FILE = "server.json"
_TOKENS = "tokens"
"""In that folder: the tokens, in a file each."""
Kind = Literal["tokens", "organisation", "balancer"]
"""How sites show who they are: by TLS with the federation's certificates or with an organisation's, or by a proof."""
_OPTIONS: dict[Kind, str] = {
    "tokens": "without --ca, --cert, --key and --behind-proxy",
    "organisation": "with --ca, --cert and --key",
    "balancer": "with --behind-proxy",
}


class Admission(Protocol):
    """Whom a server lets in. All methods are thread-safe.

    Attributes:
        register: Who was invited.
    """

    register: Register

    def material(self) -> Material:
        """Return what the server shows and trusts now; to be asked for at every handshake."""
        ...

    def authorise(self, certificate: bytes | None) -> Site:
        """Return the site that may take part.

        Args:
            certificate: What the peer has shown and TLS has checked, PEM; None if nothing.

        Raises:
            IdentityError: None may; the message is for the peer.
        """
        ...

    def require_known(self, certificate: bytes | None) -> None:
        """Check that a peer may take part, or is invited to; nothing changes by it.

        Args:
            certificate: What the peer has shown and TLS has checked, PEM; None if nothing.

        Raises:
            IdentityError: Neither; the message is for the peer.
        """
        ...

    def enrol(self, certificate: bytes | None, message: bytes) -> bytes:
        """Answer a message of enrolment.

        Args:
            certificate: What the peer has shown and TLS has checked, PEM; None if nothing.
            message: What it asks for.
        """
        ...


class EnrolRequest(BaseModel):
    """A site asks for a certificate."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: int
    csr: Annotated[str, Field(max_length=MOST_BYTES)]


class FederationAdmission:
    """Admission by the federation's own authority and register.

    Args:
        folder: The federation's folder on the server.
        hosts: Names and IP addresses of the server, for its certificate.
        now: The clock.

    Raises:
        RunError: The folder cannot be written, or a file in it is damaged.
    """

    def __init__(self, folder: Path, hosts: Sequence[str] = (), now: Clock = time.time) -> None:
        self.authority = Authority.open(folder, now)
        self.register = Register(folder, now)
        self._hosts = tuple(hosts)

    def material(self) -> Material:
        """Return the server's key and certificate, and as roots the authority and all open invitations."""
        key, certificate = self.authority.server_certificate(self._hosts)
        return Material(key, certificate, b"".join([self.authority.pem, *self.register.roots()]))

    def authorise(self, certificate: bytes | None) -> Site:
        """Return the site that a certificate belongs to; see :meth:`Register.authorise`."""
        return self.register.authorise(require_shown(certificate))

    def require_known(self, certificate: bytes | None) -> None:
        """Check that a certificate belongs to a site, or was signed by an open invitation."""
        shown = require_shown(certificate)
        if self._signed(shown):
            self.register.authorise(shown)
        else:
            self.register.require_invited(shown)

    def enrol(self, certificate: bytes | None, message: bytes) -> bytes:
        """Answer a site that wants a certificate for the key that it has shown in TLS: its first one, or a renewal.

        Args:
            certificate: An invitation's, or the site's present one, PEM.
            message: JSON: ``{"version": 1, "csr": PEM}``; at most :data:`MOST_MESSAGE_BYTES`.

        Returns:
            JSON: ``{"certificate": PEM, "ca": PEM, "client": int, "federation": str}``, or ``{"refused": reason}``.

        Raises:
            RunError: The certificate cannot be stored: the site may ask again.
        """
        try:
            answer = self._enrol(require_shown(certificate), message)
        except IdentityError as error:
            answer = {"refused": str(error)}
        return json.dumps(answer, ensure_ascii=False).encode()

    def _enrol(self, shown: bytes, message: bytes) -> dict[str, str | int]:
        request = load_request(_read(message).csr.encode())
        if key_id(public_key(request)) != key_id(public_key(load_certificate(shown))):
            raise IdentityError("the signing request is for another key than that of the connection")
        site = self.register.authorise(shown) if self._signed(shown) else self.register.redeem(shown)
        certificate = self.authority.sign(request, site.client)
        self.register.record(site.client, certificate)
        return {
            "certificate": certificate_pem(certificate).decode(),
            "ca": self.authority.pem.decode(),
            "client": site.client,
            "federation": self.authority.federation,
        }

    def _signed(self, certificate: bytes) -> bool:
        return self.authority.has_signed(load_certificate(certificate))


def _read(message: bytes) -> EnrolRequest:
    if len(message) > MOST_MESSAGE_BYTES:
        raise IdentityError(f"a message of enrolment has at most {MOST_MESSAGE_BYTES} bytes")
    try:
        request = EnrolRequest.model_validate_json(message)
    except ValidationError:
        raise IdentityError(
            "this is no message of enrolment: install the fednlp version of the server"
        ) from None
    if request.version != VERSION:
        raise IdentityError(
            f"enrolment speaks version {VERSION} here and version {request.version} at the site: "
            "install the fednlp version of the server"
        )
    return request


class _ServerFile(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    address: str
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
        address: Host and port.
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
    path = folder / _SERVER_FILE
    try:
        found = _ServerFile.model_validate_json(regular(path).read_bytes())
        server_address(found.address)
        return found
    except FileNotFoundError:
        raise RunError(f"{folder.parent} has no address for sites yet: start fednlp serve once") from None
    except (ValidationError, IdentityError, OSError):
        raise damaged(path, ValueError('it holds no "address"'), "start fednlp serve again") from None


def invite(folder: Path, name: str, days: float = 7, now: Clock = time.time) -> JoinToken:
    """Invite a site, and return the token that it joins with; an earlier open token of the same site is void.

    Args:
        folder: The federation's folder.
        name: The site's name.
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
