"""X.509 as a federation uses it: what it reads of others, what it signs itself, and the authority that signs.

All keys are on the curve P-256. Certificates and signing requests of others are read here and nowhere else. Only their
key and their signature count: names and extensions that somebody else wrote are never taken over. The certificates that
a federation makes have a few fixed shapes. Its authority knows nothing of sites but their numbers: whether a
certificate that it has signed is still good is for the register of sites to say
(:mod:`fednlp.deployment.identity.site_registry`).
"""

import re
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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
EARLY = timedelta(days=2)
"""Certificates are valid from this long ago: a clock that is wrong by a day locks nobody out."""
FIRST = datetime(2000, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""Without a well-defined end: RFC 5280, section 4.1.2.5."""
MOST_BYTES = 4096
"""Longest certificate or signing request of others that is read, as PEM."""
DAMAGED = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What reading a certificate, a key or a part of one raises where it is not as it has to be."""
_LARGEST_FILE = 1 << 20
_ONE_PEM = re.compile(rb"\s*-----BEGIN ([A-Z ]{1,40})-----[0-9A-Za-z+/=\s]+-----END \1-----\s*")


class Material(NamedTuple):
    """What one end of a TLS connection shows and trusts.

    Args:
        chain: Its certificate, and those between it and the root, PEM.
        roots: The certificates that it trusts, PEM.
    """

    key: bytes
    chain: bytes
    roots: bytes

    def __repr__(self) -> str:
        return f"Material(chain={self.chain!r}, roots={self.roots!r})"


def new_key() -> EllipticCurvePrivateKey:
    """Return a fresh private key from the operating system's randomness."""
    return generate_private_key(SECP256R1())


def key_pem(key: EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM (PKCS #8, not encrypted)."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(Encoding.PEM)


def load_key(pem: bytes) -> EllipticCurvePrivateKey:
    """Read a private key that :func:`key_pem` wrote.

    Raises:
        IdentityError: It is damaged, or of another type.
    """
    try:
        key = load_pem_private_key(pem, None)
    except DAMAGED:
        raise IdentityError("the private key is damaged") from None
    if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
        raise IdentityError("the private key is not on the curve P-256")
    return key


def load_certificate(pem: bytes) -> x509.Certificate:
    """Read one certificate, and nothing else, that holds a key on P-256.

    Args:
        pem: The certificate; at most :data:`MOST_BYTES` bytes.

    Raises:
        IdentityError: It is anything else.
    """
    _require_pem(pem, b"CERTIFICATE", "certificate")
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        _p256(certificate.public_key(), "certificate")
        numbered = certificate.serial_number > 0
    except (*DAMAGED, CryptographyDeprecationWarning):  # the warning is an error where one asks for that
        raise IdentityError("the certificate is damaged") from None
    if not numbered:
        raise IdentityError("the certificate is damaged: its serial number is not above zero")
    return certificate


def require_shown(pem: bytes | None) -> bytes:
    """Return the certificate that a peer has shown.

    Raises:
        IdentityError: It has shown none.
    """
    if pem is None:
        raise IdentityError("no certificate was shown: only mutual TLS is accepted")
    return pem


def read_certificates(path: Path) -> bytes:
    """Return a file of certificates, PEM.

    Raises:
        IdentityError: It cannot be read, or holds none.
    """
    pem = read_file(path)
    certificates_in(pem, path)
    return pem


def read_file(path: Path) -> bytes:
    """Return the bytes of a file of a certificate or a key.

    Raises:
        IdentityError: It cannot be read, or is larger than any.
    """
    try:
        if regular(path).stat().st_size > _LARGEST_FILE:
            raise IdentityError(f"{path} is larger than any file of certificates")
        return path.read_bytes()
    except OSError as error:
        raise IdentityError(f"{path} cannot be read: {error.strerror}") from None


def certificates_in(pem: bytes, path: Path) -> list[x509.Certificate]:
    """Return the certificates of a file, which are of any kind.

    Raises:
        IdentityError: It holds none.
    """
    try:
        return x509.load_pem_x509_certificates(pem)
    except DAMAGED:
        raise IdentityError(f"{path} holds no certificates in PEM") from None


def load_request(pem: bytes) -> x509.CertificateSigningRequest:
    """Read a signing request for a key on P-256, signed with this key; its names and extensions are not looked at.

    Args:
        pem: The request; at most :data:`MOST_BYTES` bytes.

    Raises:
        IdentityError: It is anything else.
    """
    _require_pem(pem, b"CERTIFICATE REQUEST", "signing request")
    try:
        request = x509.load_pem_x509_csr(pem)
        _p256(request.public_key(), "signing request")
        signed = request.is_signature_valid and isinstance(request.signature_hash_algorithm, SHA256)
    except DAMAGED:
        raise IdentityError("the signing request is damaged") from None
    if not signed:
        raise IdentityError("the signing request is not signed by its own key with SHA-256")
    return request


def _require_pem(pem: bytes, kind: bytes, what: str) -> None:
    if len(pem) > MOST_BYTES:
        raise IdentityError(f"the {what} is longer than {MOST_BYTES} bytes")
    match = _ONE_PEM.fullmatch(pem)
    if match is None or match[1] != kind:
        raise IdentityError(f"the {what} is not one PEM block")


def _p256(key: object, what: str) -> None:
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise IdentityError(
            f"the {what} holds another type of key: only keys on the curve P-256 are accepted"
        )


def public_key(holder: x509.Certificate | x509.CertificateSigningRequest) -> EllipticCurvePublicKey:
    """Return the key of what :func:`load_certificate` or :func:`load_request` has read."""
    key = holder.public_key()
    assert isinstance(key, EllipticCurvePublicKey)
    return key


def key_id(key: EllipticCurvePublicKey) -> str:
    """Return the SHA-256 of a public key (its SubjectPublicKeyInfo), in hexadecimal."""
    digest = Hash(SHA256())
    digest.update(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    return digest.finalize().hex()


def show(context: ssl.SSLContext, material: Material) -> None:
    """Have a TLS context show a key and a chain, and trust the roots.

    Args:
        material: What it shows and trusts.
    """
    context.load_verify_locations(cadata=material.roots.decode())
    # Python reads keys from files alone, and only this user may enter the folder.
    with TemporaryDirectory() as folder:
        key, chain = Path(folder) / "key", Path(folder) / "chain"
        key.write_bytes(material.key)
        chain.write_bytes(material.chain)
        context.load_cert_chain(chain, key)


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate, in hexadecimal."""
    return certificate.fingerprint(SHA256()).hex()


def ends(certificate: x509.Certificate) -> float:
    """Return until when a certificate is valid, seconds since 1970."""
    return certificate.not_valid_after_utc.timestamp()


def common_name(name: str) -> x509.Name:
    """Return a distinguished name that has nothing but a common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Return whether a certificate names the issuer and bears its signature."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (*DAMAGED, InvalidSignature):
        return False
    return True


def new_root(name: str, key: EllipticCurvePrivateKey, begins: datetime, ends: datetime) -> x509.Certificate:
    """Return a self-signed certificate whose key may sign certificates of its own and no further authorities.

    Args:
        name: Its common name, at most 64 bytes in UTF-8.
        begins: When it is first valid.
        ends: When it is last valid.
    """
    builder = _builder(common_name(name), common_name(name), key.public_key(), begins, ends, serial=1)
    return (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .sign(key, SHA256())
    )


def new_leaf(
    name: str,
    key: EllipticCurvePublicKey,
    issuer: x509.Name,
    issuer_key: EllipticCurvePrivateKey,
    *,
    begins: datetime,
    ends: datetime,
    hosts: x509.SubjectAlternativeName | None = None,
) -> x509.Certificate:
    """Return a certificate for one end of a connection, a server's or a client's.

    Args:
        name: Its common name, at most 64 bytes in UTF-8.
        key: The public key that it is for.
        issuer: The subject of the authority's certificate.
        begins: When it is first valid.
        ends: When it is last valid.
        hosts: Names and addresses of a server; None for a client. It is good for nothing else.
    """
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH if hosts is None else ExtendedKeyUsageOID.SERVER_AUTH
    serial = x509.random_serial_number()
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = (
        _builder(common_name(name), issuer, key, begins, ends, serial)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(authority, critical=False)
    )
    if hosts is not None:
        builder = builder.add_extension(hosts, critical=False)
    return builder.sign(issuer_key, SHA256())


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePublicKey,
    begins: datetime,
    ends: datetime,
    serial: int,
) -> x509.CertificateBuilder:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(identifier, critical=False)
    )


def _usage(key_cert_sign: bool = False, digital_signature: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


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
            request: What :func:`load_request` has accepted.
            client: The site's number.
        """
        begins, ends = self._life()
        name, key = f"site-{client}", public_key(request)
        return new_leaf(name, key, self._certificate.subject, self._key, begins=begins, ends=ends)

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
                (begins, ends), key = self._life(), new_key()
                certificate = new_leaf(
                    SERVER_NAME,
                    key.public_key(),
                    self._certificate.subject,
                    self._key,
                    begins=begins,
                    ends=ends,
                    hosts=x509.SubjectAlternativeName(
                        [_host(name) for name in dict.fromkeys((SERVER_NAME, *hosts))]
                    ),
                )
                self._server = (tuple(hosts), ends, (key_pem(key), certificate_pem(certificate)))
            return self._server[2]

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
