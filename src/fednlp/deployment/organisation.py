"""Certificates that an organisation issues itself: ``--ca``, ``--cert`` and ``--key`` in place of join tokens.

Then there is nothing to enrol: the organisation's authority says who somebody is, and the register of sites says who
takes part. Files are read again at every handshake, so certificates may be replaced while a server runs.
"""

import json
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from fednlp.deployment.certificates import Material, require_shown
from fednlp.deployment.sites import Register, Site
from fednlp.disk import regular
from fednlp.errors import IdentityError

_LARGEST_FILE = 1 << 20
_WRONG = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)


def organisation_material(ca: Path, cert: Path, key: Path) -> Material:
    """Read what one end of a connection shows and trusts.

    Args:
        ca: One or more certificates to trust, PEM.
        cert: This end's certificate and those between it and the root, PEM.
        key: The private key of the first certificate, PEM, not encrypted.

    Raises:
        IdentityError: A file cannot be read, is not PEM, or key and certificate do not belong together.
    """
    roots, chain, private = _read(ca), _read(cert), _read(key)
    _certificates(roots, ca)
    first = _certificates(chain, cert)[0]
    try:
        public = load_pem_private_key(private, None).public_key()
    except _WRONG:
        raise IdentityError(f"{key} is no private key in PEM without a password") from None
    if _spki(public) != _spki(first.public_key()):
        raise IdentityError(f"{key} is not the private key of the first certificate in {cert}")
    return Material(private, chain, roots)


class OrganisationAdmission:
    """Admission of sites whose certificates an organisation has issued.

    A site's name in the register is the common name of its certificate or one of its alternative DNS names.

    Args:
        ca: The authorities of the sites' certificates, PEM.
        cert: The server's certificate and those between it and its root, PEM.
        key: The server's private key, PEM.
        register: Who takes part: :meth:`Register.expect` adds a site.

    Raises:
        IdentityError: A file is not valid.
    """

    def __init__(self, ca: Path, cert: Path, key: Path, register: Register) -> None:
        self._files, self.register = (ca, cert, key), register
        self.material()

    def material(self) -> Material:
        """Return what the files hold now."""
        return organisation_material(*self._files)

    def authorise(self, certificate: bytes | None) -> Site:
        """Return the one site that a certificate names.

        Raises:
            IdentityError: It names none, a removed one, or more than one.
        """
        names = _names(require_shown(certificate))
        sites = [site for site in self.register.sites() if site.name in names]
        if len(sites) != 1 or sites[0].state != "enrolled":
            raise IdentityError(
                f"this certificate names {len(sites)} sites of the federation that may take part, and it must name one"
                if len(sites) != 1
                else f"the site {sites[0].name} does not take part: it is {sites[0].state}"
            )
        return sites[0]

    def enrol(self, certificate: bytes | None, message: bytes) -> bytes:
        """Refuse: there is nothing to enrol."""
        reason = "this federation uses an organisation's certificates: join with --ca, --cert and --key"
        return json.dumps({"refused": reason}).encode()


def _read(path: Path) -> bytes:
    try:
        if regular(path).stat().st_size > _LARGEST_FILE:
            raise IdentityError(f"{path} is larger than any file of certificates")
        return path.read_bytes()
    except OSError as error:
        raise IdentityError(f"{path} cannot be read: {error.strerror}") from None


def _certificates(pem: bytes, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except _WRONG:
        raise IdentityError(f"{path} holds no certificates in PEM") from None


def _spki(key: object) -> bytes:
    encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return bytes(encoded)


def _names(pem: bytes) -> set[str]:
    """Return the common name and the DNS names of a certificate."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        found = {str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)}
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return found
        return found | set(names.get_values_for_type(x509.DNSName))
    except _WRONG:
        raise IdentityError("the certificate is damaged") from None
