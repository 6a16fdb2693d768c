"""Secret sharing: enough shares give the secret, fewer say nothing, whatever was altered is refused."""

import itertools
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from fednlp.errors import SecureAbort
from fednlp.secure.field import PRIME
from fednlp.secure.shamir import LIMBS, SHARE_BYTES, combine, share

SECRETS = np.arange(96, dtype=np.uint8).reshape(3, 32)
LARGEST = np.full((1, 32), 255, dtype=np.uint8)
residues = st.integers(0, PRIME - 1)


def number(limbs: list[int]) -> bytes:
    """A secret from its limbs, by their definition: 30 bits each, the lowest first."""
    return sum(limb << 30 * i for i, limb in enumerate(limbs)).to_bytes(32, "little")


def array(limbs: object) -> NDArray[np.uint32]:
    return np.array(limbs, dtype=np.uint32)


@given(data=st.data(), count=st.integers(0, 3), shares=st.integers(1, 9))
def test_any_shares_that_are_enough_give_the_secrets(data: st.DataObject, count: int, shares: int) -> None:
    threshold = data.draw(st.integers(1, shares))
    points = data.draw(st.lists(st.integers(1, PRIME - 1), min_size=shares, max_size=shares, unique=True))
    secrets = data.draw(st.binary(min_size=32 * count, max_size=32 * count))
    rows = np.frombuffer(secrets, dtype=np.uint8).reshape(count, 32)
    made = share(rows, threshold, points)
    assert made.shape == (shares, count, LIMBS)
    assert made.dtype == np.uint32
    assert not count or made.max() < PRIME
    chosen = data.draw(st.permutations(range(shares)))[: data.draw(st.integers(threshold, shares))]
    result = combine(made[chosen], [points[i] for i in chosen], threshold)
    assert result.dtype == np.uint8
    assert result.shape == (count, 32)
    assert (result == rows).all()


def test_every_subset_of_enough_shares_gives_the_secrets_and_no_smaller_one() -> None:
    shares = share(SECRETS, 3, range(1, 7))
    for size in range(7):
        for chosen in map(list, itertools.combinations(range(6), size)):
            points = [i + 1 for i in chosen]
            if size >= 3:
                assert (combine(shares[chosen], points, 3) == SECRETS).all()
            else:
                with pytest.raises(SecureAbort, match=f"{size} shares are too few: 3 are needed"):
                    combine(shares[chosen], points, 3)


@pytest.mark.parametrize(
    ("points", "weights"),
    [((1, 2, 3), (3, -3, 1)), ((2, 3, 4), (6, -8, 3)), ((1, 3, 4), (2, -2, 1))],
)
@given(data=st.data())
@settings(max_examples=30)
def test_shares_are_weighed_with_lagrange_at_zero(
    points: tuple[int, ...], weights: tuple[int, ...], data: st.DataObject
) -> None:
    secret = data.draw(st.binary(min_size=32, max_size=32))
    value = int.from_bytes(secret, "little")
    limbs = [value >> 30 * i & (1 << 30) - 1 for i in range(LIMBS)]
    first, second = (data.draw(st.lists(residues, min_size=LIMBS, max_size=LIMBS)) for _ in range(2))
    third = [  # what makes the weighted sum the limb
        (limb - weights[0] * a - weights[1] * b) * pow(weights[2], -1, PRIME) % PRIME
        for limb, a, b in zip(limbs, first, second, strict=True)
    ]
    shares = array([first, second, third]).reshape(3, 1, LIMBS)
    assert combine(shares, points, 3).tobytes() == secret


def test_a_share_has_nine_numbers_of_four_bytes() -> None:
    assert share(SECRETS[:1], 2, [1, 2])[0].nbytes == SHARE_BYTES == 36


