"""Arithmetic on whole vectors modulo a prime of at most 31 bits, exact for every input.

The product of two residues has up to 62 bits, so a sum of three of them no longer fits 64, and a matrix
product of int64 is silently wrong. Here coefficients are cut so short that every sum stays a whole number
below 2^53, which double precision holds exactly, whatever the order of adding; the matrix product is then
the linear-algebra library's.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fednlp.errors import SecureAbort

PRIME = 2**31 - 1
"""The modulus unless another is given; also the largest that is allowed."""
_EXACT = 1 << 53  # whole numbers up to here are doubles
_HALF_BITS = 16
_GROUP = 64  # rows: 64 products of 31 and 15 bits, and 47 bits more, stay below 2^53
_CACHE_BYTES = 1 << 20  # for the columns that combine_rows works on: they stay in a core's own cache
_CHUNK = 1 << 15  # values

Residues = NDArray[np.uint32]


def inverse(values: ArrayLike, p: int = PRIME) -> NDArray[np.int64]:
    """Return the inverse of every value modulo p.

    Args:
        values: Whole numbers, of any shape.
        p: A prime of at most 31 bits.

    Raises:
        SecureAbort: One of them is a multiple of p, or p is too large.

    >>> inverse([1, 2, 3], 7).tolist()
    [1, 4, 5]
    """
    numbers = _residues(values, p)
    try:
        inverses = [pow(int(value), -1, p) for value in numbers.flat]
    except ValueError:
        raise SecureAbort(f"a multiple of {p} has no inverse modulo {p}") from None
    return np.array(inverses, dtype=np.int64).reshape(numbers.shape)


def lagrange(sources: Sequence[int], targets: Sequence[int], p: int = PRIME) -> NDArray[np.int64]:
    """Return the matrix that takes a polynomial's values at the sources to its values at the targets.

    The polynomial is the one of the lowest degree, at most ``len(sources) - 1``.

    Args:
        sources: Points that differ modulo p.
        p: A prime of at most 31 bits.

    Returns:
        int64 (targets, sources), in [0, p).

    Raises:
        SecureAbort: Two sources are the same point modulo p, or there is none.

    >>> lagrange([2, 3, 4], [0], 32749).tolist()  # 6, -8 and 3
    [[6, 32741, 3]]
    """
    known, wanted = _residues(sources, p), _residues(targets, p)
    if len(known) == 0:
        raise SecureAbort("a polynomial needs at least one point that it is known at")
    if len(np.unique(known)) < len(known):
        raise SecureAbort(f"the points {list(sources)} are not all different modulo {p}")
    scale = inverse(_products_of_others(known, known, p).diagonal(), p)
    return _products_of_others(known, wanted, p) * scale % p


def combine_rows(matrix: NDArray[np.int64], rows: Residues | Sequence[Residues], p: int = PRIME) -> Residues:
    """Return the matrix product of coefficients and rows modulo p.

    Small coefficients (beside 0 on either side) cost one product of doubles, others two: one with their lower
    and one with their upper halves.

    Args:
        matrix: Whole numbers (m, k); they count modulo p.
        rows: uint32 (k, length), residues: one array, or k of them, which may be mapped from a file.
        p: A prime of at most 31 bits.

    Returns:
        uint32 (m, length), residues.

    Raises:
        SecureAbort: The shapes do not fit, or a value of rows is no residue.

    >>> combine_rows(np.array([[1, 1], [2, -1]]), np.array([[5, 6], [6, 6]], dtype=np.uint32), 7).tolist()
    [[4, 5], [4, 6]]
    """
    coefficients = signed(_residues(matrix, p), p)
    length = _check_rows(coefficients, rows)
    parts = [_part(coefficients, first, p) for first in range(0, len(rows), _GROUP)]
    m, k = len(coefficients), min(len(rows), _GROUP)
    step = min(length, max(1, _CACHE_BYTES // (512 * (k + 2 * m))) * 64)
    values, products, scratch = np.empty((k, step)), np.empty((m, step)), np.empty((m, step))
    combined = np.empty((m, length), dtype=np.uint32)
    for start in range(0, length, step):
        chunk = combined[:, start : start + step]
        width = chunk.shape[1]
        product = products[:, :width]
        for part in parts:
            loaded = _load(rows, part, slice(start, start + width), values[:, :width], p)
            _multiply(part, loaded, product, scratch[:, :width], p)
            if part.first:
                product += chunk
                _reduce(product, scratch[:, :width], p)
            np.copyto(chunk.view(np.int32), product, casting="unsafe")  # signed is the faster cast
    return combined


def add(total: Residues, values: Residues, p: int = PRIME) -> None:
    """Add residues to residues modulo p, in place.

    Args:
        total: uint32 (length,), overwritten.
        values: uint32 (length,).
        p: At most 2^31.

    >>> total = np.array([3, 4], dtype=np.uint32)
    >>> add(total, np.array([3, 3], dtype=np.uint32), 7)
    >>> total.tolist()
    [6, 0]
    """
    for start in range(0, len(total), _CHUNK):
        chunk = total[start : start + _CHUNK]
        chunk += values[start : start + _CHUNK]
        np.minimum(chunk, chunk - np.uint32(p), out=chunk)  # below p the difference wraps, and is larger


def subtract(total: Residues, values: Residues, p: int = PRIME) -> None:
    """Take residues from residues modulo p, in place; the arguments are those of :func:`add`.

    >>> total = np.array([3, 2], dtype=np.uint32)
    >>> subtract(total, np.array([3, 3], dtype=np.uint32), 7)
    >>> total.tolist()
    [0, 6]
    """
    for start in range(0, len(total), _CHUNK):
        chunk = total[start : start + _CHUNK]
        chunk -= values[start : start + _CHUNK]
        np.minimum(chunk, chunk + np.uint32(p), out=chunk)  # below 0 it wrapped, and the sum wraps back


def signed(values: ArrayLike, p: int = PRIME) -> NDArray[np.int64]:
    """Return residues as whole numbers around 0: in (-p/2, p/2].

    >>> signed([0, 3, 4, 6], 7).tolist()
    [0, 3, -3, -1]
    """
    numbers = np.array(values, dtype=np.int64)
    numbers[numbers > p // 2] -= p
    return numbers


class _Part(NamedTuple):
    """At most 64 columns of a matrix, as doubles: ``high * 2^16 + low``, or low alone where that is exact."""

    first: int
    low: NDArray[np.float64]
    high: NDArray[np.float64] | None


def _part(coefficients: NDArray[np.int64], first: int, p: int) -> _Part:
    part = coefficients[:, first : first + _GROUP]
    if int(np.abs(part).sum(axis=1).max(initial=0)) * (p - 1) < _EXACT - p:
        return _Part(first, part.astype(np.float64), None)
    half = 1 << (_HALF_BITS - 1)
    low = (part + half) % (2 * half) - half
    return _Part(first, low.astype(np.float64), ((part - low) >> _HALF_BITS).astype(np.float64))


def _load(
    rows: Residues | Sequence[Residues], part: _Part, columns: slice, values: NDArray[np.float64], p: int
) -> NDArray[np.float64]:
    """Return some columns of the part's rows as doubles, in values."""
    some = slice(part.first, part.first + part.low.shape[1])
    block = np.stack([row[columns] for row in rows[some]])
    if block.max() >= p:
        raise SecureAbort(f"a value is no residue modulo {p}: it is {p} or more")
    loaded = values[: len(block)]
    np.copyto(loaded, block.view(np.int32))  # below 2^31 both are the same, and signed is the faster cast
    return loaded


