"""Admission by the federation's own authority: who may connect, who may enrol, and what the answer is.

A peer that shows an invitation's certificate may enrol; one that shows a certificate of the federation's authority may
take part, and renew it. Both are told apart by the certificates themselves.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from fednlp.checked_json.stored import Stored
from fednlp.deployment.identity.admission.balancer import Challenges
from fednlp.deployment.identity.certificates import (
    MOST_BYTES,
    Authority,
    Clock,
    Material,
    certificate_pem,
    key_id,
    load_certificate,
    load_request,
    public_key,
    require_shown,
)
from fednlp.deployment.identity.site_registry import Register, Site
from fednlp.errors import IdentityError

VERSION = 1
"""Of the messages of enrolment."""
MOST_MESSAGE_BYTES = 16 * 1024
"""Longest message of enrolment, either way."""


class EnrolRequest(Stored):
    """A site asks for a certificate."""

    version: int
    csr: Annotated[str, Field(max_length=MOST_BYTES)]


class FederationAdmission:
    """Admission by the federation's own authority and register.

    Args:
        folder: The federation's folder on the server.
        hosts: Names and IP addresses of the server, for its certificate.
        now: The clock.
        behind_proxy: Whether a load balancer ends TLS, so that sites prove who they are.

    Raises:
        RunError: The folder cannot be written, or a file in it is damaged.
    """

    def __init__(
        self, folder: Path, hosts: Sequence[str] = (), now: Clock = time.time, behind_proxy: bool = False
    ) -> None:
        self.challenges = Challenges() if behind_proxy else None
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
