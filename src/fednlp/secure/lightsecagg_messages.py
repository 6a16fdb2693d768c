"""The messages of LightSecAgg: those of :mod:`fednlp.secure.messages`, and two whose rows are long.

Sealed pieces are as long as the model is large over U - T, and a client gets one from every other. So they
are kept as rows that may lie anywhere, in a mapped file say, and are never put together but to travel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import SecureAbort
from fednlp.secure import messages
from fednlp.secure.keys import KEY_BYTES
from fednlp.secure.messages import HEADER_BYTES, ArrayField, Message

_ID = np.dtype("<u4")
_IDS = ArrayField("ids", "<u4")
_KEYS = ArrayField("keys", "u1", (KEY_BYTES,))


@dataclass(frozen=True, eq=False, repr=False)
class AdvertiseSealKey(Message):
    """Client to server: its public key.

    Args:
        keys: uint8 (1, 32).
    """

    code, single = 17, True
    columns = (_KEYS,)
    keys: NDArray[np.uint8]


@dataclass(frozen=True, eq=False, repr=False)
class SealKeyRoster(Message):
    """Server to client: who advertised which key, the receiver too.

    Args:
        ids: uint32 (clients,).
        keys: uint8 (clients, 32).
    """

    code = 18
    columns = (_IDS, _KEYS)
    ids: NDArray[np.uint32]
    keys: NDArray[np.uint8]


@dataclass(frozen=True, eq=False, repr=False)
class CodedSum(Message):
    """Client to server: the sum of its coded pieces of the survivors' masks.

    Args:
        values: uint32 (elements of a piece,), residues.
    """

    code = 21
    columns = (ArrayField("values", "<u4"),)
    values: NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class PieceMessage:
    """Sealed coded pieces, all of one length.

    Args:
        ids: uint32 (peers,).
        sealed: For each of them, uint8 (bytes of a sealed piece,).

    Raises:
        SecureAbort: There is not one row for each, or the rows are of several lengths or types.
    """

    code: ClassVar[int]
    ids: NDArray[np.uint32]
    sealed: Sequence[NDArray[np.uint8]]

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.ids.dtype != np.uint32 or self.ids.shape != (len(self.sealed),):
            raise SecureAbort(f"{name} must have one client number, uint32, for each sealed piece")
        if any(row.dtype != np.uint8 or row.shape != (self.width,) for row in self.sealed):
            raise SecureAbort(f"the sealed pieces of {name} must be bytes, and all of one length")

    @property
    def width(self) -> int:
        """Bytes of a sealed piece; 0 where there is none."""
        return len(self.sealed[0]) if len(self.sealed) else 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rows={len(self.sealed)})"


class SealedPieces(PieceMessage):
    """Client to server: a coded piece of its mask for each peer of the roster, which only the peer can open."""

    code = 19


class DeliveredPieces(PieceMessage):
    """Server to client: the coded pieces that its peers sealed for it."""

    code = 20


M = TypeVar("M", bound=Message)
P = TypeVar("P", bound=PieceMessage)


def size(message: Message | PieceMessage) -> int:
    """Return the length of a message in bytes, without making them.

    >>> size(SealedPieces(np.array([4, 7], dtype=np.uint32), np.zeros((2, 100), dtype=np.uint8)))
    213
    """
    if isinstance(message, Message):
        return messages.size(message)
    return HEADER_BYTES + len(message.sealed) * (_ID.itemsize + message.width)


def to_bytes(message: Message | PieceMessage) -> bytes:
    """Return a message as it travels."""
    return b"".join(parts(message))


def parts(message: Message | PieceMessage) -> Iterator[bytes | memoryview]:
    """Yield a message as it travels, piece by piece: sealed pieces need not lie in memory together."""
    if isinstance(message, Message):
        yield messages.to_bytes(message)
        return
    yield bytes([message.code]) + len(message.sealed).to_bytes(HEADER_BYTES - 1, "little")
    yield message.ids.astype(_ID).tobytes()
    for row in message.sealed:
        yield np.ascontiguousarray(row).data


def from_bytes(data: bytes, kind: type[M], limit: int) -> M:
    """Return the message that bytes hold: :func:`fednlp.secure.messages.from_bytes`."""
    return messages.from_bytes(data, kind, limit)


def pieces_from_bytes(data: bytes | memoryview, kind: type[P], limit: int, width: int) -> P:
    """Return the sealed pieces that bytes hold, as read-only views of them.

    Args:
        data: What arrived, from anybody; may be mapped.
        kind: :class:`SealedPieces` or :class:`DeliveredPieces`.
        limit: The most rows it may have.
        width: Bytes of a sealed piece.

    Raises:
        SecureAbort: It is of another kind or length, or has more rows than the limit.
    """
    name = kind.__name__
    if len(data) < HEADER_BYTES or data[0] != kind.code:
        raise SecureAbort(f"a message of another kind came where {name} ({kind.code}) was expected")
    rows = int.from_bytes(data[1:HEADER_BYTES], "little")
    due = HEADER_BYTES + rows * (_ID.itemsize + width)
    if rows > limit or len(data) != due:
        raise SecureAbort(
            f"{name} has {rows} rows in {len(data)} bytes; at most {limit} are expected, these in {due}"
        )
    ids = np.frombuffer(data, _ID, rows, HEADER_BYTES).astype(np.uint32)
    rest = np.frombuffer(data, np.uint8)[HEADER_BYTES + ids.nbytes :]
    return kind(ids, tuple(rest.reshape(rows, width)))
