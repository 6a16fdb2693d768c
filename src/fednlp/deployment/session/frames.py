"""A frame: one byte for its kind, four for the length of its header, the header in JSON, and a payload.

Integers are little-endian. Nothing is allocated before its size has been checked, and a payload is a view of the
bytes that arrived.
"""

import struct
from typing import NamedTuple

from fednlp.errors import ProtocolError

CHUNK = 1 << 20
"""Bytes of a payload at most."""
MOST_HEADER = 4 << 20
"""Bytes of a header at most."""
SHORT_HEADER = 16 << 10
"""Bytes of the header of a message that has no JSON of others in it."""
MOST_REPLY = 1 << 20
"""Bytes of the header of a site's answer at most."""
MOST_FRAME = 5 + MOST_HEADER + CHUNK
"""Bytes of a frame at most."""
MOST_FROM_SITE = 5 + SHORT_HEADER + CHUNK
"""Bytes of a frame that a site sends at most; an answer has no payload."""

_START = struct.Struct("<BI")


class Frame(NamedTuple):
    """A frame that has arrived; the header is not parsed yet."""

    kind: int
    header: bytes
    payload: memoryview


def join(kind: int, header: bytes, payload: bytes = b"") -> bytes:
    """Return the bytes of a frame.

    Args:
        kind: From 0 to 255.
        header: A JSON object in UTF-8.
        payload: At most :data:`CHUNK` bytes.

    Raises:
        ProtocolError: The header or the payload is too long.

    >>> join(5, b"{}", b"payload")
    b'\\x05\\x02\\x00\\x00\\x00{}payload'
    """
    _check(len(header), len(payload))
    return b"".join((_START.pack(kind, len(header)), header, payload))


def split(data: bytes) -> Frame:
    """Return the parts of a frame.

    Raises:
        ProtocolError: It is cut short, or a part is too long.

    >>> split(join(5, b"{}", b"payload")).header
    b'{}'
    """
    if len(data) < _START.size:
        raise ProtocolError(f"a frame of {len(data)} bytes is cut short")
    kind, length = _START.unpack_from(data)
    start = _START.size + length
    if start > len(data):
        raise ProtocolError(f"a frame of {len(data)} bytes with a header of {length} bytes is cut short")
    _check(length, len(data) - start)
    return Frame(kind, bytes(data[_START.size : start]), memoryview(data)[start:])


def _check(header: int, payload: int) -> None:
    if header > MOST_HEADER:
        raise ProtocolError(f"a header of {header} bytes is longer than {MOST_HEADER}")
    if payload > CHUNK:
        raise ProtocolError(f"a payload of {payload} bytes is longer than {CHUNK}")
