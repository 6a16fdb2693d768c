"""Join tokens: what is written can be read, and whatever is changed on the way is refused."""

import hmac
import string
import unicodedata
from functools import cache

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from fednlp.deployment.identity.certificates import EARLY, FIRST, LAST, new_key, new_root
from fednlp.deployment.identity.names import server_address, site_name
from fednlp.deployment.identity.tokens import (
    SKEW,
    JoinToken,
    invitation_certificate,
    invitation_key,
    invitation_root,
)
from fednlp.errors import IdentityError

from .federation import ADDRESS, NOW, self_signed


@cache
def authority() -> bytes:
    return new_root("fednlp federation", new_key(), FIRST, LAST).public_bytes(Encoding.DER)


def token(
    site: str = "north", address: str = ADDRESS, secret: bytes = bytes(range(32)), expires: int = int(NOW)
) -> JoinToken:
    return JoinToken(site, address, authority(), secret, expires)


SCRIPTS = [
    *("ABCdefßäéñø", "Абвгдежзий", "Αβγδεζηθ", "אבגדהוז", "अआइईउकखग", "ابتثجح", "กขคงจ"),
    *("東京大学病院", "さくらサクラ桜a", "한국병원大a"),
]
names = (
    st.sampled_from(SCRIPTS)
    .flatmap(lambda letters: st.tuples(st.sampled_from(letters), st.text(f"{letters}019._-", max_size=63)))
    .map(lambda parts: unicodedata.normalize("NFC", "".join(parts)).rstrip("."))
    .filter(lambda name: len(name) <= 64 and len(name.encode()) <= 192)
)
ORDER = 2**256 - 2**224 + 2**192 - 89188191075325690597107910205041859247
"""Of P-256, as FIPS 186 writes it."""
VECTOR = "9dc9eeda05981bb91a8dbfedf68a3e09a5953f463da3d363937f71b2279420f2"
TEXT = str(token())
"""Of this session: every authority is new."""


@given(
    names,
    st.sampled_from([ADDRESS, "localhost:1", "10.0.0.7:65535", "[2001:db8::1]:8443"]),
    st.binary(min_size=32, max_size=32),
    st.integers(0, 2**40 - 1),
)
def test_what_is_written_is_read(site: str, address: str, secret: bytes, expires: int) -> None:
    one = token(site, address, secret, expires)
    text = str(one)
    assert JoinToken.parse(text) == one
    assert str(JoinToken.parse(text)) == text
    assert set(text) <= set(string.ascii_letters + string.digits + "-_:")


def test_line_breaks_of_a_mail_are_dropped() -> None:
    folded = "\r\n  ".join(TEXT[start : start + 60] for start in range(0, len(TEXT), 60))
    assert str(JoinToken.parse(f" {folded}\n")) == TEXT


@given(st.integers(0, len(TEXT) - 1), st.one_of(st.sampled_from(TEXT), st.characters()))
def test_every_changed_character_is_refused(place: int, character: str) -> None:
    changed = TEXT[:place] + character + TEXT[place + 1 :]
    if changed != TEXT:
        with pytest.raises(IdentityError):
            JoinToken.parse(changed)


@pytest.mark.parametrize("site", ["a", "ab", "abc"])
def test_every_changed_character_is_refused_one_by_one(site: str) -> None:
    """All places, at each the neighbours that differ in one bit; with any number of spare bits at the end."""
    alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
    text = str(token(site))
    for place in range(text.index(":") + 1, len(text)):
        for bit in range(6):
            character = alphabet[alphabet.index(text[place]) ^ (1 << bit)]
            with pytest.raises(IdentityError):
                JoinToken.parse(text[:place] + character + text[place + 1 :])


@given(st.integers(0, len(TEXT)), st.integers(1, len(TEXT)))
def test_every_cut_is_refused(start: int, length: int) -> None:
    cut = TEXT[:start] + TEXT[start + length :]
    if cut != TEXT:
        with pytest.raises(IdentityError, match=r"cut short|altered|not a join token"):
            JoinToken.parse(cut)


@pytest.mark.parametrize("kept", range(20, len(TEXT), 40))
def test_a_token_cut_short_says_so(kept: int) -> None:
    with pytest.raises(
        IdentityError, match=r"cut short or altered \(\d+ characters arrived\): copy it again"
    ):
        JoinToken.parse(TEXT[:kept])