@given(limbs=st.lists(st.integers(0, 2**30 - 1), min_size=8, max_size=8), last=st.integers(0, 2**16 - 1))
def test_a_secret_is_cut_into_limbs_of_30_bits(limbs: list[int], last: int) -> None:
    secret = np.frombuffer(number([*limbs, last]), dtype=np.uint8).reshape(1, 32)
    assert share(secret, 1, [5])[0, 0].tolist() == [*limbs, last]  # one share is enough: it is the secret


def test_products_that_overflow_63_bits_when_added_up_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda size: b"\xfe\xff\xff\xff" * (size // 4))
    points = range(PRIME - 400, PRIME)
    shares = share(LARGEST, 300, points)
    limbs = [2**30 - 1] * 8 + [2**16 - 1]
    for point, row in zip(points, shares[:, 0].tolist(), strict=True):
        tail = sum((PRIME - 1) * pow(point, power, PRIME) for power in range(1, 300))
        assert row == [(limb + tail) % PRIME for limb in limbs]
    monkeypatch.undo()
    assert (combine(shares, points, 300) == LARGEST).all()
    assert (combine(shares[:300], points[:300], 300) == LARGEST).all()


def test_coefficients_reach_the_largest_residue_and_skip_the_prime(monkeypatch: pytest.MonkeyPatch) -> None:
    words = iter([2**31 - 1, 2**31 - 2, 2**32 - 1, 2**32 - 2, 2**31, 1, 2, 3, 4, 5, 6, 7])
    monkeypatch.setattr(os, "urandom", lambda size: array([next(words) for _ in range(size // 4)]).tobytes())
    shares = share(np.zeros((1, 32), dtype=np.uint8), 2, [1, 2])  # at one, zero's share is the coefficient
    assert shares[0, 0].tolist() == [PRIME - 1, PRIME - 1, 0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("secret", [0, 1, 255])
@pytest.mark.parametrize("threshold", [2, 3])
def test_too_few_shares_look_the_same_whatever_was_shared(
    secret: int, threshold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", np.random.default_rng([secret, threshold]).bytes)
    secrets = np.full((20_000, 32), secret, dtype=np.uint8)
    few = share(secrets, threshold, range(1, threshold + 1))[: threshold - 1]
    for row in few:
        for bits in (row >> 23, row & 255):
            assert chisquare(np.bincount(bits.ravel(), minlength=256)).pvalue > 1e-3
    pairs = (few[0, :, 0] >> 27) << 4 | few[-1, :, 1] >> 27  # of one secret, two limbs
    assert chisquare(np.bincount(pairs, minlength=256)).pvalue > 1e-3


def test_shares_of_one_secret_differ_each_time() -> None:
    assert len({share(SECRETS, 2, [1, 2])[0].tobytes() for _ in range(20)}) == 20


@given(data=st.data())
def test_an_altered_share_among_more_than_enough_is_refused(data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, 5))
    points = range(1, 7)
    shares = share(SECRETS, threshold, points)
    place = tuple(data.draw(st.integers(0, size - 1)) for size in shares.shape)
    shares[place] = (int(shares[place]) + data.draw(st.integers(1, PRIME - 1))) % PRIME
    with pytest.raises(SecureAbort, match="contradict"):
        combine(shares, points, threshold)


def test_shares_of_another_threshold_or_in_another_order_are_refused() -> None:
    shares = share(SECRETS, 4, range(1, 7))
    with pytest.raises(SecureAbort, match="contradict"):
        combine(shares, range(1, 7), 3)
    with pytest.raises(SecureAbort, match="contradict"):
        combine(shares, [2, 1, 3, 4, 5, 6], 4)
    assert (combine(shares[::-1], range(6, 0, -1), 4) == SECRETS).all()


@pytest.mark.parametrize("limb", range(LIMBS))
def test_limbs_that_give_no_256_bits_are_refused(limb: int) -> None:
    most = 2**16 if limb == LIMBS - 1 else 2**30
    limbs = np.zeros((1, 2, LIMBS), dtype=np.uint32)
    limbs[0, 1, limb] = most - 1
    assert combine(limbs, [1], 1)[1].tobytes() == number(limbs[0, 1].tolist())
    limbs[0, 1, limb] = most
    with pytest.raises(SecureAbort, match="no secret"):
        combine(limbs, [1], 1)


def test_many_secrets_are_worked_on_in_parts() -> None:
    secrets = np.random.default_rng(0).integers(0, 256, (3000, 32), dtype=np.uint8)
    shares = share(secrets, 3, range(1, 6))
    assert (combine(shares, range(1, 6), 3) == secrets).all()
    shares[4, 2999, 8] ^= 1
    with pytest.raises(SecureAbort, match="contradict"):
        combine(shares, range(1, 6), 3)


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([1, 2, 2], "same point"),
        ([0, 1, 2], "lie from 1"),
        ([1, 2, PRIME], "lie from 1"),
        ([-1, 1, 2], "lie"),
    ],
)
def test_points_that_are_none_are_refused(points: list[int], says: str) -> None:
    with pytest.raises(SecureAbort, match=says):
        share(SECRETS, 2, points)
    with pytest.raises(SecureAbort, match=says):
        combine(np.zeros((3, 1, LIMBS), dtype=np.uint32), points, 2)


@pytest.mark.parametrize("value", [PRIME, PRIME + 1, 2**32 - 1])
def test_a_number_outside_the_field_is_refused(value: int) -> None:
    shares = np.zeros((3, 2, LIMBS), dtype=np.uint32)
    shares[2, 1, 4] = value
    with pytest.raises(SecureAbort, match="not below 2147483647"):
        combine(shares, [1, 2, 3], 2)


@pytest.mark.parametrize("threshold", [-1, 0, 4])
def test_a_threshold_that_cannot_be_met_is_refused(threshold: int) -> None:
    with pytest.raises(SecureAbort, match=f"threshold of {threshold}"):
        share(SECRETS, threshold, [1, 2, 3])


@pytest.mark.parametrize("threshold", [-1, 0])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_shares_without_a_threshold_give_nothing(threshold: int, count: int) -> None:
    with pytest.raises(SecureAbort, match=f"threshold of {threshold}"):
        combine(np.zeros((count, 1, LIMBS), dtype=np.uint32), range(1, count + 1), threshold)


def test_no_shares_give_nothing() -> None:
    with pytest.raises(SecureAbort, match="0 shares are too few"):
        combine(np.zeros((0, 1, LIMBS), dtype=np.uint32), [], 1)


@pytest.mark.parametrize("secrets", [SECRETS[:, :31], SECRETS[0], SECRETS.astype(np.uint32)])
def test_secrets_of_another_shape_are_refused(secrets: NDArray[np.uint8]) -> None:
    with pytest.raises(SecureAbort, match="32 bytes"):
        share(secrets, 2, [1, 2])


@pytest.mark.parametrize(
    "shares",
    [
        np.zeros((2, 1, LIMBS), np.uint32),
        np.zeros((3, 1, 8), np.uint32),
        np.zeros((3, LIMBS), np.uint32),
        np.zeros(3, np.uint32),
        np.zeros((3, 1, LIMBS), np.int64),
    ],
)
def test_shares_of_another_shape_are_refused(shares: NDArray[np.uint32]) -> None:
    with pytest.raises(SecureAbort, match="one row of 9"):
        combine(shares, [1, 2, 3], 2)


def test_an_exception_shows_nothing_of_shares_and_secrets() -> None:
    shares = share(LARGEST, 2, [1, 2, 3])
    altered = shares.copy()
    altered[2, 0, 0] = 123456789
    large = shares.copy()
    large[1, 0, 3] = 4123456789
    for wrong, points in ((altered, [1, 2, 3]), (large, [1, 2, 3]), (shares[:1], [987654321])):
        with pytest.raises(SecureAbort) as caught:
            combine(wrong, points, 2)
        shown = repr(caught.value)
        for value in (*wrong.ravel().tolist(), 255, 2**30 - 1, 987654321):
            assert str(value) not in shown
