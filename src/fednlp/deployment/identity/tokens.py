"""Join tokens: all that a site needs to enrol, as one line to copy; and the invitations whose secrets they hold.

A token is ``fednlp1:`` and base64url without padding of::

    2  length of all of this, big-endian
    8  expiry, seconds since 1970
   32  the invitation's secret
  2+n  the site's name, UTF-8
  2+n  the server's address, ASCII
    n  the certificate of the federation's authority, DER
    4  CRC-32 of all before, little-endian

The checksum finds slips of the hand: a CRC-32 finds every single changed character. It proves nothing: a token is as
trustworthy as the way on which it came.

Of an invitation's secret the server keeps only a certificate. Both sides derive the same private key from it:
HKDF-SHA256 (RFC 5869), then a scalar as in FIPS 186-5, appendix A.2.1. The server makes a root certificate of it when
it invites, and forgets the secret. The site signs a certificate for its own key with it. So the first connection is
mutual TLS already, the secret itself never travels, and the server sees at once which key an invitation is used for.
"""

import base64
import binascii
import re
import sys
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    derive_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fednlp.deployment.identity.certificates import (
    DAMAGED,
    FIRST,
    LAST,
    certificate_pem,
    common_name,
    is_issued_by,
    key_id,
    load_certificate,
    new_leaf,
    new_root,
)
from fednlp.deployment.identity.names import server_address, site_name
from fednlp.disk import regular
from fednlp.errors import IdentityError

SECRET_BYTES = 32
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the group of P-256: NIST SP 800-186, section 3.2.1.3."""
_INFO = b"fednlp invitation key, version 1"
_ROOT_NAME = "invitation:"
VERSION = "1"
SKEW = 2 * 24 * 3600
"""Seconds by which a site's clock may be wrong before it takes a token for expired."""
_LONGEST = 4096
_LATEST = 1 << 40
_TEXT = re.compile(r"fednlp([0-9]{1,4}):([0-9A-Za-z_-]*)")
ENDING = ".token"
"""Of a file that holds a token."""
ASK_AGAIN = "ask who runs the server for a new join token (fednlp sites invite)"


@dataclass(frozen=True)
class JoinToken:
    """What a server gives to one site, once.

    Args:
        address: Host and port of the server.
        authority: The certificate of the federation's authority, DER.
        secret: 32 bytes that no other token has.
        expires: Seconds since 1970, by the server's clock.

    Raises:
        IdentityError: A part is not valid.
    """

    site: str
    address: str
    authority: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    expires: int

    def __post_init__(self) -> None:
        if site_name(self.site) != self.site:
            raise IdentityError("the site's name is not in composed form (NFC)")
        server_address(self.address)
        if len(self.secret) != SECRET_BYTES or not 0 <= self.expires < _LATEST:
            raise IdentityError("the secret or the expiry of the token is out of range")
        root = load_certificate(self.authority_pem)
        if not is_issued_by(root, root):
            raise IdentityError("the certificate in the token is not that of an authority")

    @cached_property
    def authority_pem(self) -> bytes:
        """The certificate of the federation's authority, PEM: the only root that the site trusts."""
        try:
            return certificate_pem(x509.load_der_x509_certificate(self.authority))
        except DAMAGED:
            raise IdentityError("the certificate in the token is damaged") from None

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the certificate of the federation's authority, 32 bytes."""
        return sha256(self.authority).digest()

    @property
    def federation(self) -> str:
        """The federation's id: the first 16 hexadecimal digits of the fingerprint."""
        return self.fingerprint.hex()[:16]

    def __str__(self) -> str:
        """The text to copy. It holds the secret: whoever has it first joins in the site's place."""
        site, address = self.site.encode(), self.address.encode()
        parts = (
            self.expires.to_bytes(8, "big"),
            self.secret,
            _counted(site),
            _counted(address),
            self.authority,
        )
        body = b"".join(parts)
        body = (len(body) + 6).to_bytes(2, "big") + body
        body += zlib.crc32(body).to_bytes(4, "little")
        return f"fednlp{VERSION}:" + base64.urlsafe_b64encode(body).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "JoinToken":
        """Read a token; line breaks and blanks that mail programs put into it are dropped.

        Raises:
            IdentityError: It is no token, is cut short, altered, or of another version.
        """
        match = _TEXT.fullmatch("".join(text.split())) if len(text) <= _LONGEST else None
        if match is None:
            raise IdentityError(
                f"this is not a join token: one begins with fednlp{VERSION}: and is a single line"
            )
        if match[1] != VERSION:
            raise IdentityError(
                f"the join token is of version {match[1]} and this fednlp reads version {VERSION}: "
                "install the version of fednlp that the server runs"
            )
        reader = _Reader(_checked(match[2]))
        expires, secret = int.from_bytes(reader.take(8), "big"), reader.take(SECRET_BYTES)
        try:
            site, address = reader.counted().decode(), reader.counted().decode("ascii")
        except UnicodeDecodeError:
            raise _altered() from None
        return cls(site, address, reader.rest(), secret, expires)

    def require_current(self, now: float) -> None:
        """Refuse a token that has expired even if this machine's clock is two days fast; the server has the last word.

        Args:
            now: Seconds since 1970 by this machine's clock.

        Raises:
            IdentityError: It has expired; the message names the date.
        """
        if now > self.expires + SKEW:
            raise IdentityError(
                f"the join token for {self.site} expired on {date_text(self.expires)}: {ASK_AGAIN}"
            )


