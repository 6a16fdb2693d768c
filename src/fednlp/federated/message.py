"""The wire format: named tensors as one safetensors message, and nothing else.

A receiver knows in advance the names, dtypes and shapes of a message, from :class:`Layout` and the chain of
transforms. A message that differs in any of them is refused before memory is allocated for its tensors; no number
of its header is ever used. Format: https://huggingface.co/docs/safetensors, *Format*.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fednlp.errors import RunError

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Name -> (shape, dtype)."""

METADATA_LIMIT = 1 << 16
"""Maximum number of bytes of metadata in a header."""
_METADATA, _OWN = "__metadata__", "fednlp"
_DTYPES = {
    torch.float32: ("F32", 4),
    torch.int32: ("I32", 4),
    torch.bfloat16: ("BF16", 2),
    torch.float16: ("F16", 2),
    torch.int16: ("I16", 2),
    torch.int8: ("I8", 1),
    torch.uint8: ("U8", 1),
}
"""The dtypes of messages, in the order in which safetensors writes them."""
_BLOCK = 1 << 18
"""Elements of a block, where a matrix is written block by block."""


@dataclass(frozen=True)
class SparseRows:
    """A matrix of which some rows are given, and the others are zero; it is written without being in memory as a whole.

    Attributes:
        shape: (rows, width) of the matrix.
        rows: Numbers of the rows that are given, int64.
        values: Of these rows, (given, width).
    """

    shape: tuple[int, ...]
    rows: Tensor
    values: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """That of the values."""
        return self.values.dtype

    def blocks(self) -> Iterator[Tensor]:
        """Yield the matrix, some of its rows at a time."""
        count, width = self.shape
        height = max(1, _BLOCK // max(1, width))
        zeros = self.values.new_zeros(min(height, count), width)
        for first in range(0, count, height):
            here = (self.rows >= first) & (self.rows < first + height)
            block = zeros[: count - first]
            if here.any():
                block = block.clone()
                block[self.rows[here] - first] = self.values[here]
            yield block


def shapes_of(tensors: Mapping[str, Tensor | SparseRows]) -> Shapes:
    """Return name -> (shape, dtype) of tensors."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def message_bytes(shapes: Shapes) -> int:
    """Return the length of the message (without metadata) that tensors of these shapes make, to the byte.

    >>> message_bytes({"w": ((2, 3), torch.float32)})
    96
    """
    header, payload = _header(shapes)
    return 8 + -(-len(_text(header)) // 8) * 8 + payload


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return named tensors as one message; the same tensors and metadata make the same bytes.

    Args:
        tensors: float32, int32, bfloat16, float16, int8 or uint8.
        metadata: Short texts by name, if any, read again by :func:`read_metadata`.
    """
    if not metadata:
        return b"".join(message_pieces(tensors))
    from safetensors.torch import save

    # One entry, because safetensors writes several in no order.
    extra = {_OWN: json.dumps(dict(metadata), sort_keys=True)}
    return save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, extra)


