"""The federation's authority: made once, never damaged silently, and of a signing request it takes the key alone."""

from base64 import encodebytes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256, SHA512
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednlp.deployment.identity.certificates import (
    LIFE,
    MOST_BYTES,
    SERVER_NAME,
    Authority,
    certificate_pem,
    common_name,
    is_issued_by,
    key_id,
    key_pem,
    load_certificate,
    load_key,
    load_request,
    new_key,
    public_key,
)
from fednlp.errors import IdentityError, RunError

from .federation import DAY, NOW, request_pem, self_signed

KEY = new_key()
REQUEST = request_pem(KEY)


def authority(folder: Path, time: float = NOW) -> Authority:
    return Authority.open(folder / "federation", lambda: time)


def extension(certificate: x509.Certificate, kind: type[Any]) -> Any:
    return certificate.extensions.get_extension_for_class(kind).value


def test_an_authority_is_made_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: authority(tmp_path).pem, range(8)))
    assert set(made) == {authority(tmp_path).pem}
    assert load_certificate(made[0]).fingerprint(SHA256()) == authority(tmp_path).fingerprint
    assert authority(tmp_path).federation == authority(tmp_path).fingerprint.hex()[:16]


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    authority(tmp_path)
    assert (tmp_path / "federation").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "federation" / "authority.pem").stat().st_mode & 0o777 == 0o600


def test_it_is_an_authority_for_twenty_years_and_signs_no_other(tmp_path: Path) -> None:
    root = load_certificate(authority(tmp_path).pem)
    constraints = extension(root, x509.BasicConstraints)
    assert (constraints.ca, constraints.path_length) == (True, 0)
    assert extension(root, x509.KeyUsage).key_cert_sign
    assert root.not_valid_after_utc - root.not_valid_before_utc >= timedelta(days=20 * 365)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_one_line_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    whole = authority(tmp_path)
    path = tmp_path / "federation" / "authority.pem"
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    with_bit = bytes([content[place] ^ (1 << data.draw(st.integers(0, 7)))])
    damaged = data.draw(st.sampled_from([content[:place], content[:place] + with_bit + content[place + 1 :]]))
    path.write_bytes(damaged)
    try:
        reason = "" if authority(tmp_path).fingerprint == whole.fingerprint else "another authority"
    except RunError as error:
        reason = str(error)
    path.write_bytes(content)
    assert not reason or "restore it from a backup" in reason
    assert "\n" not in reason


def test_a_key_of_another_authority_is_noticed(tmp_path: Path) -> None:
    authority(tmp_path)
    path = tmp_path / "federation" / "authority.pem"
    path.write_bytes(key_pem(KEY) + path.read_bytes().partition(b"-----END PRIVATE KEY-----\n")[2])
    with pytest.raises(RunError, match="do not belong together"):
        authority(tmp_path)


