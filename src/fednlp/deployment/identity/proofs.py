"""A site proves in a message who it is, where a load balancer ends TLS and the server does not see its certificate.

The site asks for a challenge. It signs that together with what it asks for, by the key of the certificate that it
would show in TLS. Nothing that the balancer sees can be used again: a challenge is good once and for a minute, and a
signed request to enrol is good for its own signing request alone. What is proven is who begins. Who ends TLS can still
read and change all that follows.
"""

import hmac
import secrets
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256

from fednlp.deployment.identity.certificates import Material, load_certificate, load_key, public_key
from fednlp.errors import IdentityError, RunError

LIFE = 60.0
"""Seconds that a challenge is good."""
_PURPOSE = b"fednlp proof, version 1"
_NONCE, _EXPIRY, _MAC = 16, 8, 32
_LONGEST_SIGNATURE = 80


class Proof(NamedTuple):
    """What a site sends with a request.

    Args:
        certificate: The certificate that it would show in TLS, PEM.
        challenge: What it was given.
        signature: By the certificate's key, of the challenge and the request (ECDSA with SHA-256, DER).
    """

    certificate: bytes
    challenge: bytes
    signature: bytes


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
        method: What is asked for.
        challenge: From the server.
        body: The request.
    """
    signature = load_key(material.key).sign(
        _statement(material.chain, method, challenge, body), ECDSA(SHA256())
    )
    return Proof(material.chain, challenge, signature)


def proven(proof: Proof, method: str, body: bytes, challenges: Challenges) -> bytes:
    """Return the certificate, PEM, whose key has signed a request.

    As after a TLS handshake, whether it is good for anything is for the register of sites to say.

    Args:
        proof: Of the site.
        method: What is asked for.
        body: The request.
        challenges: Of this server.

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
