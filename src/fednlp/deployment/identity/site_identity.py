"""A site's own identity: a private key that never leaves the machine, and the certificate that a server gave for it."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import Field, ValidationError

from fednlp.checked_json import damaged
from fednlp.checked_json.stored import Stored, read_stored
from fednlp.deployment.identity.admission.federation import MOST_MESSAGE_BYTES, VERSION
from fednlp.deployment.identity.certificates import (
    MOST_BYTES,
    REMEDY,
    Clock,
    Material,
    certificate_pem,
    common_name,
    ends,
    is_issued_by,
    key_id,
    key_pem,
    load_certificate,
    load_key,
    new_key,
    public_key,
)
from fednlp.deployment.identity.tokens import (
    ASK_AGAIN,
    JoinToken,
    date_text,
    invitation_certificate,
    invitation_name,
)
from fednlp.disk import locked, private_folder, regular, write_private
from fednlp.errors import FednlpError, IdentityError, RunError
from fednlp.formatting.safe_text import clean

Call = Callable[[bytes], bytes]
"""Sends a message of enrolment, and returns the answer."""
EVERY = 3600.0
"""Seconds from one look at the certificate to the next."""
_KEY_FILE = "key.pem"
_FILE = "identity.json"
_JOIN_AGAIN = "delete it and join with a new token"
_LONGEST_REASON = 500
_Pem = Annotated[str, Field(max_length=MOST_BYTES)]
_Client = Annotated[int, Field(ge=0, lt=1 << 31)]


class _Answer(Stored):
    certificate: _Pem
    ca: _Pem
    client: _Client
    federation: str


class _Refusal(Stored):
    refused: str


class Membership(Stored):
    """What a site knows of the federation that it has joined.

    Args:
        client: Its number there.
        address: Host and port of the server.
        certificate: The site's present certificate, PEM.
        ca: The certificate of the federation's authority, PEM.
        invitation: The name of the invitation that it enrolled with last.
    """

    site: str
    client: _Client
    federation: str
    address: str
    certificate: _Pem
    ca: _Pem
    invitation: Annotated[str, Field(max_length=64)] | None = None


class SiteIdentity:
    """The key and the certificate of a site, in a folder that only its owner may enter.

    A crash at any time leaves the folder such that :meth:`enrol` or :meth:`renew` may be called again.

    Args:
        folder: The folder; made if missing.
        now: The clock.

    Raises:
        RunError: The folder cannot be made.
    """

    def __init__(self, folder: Path, now: Clock = time.time) -> None:
        private_folder(folder, REMEDY)
        self._folder, self._now = folder, now

    @property
    def membership(self) -> Membership | None:
        """What the site knows of its federation; None before it has enrolled.

        Raises:
            RunError: The file is damaged.
        """
        return read_stored(self._folder / _FILE, Membership, "it is no site's identity", _JOIN_AGAIN)

    def enrolment_material(self, token: JoinToken) -> Material:
        """Return what a site shows and trusts when it enrols: the token's secret vouches for the site's own key."""
        key = self._key()
        certificate = invitation_certificate(token.secret, key.public_key())
        return Material(key_pem(key), certificate_pem(certificate), token.authority_pem)

    def material(self) -> Material:
        """Return what a site that has enrolled shows and trusts.

        Raises:
            RunError: The site has not enrolled.
        """
        membership = self._joined()
        return Material(key_pem(self._key()), membership.certificate.encode(), membership.ca.encode())

    def enrol(self, token: JoinToken, call: Call) -> Membership:
        """Have the site's key signed by the federation of a token, and store what comes back.

        Args:
            token: The token; it may be used again after a crash, from this folder only.
            call: Sends a message over a connection with :meth:`enrolment_material`.

        Raises:
            IdentityError: The token has expired, or is of another federation than the folder; the server refuses it,
                or gives an answer that is not valid.
            RunError: The folder cannot be written, or is damaged.
        """
        token.require_current(self._now())
        present = self.membership
        if present is not None and present.federation != token.federation:
            raise IdentityError(
                f"{self._folder} belongs to the federation {present.federation} and the token to {token.federation}: "
                "join the other federation in a folder of its own"
            )
        answer = self._ask(call, token.authority_pem)
        return self._store(token.site, token.address, invitation_name(token.secret), answer)

    def renewal_due(self) -> bool:
        """Return whether a third or less of the certificate's life is left.

        Raises:
            RunError: The site has not enrolled.
        """
        certificate = load_certificate(self._joined().certificate.encode())
        life = ends(certificate) - certificate.not_valid_before_utc.timestamp()
        return self._now() >= ends(certificate) - life / 3

    def renew(self, call: Call) -> Membership:
        """Replace the certificate by a new one for the same key.

        Args:
            call: Sends a message over a connection with :meth:`material`.

        Raises:
            IdentityError: The server refuses, or gives an answer that is not valid; the present certificate stays.
            RunError: The site has not enrolled, or the folder cannot be written.
        """
        present = self._joined()
        answer = self._ask(call, present.ca.encode())
        return self._store(present.site, present.address, present.invitation, answer)

    def renew_if_due(self, call: Call, log: Callable[[str], None]) -> None:
        """Replace the certificate if it is time; a server that is not there is asked the next time.

        Args:
            call: Sends a message over a connection with :meth:`material`.
            log: Called with what happens.

        Raises:
            IdentityError: The server refuses, or gives an answer that is not valid; or the certificate has expired.
        """
        if not self.renewal_due():
            return
        self.require_current()
        try:
            self.renew(call)
        except RunError as error:
            log(f"the certificate could not be renewed yet: {error}")
        else:
            log("the certificate is renewed")

    def keep_renewed(self, call: Call, wait: Callable[[float], bool], log: Callable[[str], None]) -> None:
        """Replace the certificate each time that it is due: the work of a thread.

        Connections that are open go on, and the next one shows the new certificate.

        Args:
            call: Sends a message over a connection with :meth:`material`.
            wait: Waits for so many seconds, and returns whether this is to end.
            log: Called with what happens.
        """
        while not wait(EVERY):
            try:
                self.renew_if_due(call, log)
            except FednlpError as error:  # the connection goes on while it may
                log(f"the certificate could not be renewed: {error}")

    def require_current(self) -> None:
        """Refuse to go on with a certificate that has expired by this machine's clock.

        Raises:
            IdentityError: It has expired; the message names the date.
            RunError: The site has not enrolled.
        """
        until = ends(load_certificate(self._joined().certificate.encode()))
        if self._now() >= until:
            raise IdentityError(
                f"this site's certificate expired on {date_text(until)} by this machine's clock: set the clock, or "
                f"{ASK_AGAIN}"
            )

    def _joined(self) -> Membership:
        membership = self.membership
        if membership is None:
            raise RunError(f"{self._folder} has not joined a federation: type fednlp join and the token")
        return membership

    def _key(self) -> EllipticCurvePrivateKey:
        """Return the site's private key; it is made on first use."""
        path = self._folder / _KEY_FILE
        with locked(self._folder / "key.lock", REMEDY):
            if not path.exists():
                write_private(path, key_pem(new_key()), REMEDY)
        try:
            return load_key(regular(path).read_bytes())
        except (IdentityError, OSError) as error:
            raise damaged(path, error, _JOIN_AGAIN) from None

    def _ask(self, call: Call, authority: bytes) -> _Answer:
        """Return the server's answer to a signing request: for this key, by this authority."""
        key = self._key()
        builder = x509.CertificateSigningRequestBuilder().subject_name(common_name("site"))
        csr = builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
        answer = _parse(call(json.dumps({"version": VERSION, "csr": csr.decode()}).encode()))
        root, certificate = load_certificate(authority), load_certificate(answer.certificate.encode())
        if load_certificate(answer.ca.encode()) != root or not is_issued_by(certificate, root):
            raise IdentityError(
                "the server's answer is signed by another authority than the join token names"
            )
        if key_id(public_key(certificate)) != key_id(key.public_key()):
            raise IdentityError("the server's answer is for another key than this site's")
        return answer

    def _store(self, site: str, address: str, invitation: str | None, answer: _Answer) -> Membership:
        root = load_certificate(answer.ca.encode())
        membership = Membership(
            site=site,
            client=answer.client,
            federation=root.fingerprint(SHA256()).hex()[:16],
            address=address,
            certificate=answer.certificate,
            ca=answer.ca,
            invitation=invitation,
        )
        write_private(self._folder / _FILE, membership.model_dump_json(indent=1).encode(), REMEDY)
        return membership


def _parse(message: bytes) -> _Answer:
    """Return the answer of a server.

    Raises:
        IdentityError: It refuses, or the message is not valid.
    """
    if len(message) <= MOST_MESSAGE_BYTES:
        try:
            return _Answer.model_validate_json(message)
        except ValidationError:
            pass
        try:
            refusal = _Refusal.model_validate_json(message)
        except ValidationError:
            pass
        else:
            raise IdentityError(f"the server refuses: {clean(refusal.refused)[:_LONGEST_REASON]}")
    raise IdentityError(
        "the server's answer is no message of enrolment: install the fednlp version of the server"
    )
