"""X.509 as a federation reads it: keys on the curve P-256, certificates and signing requests, strictly.

Certificates and signing requests of others are read here and nowhere else. Only their key and their signature count:
names and extensions that somebody else wrote are never taken over.
"""

import re
import ssl
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

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
from cryptography.x509.oid import NameOID

from fednlp.errors import IdentityError

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
_ONE_PEM = re.compile(rb"\s*-----BEGIN ([A-Z ]{1,40})-----[0-9A-Za-z+/=\s]+-----END \1-----\s*")


class Material(NamedTuple):
    """What one end of a TLS connection shows and trusts.

    Args:
        key: Its private key, PEM.
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
        context: Changed in place.
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