def test_a_site_certificate_is_good_for_one_thing(tmp_path: Path) -> None:
    signer = authority(tmp_path)
    signed = signer.sign(load_request(REQUEST), 3)
    assert is_issued_by(signed, load_certificate(signer.pem))
    assert signer.has_signed(signed)
    assert signed.subject == common_name("site-3")
    assert key_id(public_key(signed)) == key_id(KEY.public_key())
    assert list(extension(signed, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not extension(signed, x509.BasicConstraints).ca
    assert signed.not_valid_before_utc == datetime.fromtimestamp(NOW, UTC) - timedelta(days=2)
    assert signed.not_valid_after_utc == datetime.fromtimestamp(NOW, UTC) + LIFE


HOSTILE_NAMES = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4, unique=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HOSTILE_NAMES)
def test_names_in_a_request_are_dropped(tmp_path: Path, names: list[str]) -> None:
    """Also those of the server, and a wish to be an authority."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in [*names, SERVER_NAME]])
    csr = request_pem(KEY, subject, x509.DNSName(SERVER_NAME), x509.IPAddress(ip_address("127.0.0.1")))
    signed = authority(tmp_path).sign(load_request(csr), 0)
    assert signed.subject == common_name("site-0")
    assert not extension(signed, x509.BasicConstraints).ca
    with pytest.raises(x509.ExtensionNotFound):
        extension(signed, x509.SubjectAlternativeName)


def test_a_certificate_of_a_stranger_with_the_same_name_is_not_its_own(tmp_path: Path) -> None:
    signer = authority(tmp_path)
    assert not signer.has_signed(self_signed("fednlp federation"))
    assert not signer.has_signed(self_signed())
    assert not signer.has_signed(load_certificate(authority(tmp_path / "other").pem))


def csr_of(key: Any, digest: Any = None) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(common_name("site"))
    return builder.sign(key, digest).public_bytes(Encoding.PEM)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "RSA": lambda: csr_of(rsa.generate_private_key(65537, 2048), SHA256()),
    "P-384": lambda: csr_of(ec.generate_private_key(ec.SECP384R1()), SHA256()),
    "secp256k1": lambda: csr_of(ec.generate_private_key(ec.SECP256K1()), SHA256()),
    "Ed25519": lambda: csr_of(ed25519.Ed25519PrivateKey.generate()),
    "SHA-512": lambda: csr_of(KEY, SHA512()),
    "empty": lambda: b"",
    "text": lambda: b"sign me",
    "two": lambda: REQUEST + REQUEST,
    "text before": lambda: b"x" + REQUEST,
    "a certificate": lambda: certificate_pem(self_signed()),
    "a key": lambda: key_pem(KEY),
    "another label": lambda: REQUEST.replace(b"CERTIFICATE REQUEST", b"CERTIFICATE"),
    "oversized": lambda: request_pem(KEY, None, *[x509.DNSName("x" * 200)] * 40),
    "padded": lambda: REQUEST + b"\n" * MOST_BYTES,
    "huge": lambda: b"A" * 10**7,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_requests_are_refused(kind: str) -> None:
    with pytest.raises(IdentityError) as caught:
        load_request(HOSTILE[kind]())
    assert "\n" not in str(caught.value)


def test_a_request_signed_by_another_key_is_refused() -> None:
    """The key of one request with the signature of another."""
    own = x509.load_pem_x509_csr(REQUEST)
    others = (x509.load_pem_x509_csr(request_pem(new_key())) for _ in range(1000))
    other = next(one for one in others if len(one.signature) == len(own.signature))
    swapped = own.public_bytes(Encoding.DER).replace(own.signature, other.signature)
    with pytest.raises(IdentityError, match="not signed by its own key"):
        load_request(x509.load_der_x509_csr(swapped).public_bytes(Encoding.PEM))


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_an_altered_bit_of_a_request_is_refused_or_says_the_same(place: int, bit: int) -> None:
    """DER counts unused bits of a signature, which OpenSSL ignores: nothing else may be another and pass."""
    own = x509.load_pem_x509_csr(REQUEST)
    der = bytearray(own.public_bytes(Encoding.DER))
    der[place % len(der)] ^= 1 << bit
    label = b"CERTIFICATE REQUEST-----\n"
    try:
        read = load_request(b"-----BEGIN " + label + encodebytes(bytes(der)) + b"-----END " + label)
    except IdentityError:
        read = own
    assert read.tbs_certrequest_bytes == own.tbs_certrequest_bytes
    assert read.signature == own.signature


@given(st.binary(max_size=600))
def test_garbage_is_no_certificate_request_or_key(content: bytes) -> None:
    for read in (load_certificate, load_request, load_key):
        for pem in (content, b"-----BEGIN CERTIFICATE-----\n" + content + b"\n-----END CERTIFICATE-----\n"):
            with pytest.raises(IdentityError):
                read(pem)


@pytest.mark.parametrize("warnings", ["error", "ignore"])
def test_a_serial_number_below_zero_is_refused(warnings: str) -> None:
    """cryptography warns of it, and reads it all the same."""
    good = self_signed()
    der = bytearray(good.public_bytes(Encoding.DER))
    serial = good.serial_number.to_bytes((good.serial_number.bit_length() + 8) // 8, "big")
    der[der.index(serial)] |= 0x80
    pem = b"-----BEGIN CERTIFICATE-----\n" + encodebytes(bytes(der)) + b"-----END CERTIFICATE-----\n"
    with catch_warnings(action=warnings), pytest.raises(IdentityError, match="damaged"):  # type: ignore[call-overload]
        load_certificate(pem)


@pytest.mark.parametrize(
    "key", [ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()]
)
def test_private_keys_of_other_types_are_refused(key: Any) -> None:
    with pytest.raises(IdentityError, match="P-256"):
        load_key(key_pem(key))


def test_a_server_has_its_hosts_and_the_fixed_name(tmp_path: Path) -> None:
    key, pem = authority(tmp_path).server_certificate(["fl.example.org", "10.0.0.7", "[::1]", SERVER_NAME])
    certificate = load_certificate(pem)
    names = extension(certificate, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == [SERVER_NAME, "fl.example.org"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["10.0.0.7", "::1"]
    assert list(extension(certificate, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert key_id(load_key(key).public_key()) == key_id(public_key(certificate))


@pytest.mark.parametrize("host", ["", "bücher.example", "x" * 254])
def test_hosts_that_no_certificate_can_name_are_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(IdentityError, match="no host name"):
        authority(tmp_path).server_certificate([host])


def test_a_server_certificate_is_replaced_when_a_third_of_its_life_is_left(tmp_path: Path) -> None:
    time = NOW
    signer = Authority.open(tmp_path / "federation", lambda: time)
    first = signer.server_certificate(["a"])
    time += 59 * DAY
    assert signer.server_certificate(["a"]) == first
    time += 2 * DAY
    second = signer.server_certificate(["a"])
    assert second != first
    assert load_certificate(second[1]).not_valid_after_utc == datetime.fromtimestamp(time, UTC) + LIFE
    assert signer.server_certificate(["b"]) != second
    assert not list(tmp_path.rglob("*server*")), "its key is in memory alone"