def _multiply(
    part: _Part,
    values: NDArray[np.float64],
    product: NDArray[np.float64],
    scratch: NDArray[np.float64],
    p: int,
) -> None:
    """Overwrite product with the part's matrix product, in [0, p)."""
    if part.high is None:
        np.matmul(part.low, values, out=product)
    else:
        np.matmul(part.high, values, out=product)
        _reduce(product, scratch, p)
        product *= 1 << _HALF_BITS
        np.matmul(part.low, values, out=scratch)
        product += scratch
    _reduce(product, scratch, p)


def _reduce(numbers: NDArray[np.float64], scratch: NDArray[np.float64], p: int) -> None:
    """Reduce whole numbers between -2^53 + p and 2^53 - p to [0, p), in place.

    Division rounds to the nearest double. Below 2^53 / p doubles lie closer than 1 / p, so no quotient is
    rounded up to the next whole number, and its floor is exact.
    """
    np.divide(numbers, p, out=scratch)
    np.floor(scratch, out=scratch)
    scratch *= p
    numbers -= scratch


def _residues(values: ArrayLike, p: int) -> NDArray[np.int64]:
    """Return values modulo p, having checked p."""
    if not 2 <= p <= PRIME:
        raise SecureAbort(f"{p} is no modulus: a prime from 2 to {PRIME} is needed")
    return np.asarray(values, dtype=np.int64) % p


def _products_of_others(sources: NDArray[np.int64], targets: NDArray[np.int64], p: int) -> NDArray[np.int64]:
    """Return, for every target and source j, the product of target - source over all sources but j."""
    products = np.ones((len(targets), len(sources)), dtype=np.int64)
    before, behind = np.ones_like(targets), np.ones_like(targets)
    for left, right in zip(range(len(sources)), reversed(range(len(sources))), strict=True):
        products[:, left] = products[:, left] * before % p
        products[:, right] = products[:, right] * behind % p
        before = before * ((targets - sources[left]) % p) % p
        behind = behind * ((targets - sources[right]) % p) % p
    return products


def _check_rows(coefficients: NDArray[np.int64], rows: Residues | Sequence[Residues]) -> int:
    """Return the length of the rows, having checked that there is one for every column of the matrix."""
    if coefficients.ndim != 2 or coefficients.shape[1] != len(rows) or len(rows) == 0:
        raise SecureAbort(f"a matrix of shape {coefficients.shape} cannot combine {len(rows)} rows")
    if any(row.dtype != np.uint32 or row.shape != (len(rows[0]),) for row in rows):
        raise SecureAbort("rows to combine must be uint32, and all of one length")
    return len(rows[0])
