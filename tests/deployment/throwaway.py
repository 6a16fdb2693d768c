"""Certificates that live as long as a test: an authority, and what it signs for one server and any number of sites."""

import datetime
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fednlp.deployment.identity.certificates import Material

SERVER = "fednlp-server"


class Authority:
    """Signs certificates for an hour."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "throwaway")])
        self.certificate = self._sign(self.name, self.key, authority=True)

    def server(self) -> Any:
        """Return the credentials of a server that lets in whom this authority has signed."""
        return grpc.ssl_server_credentials([self.server_pair()], self.pem, require_client_auth=True)

    def site(self, name: str) -> Any:
        """Return the credentials of a site, whose certificate has this name."""
        key, certificate = self._pair(name)
        return grpc.ssl_channel_credentials(self.pem, key, certificate)

    def material(self, name: str) -> Material:
        """Return what an end shows and trusts, whose certificate has this name."""
        return Material(*self._pair(name), self.pem)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def server_pair(self, host: str = SERVER) -> tuple[bytes, bytes]:
        """Return the key and the certificate of a server, in PEM."""
        return self._pair(host, host)

    def _pair(self, name: str, host: str = SERVER) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, authority=False, host=host
        )
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return text, certificate.public_bytes(serialization.Encoding.PEM)

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, authority: bool, host: str = SERVER
    ) -> x509.Certificate:
        own, issuer = key.public_key(), self.key.public_key()  # Python 3.13 asks for both identifiers
        now, hour = datetime.datetime.now(datetime.UTC), datetime.timedelta(hours=1)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - hour)
            .not_valid_after(now + hour)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(own), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
            .add_extension(_usage(authority), critical=True)
            .sign(self.key, hashes.SHA256())
        )


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def name_of(certificate: bytes) -> str:
    """Return the name in a certificate."""
    found = x509.load_pem_x509_certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value)
