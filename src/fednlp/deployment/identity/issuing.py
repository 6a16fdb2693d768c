"""The certificates that a federation makes: of a few fixed shapes, for keys on the curve P-256."""

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from fednlp.deployment.identity.certificates import common_name

EARLY = timedelta(days=2)
"""Certificates are valid from this long ago: a clock that is wrong by a day locks nobody out."""
FIRST = datetime(2000, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""Without a well-defined end: RFC 5280, section 4.1.2.5."""
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER = ExtendedKeyUsageOID.SERVER_AUTH


def new_root(name: str, key: EllipticCurvePrivateKey, begins: datetime, ends: datetime) -> x509.Certificate:
    """Return a self-signed certificate whose key may sign certificates of its own and no further authorities.

    Args:
        name: Its common name, at most 64 bytes in UTF-8.
        key: The private key.
        begins: When it is first valid.
        ends: When it is last valid.
    """
    builder = _builder(common_name(name), common_name(name), key.public_key(), begins, ends, serial=1)
    usage = _usage(key_cert_sign=True)
    return (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
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
    purpose: ObjectIdentifier,
    hosts: x509.SubjectAlternativeName | None = None,
) -> x509.Certificate:
    """Return a certificate for one end of a connection.

    Args:
        name: Its common name, at most 64 bytes in UTF-8.
        key: The public key that it is for.
        issuer: The subject of the authority's certificate.
        issuer_key: The authority's private key.
        begins: When it is first valid.
        ends: When it is last valid.
        purpose: :data:`CLIENT` or :data:`SERVER`; it is good for nothing else.
        hosts: Names and addresses of a server.
    """
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
