"""Masks: the AES key stream of the standard, cancelling, cut anywhere, uniform to the last residue."""

import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from fednlp.errors import SecureAbort
from fednlp.secure import masks
from fednlp.secure.masks import Mask, add_masks, field_mask

PRIME = 2**31 - 1
SEED = bytes(range(32))
seeds = st.binary(min_size=32, max_size=32)
some_masks = st.lists(st.builds(Mask, seeds, st.sampled_from([1, -1])), max_size=5)

# NIST SP 800-38A, F.5.5 (CTR-AES256): the key, the first counter, and the output blocks before the XOR
NIST_KEY = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
NIST_COUNTER = int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16)
NIST_PLAIN = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")
NIST_SEALED = bytes.fromhex("601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5")


def stream(seed: bytes, words: int, block: int = 0) -> NDArray[np.uint32]:
    """The key stream from the definition: counters encrypted one by one, without a counter mode."""
    encryptor = Cipher(AES(seed), ECB()).encryptor()
    counters = b"".join((block + i).to_bytes(16, "big") for i in range(-(-words // 4)))
    return np.frombuffer(encryptor.update(counters), dtype="<u4")[:words]


def grown(length: int, *some: Mask, start: int = 0, modulus: int = 1 << 32) -> NDArray[np.uint32]:
    values = np.zeros(length, dtype=np.uint32)
    add_masks(values, some, start, modulus)
    return values


def test_the_stream_is_that_of_nist_sp_800_38a() -> None:
    expected = bytes(a ^ b for a, b in zip(NIST_PLAIN, NIST_SEALED, strict=True))
    assert stream(NIST_KEY, 8, NIST_COUNTER).tobytes() == expected
    drawn = grown(8, Mask(NIST_KEY, 1), start=4 * NIST_COUNTER)
    assert drawn.astype("<u4").tobytes() == expected


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, masks._CHUNK - 1, masks._CHUNK, 2 * masks._CHUNK + 3])
def test_a_mask_is_the_stream_from_counter_zero(length: int) -> None:
    assert (grown(length, Mask(SEED, 1)) == stream(SEED, length)).all()


@given(values=st.lists(st.integers(0, 2**32 - 1), max_size=70), some=some_masks, start=st.integers(0, 9))
def test_masks_are_added_modulo_2_to_the_32(values: list[int], some: list[Mask], start: int) -> None:
    result = np.array(values, dtype=np.uint32)
    add_masks(result, some, start=4 * start)
    expected = [
        (value + sum(sign * int(stream(seed, 4 * start + i + 1)[-1]) for seed, sign in some)) % 2**32
        for i, value in enumerate(values)
    ]
    assert result.tolist() == expected


@given(data=st.data(), some=some_masks)
@settings(max_examples=30)
def test_what_is_added_in_stretches_is_what_is_added_at_once(data: st.DataObject, some: list[Mask]) -> None:
    length = data.draw(st.integers(0, 2 * masks._CHUNK))
    cut = 4 * data.draw(st.integers(0, length // 4))
    whole, parts = grown(length, *some), np.zeros(length, dtype=np.uint32)
    add_masks(parts[cut:], some, start=cut)
    add_masks(parts[:cut], some)
    assert (parts == whole).all()


@given(some=some_masks, length=st.integers(0, 50), order=st.randoms())
def test_masks_cancel_in_any_order(some: list[Mask], length: int, order: object) -> None:
    values = np.arange(length, dtype=np.uint32)
    both = some + [Mask(seed, -sign) for seed, sign in some]
    order.shuffle(both)  # type: ignore[attr-defined]
    add_masks(values, both)
    assert values.tolist() == list(range(length))


def test_many_masks_are_all_added() -> None:
    many = [Mask(i.to_bytes(32, "big"), 1) for i in range(2 * masks._GROUP + 1)]
    expected = sum(stream(mask.seed, 9).astype(np.uint64) for mask in many) % 2**32
    assert (grown(9, *many) == expected).all()


@given(values=st.lists(st.integers(0, 2**32 - 1), max_size=9), some=some_masks, bits=st.integers(1, 32))
def test_a_smaller_power_of_two_reduces_the_sum(values: list[int], some: list[Mask], bits: int) -> None:
    large, small = (np.array(values, dtype=np.uint32) for _ in range(2))
    add_masks(large, some)
    add_masks(small, some, modulus=1 << bits)
    assert (small == large.astype(np.uint64) % (1 << bits)).all()


def test_every_bit_of_the_seed_counts() -> None:
    number = int.from_bytes(SEED, "little")
    flipped = [SEED, *((number ^ 1 << bit).to_bytes(32, "little") for bit in range(256))]
    assert len({grown(4, Mask(seed, 1)).tobytes() for seed in flipped}) == 257
    assert len({field_mask(seed, 4).tobytes() for seed in flipped}) == 257


@pytest.mark.parametrize("length", [0, 4, 8, 16, 24, 31, 33])
def test_a_seed_of_fewer_bits_is_refused(length: int) -> None:
    with pytest.raises(SecureAbort, match=f"has {length} bytes; it must have 32"):
        grown(4, Mask(SEED, 1), Mask(bytes(length), 1))
    with pytest.raises(SecureAbort, match=f"has {length} bytes; it must have 32"):
        field_mask(bytes(length), 4)


@pytest.mark.parametrize(
    ("values", "some", "options", "says"),
    [
        (np.ones(4, np.int64), [], {}, "int64 of 1 dimensions"),
        (np.ones((2, 2), np.uint32), [], {}, "uint32 of 2 dimensions"),
        (np.ones(4, np.uint32), [], {"start": 2}, "multiple of 4"),
        (np.ones(4, np.uint32), [], {"start": -4}, "multiple of 4"),
        (np.ones(4, np.uint32), [], {"modulus": PRIME}, "power of two"),
        (np.ones(4, np.uint32), [], {"modulus": 1}, "power of two"),
        (np.ones(4, np.uint32), [], {"modulus": 1 << 33}, "power of two"),
        (np.ones(4, np.uint32), [Mask(SEED, 1), Mask(SEED, 0)], {}, "added"),
        (np.ones(4, np.uint32), [Mask(SEED, 1), Mask(SEED[:-1], 1)], {}, "31 bytes"),
    ],
)
def test_what_cannot_be_masked_is_refused_and_left_alone(
    values: NDArray[np.uint32], some: list[Mask], options: dict[str, int], says: str
) -> None:
    with pytest.raises(SecureAbort, match=says):
        add_masks(values, some, **options)
    assert (values == 1).all()


def test_neither_a_repr_nor_an_exception_shows_a_seed() -> None:
    mask = Mask(os.urandom(32), -1)
    assert repr([mask]) == "[Mask(sign=-1)]"
    assert f"{mask}" == "Mask(sign=-1)"
    with pytest.raises(SecureAbort) as caught:
        grown(4, Mask(SEED[1:], 1))
    assert str(caught.value) == "a mask's seed has 31 bytes; it must have 32"


@given(seed=seeds, modulus=st.integers(2, 2**32), count=st.integers(0, 40))
def test_a_field_mask_takes_low_bits_and_skips_what_is_no_residue(
    seed: bytes, modulus: int, count: int
) -> None:
    low_bits = (1 << (modulus - 1).bit_length()) - 1
    candidates = [int(word) & low_bits for word in stream(seed, 8 * count + 64)]
    expected = [candidate for candidate in candidates if candidate < modulus][:count]
    assert len(expected) == count
    assert field_mask(seed, count, modulus).tolist() == expected


@pytest.mark.parametrize("modulus", [5, 32749, PRIME])
def test_a_longer_field_mask_begins_as_the_shorter(modulus: int) -> None:
    longer = field_mask(SEED, 3 * masks._CHUNK, modulus)
    for count in (0, 1, 7, masks._CHUNK - 1, masks._CHUNK, masks._CHUNK + 1):
        assert (field_mask(SEED, count, modulus) == longer[:count]).all()


@pytest.mark.parametrize("modulus", [*range(2, 70), 251, 257, 1021])
def test_every_residue_is_drawn_the_largest_too(modulus: int) -> None:
    assert set(field_mask(SEED, 20 * modulus, modulus).tolist()) == set(range(modulus))


def test_at_the_prime_the_largest_residue_is_drawn_and_the_prime_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = iter([2**31 - 1, 2**31 - 2, 2**32 - 1, 2**32 - 2, 2**31, 7])

    def draw(stream: object, out: NDArray[np.uint32]) -> None:
        out[:] = [next(words, 0) for _ in out]

    monkeypatch.setattr(masks, "_draw", draw)
    assert field_mask(SEED, 4).tolist() == [PRIME - 1, PRIME - 1, 0, 7]


@pytest.mark.parametrize("modulus", [-1, 0, 1, 2**32 + 1])
def test_there_is_no_field_mask_of_such_a_modulus(modulus: int) -> None:
    with pytest.raises(SecureAbort, match="2 to 2\\^32"):
        field_mask(SEED, 4, modulus)


@pytest.mark.parametrize("modulus", [3, 5, 6, 100, 129])
def test_residues_are_equally_likely(modulus: int) -> None:
    drawn = field_mask(SEED, 2000 * modulus, modulus)
    assert chisquare(np.bincount(drawn, minlength=modulus)).pvalue > 1e-3


def test_residues_of_the_prime_are_equally_likely() -> None:
    drawn = field_mask(SEED, 200_000)
    for bits in (drawn >> 23, drawn & 255):  # the eight highest bits, the eight lowest
        assert chisquare(np.bincount(bits, minlength=256)).pvalue > 1e-3


@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_masked_vector_looks_the_same_whatever_was_masked(value: int, sign: int) -> None:
    masked = np.full(100_000, value, dtype=np.uint32)
    add_masks(masked, [Mask(SEED, sign)])
    for shift in (0, 8, 16, 24):
        assert chisquare(np.bincount(masked >> shift & 255, minlength=256)).pvalue > 1e-3
    pairs = np.bincount((masked[:-1] & 15) << 4 | masked[1:] & 15, minlength=256)
    assert chisquare(pairs).pvalue > 1e-3