def message_pieces(tensors: Mapping[str, Tensor | SparseRows]) -> Iterator[bytes | memoryview]:
    """Yield named tensors as :func:`pack` returns them: the header, and the bytes of each tensor where they lie."""
    header, _ = _header(shapes_of(tensors))
    text = _text(header)
    length = -(-len(text) // 8) * 8
    yield length.to_bytes(8, "little") + text.ljust(length)
    for name in header:
        found = tensors[name]
        for block in found.blocks() if isinstance(found, SparseRows) else [found]:
            flat = block.detach().contiguous().view(-1)
            # Without elements it has no stride, and no view as bytes.
            yield flat.view(torch.uint8).numpy().data if len(flat) else b""


def unpack(data: bytes | memoryview, expected: Shapes) -> dict[str, Tensor]:
    """Return the tensors of a message, in the order of ``expected``; they own their memory.

    Args:
        data: An untrusted message.
        expected: The exact names, shapes and dtypes of its tensors.

    Raises:
        RunError: The message is not valid safetensors, or differs from ``expected``.
    """
    tensors = {}
    for name, raw in raw_tensors(data, expected).items():
        shape, dtype = expected[name]
        flat = torch.empty(torch.Size(shape).numel(), dtype=dtype)
        flat.view(torch.uint8).numpy()[:] = raw
        tensors[name] = flat.view(shape)
    return tensors


def raw_tensors(data: bytes | memoryview, expected: Shapes) -> dict[str, NDArray[np.uint8]]:
    """Return the bytes of a message's tensors, where they lie, in the order of ``expected``.

    Args:
        data: An untrusted message.
        expected: The exact names, shapes and dtypes of its tensors.

    Raises:
        RunError: The message is not valid safetensors, or differs from ``expected``.
    """
    header, payload = _header(expected)
    start, found = _read_header(data, len(_text(header)) + METADATA_LIMIT)
    found.pop(_METADATA, None)
    _compare(found, header)
    if len(data) - start != payload:
        raise RunError(f"the message has {len(data) - start} bytes of tensors where {payload} are expected")
    raw = {}
    for name in expected:
        first, last = header[name]["data_offsets"]
        raw[name] = np.frombuffer(data, dtype=np.uint8, count=last - first, offset=start + first)
    return raw


def read_metadata(data: bytes, expected: Shapes) -> dict[str, str]:
    """Return the short texts that :func:`pack` was given with tensors of the expected shapes.

    Raises:
        RunError: The message is not valid safetensors, or its metadata are not texts by name.
    """
    _, found = _read_header(data, len(_text(_header(expected)[0])) + METADATA_LIMIT)
    extra = found.get(_METADATA)
    text = extra.get(_OWN, "{}") if isinstance(extra, dict) else "{}"
    metadata = _parse(text) if isinstance(text, str) else None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise RunError("the message's metadata are not short texts by name")
    return metadata


def _header(shapes: Shapes) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the header of tensors of these shapes as safetensors writes it, and the length of the tensors."""
    ranks = {dtype: rank for rank, dtype in enumerate(_DTYPES)}
    header: dict[str, dict[str, Any]] = {}
    offset = 0
    for name, (shape, dtype) in sorted(shapes.items(), key=lambda item: (ranks[item[1][1]], item[0])):
        text, size = _DTYPES[dtype]
        end = offset + torch.Size(shape).numel() * size
        header[name] = {"dtype": text, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    return header, offset


def _text(header: dict[str, dict[str, Any]]) -> bytes:
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


def _read_header(data: bytes | memoryview, longest: int) -> tuple[int, dict[str, Any]]:
    """Return the offset of the tensors, and the header, which may have ``longest`` bytes."""
    if len(data) < 8:
        raise RunError(f"the message has {len(data)} bytes: it is cut off, or no safetensors message")
    length = int.from_bytes(data[:8], "little")
    if length > min(longest, len(data) - 8):
        raise RunError(
            f"the message's header of {length} bytes is too long: it is cut off, or not the one expected"
        )
    header = _parse(bytes(data[8 : 8 + length]))
    if not isinstance(header, dict):
        raise RunError("the message's header is no JSON object: it is no safetensors message")
    return 8 + length, header


def _parse(text: bytes | str) -> Any:
    """Return the value of untrusted JSON text; None where it is not valid, or repeats a key."""
    try:
        return json.loads(text if isinstance(text, str) else text.decode(), object_pairs_hook=_distinct)
    except (ValueError, RecursionError):
        return None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands there twice")
    return made


def _compare(found: dict[str, Any], header: dict[str, dict[str, Any]]) -> None:
    """Check that the header is the expected one, tensor by tensor."""
    for name, entry in header.items():
        if name not in found:
            raise RunError(f"the message lacks {_shown(name)}")
        if found[name] != entry:
            raise RunError(f"the message has {_shown(name)} as {_shown(found[name])}, not as {_shown(entry)}")
    for name in found:
        if name not in header:
            raise RunError(f"the message holds {_shown(name)}, which is not expected")


def _shown(value: Any) -> str:
    """Return an untrusted value as one short line."""
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
