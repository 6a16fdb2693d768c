"""Messages of secure aggregation survive the wire, to the byte, and a stranger's bytes do no harm."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import SecureAbort
from fednlp.secure.messages import (
    HEADER_BYTES,
    SEALED_BYTES,
    AdvertiseKeys,
    Confirmation,
    Confirmed,
    DeliveredShares,
    KeyRoster,
    Message,
    Revealed,
    SealedShares,
    Survivors,
    from_bytes,
    size,
    to_bytes,
)

KINDS = (
    AdvertiseKeys,
    KeyRoster,
    SealedShares,
    DeliveredShares,
    Survivors,
    Confirmation,
    Confirmed,
    Revealed,
)
LIMIT = 20
kinds = st.sampled_from(KINDS)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Messages of every kind, of up to ``LIMIT`` rows of anything."""
    kind = draw(kinds)
    rows = 1 if kind.single else draw(st.integers(0, LIMIT))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    arrays: dict[str, Any] = {}
    for column in kind.columns:
        values = rng.integers(0, 256, (rows, column.width), dtype=np.uint8).view(column.dtype)
        arrays[column.name] = values.reshape(rows, *column.shape)
    if kind.optional and draw(st.booleans()):
        arrays[kind.columns[-1].name] = None
    return kind(**arrays)


@given(messages())
def test_a_message_comes_back_as_it_went(message: Message) -> None:
    data = to_bytes(message)
    again = from_bytes(data, type(message), LIMIT)
    assert again == message
    assert again.signed == message.signed
    assert len(data) == size(message)
    for column in message.present:
        assert np.array_equal(getattr(again, column.name), getattr(message, column.name))


def test_kinds_have_numbers_of_their_own() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)
    assert all(0 < kind.code < 0x80 for kind in KINDS)


def test_lengths_to_the_byte() -> None:
    # 2 shares of 36 bytes, a nonce of 12 and a tag of 16
    assert SEALED_BYTES == 100
    ids = np.arange(7, dtype=np.uint32)
    keys = np.zeros((7, 32), dtype=np.uint8)
    assert size(AdvertiseKeys(keys[:1], keys[:1])) == 5 + 64
    assert size(KeyRoster(ids, keys, keys)) == 5 + 7 * (4 + 64)
    assert size(KeyRoster(ids, keys, keys, np.zeros((7, 64), np.uint8))) == 5 + 7 * (4 + 64 + 64)
    assert size(SealedShares(ids, np.zeros((7, 100), np.uint8))) == 5 + 7 * 104
    assert size(Revealed(ids, np.zeros(7, np.uint8), np.zeros((7, 9), np.uint32))) == 5 + 7 * (4 + 1 + 36)


@given(messages(), kinds)
def test_a_message_is_of_one_kind(message: Message, other: type[Message]) -> None:
    if other is not type(message):
        with pytest.raises(SecureAbort, match="was expected"):
            from_bytes(to_bytes(message), other, LIMIT)


@given(messages())
def test_messages_are_equal_when_their_bytes_are(message: Message) -> None:
    data = bytearray(to_bytes(message))
    if len(data) > HEADER_BYTES:
        data[-1] ^= 1
        assert from_bytes(bytes(data), type(message), LIMIT) != message
    assert message != to_bytes(message)
    with pytest.raises(TypeError, match="unhashable"):
        hash(message)


@given(st.one_of(st.binary(max_size=300), messages().map(to_bytes)), kinds, st.data())
def test_bytes_of_a_stranger_are_refused_or_read(
    data: bytes, kind: type[Message], choice: st.DataObject
) -> None:
    """Whatever comes: a message that fits, or a refusal, and nothing else."""
    for _ in range(choice.draw(st.integers(0, 3))):  # change, cut or lengthen it
        place = choice.draw(st.integers(0, len(data)))
        data = (
            data[:place] + choice.draw(st.binary(max_size=2)) + data[place + choice.draw(st.integers(0, 3)) :]
        )
    if choice.draw(st.booleans()):
        data = bytes([kind.code | choice.draw(st.sampled_from([0, 0x80]))]) + data[1:]
    try:
        message = from_bytes(data, kind, LIMIT)
    except SecureAbort:
        return
    assert to_bytes(message) == data
    assert message.rows <= LIMIT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [LIMIT + 1, 2**31, 2**32 - 1])
def test_a_claim_of_many_rows_takes_no_memory(kind: type[Message], rows: int) -> None:
    data = bytes([kind.code]) + rows.to_bytes(4, "little") + bytes(1000)
    tracemalloc.start()
    try:
        with pytest.raises(SecureAbort, match="rows"):
            from_bytes(data, kind, LIMIT)
        # The limit may be large and the message short: its length does not fit.
        with pytest.raises(SecureAbort):
            from_bytes(data, kind, 2**32)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_the_limit_itself_is_allowed() -> None:
    data = to_bytes(Survivors(np.arange(LIMIT, dtype=np.uint32)))
    assert from_bytes(data, Survivors, LIMIT).rows == LIMIT
    with pytest.raises(SecureAbort, match="at most 19"):
        from_bytes(data, Survivors, LIMIT - 1)


@pytest.mark.parametrize("rows", [0, 2])
def test_a_client_advertises_and_confirms_once_a_message(rows: int) -> None:
    keys = np.zeros((rows, 32), dtype=np.uint8)
    with pytest.raises(SecureAbort, match="cannot have"):
        AdvertiseKeys(keys, keys)
    data = bytes([Confirmation.code]) + rows.to_bytes(4, "little") + bytes(64 * rows)
    with pytest.raises(SecureAbort, match="at most 1"):
        from_bytes(data, Confirmation, LIMIT)


@pytest.mark.parametrize(
    "arrays",
    [
        {"ids": None, "sealed": np.zeros((2, 100), np.uint8)},
        {"ids": [1, 2], "sealed": np.zeros((2, 100), np.uint8)},
        {"ids": np.uint32(1), "sealed": np.zeros((2, 100), np.uint8)},
        {"ids": np.zeros((), np.uint32), "sealed": np.zeros((2, 100), np.uint8)},
        {"ids": np.zeros(2, np.int64), "sealed": np.zeros((2, 100), np.uint8)},
        {"ids": np.zeros((2, 1), np.uint32), "sealed": np.zeros((2, 100), np.uint8)},
        {"ids": np.zeros(2, np.uint32), "sealed": np.zeros((3, 100), np.uint8)},
        {"ids": np.zeros(2, np.uint32), "sealed": np.zeros((2, 99), np.uint8)},
        {"ids": np.zeros(2, np.uint32), "sealed": np.zeros((2, 100), np.int8)},
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: dict[str, Any]) -> None:
    with pytest.raises(SecureAbort, match="SealedShares"):
        SealedShares(**arrays)


def test_a_repr_shows_no_content() -> None:
    shares = np.full((2, 9), 123456789, dtype=np.uint32)
    message = Revealed(np.array([77, 78], dtype=np.uint32), np.zeros(2, dtype=np.uint8), shares)
    assert repr(message) == str(message) == "Revealed(rows=2)"
