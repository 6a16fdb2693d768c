"""Masks: long uniform vectors grown from a seed of 256 bits, the same wherever the seed is known.

The generator is the key stream of AES-256 in counter mode (NIST SP 800-38A, 6.5): the seed is the key,
the counter starts at 0, and the stream is read as little-endian uint32. A seed must serve one mask only.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from fednlp.errors import SecureAbort

MaskSeeds = list[list[Any]]
"""Masks as JSON values: the seed of each in hexadecimal digits, and its sign."""
SEED_BYTES = 32
_BLOCK = 4  # words of an AES block
_CHUNK = 1 << 15  # words; values, key stream and zeros of a chunk (128 KiB each) stay in a core's own cache
_GROUP = 128  # masks whose ciphers are open at once
_ZEROS = memoryview(bytes(4 * _CHUNK))


class Mask(NamedTuple):
    """A seed to grow a mask from, 32 bytes, and whether it is added (+1) or taken away (-1)."""

    seed: bytes
    sign: int

    def __repr__(self) -> str:
        return f"Mask(sign={self.sign:+d})"


def masks_to_json(masks: Sequence[Mask]) -> MaskSeeds:
    """Return masks as JSON values.

    >>> masks_to_json([Mask(bytes(2), -1)])
    [['0000', -1]]
    """
    return [[mask.seed.hex(), mask.sign] for mask in masks]


def masks_from_json(seeds: MaskSeeds) -> list[Mask]:
    """Return the masks of :func:`masks_to_json`.

    >>> masks_from_json([["0000", -1]])[0].seed
    b'\\x00\\x00'
    """
    return [Mask(bytes.fromhex(seed), sign) for seed, sign in seeds]


def add_masks(
    values: NDArray[np.uint32], masks: Sequence[Mask], start: int = 0, modulus: int = 1 << 32
) -> None:
    """Add masks to values, in place.

    Several workers may do a stretch each: a mask is one vector, and ``start`` says where in it values lie.

    Args:
        values: uint32 (length,), residues.
        masks: What to add or take away; their order makes no difference.
        start: Where values begin in the whole vector, a multiple of 4 (a block of AES).
        modulus: A power of two, at most 2^32. (A mask modulo a prime is :func:`field_mask`.)

    Raises:
        SecureAbort: An argument is not what it must be; values are as before.

    >>> values = np.arange(5, dtype=np.uint32)
    >>> add_masks(values, [Mask(bytes(32), +1)])
    >>> add_masks(values, [Mask(bytes(32), -1)])
    >>> values.tolist()
    [0, 1, 2, 3, 4]
    """
    if values.dtype != np.uint32 or values.ndim != 1:
        raise SecureAbort(
            f"masks are added to one row of uint32, not {values.dtype} of {values.ndim} dimensions"
        )
    if start < 0 or start % _BLOCK:
        raise SecureAbort(f"masks cannot start at {start}: a multiple of {_BLOCK} is needed")
    if not 2 <= modulus <= 1 << 32 or modulus & (modulus - 1):
        raise SecureAbort(f"masks cannot be added modulo {modulus}: a power of two up to 2^32 is needed")
    if any(mask.sign not in (1, -1) for mask in masks):
        raise SecureAbort("a mask is either added (+1) or taken away (-1)")
    for seed in (mask.seed for mask in masks):
        _check_seed(seed)
    for first in range(0, len(masks), _GROUP):
        _add_group(values, masks[first : first + _GROUP], start)
    if modulus < 1 << 32:
        values &= np.uint32(modulus - 1)


def _add_group(values: NDArray[np.uint32], masks: Sequence[Mask], start: int) -> None:
    """Add masks chunk by chunk: all of them to one chunk, while it lies in the cache, before the next."""
    streams = [(_key_stream(mask.seed, start // _BLOCK), mask.sign) for mask in masks]
    words = np.empty(min(_CHUNK, len(values)), dtype="<u4")
    for first in range(0, len(values), _CHUNK):
        chunk = values[first : first + _CHUNK]
        drawn = words[: len(chunk)]
        for stream, sign in streams:
            _draw(stream, drawn)
            if sign > 0:
                np.add(chunk, drawn, out=chunk)
            else:
                np.subtract(chunk, drawn, out=chunk)


def field_mask(seed: bytes, count: int, modulus: int = 2**31 - 1) -> NDArray[np.uint32]:
    """Return a mask modulo any number: every residue is equally likely, the largest one too.

    Of every word of the stream as many low bits are taken as the largest residue has; a result that is no
    residue is skipped. (A remainder would favour small residues, and a generator of "up to p - 1" that leaves
    its end out never draws the largest.)

    Args:
        seed: 32 bytes.
        modulus: 2 to 2^32.

    Raises:
        SecureAbort: The seed has another length, or the modulus another size.

    >>> field_mask(bytes(32), 6, modulus=5).tolist()
    [4, 2, 2, 3, 1, 4]
    """
    _check_seed(seed)
    if not 2 <= modulus <= 1 << 32:
        raise SecureAbort(f"there is no mask modulo {modulus}: 2 to 2^32 is needed")
    stream = _key_stream(seed, 0)
    low_bits = np.uint32((1 << (modulus - 1).bit_length()) - 1)
    mask = np.empty(count, dtype=np.uint32)
    words = np.empty(min(_CHUNK, count), dtype="<u4")
    filled = 0
    while filled < count:
        _draw(stream, words)
        np.bitwise_and(words, low_bits, out=words)
        kept = words if int(words.max()) < modulus else words[words < modulus]
        taken = min(len(kept), count - filled)
        mask[filled : filled + taken] = kept[:taken]
        filled += taken
    return mask


def _key_stream(seed: bytes, block: int) -> CipherContext:
    return Cipher(AES256(seed), CTR(block.to_bytes(16, "big"))).encryptor()


def _draw(stream: CipherContext, words: NDArray[np.uint32]) -> None:
    """Overwrite words with the next ones of the key stream, which is what zeros are encrypted to."""
    stream.update_into(_ZEROS[: words.nbytes], words.view(np.uint8).data)


def _check_seed(seed: bytes) -> None:
    if len(seed) != SEED_BYTES:
        raise SecureAbort(f"a mask's seed has {len(seed)} bytes; it must have {SEED_BYTES}")
