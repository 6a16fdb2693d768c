"""The wire format: the same as safetensors', of a length known beforehand, and closed to everything else."""

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import RunError
from fednlp.federated.message import (
    METADATA_LIMIT,
    SparseRows,
    message_bytes,
    message_pieces,
    pack,
    read_metadata,
    shapes_of,
    unpack,
)
from fednlp.federated.params import Layout

DTYPES = [torch.float32, torch.int32, torch.bfloat16, torch.float16, torch.int8, torch.uint8]
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(
    lambda name: name != "__metadata__"
)
SHAPES = st.dictionaries(
    NAMES,
    st.tuples(st.lists(st.integers(0, 4), max_size=3).map(tuple), st.sampled_from(DTYPES)),
    min_size=1,
    max_size=6,
)


def filled(shapes: Any) -> dict[str, torch.Tensor]:
    return {
        name: torch.arange(torch.Size(shape).numel(), dtype=torch.float32).to(dtype).view(shape)
        for name, (shape, dtype) in shapes.items()
    }


def attempt(read: Callable[[], Any]) -> str:
    try:
        return str(read())
    except RunError as error:
        return str(error)


TENSORS = {"layer.weight": torch.arange(6.0).view(2, 3), "layer.weight#scale": torch.tensor([2, 3]).int()}
MESSAGE = pack(TENSORS)
EXPECTED = shapes_of(TENSORS)


def forged(header: Any, payload: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def parts(message: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(message[:8], "little")
    return json.loads(message[8 : 8 + length]), message[8 + length :]


@given(shapes=SHAPES)
def test_it_is_what_safetensors_reads_and_as_long_as_foretold(shapes: Any) -> None:
    tensors = filled(shapes)
    message = pack(tensors)
    assert len(message) == message_bytes(shapes)
    read = safetensors.torch.load(message)
    assert message == safetensors.torch.save(tensors)
    back = unpack(message, shapes)
    assert list(back) == list(shapes)
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert torch.equal(back[name], tensor)
        assert torch.equal(back[name], read[name])


def test_every_bit_arrives_and_the_tensors_are_ones_own() -> None:
    bits = torch.tensor([0x7FC00001, 0x7F800000, -0x80000000, 1], dtype=torch.int32)
    message = pack({"w": bits.view(torch.float32)})
    back = unpack(message, {"w": ((4,), torch.float32)})
    assert torch.equal(back["w"].view(torch.int32), bits)
    back["w"].zero_()
    assert torch.equal(unpack(message, {"w": ((4,), torch.float32)})["w"].view(torch.int32), bits)


def test_views_of_one_buffer_in_the_length_of_the_layout() -> None:
    layout = Layout.of({"a": ((3, 2), "parameter"), "mean": ((4,), "buffer"), "one": ((), "parameter")})
    flat = torch.arange(float(layout.numel))
    views = layout.views(flat)
    message = pack(views)
    assert len(message) == layout.message_bytes
    assert torch.equal(layout.flatten(unpack(message, shapes_of(views))), flat)
    assert pack({"t": views["a"].T}) == pack({"t": views["a"].T.clone(memory_format=torch.contiguous_format)})


def test_some_of_the_names_are_a_message_too() -> None:
    layout = Layout.of({"a": ((3,), "parameter"), "b": ((2,), "parameter")})
    some = {"b": torch.ones(2)}
    assert torch.equal(unpack(pack(some), shapes_of(some))["b"], some["b"])
    with pytest.raises(RunError, match='lacks "a"'):
        unpack(pack(some), shapes_of(layout.views(torch.zeros(5))))


@given(metadata=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=5))
def test_metadata_come_back_in_the_same_bytes(metadata: dict[str, str]) -> None:
    message = pack(TENSORS, metadata)
    assert message == pack(TENSORS, dict(reversed(metadata.items())))
    assert read_metadata(message, EXPECTED) == metadata
    assert torch.equal(unpack(message, EXPECTED)["layer.weight"], TENSORS["layer.weight"])


def test_metadata_are_bounded_and_texts() -> None:
    header, payload = parts(MESSAGE)
    for bad in ("[]", '{"a": 1}', '{"a": "b"', 3, "\ud800", "[" * 60_000):
        with pytest.raises(RunError, match="metadata"):
            read_metadata(forged({"__metadata__": {"fednlp": bad}, **header}, payload), EXPECTED)
    long = pack(TENSORS, {"a": "x" * METADATA_LIMIT})
    for read in (unpack, read_metadata):
        with pytest.raises(RunError, match="too long"):
            read(long, EXPECTED)


def test_another_writers_header_is_read_alike() -> None:
    header, payload = parts(MESSAGE)
    message = forged(json.dumps(dict(reversed(header.items())), indent=1).encode() + b"  ", payload)
    assert torch.equal(unpack(message, EXPECTED)["layer.weight"], TENSORS["layer.weight"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dtype", "F16"),
        ("dtype", "I32"),
        ("shape", [3, 2]),
        ("shape", [6]),
        ("shape", [-2, -3]),
        ("shape", [2**62, 2**62]),
        ("shape", None),
        ("data_offsets", [0, 25]),
        ("data_offsets", [8, 32]),
        ("data_offsets", [24, 0]),
        ("data_offsets", [-24, 0]),
        ("data_offsets", [0, 10**30]),
        ("surprise", 1),
    ],
)
def test_an_altered_entry_is_refused(key: str, value: Any) -> None:
    header, payload = parts(MESSAGE)
    header["layer.weight"][key] = value
    with pytest.raises(RunError, match=r'has "layer\.weight" as') as caught:
        unpack(forged(header, payload), EXPECTED)
    assert len(str(caught.value)) < 400


def test_other_names_are_refused() -> None:
    header, payload = parts(MESSAGE)
    more = {**header, "more\n\x1b[31m": {"dtype": "F32", "shape": [0], "data_offsets": [32, 32]}}
    with pytest.raises(RunError, match=r"not expected") as caught:
        unpack(forged(more, payload), EXPECTED)
    assert str(caught.value).isprintable()
    del header["layer.weight"]
    with pytest.raises(RunError, match=r'lacks "layer\.weight"'):
        unpack(forged(header, payload), EXPECTED)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100,
        b"[]",
        b"{",
        b"\xff{}",
        b'{"a":1,"a":2}',
        b'{"a":' + b"9" * 5000 + b"}",
        b"",
    ],
)
def test_a_header_that_is_none(header: bytes) -> None:
    with pytest.raises(RunError, match="no JSON object"):
        unpack(forged(header, b""), EXPECTED)