def token_text(target: str) -> str:
    """Return the token that a user has named: by ``-`` for standard input, by its file, or by typing it.

    Args:
        target: What else it may be, such as the name of a federation, is returned as it is.

    Raises:
        IdentityError: It is named like a file of a token, and there is none.
    """
    if target == "-":
        return sys.stdin.readline().strip()
    try:
        path = regular(Path(target))
    except (OSError, ValueError):
        if target.endswith(ENDING):
            raise IdentityError(f"there is no file {target}: name the one that the server wrote") from None
        return target
    if path.is_dir():
        return target
    with path.open("rb") as file:
        return file.read(_LONGEST + 1).decode("ascii", "replace").strip()


def date_text(seconds: float) -> str:
    """Return a point in time as people read it.

    >>> date_text(0)
    '1970-01-01 00:00 UTC'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _counted(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


def _altered() -> IdentityError:
    return IdentityError(
        "the join token has been altered on the way: copy it again, whole, as the server printed it"
    )


def _checked(text: str) -> bytes:
    """Return the bytes between the length and the checksum, after checking both."""
    try:
        body = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:  # 4n + 1 characters
        body = b""
    whole = int.from_bytes(body[:2], "big") if len(body) >= 2 else _LONGEST
    if len(body) < whole:
        raise IdentityError(
            f"the join token is cut short or altered ({len(text)} characters arrived): copy it again, whole"
        )
    canonical = base64.urlsafe_b64encode(body).decode().rstrip("=") == text
    if not canonical or zlib.crc32(body[:-4]).to_bytes(4, "little") != body[-4:]:
        raise _altered()
    return body[2:-4]


class _Reader:
    """Reads bytes from front to end; where there are too few, the token has been altered."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def take(self, count: int) -> bytes:
        if len(self._body) < count:
            raise _altered()
        taken, self._body = self._body[:count], self._body[count:]
        return taken

    def counted(self) -> bytes:
        return self.take(int.from_bytes(self.take(2), "big"))

    def rest(self) -> bytes:
        return self.take(len(self._body))


# ---- invitations -----------------------------------------------------------------------------------------------------


def invitation_key(secret: bytes) -> EllipticCurvePrivateKey:
    """Return the private key that belongs to a secret of 32 bytes, the same on both sides."""
    wide = HKDF(algorithm=SHA256(), length=48, salt=None, info=_INFO).derive(secret)
    return derive_private_key(int.from_bytes(wide, "big") % (_ORDER - 1) + 1, SECP256R1())


def invitation_root(secret: bytes) -> x509.Certificate:
    """Return the certificate that the server keeps of an invitation and trusts until it is used or expires.

    Its dates say nothing: the register of sites knows until when an invitation is good, by the server's clock.
    """
    key = invitation_key(secret)
    return new_root(_name(key), key, FIRST, LAST)


def invitation_certificate(secret: bytes, key: EllipticCurvePublicKey) -> x509.Certificate:
    """Return the certificate that a site shows when it uses an invitation.

    Args:
        key: The site's own public key.
    """
    signer = invitation_key(secret)
    issuer = common_name(_name(signer))
    return new_leaf("site", key, issuer, signer, begins=FIRST, ends=LAST)


def invitation_name(secret: bytes) -> str:
    """Return the name of an invitation, which says nothing of its secret."""
    return _name(invitation_key(secret))


def is_invitation(certificate: x509.Certificate) -> bool:
    """Return whether a certificate says that it is for enrolling with an invitation."""
    return certificate.issuer.rfc4514_string().startswith(f"CN={_ROOT_NAME}")


def _name(key: EllipticCurvePrivateKey) -> str:
    """Return the common name of an invitation's root: told apart by the key, so that TLS finds the right one."""
    return _ROOT_NAME + key_id(key.public_key())[:16]
