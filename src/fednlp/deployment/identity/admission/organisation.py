"""Certificates that an organisation issues itself: ``--ca``, ``--cert`` and ``--key`` in place of join tokens.

Then there is nothing to enrol: the organisation's authority says who somebody is, and the register of sites says who
takes part. Files are read again at every handshake, so certificates may be replaced while a server or a site runs.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from fednlp.checked_json.stored import Stored, read_stored
from fednlp.deployment.identity.admission.balancer import Challenges
from fednlp.deployment.identity.certificates import (
    DAMAGED,
    REMEDY,
    Material,
    certificates_in,
    read_certificates,
    read_file,
    require_shown,
)
from fednlp.deployment.identity.names import server_address, site_name
from fednlp.deployment.identity.site_registry import Register, Site
from fednlp.deployment.identity.tokens import date_text
from fednlp.disk import write_private
from fednlp.errors import IdentityError
from fednlp.formatting.safe_text import clean

_MOST_SHOWN = 200
FILE = "organisation.json"
"""In a federation's folder at a site that has an organisation's certificate."""


@dataclass(frozen=True)
class Files:
    """The files of one end of a connection, all PEM.

    Attributes:
        ca: One or more certificates to trust.
        cert: This end's certificate and those between it and the root.
        key: The private key of the first certificate, not encrypted.
    """

    ca: Path
    cert: Path
    key: Path

    def material(self) -> Material:
        """Read what this end shows and trusts.

        Raises:
            IdentityError: A file cannot be read, is not PEM, or key and certificate do not belong together.
        """
        roots, chain, private = read_certificates(self.ca), read_file(self.cert), read_file(self.key)
        first = certificates_in(chain, self.cert)[0]
        try:
            shown = _spki(first.public_key())
        except DAMAGED:
            raise IdentityError(f"{self.cert} holds a key that is damaged, or of an unknown type") from None
        try:
            own = _spki(load_pem_private_key(private, None).public_key())
        except DAMAGED:
            raise IdentityError(f"{self.key} is no private key in PEM without a password") from None
        if own != shown:
            raise IdentityError(f"{self.key} is not the private key of the first certificate in {self.cert}")
        return Material(private, chain, roots)

    def require_current(self, now: float) -> None:
        """Refuse a certificate that is not valid by this machine's clock.

        Args:
            now: Seconds since 1970.

        Raises:
            IdentityError: It has expired or is not valid yet; the message names the date. Or as :meth:`material`.
        """
        shown = x509.load_pem_x509_certificates(self.material().chain)[0]
        begins, ends = shown.not_valid_before_utc.timestamp(), shown.not_valid_after_utc.timestamp()
        clock = f"this machine's clock says {date_text(now)}"
        if now >= ends:
            raise IdentityError(
                f"{self.cert} expired on {date_text(ends)}, and {clock}: have a new one issued, or set the clock"
            )
        if now < begins:
            raise IdentityError(f"{self.cert} is valid from {date_text(begins)}, and {clock}: set the clock")

    def site(self) -> str:
        """Return the site's name in the certificate: its common name, or its first DNS name that can be one.

        Raises:
            IdentityError: There is none. Or as :meth:`material`.
        """
        chain = self.material().chain
        try:
            names = _names(chain)
        except IdentityError as error:
            raise IdentityError(f"{self.cert}: {error}") from None
        for name in names:
            with suppress(IdentityError):
                return site_name(name)
        raise IdentityError(
            f"{self.cert} names no site: its common name or a DNS name has to be the site's name at the server"
        )


class Organised(Stored):
    """How a site reaches its server with an organisation's files.

    Attributes:
        address: ``host:port`` of the server.
        ca: Path, as the others: see :class:`Files`.
    """

    site: str
    address: str
    ca: str
    cert: str
    key: str

    @property
    def files(self) -> Files:
        """The site's files."""
        return Files(Path(self.ca), Path(self.cert), Path(self.key))


