"""Keys of secure aggregation: agree on a secret, derive more from it, seal, and sign.

The primitives are those of ``cryptography``: X25519 (RFC 7748), HKDF-SHA256 (RFC 5869), AES-256-GCM
(NIST SP 800-38D) and Ed25519 (RFC 8032). Private keys come from the operating system. No repr and no
exception shows one.
"""

import os
from dataclasses import dataclass, field
from typing import Self

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fednlp.errors import SecureAbort

KEY_BYTES = 32
"""Length of every key and seed, public or private."""
SIGNATURE_BYTES = 64
SEALED_EXTRA = 28
"""How much longer a sealed text is than the plain one: a nonce of 12 bytes in front, a tag of 16 behind."""
RUN_BYTES = 16
"""Length of a run's nonce."""
_NONCE_BYTES = 12
_FIELD = (1 << 255) - 19


@dataclass(frozen=True, eq=False)
class KeyPair:
    """A private X25519 key and the public key that belongs to it.

    Args:
        public: 32 bytes, to be shown to everybody.
    """

    _private: X25519PrivateKey = field(repr=False)
    public: bytes

    @classmethod
    def new(cls) -> Self:
        """Return a fresh pair from the operating system's randomness."""
        return cls._of(X25519PrivateKey.generate())

    @classmethod
    def from_private(cls, private: bytes) -> Self:
        """Return the pair of a private key, 32 bytes.

        Raises:
            SecureAbort: The key has another length.
        """
        _check_length("a private key", private, KEY_BYTES)
        return cls._of(X25519PrivateKey.from_private_bytes(private))

    @classmethod
    def _of(cls, private: X25519PrivateKey) -> Self:
        return cls(private, private.public_key().public_bytes_raw())

    def private_bytes(self) -> bytes:
        """Return the private key, 32 bytes: only to be shared among peers, in pieces."""
        return self._private.private_bytes_raw()


@dataclass(frozen=True, eq=False)
class SigningKey:
    """A private Ed25519 key and the public key that its signatures are checked with.

    Args:
        public: 32 bytes, to be known to everybody before the round.
    """

    _private: Ed25519PrivateKey = field(repr=False)
    public: bytes

    @classmethod
    def new(cls) -> Self:
        """Return a fresh key from the operating system's randomness."""
        private = Ed25519PrivateKey.generate()
        return cls(private, private.public_key().public_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """Return the signature of data, 64 bytes."""
        return self._private.sign(data)


def verify(public: bytes, signature: bytes, data: bytes) -> None:
    """Check a signature.

    Args:
        public: The signer's public key, 32 bytes.
        signature: 64 bytes.

    Raises:
        SecureAbort: The signature is of other data, by another signer, or malformed.
    """
    _check_length("a public key", public, KEY_BYTES)
    _check_length("a signature", signature, SIGNATURE_BYTES)
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        raise SecureAbort("a signature does not match what was signed and by whom") from None


def agree(own: KeyPair, other: bytes, info: bytes) -> bytes:
    """Return the key that two parties share, 32 bytes: the same from either side.

    Args:
        other: The peer's public key, 32 bytes.
        info: What the key is for (:func:`context`); both sides must give the same.

    Raises:
        SecureAbort: The peer's key is not a public key, is one of the points of low order that make the
            secret known to all, or is the own key sent back.

    >>> one, two = KeyPair.new(), KeyPair.new()
    >>> agree(one, two.public, b"mask") == agree(two, one.public, b"mask")
    True
    """
    _check_length("a public key", other, KEY_BYTES)
    if canonical(other) == own.public:
        raise SecureAbort("a peer's public key is the own one: keys are never shared between clients")
    try:
        secret = own._private.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise SecureAbort("a peer's public key is of low order: the agreed key would be no secret") from None
    return derive(secret, info)


def canonical(public: bytes) -> bytes:
    """Return the one way to write a public X25519 key: bit 255 is ignored, and the rest counts modulo 2^255 - 19.

    Args:
        public: 32 bytes.

    >>> canonical((5 + (1 << 255)).to_bytes(32, "little")) == (5).to_bytes(32, "little")
    True
    """
    number = int.from_bytes(public, "little") & ((1 << 255) - 1)
    return (number % _FIELD).to_bytes(KEY_BYTES, "little")


def derive(secret: bytes, info: bytes) -> bytes:
    """Return HKDF-SHA256 of a secret without salt, 32 bytes; other infos give unrelated keys.

    >>> derive(bytes(32), b"one") == derive(bytes(32), b"two")
    False
    """
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def new_run() -> bytes:
    """Return a fresh nonce of a run from the operating system's randomness: 16 bytes that all parties must know."""
    return os.urandom(RUN_BYTES)


def context(protocol: str, round_number: int, purpose: str, *ids: int, run: bytes = b"") -> bytes:
    """Return what a key or a sealed text is for, as bytes that no other arguments give.

    The order of ids counts. Keys that two peers share take them sorted; a text sealed by one for the other
    takes the sender first.

    Args:
        round_number: The round, from 0; below 2^64, as every id.
        ids: The clients it is between.
        run: The run's nonce, 16 bytes; empty where the round is of no run.

    Raises:
        SecureAbort: A number lies outside [0, 2^64), or the nonce has another length.

    >>> context("secagg", 3, "seal", 1, 2) == context("secagg", 3, "seal", 2, 1)
    False
    """
    if any(not 0 <= number < 1 << 64 for number in (round_number, *ids)):
        raise SecureAbort("a round or client number lies outside 0 to 2^64 - 1")
    if run:
        _check_length("a run's nonce", run, RUN_BYTES)
    names = protocol.encode(), purpose.encode(), run
    return b"".join(
        [
            *(len(name).to_bytes(2, "little") + name for name in names),
            *(int(number).to_bytes(8, "little") for number in (round_number, *ids)),
        ]
    )


def seal(key: bytes, plain: bytes, associated: bytes) -> bytes:
    """Return a text encrypted and authenticated with AES-256-GCM, under a fresh random nonce.

    Args:
        key: 32 bytes.
        associated: What to authenticate with it without sending it (:func:`context`).

    Returns:
        Nonce, encrypted text and tag: ``len(plain) + SEALED_EXTRA`` bytes.

    >>> key = os.urandom(32)
    >>> unseal(key, seal(key, b"a share", b"from 1 to 2"), b"from 1 to 2")
    b'a share'
    """
    _check_length("a sealing key", key, KEY_BYTES)
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, associated)


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """Return the plain text of :func:`seal`.

    Raises:
        SecureAbort: The text was altered, cut, or sealed under another key or for another use.
    """
    _check_length("a sealing key", key, KEY_BYTES)
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], associated)
    except (InvalidTag, ValueError):
        raise SecureAbort(
            "a sealed message was altered, or was not meant for this client and round, or the sites were sent "
            "different models or requests"
        ) from None


def _check_length(what: str, data: bytes, length: int) -> None:
    if len(data) != length:
        raise SecureAbort(f"{what} has {len(data)} bytes; it must have {length}")