def test_a_deep_header_is_refused() -> None:
    with pytest.raises(RunError, match="no JSON object"):
        unpack(forged(b"[" * 60_000, b""), EXPECTED)


def test_a_name_twice_is_refused() -> None:
    header, payload = parts(MESSAGE)
    once = json.dumps(header["layer.weight"])
    text = json.dumps(header)[:-1] + f', "layer.weight": {once}}}'
    with pytest.raises(RunError, match="no JSON object"):
        unpack(forged(text.encode(), payload), EXPECTED)


@given(cut=st.integers(0, len(MESSAGE) - 1))
def test_a_message_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(RunError):
        unpack(MESSAGE[:cut], EXPECTED)


@given(more=st.binary(min_size=1, max_size=20))
def test_a_message_with_something_behind_it_is_refused(more: bytes) -> None:
    with pytest.raises(RunError, match="bytes of tensors"):
        unpack(MESSAGE + more, EXPECTED)


@given(length=st.integers(0, 2**64 - 1))
def test_another_length_of_the_header_is_refused(length: int) -> None:
    text = struct.pack("<Q", length)
    if text == MESSAGE[:8]:
        return
    with pytest.raises(RunError):
        unpack(text + MESSAGE[8:], EXPECTED)


@given(data=st.binary(max_size=300) | st.binary(max_size=300).map(lambda text: forged(text, b"")))
def test_random_bytes_are_refused_in_one_line(data: bytes) -> None:
    assert "\n" not in attempt(lambda: unpack(data, EXPECTED))
    assert "\n" not in attempt(lambda: read_metadata(data, EXPECTED) and "metadata")


@given(place=st.integers(0, len(MESSAGE) - 1), value=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_changes_one_number(place: int, value: int) -> None:
    data = bytearray(MESSAGE)
    data[place] = value
    try:
        back = unpack(bytes(data), EXPECTED)
    except RunError:
        return
    assert shapes_of(back) == EXPECTED
    if place < len(MESSAGE) - 32:
        assert all(torch.equal(back[name], tensor) for name, tensor in TENSORS.items())
    else:
        changed = sum(int((back[name] != tensor).sum()) for name, tensor in TENSORS.items())
        assert changed <= 1


def test_what_is_missing_is_said_in_bytes() -> None:
    shapes = {"w": ((4,), torch.float32)}
    with pytest.raises(RunError, match="has 13 bytes of tensors where 16 are expected"):
        unpack(pack(filled(shapes))[:-3], shapes)


@given(st.integers(0, 9), st.integers(0, 4), st.sets(st.integers(0, 8)), st.integers(1, 12))
def test_a_matrix_of_some_rows_is_written_as_the_whole_one(
    count: int, width: int, some: set[int], block: int
) -> None:
    """Whatever the blocks are in which it is written, and in whatever order its rows are given."""
    rows = torch.tensor([row for row in some if row < count][::-1], dtype=torch.int64)
    values = torch.arange(1.0, 1 + len(rows) * width).view(len(rows), width)
    whole = torch.zeros(count, width)
    whole[rows] = values
    other = torch.arange(3.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fednlp.federated.message._BLOCK", block)
        pieces = list(message_pieces({"b": SparseRows((count, width), rows, values), "a": other}))
    assert b"".join(pieces) == pack({"a": other, "b": whole})
    assert all(len(piece) <= 4 * max(block, width, 3) for piece in pieces[1:])
