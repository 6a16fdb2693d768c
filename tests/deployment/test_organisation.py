"""Certificates of an organisation's own authority: RSA or not, by common name or DNS name."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from fednlp.deployment.identity.admission.organisation import Files, OrganisationAdmission
from fednlp.deployment.identity.certificates import certificate_pem, common_name, new_key
from fednlp.deployment.identity.site_registry import Register
from fednlp.errors import IdentityError

from .federation import NOW, refusal
from .tls import handshake


class Organisation:
    """An authority with an RSA key, and what it has issued, as files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, rsa.generate_private_key(65537, 2048)
        self.lines: list[str] = []
        (folder / "ca.pem").write_bytes(certificate_pem(self.signed("Hospital CA", self.key, authority=True)))
        self.issue("server", new_key(), x509.DNSName("fednlp-server"))

    def signed(
        self, name: str, key: Any, *hosts: x509.GeneralName, authority: bool = False
    ) -> x509.Certificate:
        begins = datetime.now(UTC) - timedelta(days=1)
        builder = (
            x509.CertificateBuilder()
            .subject_name(common_name(name))
            .issuer_name(common_name("Hospital CA"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(begins + timedelta(days=9))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        if authority:
            builder = builder.add_extension(
                x509.KeyUsage(False, False, False, False, False, True, True, False, False), critical=True
            )
        else:
            issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
            builder = builder.add_extension(issuer, critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        return builder.sign(self.key, SHA256())

    def issue(self, name: str, key: Any, *hosts: x509.GeneralName) -> Files:
        """Return the files for --ca, --cert and --key."""
        cert, private = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        cert.write_bytes(certificate_pem(self.signed(name, key, *hosts)))
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return Files(self.folder / "ca.pem", cert, private)

    def admission(self) -> OrganisationAdmission:
        register = Register(self.folder / "federation", lambda: NOW)
        files = Files(self.folder / "ca.pem", self.folder / "server.crt", self.folder / "server.key")
        return OrganisationAdmission(files, register, self.lines.append)


@pytest.fixture
def organisation(tmp_path: Path) -> Organisation:
    return Organisation(tmp_path)


def test_a_site_takes_part_by_its_name(organisation: Organisation) -> None:
    """RSA is the organisation's choice."""
    admission = organisation.admission()
    admission.register.expect("north")
    site = organisation.issue("north", rsa.generate_private_key(65537, 2048)).material()
    assert handshake(admission.material(), site) == "north"
    assert admission.authorise(site.chain).client == 0
    named = organisation.issue("host7", new_key(), x509.DNSName("other"), x509.DNSName("north"))
    assert admission.authorise(named.material().chain).client == 0


def test_others_do_not(organisation: Organisation) -> None:
    admission = organisation.admission()
    for name in ("north", "south"):
        admission.register.expect(name)
    both = organisation.issue("north", new_key(), x509.DNSName("south")).material().chain
    with pytest.raises(IdentityError, match=r"names 2 sites of the federation \(north, south\)"):
        admission.authorise(both)
    none = organisation.issue("stranger", new_key()).material().chain
    with pytest.raises(
        IdentityError,
        match=r"names 'stranger', and no site of the federation is called so: .* fednlp sites invite",
    ):
        admission.authorise(none)
    admission.register.remove("north")
    gone = organisation.issue("north", new_key()).material().chain
    with pytest.raises(IdentityError, match="the site north does not take part: it is removed"):
        admission.authorise(gone)
    with pytest.raises(IdentityError, match="damaged"):
        admission.authorise(b"x")
    assert "join with --ca, --cert and --key" in refusal(admission.enrol(gone, b"{}"))


def test_a_replaced_file_counts_at_the_next_handshake(organisation: Organisation) -> None:
    admission = organisation.admission()
    before = admission.material()
    organisation.issue("server", new_key(), x509.DNSName("fednlp-server"))
    assert admission.material() != before


def test_wrong_files_are_one_line(organisation: Organisation, tmp_path: Path) -> None:
    files = organisation.issue("north", new_key())
    ca, cert, key = files.ca, files.cert, files.key
    other = organisation.issue("south", new_key()).key
    locked, text = tmp_path / "locked.key", tmp_path / "text"
    private = new_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    locked.write_bytes(private)
    text.write_text("x")
    (tmp_path / "large").write_bytes(bytes(2 << 20))
    for given, reason in (
        ((tmp_path / "none", cert, key), "none cannot be read: No such file"),
        ((tmp_path, cert, key), "cannot be read: Is a directory"),
        ((tmp_path / "large", cert, key), "larger than any file of certificates"),
        ((text, cert, key), "text holds no certificates in PEM"),
        ((ca, text, key), "text holds no certificates in PEM"),
        ((ca, cert, text), "text is no private key in PEM without a password"),
        ((ca, cert, locked), "locked.key is no private key in PEM without a password"),
        ((ca, cert, other), "south.key is not the private key of the first certificate in .*north.crt"),
    ):
        with pytest.raises(IdentityError, match=reason) as caught:
            Files(*given).material()
        assert "\n" not in str(caught.value)
