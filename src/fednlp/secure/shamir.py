"""Shamir's secret sharing of 256-bit secrets, many at once, over the field of 2^31 - 1.

A secret is cut into 9 limbs of 30 bits. Each limb is the value at zero of a polynomial of degree
threshold - 1 whose other coefficients are uniform; a share is the polynomials' values at one point. Any
``threshold`` shares give the secret; fewer say nothing at all about it (Shamir 1979, How to share a secret).
All arithmetic is in uint64 and reduced after every product, so nothing overflows.
"""

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import SecureAbort
from fednlp.secure.field import PRIME

SECRET_BYTES = 32
LIMBS = 9
SHARE_BYTES = 4 * LIMBS
_LIMB_BITS = 30
_LAST_LIMB_BITS = 8 * SECRET_BYTES - (LIMBS - 1) * _LIMB_BITS
_CHECKS = 2  # random parity checks; a wrong share slips through one of them once in 2^31
_CHUNK = 1 << 16  # numbers worked on at a time


def share(secrets: NDArray[np.uint8], threshold: int, points: Sequence[int]) -> NDArray[np.uint32]:
    """Return shares of secrets, of which any ``threshold`` give the secrets back.

    Args:
        secrets: uint8 (secrets, 32).
        threshold: How many shares are needed, 1 to the number of points.
        points: A number from 1 to 2^31 - 2 for each share, all different.

    Returns:
        uint32 (points, secrets, 9), each below 2^31 - 1.

    Raises:
        SecureAbort: The threshold or the points are not what they must be.

    >>> secrets = np.arange(64, dtype=np.uint8).reshape(2, 32)
    >>> shares = share(secrets, threshold=2, points=[1, 2, 3])
    >>> bool((combine(shares[[0, 2]], [1, 3], threshold=2) == secrets).all())
    True
    """
    if secrets.dtype != np.uint8 or secrets.ndim != 2 or secrets.shape[1] != SECRET_BYTES:
        raise SecureAbort(f"secrets to share must be rows of {SECRET_BYTES} bytes")
    places = _checked(points)
    if not 1 <= threshold <= len(points):
        raise SecureAbort(f"{len(points)} shares cannot have a threshold of {threshold}")
    limbs = _cut(secrets).reshape(1, -1)
    coefficients = np.concatenate([limbs, _uniform((threshold - 1, limbs.shape[1]))])
    return _evaluate(coefficients, places).astype(np.uint32).reshape(len(points), len(secrets), LIMBS)