@given(st.one_of(st.text(max_size=200), st.text(st.sampled_from(string.ascii_letters + "-_"), max_size=300)))
def test_nothing_else_is_a_token(text: str) -> None:
    for one in (text, f"fednlp1:{text}", TEXT + text.strip() if text.strip() else "fednlp1:"):
        with pytest.raises(IdentityError) as caught:
            JoinToken.parse(one)
        assert "\n" not in str(caught.value)


def test_another_version_says_what_to_install() -> None:
    with pytest.raises(IdentityError, match="of version 2 and this fednlp reads version 1: install"):
        JoinToken.parse(TEXT.replace("fednlp1:", "fednlp2:"))


def test_a_very_long_text_is_refused_unread() -> None:
    with pytest.raises(IdentityError, match="not a join token"):
        JoinToken.parse("fednlp1:" + "A" * 10**6)


def test_expiry_names_the_date_and_forgives_a_clock_that_is_a_day_fast() -> None:
    one = token()
    one.require_current(NOW + 24 * 3600)
    one.require_current(NOW + SKEW)
    with pytest.raises(IdentityError, match="expired on 2026-03-01 12:00 UTC: ask who runs the server"):
        one.require_current(NOW + SKEW + 1)


def test_repr_hides_the_secret() -> None:
    one = token(secret=b"s" * 32)
    assert "ssss" not in repr(one)
    assert (b"s" * 32).hex() not in repr(one)
    assert str(one) not in repr(one)


def test_the_fingerprint_is_that_of_the_authority() -> None:
    one = token()
    assert len(one.fingerprint) == 32
    assert one.federation == one.fingerprint.hex()[:16]


@pytest.mark.parametrize(
    "changes",
    [
        {"secret": b"short"},
        {"expires": -1},
        {"expires": 2**40},
        {"site": "two words"},
        {"site": "e\u0301"},
        {"address": "http://x"},
    ],
)
def test_parts_that_are_not_valid_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(IdentityError):
        token(**changes)  # type: ignore[arg-type]


@given(st.binary(max_size=400))
def test_bytes_that_are_no_certificate_are_refused(der: bytes) -> None:
    with pytest.raises(IdentityError):
        JoinToken("north", ADDRESS, der, bytes(32), 0)


def test_a_certificate_of_no_authority_is_refused() -> None:
    """One whose signature is by another key."""
    leaf = invitation_certificate(bytes(32), new_key().public_key())
    with pytest.raises(IdentityError, match="not that of an authority"):
        JoinToken("north", ADDRESS, leaf.public_bytes(Encoding.DER), bytes(32), 0)
    assert JoinToken("north", ADDRESS, self_signed().public_bytes(Encoding.DER), bytes(32), 0)


def test_both_sides_derive_the_same_key() -> None:
    """A vector, so that tokens that are on their way survive an upgrade; and RFC 5869 written out."""
    secret, info = bytes(range(32)), b"fednlp invitation key, version 1"
    extracted = hmac.digest(bytes(32), secret, "sha256")
    first = hmac.digest(extracted, info + b"\x01", "sha256")
    second = hmac.digest(extracted, first + info + b"\x02", "sha256")
    number = int.from_bytes((first + second)[:48], "big") % (ORDER - 1) + 1
    assert invitation_key(secret).private_numbers().private_value == number == int(VECTOR, 16)
    assert (
        invitation_root(bytes(32)).subject == invitation_certificate(bytes(32), new_key().public_key()).issuer
    )


@given(st.binary(min_size=32, max_size=32), st.integers(0, 255))
def test_another_secret_is_another_key(secret: bytes, bit: int) -> None:
    other = (int.from_bytes(secret, "big") ^ (1 << bit)).to_bytes(32, "big")
    assert invitation_key(secret).private_numbers() != invitation_key(other).private_numbers()


def test_certificates_begin_before_a_clock_that_is_a_day_slow() -> None:
    assert EARLY.total_seconds() > 24 * 3600


@given(names)
def test_names_of_all_scripts_are_kept(name: str) -> None:
    assert site_name(name) == name
    assert site_name(unicodedata.normalize("NFD", name)) == name


@pytest.mark.parametrize(
    "name",
    ["", "a" * 65, "\U00020000" * 49, "a b", "a\n", "a/b", "..", "-rf", ".a", "a\u202eb", "a\x00", "²"],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(IdentityError) as caught:
        site_name(name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        "host:0",
        "host:65536",
        "host:8443/x",
        "a b:1",
        "-a:1",
        ":1",
        "::1:8443",
        "[::1]",
        "ü:1",
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(IdentityError, match="host:port"):
        server_address(address)
