"""A federation of a server and some sites in one folder, with a clock that tests turn."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from fednlp.deployment.identity.admission.federation import FederationAdmission
from fednlp.deployment.identity.certificates import common_name, new_key
from fednlp.deployment.identity.enrolment import invite, store_address
from fednlp.deployment.identity.site_identity import SiteIdentity
from fednlp.deployment.identity.tokens import JoinToken

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
DAY = 24 * 3600
ADDRESS = "fl.example.org:8443"


class Federation:
    """A server's folder and clock."""

    def __init__(self, folder: Path, time: float = NOW) -> None:
        self.folder, self.time = folder / "federation", time
        store_address(self.folder, ADDRESS)
        self.admission = self.reopened()

    def now(self) -> float:
        return self.time

    def reopened(self) -> FederationAdmission:
        """The same server after a restart."""
        return FederationAdmission(self.folder, ["127.0.0.1", "localhost"], self.now)

    def invite(self, name: str = "north", days: float = 7) -> JoinToken:
        return JoinToken.parse(str(invite(self.folder, name, days, self.now)))

    def site(self, name: str = "north") -> SiteIdentity:
        return SiteIdentity(self.folder.parent / "sites" / name, self.now)

    def call(self, shown: bytes) -> Callable[[bytes], bytes]:
        """A connection on which TLS has checked a certificate."""
        return lambda message: self.admission.enrol(shown, message)

    def joined(self, name: str = "north") -> SiteIdentity:
        """A site that has enrolled."""
        site, token = self.site(name), self.invite(name)
        site.enrol(token, self.call(site.enrolment_material(token).chain))
        return site

    def renew(self, site: SiteIdentity) -> None:
        site.renew(self.call(site.material().chain))


def request_pem(
    key: EllipticCurvePrivateKey, subject: x509.Name | None = None, *sans: x509.GeneralName
) -> bytes:
    """A signing request with whatever names somebody writes into it."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject or common_name("site"))
    if sans:
        builder = builder.add_extension(x509.SubjectAlternativeName(sans), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)


def enrol_message(csr: bytes) -> bytes:
    return json.dumps({"version": 1, "csr": csr.decode("latin-1")}).encode()


def self_signed(name: str = "stranger", key: EllipticCurvePrivateKey | None = None) -> x509.Certificate:
    """A certificate of somebody who is no part of the federation."""
    key = key or new_key()
    begins = datetime.fromtimestamp(NOW, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(common_name(name))
        .issuer_name(common_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - timedelta(days=2))
        .not_valid_after(begins + timedelta(days=90))
        .sign(key, SHA256())
    )


def refusal(answer: bytes) -> str:
    """The reason in an answer that refuses."""
    (reason,) = json.loads(answer).values()
    assert list(json.loads(answer)) == ["refused"]
    assert "\n" not in reason
    return str(reason)
