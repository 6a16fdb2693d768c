"""Behind a load balancer that ends TLS, the server sees no certificate: a site proves in a message who it is.

The site asks for a challenge. It signs that together with what it asks for, by the key of the certificate that it
would show in TLS. Nothing that the balancer sees can be used again: a challenge is good once and for a minute, and a
signed request to enrol is good for its own signing request alone. What is proven is who begins. Who ends TLS can still
read and change all that follows.
"""

import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256

from fednlp.checked_json.stored import Stored, read_stored
from fednlp.deployment.identity.certificates import (
    REMEDY,
    Material,
    load_certificate,
    load_key,
    public_key,
    read_certificates,
)
from fednlp.disk import write_private
from fednlp.errors import IdentityError, RunError

LIFE = 60.0
"""Seconds that a challenge is good."""
_PURPOSE = b"fednlp proof, version 1"
_NONCE, _EXPIRY, _MAC = 16, 8, 32
_LONGEST_SIGNATURE = 80
_NAMES = ("fednlp-certificate-bin", "fednlp-challenge-bin", "fednlp-signature-bin")
"""Of the parts of a proof in the metadata of gRPC."""
_FILE = "balancer.json"


class Proof(NamedTuple):
    """What a site sends with a request.

    Args:
        certificate: The certificate that it would show in TLS, PEM.
        signature: By the certificate's key, of the challenge and the request (ECDSA with SHA-256, DER).
    """

    certificate: bytes
    challenge: bytes
    signature: bytes

    def metadata(self) -> tuple[tuple[str, bytes], ...]:
        """Return the proof as it travels beside a request."""
        return tuple(zip(_NAMES, self, strict=True))

    @classmethod
    def of(cls, metadata: Mapping[str, str | bytes]) -> Self:
        """Return the proof that came beside a request.

        Raises:
            IdentityError: None did.
        """
        parts = [part for name in _NAMES if isinstance(part := metadata.get(name), bytes)]
        if len(parts) < len(_NAMES):
            raise IdentityError("this server is behind a load balancer: join with --behind-proxy")
        return cls(*parts)


Prove = Callable[[str, bytes, bytes], Proof]
"""Proves who a site is, for a method, a challenge and a request."""


class Challenges:
    """Makes challenges, and accepts each once; thread-safe.

    Nothing is stored of a challenge before it comes back with a signature that fits.

    Args:
        now: A clock that never goes back, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._key, self._now = secrets.token_bytes(32), now
        self._spent: dict[bytes, float] = {}  # until when each is kept, in this order
        self._lock = threading.Lock()

    def issue(self) -> bytes:
        """Return a fresh challenge."""
        expiry = int(1000 * (self._now() + LIFE)).to_bytes(_EXPIRY, "big")
        body = secrets.token_bytes(_NONCE) + expiry
        return body + self._mac(body)

    def spend(self, challenge: bytes) -> None:
        """Accept a challenge, which is then used up.

        Raises:
            RunError: It was used, is too old, or is none of this server's: the site may try again with another.
        """
        body, mac = challenge[: _NONCE + _EXPIRY], challenge[_NONCE + _EXPIRY :]
        if not hmac.compare_digest(mac, self._mac(body)):
            # of another server, or of this one before it was started again
            raise RunError("the challenge is not one of this server's: try again")
        expires, now = int.from_bytes(body[_NONCE:], "big") / 1000, self._now()
        with self._lock:
            while self._spent and self._spent[first := next(iter(self._spent))] <= now:
                del self._spent[first]
            if expires <= now or body in self._spent:
                raise RunError("the challenge was used, or is too old: try again")
            self._spent[body] = now + LIFE  # not before it expires

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")


def prove(material: Material, method: str, challenge: bytes, body: bytes) -> Proof:
    """Return a site's proof for a request.

    Args:
        material: What it would show in TLS: a key on the curve P-256.
    """
    signature = load_key(material.key).sign(
        _statement(material.chain, method, challenge, body), ECDSA(SHA256())
    )
    return Proof(material.chain, challenge, signature)


def proven(proof: Proof, method: str, body: bytes, challenges: Challenges) -> bytes:
    """Return the certificate, PEM, whose key has signed a request.

    As after a TLS handshake, whether it is good for anything is for the register of sites to say.

    Raises:
        IdentityError: The proof is not valid.
        RunError: Its challenge is used up or too old.
    """
    certificate = load_certificate(proof.certificate)
    if len(proof.challenge) != _NONCE + _EXPIRY + _MAC or len(proof.signature) > _LONGEST_SIGNATURE:
        raise IdentityError("the proof of this site is not valid")
    statement = _statement(proof.certificate, method, proof.challenge, body)
    try:
        public_key(certificate).verify(proof.signature, statement, ECDSA(SHA256()))
    except InvalidSignature:
        raise IdentityError("the proof of this site is not signed by the key of its certificate") from None
    challenges.spend(proof.challenge)
    return proof.certificate


def _statement(certificate: bytes, method: str, challenge: bytes, body: bytes) -> bytes:
    """Return what is signed; each part but the method has a fixed length."""
    parts = (sha256(certificate).digest(), challenge, sha256(body).digest(), method.encode())
    return _PURPOSE + b"".join(parts)


@dataclass(frozen=True)
class Balancer:
    """A load balancer before the server, which ends TLS, as a site knows it.

    Attributes:
        ca: File of the authorities of its certificate, PEM; None for those that gRPC trusts.
    """

    ca: Path | None = None

    def roots(self) -> bytes | None:
        """Return the authorities' certificates, PEM; None for those that gRPC trusts.

        Raises:
            IdentityError: The file cannot be read, or holds no certificates.
        """
        return None if self.ca is None else read_certificates(self.ca)


class _Stored(Stored):
    ca: str | None


def store_balancer(folder: Path, balancer: Balancer | None) -> None:
    """Store that a site reaches its server through a load balancer which ends TLS, or that it does not.

    Args:
        folder: Of the federation at this site.
        balancer: The balancer; None without one.

    Raises:
        IdentityError: The file of authorities cannot be read, or holds no certificates.
        RunError: The folder cannot be written.
    """
    if balancer is None:
        (folder / _FILE).unlink(missing_ok=True)
        return
    balancer.roots()
    stored = _Stored(ca=None if balancer.ca is None else str(balancer.ca.absolute()))
    write_private(folder / _FILE, stored.model_dump_json(indent=1).encode(), REMEDY)


def stored_balancer(folder: Path) -> Balancer | None:
    """Return the load balancer that a site reaches its server through; None without one.

    Raises:
        RunError: The file that names it is damaged.
    """
    stored = read_stored(
        folder / _FILE,
        _Stored,
        "it does not say how the server is reached",
        "delete it and join again with --behind-proxy",
    )
    return None if stored is None else Balancer(None if stored.ca is None else Path(stored.ca))
