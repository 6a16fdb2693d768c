"""The federation's own small certificate authority: it signs certificates of sites, and the server's.

It knows nothing of sites but their numbers. Whether a certificate that it has signed is still good is for the register
of sites to say (:mod:`fednlp.deployment.identity.site_registry`).
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from fednlp.deployment.identity.certificates import (
    certificate_pem,
    is_issued_by,
    key_id,
    key_pem,
    load_certificate,
    load_key,
    new_key,
    public_key,
)
from fednlp.deployment.identity.issuing import CLIENT, EARLY, SERVER, new_leaf, new_root
from fednlp.disk import locked, private_folder, regular, write_private
from fednlp.errors import IdentityError, RunError

Clock = Callable[[], float]
"""Returns seconds since 1970."""

SERVER_NAME = "fednlp-server"
"""The name that every server's certificate bears and every site checks, whatever the address is."""
LIFE = timedelta(days=90)
"""Of the certificates of sites and servers."""
REMEDY = "free some space or name another folder"
_FILE = "authority.pem"
_AUTHORITY_LIFE = timedelta(days=20 * 365)


class Authority:
    """A key that signs, and the certificate that says so; :meth:`open` reads or makes them."""

    def __init__(self, key: EllipticCurvePrivateKey, certificate: x509.Certificate, now: Clock) -> None:
        self._key, self._certificate, self._now = key, certificate, now
        self._server: tuple[tuple[str, ...], datetime, tuple[bytes, bytes]] | None = None
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: Path, now: Clock = time.time) -> Self:
        """Read the authority of a federation; make it on first use.

        Key and certificate lie in one file, which appears whole or not at all and which only its owner may read.

        Args:
            folder: The federation's folder on the server.
            now: The clock.

        Raises:
            RunError: The folder cannot be written, or the file is damaged.
        """
        path = folder / _FILE
        private_folder(folder, REMEDY)
        with locked(folder / "authority.lock", REMEDY):
            if not path.exists():
                write_private(path, _new_authority(now), REMEDY)
        try:
            key_part, mark, certificate_part = (
                regular(path).read_bytes().partition(b"-----BEGIN CERTIFICATE-----")
            )
            key, certificate = load_key(key_part), load_certificate(mark + certificate_part)
            own = key_id(key.public_key()) == key_id(public_key(certificate))
            if not own or not is_issued_by(certificate, certificate):
                raise IdentityError("its key and its certificate do not belong together")
        except (IdentityError, OSError) as error:
            raise RunError(
                f"{path} is damaged ({error}): restore it from a backup; without it, every site has to enrol again"
            ) from None
        return cls(key, certificate, now)

    @property
    def pem(self) -> bytes:
        """The authority's certificate, PEM."""
        return certificate_pem(self._certificate)

    @property
    def der(self) -> bytes:
        """The authority's certificate, DER, as a join token holds it."""
        return self._certificate.public_bytes(Encoding.DER)

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the authority's certificate, 32 bytes."""
        return self._certificate.fingerprint(SHA256())

    @property
    def federation(self) -> str:
        """The federation's id: the first 16 hexadecimal digits of the fingerprint."""
        return self.fingerprint.hex()[:16]

    def sign(self, request: x509.CertificateSigningRequest, client: int) -> x509.Certificate:
        """Return a site's certificate, good for 90 days and as a client of TLS only.

        Nothing but the key is taken from the request.

        Args:
            request: What :func:`~fednlp.deployment.identity.certificates.load_request` has accepted.
            client: The site's number.
        """
        begins, ends = self._life()
        name, key = f"site-{client}", public_key(request)
        return new_leaf(
            name, key, self._certificate.subject, self._key, begins=begins, ends=ends, purpose=CLIENT
        )

    def has_signed(self, certificate: x509.Certificate) -> bool:
        """Return whether a certificate bears the authority's name as issuer, and its signature."""
        return is_issued_by(certificate, self._certificate)

    def server_certificate(self, hosts: Sequence[str] = ()) -> tuple[bytes, bytes]:
        """Return the private key and the certificate that the server shows, PEM; thread-safe.

        Both live in memory alone: a server that starts again makes new ones. They are replaced when a third of their
        life is left.

        Args:
            hosts: Further names and IP addresses than :data:`SERVER_NAME`.
        """
        with self._lock:
            now = datetime.fromtimestamp(self._now(), UTC)
            if self._server is None or self._server[0] != tuple(hosts) or now > self._server[1] - LIFE / 3:
                begins, ends = self._life()
                self._server = (tuple(hosts), ends, self._new_server(hosts, begins, ends))
            return self._server[2]

    def _new_server(self, hosts: Sequence[str], begins: datetime, ends: datetime) -> tuple[bytes, bytes]:
        key = new_key()
        certificate = new_leaf(
            SERVER_NAME,
            key.public_key(),
            self._certificate.subject,
            self._key,
            begins=begins,
            ends=ends,
            purpose=SERVER,
            hosts=x509.SubjectAlternativeName([_host(name) for name in dict.fromkeys((SERVER_NAME, *hosts))]),
        )
        return key_pem(key), certificate_pem(certificate)

    def _life(self) -> tuple[datetime, datetime]:
        now = datetime.fromtimestamp(int(self._now()), UTC)
        return now - EARLY, now + LIFE


def _new_authority(now: Clock) -> bytes:
    key, begins = new_key(), datetime.fromtimestamp(int(now()), UTC) - EARLY
    certificate = new_root("fednlp federation", key, begins, begins + _AUTHORITY_LIFE)
    return key_pem(key) + certificate_pem(certificate)


def _host(name: str) -> x509.GeneralName:
    """Return a host as a subject alternative name.

    Raises:
        IdentityError: It is neither an IP address nor a name in ASCII.
    """
    try:
        return x509.IPAddress(ip_address(name.strip("[]")))
    except ValueError:
        pass
    if not name.isascii() or not 0 < len(name) <= 253:
        raise IdentityError(f"{name[:80]!r} is no host name: use an IP address or a name in ASCII")
    return x509.DNSName(name)
