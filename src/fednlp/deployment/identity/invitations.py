"""An invitation: a one-time secret of which the server keeps only a certificate.

Both sides derive the same private key from the secret: HKDF-SHA256 (RFC 5869), then a scalar as in FIPS 186-5,
appendix A.2.1. The server makes a root certificate of it when it invites, and forgets the secret. The site signs a
certificate for its own key with it. So the first connection is mutual TLS already, the secret itself never travels, and
the server sees at once which key an invitation is used for.
"""

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    derive_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fednlp.deployment.identity.certificates import common_name, key_id
from fednlp.deployment.identity.issuing import CLIENT, FIRST, LAST, new_leaf, new_root

SECRET_BYTES = 32
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the group of P-256: NIST SP 800-186, section 3.2.1.3."""
_INFO = b"fednlp invitation key, version 1"
_ROOT_NAME = "invitation:"


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
        secret: The invitation's secret.
        key: The site's own public key.
    """
    signer = invitation_key(secret)
    issuer = common_name(_name(signer))
    return new_leaf("site", key, issuer, signer, begins=FIRST, ends=LAST, purpose=CLIENT)


def invitation_name(secret: bytes) -> str:
    """Return the name of an invitation, which says nothing of its secret."""
    return _name(invitation_key(secret))


def is_invitation(certificate: x509.Certificate) -> bool:
    """Return whether a certificate says that it is for enrolling with an invitation."""
    return certificate.issuer.rfc4514_string().startswith(f"CN={_ROOT_NAME}")


def _name(key: EllipticCurvePrivateKey) -> str:
    """Return the common name of an invitation's root: told apart by the key, so that TLS finds the right one."""
    return _ROOT_NAME + key_id(key.public_key())[:16]
