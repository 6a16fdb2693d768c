"""The arithmetic is that of Python's whole numbers, for every prime of at most 31 bits and every residue."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fednlp.errors import SecureAbort
from fednlp.secure.field import PRIME, add, combine_rows, inverse, lagrange, signed, subtract

PRIMES = (2, 3, 7, 101, 32749, 65537, 2**30 - 35, PRIME)
primes = st.sampled_from(PRIMES)
seeds = st.integers(0, 2**32 - 1)


def uint32(values: object) -> NDArray[np.uint32]:
    return np.array(values, dtype=np.uint32)


def in_python(matrix: NDArray[np.int64], rows: NDArray[np.uint32], p: int) -> list[list[int]]:
    """The matrix product modulo p in numbers that have no end."""
    return ((matrix.astype(object) @ rows.astype(object)) % p).tolist()


def extreme(shape: tuple[int, ...], p: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Residues, half of which lie at the ends and around the middle."""
    edges = np.array([0, 1, p // 2, (p // 2 + 1) % p, p - 1, p - 1, 0x7FFF % p, 0x8000 % p])
    return np.where(rng.random(shape) < 0.5, rng.choice(edges, shape), rng.integers(0, p, shape))


# --- points and polynomials


def test_lagrange_gives_the_published_matrices() -> None:
    p = 32749
    encode = np.array([[15, -24, 10], [10, -15, 6], [6, -8, 3], [3, -3, 1]])
    decode = np.array([[1, -2, 2], [10919, -5, 21836], [5, -9, 5]])
    assert np.array_equal(lagrange([5, 6, 7], [1, 2, 3, 4], p), encode % p)
    assert np.array_equal(lagrange([1, 2, 4], [5, 6, 7], p), decode % p)


@pytest.mark.parametrize(
    ("points", "at_zero"), [([1, 2, 3], [3, -3, 1]), ([2, 3, 4], [6, -8, 3]), ([1, 3, 4], [2, -2, 1])]
)
@pytest.mark.parametrize("p", [32749, PRIME])
def test_lagrange_at_zero(points: list[int], at_zero: list[int], p: int) -> None:
    assert signed(lagrange(points, [0], p), p).tolist() == [at_zero]


@given(primes, st.integers(1, 12), seeds)
def test_lagrange_takes_a_polynomial_from_points_to_points(p: int, degree: int, seed: int) -> None:
    degree = min(degree, p)
    rng = np.random.default_rng(seed)
    coefficients = [int(c) for c in extreme((degree,), p, rng)]

    def value(point: int) -> int:
        return sum(c * point**power for power, c in enumerate(coefficients)) % p

    sources = [int(s) for s in rng.choice(min(p, 1000), degree, replace=False)]
    sources = [p - 1 - s if s % 2 else s for s in sources]
    assume(len(set(sources)) == degree)
    targets = [*(int(t) for t in extreme((4,), p, rng)), sources[0]]
    values = uint32([[value(s)] for s in sources])
    assert combine_rows(lagrange(sources, targets, p), values, p).ravel().tolist() == [
        value(t) for t in targets
    ]


def test_lagrange_at_the_sources_is_the_identity() -> None:
    assert np.array_equal(lagrange([3, PRIME - 1, 77], [3, PRIME - 1, 77]), np.eye(3))


@pytest.mark.parametrize("sources", [[1, 2, 1], [1, 2, 8], [], [0, 7]])
def test_lagrange_refuses_points_that_say_nothing(sources: list[int]) -> None:
    with pytest.raises(SecureAbort):
        lagrange(sources, [3], 7)


@given(primes, seeds)
def test_inverse_times_value_is_one(p: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(1, p, (3, 4))
    assert (inverse(values, p).astype(object) * values % p == 1).all()


@pytest.mark.parametrize("value", [0, 7, -14])
def test_zero_has_no_inverse(value: int) -> None:
    with pytest.raises(SecureAbort, match="no inverse"):
        inverse([1, value], 7)


@pytest.mark.parametrize("p", [2**31, 2**31 + 11, 1, 0, -7])
def test_a_modulus_beyond_31_bits_or_none_is_refused(p: int) -> None:
    for call in (
        inverse,
        lambda one, p: lagrange(one, one, p),
        lambda _, p: combine_rows(np.eye(1), uint32([[0]]), p),
    ):
        with pytest.raises(SecureAbort, match="modulus"):
            call([1], p)


# --- matrix products


@given(primes, st.integers(1, 5), st.integers(1, 150), seeds)
def test_combine_rows_is_exact(p: int, m: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix, rows = extreme((m, k), p, rng), extreme((k, 7), p, rng).astype(np.uint32)
    assert combine_rows(matrix, rows, p).tolist() == in_python(matrix, rows, p)


@given(primes, st.integers(1, 40), st.integers(1, 1 << 22), seeds)
def test_combine_rows_is_exact_with_small_coefficients(p: int, k: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-size, size, (3, k), endpoint=True)
    rows = extreme((k, 9), p, rng).astype(np.uint32)
    assert combine_rows(matrix, rows, p).tolist() == in_python(matrix, rows, p)


@given(st.integers(-3000, 10), st.booleans(), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_combine_rows_is_exact_where_doubles_end(below: int, negative: bool, short: list[int]) -> None:
    """A row of coefficients whose products come to 2^53, or nearly, or a little more."""
    total = 2**53 // (PRIME - 1) + below
    parts = [total // 4, total // 4, total // 4, total - 3 * (total // 4)]
    matrix = np.array([parts, parts[::-1]]) * (-1 if negative else 1)
    rows = uint32([[PRIME - 1 - s, PRIME - 1, PRIME - 2, (PRIME + s) // 2, s] for s in short])
    assert combine_rows(matrix, rows).tolist() == in_python(matrix, rows, PRIME)


@given(st.integers(3, PRIME), st.integers(-(1 << 21), 1 << 21), st.integers(-1, 1), seeds)
def test_sums_that_are_a_multiple_of_the_modulus_or_next_to_one(
    p: int, factor: int, off: int, seed: int
) -> None:
    """Where a quotient is a whole number, or so near to one that rounding it matters."""
    first = np.random.default_rng(seed).integers(0, p, 500)
    rows = uint32([first, (off - factor * first) % p])
    assert (combine_rows(np.array([[factor, 1]]), rows, p) == off % p).all()


@pytest.mark.parametrize("k", [1, 2, 3, 63, 64, 65, 128, 129, 500])
@pytest.mark.parametrize(
    "coefficient", [PRIME - 1, PRIME // 2, PRIME // 2 + 1, 0x3FFF8000, 0x3FFF7FFF, 0x40008000]
)
def test_the_largest_residues_do_not_overflow(k: int, coefficient: int) -> None:
    rows = np.full((k, 2), PRIME - 1, dtype=np.uint32)
    matrix = np.full((2, k), coefficient)
    expected = k * coefficient * (PRIME - 1) % PRIME
    assert combine_rows(matrix, rows).tolist() == [[expected] * 2] * 2


def test_the_plain_product_of_int64_overflows_where_this_one_does_not() -> None:
    matrix, rows = np.full((1, 3), PRIME - 1), np.full((3, 1), PRIME - 1, dtype=np.uint32)
    with np.errstate(over="ignore"):
        plain = matrix @ rows.astype(np.int64) % PRIME
    assert plain.tolist() != [[3]]
    assert combine_rows(matrix, rows).tolist() == [[3]]


def test_long_rows_are_combined_in_stretches() -> None:
    rng = np.random.default_rng(5)
    for k, length in product((3, 70), (1, 4095, 20_001)):
        matrix, rows = extreme((2, k), PRIME, rng), extreme((k, length), PRIME, rng).astype(np.uint32)
        columns = np.unique(rng.integers(0, length, 300))
        combined = combine_rows(matrix, rows)
        assert combined.shape == (2, length)
        assert combined[:, columns].tolist() == in_python(matrix, rows[:, columns], PRIME)
        assert np.array_equal(combined[:, -1], in_python(matrix, rows[:, -1], PRIME))


def test_rows_may_lie_anywhere(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    matrix, rows = extreme((3, 4), PRIME, rng), extreme((4, 100), PRIME, rng).astype(np.uint32)
    expected = combine_rows(matrix, rows)
    mapped = np.memmap(tmp_path / "rows", np.uint32, "w+", shape=rows.shape)
    mapped[:] = rows
    for other in (list(rows), tuple(rows), mapped, list(mapped), np.asfortranarray(rows)):
        assert np.array_equal(combine_rows(matrix, other), expected)


@pytest.mark.parametrize("value", [7, 8, 2**31, 2**32 - 1])
def test_combine_rows_refuses_what_is_no_residue(value: int) -> None:
    with pytest.raises(SecureAbort, match="no residue"):
        combine_rows(np.array([[1, 0]]), uint32([[1, 2], [3, value]]), 7)


@pytest.mark.parametrize(
    ("matrix", "rows"),
    [
        (np.ones((2, 3), np.int64), uint32([[1, 2]] * 2)),
        (np.ones(2, np.int64), uint32([[1, 2]] * 2)),
        (np.ones((2, 0), np.int64), np.empty((0, 2), np.uint32)),
        (np.ones((2, 2), np.int64), np.ones((2, 2), np.int64)),
        (np.ones((2, 2), np.int64), [uint32([1, 2]), uint32([1, 2, 3])]),
        (np.ones((1, 2), np.int64), np.ones((2, 2, 2), np.uint32)),
    ],
)
def test_combine_rows_refuses_what_does_not_fit(matrix: NDArray[np.int64], rows: NDArray[np.uint32]) -> None:
    with pytest.raises(SecureAbort):
        combine_rows(matrix, rows, 7)


# --- sums and signs


@given(st.sampled_from([*PRIMES, 2**31]), st.sampled_from([1, 50, 70_000]), seeds)
def test_add_and_subtract(p: int, length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = extreme((length,), p, rng), extreme((length,), p, rng)
    total = uint32(one)
    add(total, uint32(other), p)
    assert np.array_equal(total, (one + other) % p)
    subtract(total, uint32(other), p)
    assert np.array_equal(total, one)
    subtract(total, uint32(other), p)
    assert np.array_equal(total, (one - other) % p)


@given(primes, seeds)
def test_signed_is_the_same_residue_around_zero(p: int, seed: int) -> None:
    values = uint32(extreme((30,), p, np.random.default_rng(seed)))
    numbers = signed(values, p)
    assert numbers.dtype == np.int64
    assert np.array_equal(numbers % p, values)
    assert (2 * numbers > -p).all()
    assert (2 * numbers <= p).all()


def test_the_largest_residue_is_minus_one() -> None:
    """A sum of -1 and +1 must not come out as 2^31 - 1, nor -1 as a large number."""
    assert signed(uint32([PRIME - 1, 1, PRIME // 2, PRIME // 2 + 1])).tolist() == [
        -1,
        1,
        2**30 - 1,
        -(2**30 - 1),
    ]
    total = uint32([PRIME - 1])
    add(total, uint32([1]))
    assert total.tolist() == [0]