def combine(shares: NDArray[np.uint32], points: Sequence[int], threshold: int) -> NDArray[np.uint8]:
    """Return the secrets of shares.

    With more shares than ``threshold``, all must lie on one polynomial. That is checked with random words
    of the dual code (Cascudo and David 2017, SCRAPE): a wrong share escapes once in 2^62.

    Args:
        shares: uint32 (shares, secrets, 9).
        points: Where each share was taken.
        threshold: As when they were made.

    Returns:
        uint8 (secrets, 32).

    Raises:
        SecureAbort: No threshold, too few shares, points repeated or outside the field, or shares that no secret has.
    """
    if shares.dtype != np.uint32 or shares.ndim != 3 or shares.shape[::2] != (len(points), LIMBS):
        raise SecureAbort(f"shares must be one row of {LIMBS} numbers for each secret and point")
    places = _checked(points)
    if threshold < 1:
        raise SecureAbort(f"shares cannot have a threshold of {threshold}")
    if len(points) < threshold:
        raise SecureAbort(f"{len(points)} shares are too few: {threshold} are needed")
    if shares.size and int(shares.max()) >= PRIME:
        raise SecureAbort(f"a share holds a number that is not below {PRIME}")
    weights = _weights(places, threshold)
    step = max(1, _CHUNK // (len(points) * LIMBS))
    limbs = np.empty(shares.shape[1:], dtype=np.uint64)
    for first in range(0, shares.shape[1], step):
        part = shares[:, first : first + step].astype(np.uint64)
        limbs[first : first + step], *checks = ((part * row % PRIME).sum(0) % PRIME for row in weights)
        if any(check.any() for check in checks):
            raise SecureAbort("the shares contradict each other: at least one was altered")
    return _join(limbs)


def _weights(places: NDArray[np.uint64], threshold: int) -> list[NDArray[np.uint64]]:
    """Return what to weigh shares with: a row that gives the value at zero, then rows that must give zero.

    With v[i] = 1 / product of (x[i] - x[j]) over j != i, the sum of v[i] g(x[i]) is the leading coefficient
    of any g of degree below m, the number of points. So it is zero for g = f q whenever f has a degree below
    the threshold and q one below m - threshold. Lagrange's weight at zero is v[i] times the product of -x[j].
    """
    count = len(places)
    differences = np.ones(count, dtype=np.uint64)
    others = np.ones(count, dtype=np.uint64)
    for index, place in enumerate(places):
        factors = places + (PRIME - place)
        factors[index] = 1
        differences = differences * factors % PRIME
        negative = np.full(count, PRIME - place)
        negative[index] = 1
        others = others * negative % PRIME
    inverses = np.array([pow(int(value), -1, PRIME) for value in differences], dtype=np.uint64)
    rows = [inverses * others % PRIME]
    if count > threshold:
        rows += list((_evaluate(_uniform((count - threshold, _CHECKS)), places).T * inverses) % PRIME)
    return [row.reshape(-1, 1, 1) for row in rows]


def _evaluate(coefficients: NDArray[np.uint64], places: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the values (places, columns) of polynomials (coefficients from the constant one, columns)."""
    column = places.reshape(-1, 1)
    values = np.zeros((len(places), coefficients.shape[1]), dtype=np.uint64)
    for coefficient in coefficients[::-1]:
        values *= column
        values += coefficient
        values %= PRIME
    return values


def _uniform(shape: tuple[int, int]) -> NDArray[np.uint64]:
    """Return numbers of the operating system, each of the field's equally likely."""
    count = shape[0] * shape[1]
    kept = np.empty(0, dtype=np.uint32)
    while len(kept) < count:
        words = np.frombuffer(os.urandom(4 * (count - len(kept))), dtype="<u4") & PRIME  # 31 bits
        kept = np.concatenate([kept, words[words < PRIME]])
    return kept.astype(np.uint64).reshape(shape)


def _cut(secrets: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return secrets (n, 32) as little-endian numbers in limbs (n, 9) of 30 bits; the last has 16."""
    bits = np.unpackbits(secrets, axis=1, bitorder="little")
    padded = np.pad(bits, ((0, 0), (0, LIMBS * _LIMB_BITS - bits.shape[1])))
    places = np.uint64(1) << np.arange(_LIMB_BITS, dtype=np.uint64)
    return padded.reshape(len(secrets), LIMBS, _LIMB_BITS) @ places


def _join(limbs: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the secrets (n, 32) of limbs (n, 9)."""
    if (limbs >> _LIMB_BITS).any() or (limbs[:, -1] >> _LAST_LIMB_BITS).any():
        raise SecureAbort("the shares give no secret: at least one was altered")
    bits = (limbs[..., None] >> np.arange(_LIMB_BITS, dtype=np.uint64)) & 1
    flat = bits.astype(np.uint8).reshape(len(limbs), LIMBS * _LIMB_BITS)
    return np.packbits(flat[:, : 8 * SECRET_BYTES], axis=1, bitorder="little")


def _checked(points: Sequence[int]) -> NDArray[np.uint64]:
    if any(not 1 <= point < PRIME for point in points):
        raise SecureAbort(f"points of shares lie from 1 to {PRIME - 1}")
    if len(set(points)) < len(points):
        raise SecureAbort("two shares have the same point")
    return np.array(points, dtype=np.uint64)