def store_organisation(folder: Path, address: str, files: Files) -> None:
    """Store that a site reaches its server with an organisation's files.

    Args:
        folder: Of the federation at this site.
        address: ``host:port`` of the server.

    Raises:
        IdentityError: The address or a file is not valid.
        RunError: The folder cannot be written.
    """
    ca, cert, key = (str(path.absolute()) for path in (files.ca, files.cert, files.key))
    stored = Organised(site=files.site(), address=server_address(address), ca=ca, cert=cert, key=key)
    write_private(folder / FILE, stored.model_dump_json(indent=1).encode(), REMEDY)


def stored_organisation(folder: Path) -> Organised | None:
    """Return how a site reaches its server with an organisation's files; None where it has a certificate of its own.

    Args:
        folder: Of the federation at this site.

    Raises:
        RunError: The file that says so is damaged.
    """
    what = "it does not say how the server is reached"
    return read_stored(folder / FILE, Organised, what, "delete it and join again")


class Replaceable:
    """Files that may be replaced while they are used: while they do not fit, what they held before counts.

    Args:
        files: The files.
        log: Told once when they do not fit.

    Raises:
        IdentityError: They do not fit to begin with.
    """

    def __init__(self, files: Files, log: Callable[[str], None] = lambda line: None) -> None:
        self._files, self._log = files, log
        self._last, self._said = files.material(), ""

    def material(self) -> Material:
        """Return what the files hold now, or held last."""
        try:
            self._last, self._said = self._files.material(), ""
        except IdentityError as error:
            if self._said != str(error):
                self._said = str(error)
                self._log(f"{error}; what it held before is used")
        return self._last


class OrganisationAdmission:
    """Admission of sites whose certificates an organisation has issued.

    A site's name in the register is the common name of its certificate or one of its alternative DNS names.

    Args:
        files: The authorities of the sites' certificates, and the server's certificate and key.
        register: Who takes part: :meth:`Register.expect` adds a site.
        log: Told when the files were replaced by some that do not fit.

    Raises:
        IdentityError: A file is not valid, or the certificate has expired.
    """

    def __init__(
        self, files: Files, register: Register, log: Callable[[str], None] = lambda line: None
    ) -> None:
        files.require_current(time.time())
        self._files, self.register = Replaceable(files, log), register
        self.challenges: Challenges | None = None  # TLS shows who a site is

    def material(self) -> Material:
        """Return what the files hold now."""
        return self._files.material()

    def authorise(self, certificate: bytes | None) -> Site:
        """Return the one site that a certificate names.

        Raises:
            IdentityError: It names none, a removed one, or more than one.
        """
        names = _names(require_shown(certificate))
        sites = [site for site in self.register.sites() if site.name in names]
        if not sites:
            said = ", ".join(map(repr, map(clean, names)))[:_MOST_SHOWN] or "nothing"
            raise IdentityError(
                f"the certificate names {said}, and no site of the federation is called so: at the server, add it with "
                "fednlp sites invite"
            )
        if len(sites) > 1:
            raise IdentityError(
                f"the certificate names {len(sites)} sites of the federation ({sites[0].name}, {sites[1].name}), and "
                "it must name one"
            )
        if sites[0].state != "enrolled":
            raise IdentityError(f"the site {sites[0].name} does not take part: it is {sites[0].state}")
        return sites[0]

    def require_known(self, certificate: bytes | None) -> None:
        """Check that a certificate names one site; see :meth:`authorise`."""
        self.authorise(certificate)

    def enrol(self, certificate: bytes | None, message: bytes) -> bytes:
        """Refuse: there is nothing to enrol."""
        reason = "this federation uses an organisation's certificates: join with --ca, --cert and --key"
        return json.dumps({"refused": reason}).encode()


def _spki(key: object) -> bytes:
    encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return bytes(encoded)


def _names(pem: bytes) -> list[str]:
    """Return the common name and the DNS names of the first certificate."""
    try:
        certificate = x509.load_pem_x509_certificates(pem)[0]
        found = [str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return found
        return list(dict.fromkeys([*found, *names.get_values_for_type(x509.DNSName)]))
    except DAMAGED:
        raise IdentityError("the certificate is damaged") from None
