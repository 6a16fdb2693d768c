"""Keys: vectors of the standards, both sides agree, whatever was altered is refused, no secret is shown."""

import copy
import hashlib
import hmac
import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import SecureAbort
from fednlp.secure.keys import (
    SEALED_EXTRA,
    KeyPair,
    SigningKey,
    agree,
    canonical,
    context,
    derive,
    new_run,
    seal,
    unseal,
    verify,
)

# RFC 7748, section 6.1
ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
ALICE_PUBLIC = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
BOB_PUBLIC = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
SHARED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")

FIELD = 2**255 - 19
LOW_ORDER = {  # the u-coordinates of order 1, 2, 4 and 8, reduced or not
    "0": 0,
    "1": 1,
    "p-1": FIELD - 1,
    "p": FIELD,
    "p+1": FIELD + 1,
    "order 8": 325606250916557431795983626356110631294008115727848805560023387167927233504,
    "order 8, twist": 39382357235489614581723060781553021112529911719440698176882885853963445705823,
}


def hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 by its text, for one block of output and no salt."""
    extracted = hmac.digest(bytes(32), secret, hashlib.sha256)
    return hmac.digest(extracted, info + b"\x01", hashlib.sha256)


def test_x25519_of_rfc_7748() -> None:
    alice, bob = KeyPair.from_private(ALICE), KeyPair.from_private(BOB)
    assert alice.public == ALICE_PUBLIC
    assert bob.public == BOB_PUBLIC
    assert agree(alice, BOB_PUBLIC, b"use") == hkdf(SHARED, b"use")
    assert agree(bob, ALICE_PUBLIC, b"use") == hkdf(SHARED, b"use")


def test_hkdf_of_rfc_5869_test_case_3() -> None:
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert derive(b"\x0b" * 22, b"").hex() == expected


@given(secret=st.binary(max_size=80), info=st.binary(max_size=80))
def test_derive_is_hkdf(secret: bytes, info: bytes) -> None:
    assert derive(secret, info) == hkdf(secret, info)


@pytest.mark.parametrize(
    ("key", "nonce", "sealed", "plain", "associated"),
    [  # McGrew and Viega, The Galois/Counter Mode of Operation, test cases 14 and 16
        (
            "00" * 32,
            "00" * 12,
            "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919",
            "00" * 16,
            "",
        ),
        (
            "feffe9928665731c6d6a8f9467308308" * 2,
            "cafebabefacedbaddecaf888",
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838"
            "c5f61e6393ba7a0abcc9f66276fc6ece0f4e1768cddf8853bb2d551b",
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525"
            "b16aedf5aa0de657ba637b39",
            "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        ),
    ],
)
def test_aes_256_gcm_of_its_authors(key: str, nonce: str, sealed: str, plain: str, associated: str) -> None:
    opened = unseal(bytes.fromhex(key), bytes.fromhex(nonce + sealed), bytes.fromhex(associated))
    assert opened.hex() == plain


def test_ed25519_of_rfc_8032_test_2() -> None:
    public = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    verify(public, signature, b"\x72")
    with pytest.raises(SecureAbort, match="does not match"):
        verify(public, signature, b"\x73")


def test_both_sides_agree_and_nobody_else_does() -> None:
    one, two, third = KeyPair.new(), KeyPair.new(), KeyPair.new()
    assert agree(one, two.public, b"mask") == agree(two, one.public, b"mask")
    others = {
        agree(one, two.public, b"seal"),
        agree(one, third.public, b"mask"),
        agree(third, two.public, b"mask"),
    }
    assert len({*others, agree(one, two.public, b"mask")}) == 4


def test_fresh_keys_differ_and_the_public_one_is_not_the_private_one() -> None:
    pairs = [KeyPair.new() for _ in range(20)]
    assert len({pair.public for pair in pairs} | {pair.private_bytes() for pair in pairs}) == 40
    assert len({SigningKey.new().public for _ in range(20)}) == 20


def test_a_pair_is_rebuilt_from_its_private_key() -> None:
    pair = KeyPair.new()
    again = KeyPair.from_private(pair.private_bytes())
    assert (again.public, again.private_bytes()) == (pair.public, pair.private_bytes())


@pytest.mark.parametrize("high_bit", [0, 1 << 255])
@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_public_key_of_low_order_is_refused(point: str, high_bit: int) -> None:
    with pytest.raises(SecureAbort, match="low order"):
        agree(KeyPair.new(), (LOW_ORDER[point] | high_bit).to_bytes(32, "little"), b"")


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    pair, data = KeyPair.new(), bytes(length)
    for refused in (
        lambda: agree(pair, data, b""),
        lambda: KeyPair.from_private(data),
        lambda: seal(data, b"", b""),
        lambda: unseal(data, bytes(SEALED_EXTRA), b""),
        lambda: verify(data, bytes(64), b""),
    ):
        with pytest.raises(SecureAbort, match=f"has {length} bytes; it must have 32"):
            refused()


def test_the_own_public_key_sent_back_is_refused() -> None:
    pair = KeyPair.new()
    with pytest.raises(SecureAbort, match="own one"):
        agree(pair, pair.public, b"")


@pytest.mark.parametrize("number", [9, 18, int.from_bytes(ALICE_PUBLIC, "little")])
def test_a_key_written_in_another_way_is_the_same_key(number: int) -> None:
    """RFC 7748, section 5: bit 255 is ignored, and numbers from p on count modulo p."""
    own = KeyPair.from_private(BOB)
    written = [number, number + 2**255] + ([number + FIELD, number + FIELD + 2**255] if number < 19 else [])
    keys = [value.to_bytes(32, "little") for value in written]
    assert len({agree(own, key, b"") for key in keys}) == 1
    assert {canonical(key) for key in keys} == {keys[0]}


@given(st.binary(min_size=32, max_size=32))
def test_the_canonical_key_is_the_key(public: bytes) -> None:
    own = KeyPair.from_private(BOB)
    assert canonical(canonical(public)) == canonical(public)
    if int.from_bytes(canonical(public), "little") in LOW_ORDER.values():
        return
    assert agree(own, public, b"") == agree(own, canonical(public), b"")


def test_the_own_public_key_sent_back_in_another_way_is_refused() -> None:
    pair = KeyPair.new()
    other = pair.public[:31] + bytes([pair.public[31] ^ 0x80])
    with pytest.raises(SecureAbort, match="own one"):
        agree(pair, other, b"")


def test_a_run_has_a_nonce_of_its_own() -> None:
    one, two = new_run(), new_run()
    assert one != two
    assert len({context("secagg", 1, "mask", 1, 2, run=run) for run in (b"", one, two)}) == 3
    for wrong in (one[1:], one + b"x"):
        with pytest.raises(SecureAbort, match=r"nonce has 1[57] bytes; it must have 16"):
            context("secagg", 1, "mask", run=wrong)


names, numbers = st.text(max_size=5), st.integers(0, 2**64 - 1)
uses = st.tuples(names, numbers, names, st.lists(numbers, max_size=4))


@given(one=uses, two=uses)
def test_other_uses_have_other_contexts(
    one: tuple[str, int, str, list[int]], two: tuple[str, int, str, list[int]]
) -> None:
    assert (context(*one[:3], *one[3]) == context(*two[:3], *two[3])) == (one == two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("ab", 0, "c"), ("a", 0, "bc")),
        (("a", 0, "b", 1, 2), ("a", 0, "b", 2, 1)),
        (("a", 1, "b", 2), ("a", 2, "b", 1)),
        (("a", 0, "b"), ("a", 0, "b", 0)),
        (("a", 0, "b", 1), ("a", 0, "b", 256)),
        (("", 0, "a"), ("a", 0, "")),
    ],
)
def test_contexts_that_would_be_one_if_their_parts_were_only_joined(
    one: tuple[str, int, str], two: tuple[str, int, str]
) -> None:
    assert context(*one) != context(*two)


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_a_number_that_does_not_fit_a_context_is_refused(number: int) -> None:
    with pytest.raises(SecureAbort, match="outside"):
        context("secagg", number, "mask")
    with pytest.raises(SecureAbort, match="outside"):
        context("secagg", 0, "mask", 1, number)


@given(
    key=st.binary(min_size=32, max_size=32), plain=st.binary(max_size=99), associated=st.binary(max_size=9)
)
def test_sealed_text_comes_back_and_says_its_length_only(key: bytes, plain: bytes, associated: bytes) -> None:
    sealed = seal(key, plain, associated)
    assert len(sealed) == len(plain) + SEALED_EXTRA
    assert unseal(key, sealed, associated) == plain
    assert seal(key, plain, associated) != sealed  # a nonce is never used twice
    if len(plain) > 3:
        assert plain not in sealed


@given(data=st.data())
def test_a_sealed_text_that_was_altered_is_refused(data: st.DataObject) -> None:
    key, associated = bytes(range(32)), b"from 1 to 2"
    sealed = seal(key, b"a share", associated)
    place = data.draw(st.integers(0, 8 * len(sealed) - 1))
    flipped = bytearray(sealed)
    flipped[place // 8] ^= 1 << place % 8
    other_key = bytearray(key)
    other_key[place % 32] ^= 1
    cut = sealed[: data.draw(st.integers(0, len(sealed) - 1))]
    for wrong in (
        (key, bytes(flipped), associated),
        (key, cut, associated),
        (key, sealed + b"\0", associated),
        (bytes(other_key), sealed, associated),
        (key, sealed, b"from 2 to 1"),
    ):
        with pytest.raises(SecureAbort, match="altered"):
            unseal(*wrong)


def test_a_signature_holds_for_its_data_and_signer_only() -> None:
    one, two = SigningKey.new(), SigningKey.new()
    signature = one.sign(b"survivors 1 2 3")
    assert len(signature) == 64
    verify(one.public, signature, b"survivors 1 2 3")
    for wrong in (
        (two.public, signature, b"survivors 1 2 3"),
        (one.public, signature, b"survivors 1 2"),
        (one.public, two.sign(b"survivors 1 2 3"), b"survivors 1 2 3"),
        (one.public, signature[:-1], b"survivors 1 2 3"),
        (b"\xff" * 32, signature, b"survivors 1 2 3"),
    ):
        with pytest.raises(SecureAbort):
            verify(*wrong)


def spellings(secret: bytes) -> list[str]:
    return [secret.hex(), repr(secret)[2:-1], str(list(secret))[1:-1], str(int.from_bytes(secret, "little"))]


def test_a_repr_shows_no_secret() -> None:
    pair = KeyPair.from_private(ALICE)
    for shown in (repr(pair), str(pair), repr([pair]), repr(vars(pair))):
        assert not any(spelling in shown for spelling in spellings(ALICE))
    assert repr(pair) == f"KeyPair(public={ALICE_PUBLIC!r})"
    key = SigningKey.new()
    assert repr(key) == f"SigningKey(public={key.public!r})"


def test_an_exception_shows_no_secret() -> None:
    pair, key, plain = KeyPair.from_private(ALICE), bytes(range(100, 132)), b"a share that nobody may see"
    sealed = seal(key, plain, b"")
    for refused in (
        lambda: agree(pair, bytes(32), b""),
        lambda: agree(pair, pair.public, b""),
        lambda: KeyPair.from_private(ALICE + b"x"),
        lambda: seal(key + b"x", plain, b""),
        lambda: unseal(key, sealed[:-1], b""),
        lambda: verify(ALICE, key + key, plain),
    ):
        with pytest.raises(SecureAbort) as caught:
            refused()
        shown = "".join(traceback.format_exception_only(caught.value)) + repr(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
        for secret in (ALICE, key, plain):
            assert not any(spelling in shown for spelling in spellings(secret))


def test_a_pair_cannot_be_put_into_a_file() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(KeyPair.new())
    with pytest.raises(TypeError):
        pickle.dumps(SigningKey.new())


def test_a_pair_cannot_be_changed() -> None:
    pair = copy.copy(KeyPair.new())
    with pytest.raises(AttributeError):
        pair.public = bytes(32)  # type: ignore[misc]
