"""The messages of secure aggregation as bytes: what travels, to the byte, and nothing of unexpected length.

A message is a table whose arrays have a row for each client it speaks of. On the wire it is its kind
(1 byte), the number of rows (4 bytes, little-endian) and its arrays end to end, row by row. Lengths follow
from kind and rows alone, so a message from a stranger is refused before anything is made of it. The top bit
of the kind says whether rows carry signatures (malicious-server mode).

The sealed pieces of LightSecAgg are as long as the model is large over U - T, and a client gets one from every other.
So these rows may lie anywhere, in a mapped file say, and are never put together but to travel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import SecureAbort
from fednlp.secure.keys import KEY_BYTES, SEALED_EXTRA, SIGNATURE_BYTES
from fednlp.secure.shamir import LIMBS, SHARE_BYTES

HEADER_BYTES = 5
SECRETS = 2
"""Every client shares two secrets: the seed of its own mask, and its private mask key."""
SEED, KEY = range(SECRETS)
"""The kinds of share, as :class:`Revealed` and the rows of a sealed payload number them."""
SEALED_BYTES = SECRETS * SHARE_BYTES + SEALED_EXTRA
_SIGNED = 0x80
_MOST_ROWS = (1 << 32) - 1


class _ArrayField(NamedTuple):
    """One array of a message: its name, its dtype on the wire, and the shape of a row."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


_IDS = _ArrayField("ids", "<u4")
_SEAL_KEYS = _ArrayField("seal_keys", "u1", (KEY_BYTES,))
_MASK_KEYS = _ArrayField("mask_keys", "u1", (KEY_BYTES,))
_SEALED = _ArrayField("sealed", "u1", (SEALED_BYTES,))
_KEYS = _ArrayField("keys", "u1", (KEY_BYTES,))
_SIGNATURES = _ArrayField("signatures", "u1", (SIGNATURE_BYTES,))


@dataclass(frozen=True, eq=False, repr=False)
class Message:
    """What all messages have in common; equal when they are the same bytes.

    Raises:
        SecureAbort: An array has another dtype or shape than its kind of message lays down.
    """

    code: ClassVar[int]
    columns: ClassVar[tuple[_ArrayField, ...]]
    optional: ClassVar[bool] = False
    """Whether the last column may be None."""
    single: ClassVar[bool] = False
    """Whether there is always exactly one row."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        for column in self.present:
            array = getattr(self, column.name)
            if not isinstance(array, np.ndarray) or array.dtype != np.dtype(column.dtype).newbyteorder("="):
                raise SecureAbort(
                    f"{column.name} of {name} must be an array of {np.dtype(column.dtype).name}"
                )
            if array.ndim == 0 or array.shape[1:] != column.shape or len(array) != self.rows:
                raise SecureAbort(f"{column.name} of {name} has the shape {array.shape}, which does not fit")
        if self.rows > _MOST_ROWS or (self.single and self.rows != 1):
            raise SecureAbort(f"{name} cannot have {self.rows} rows")

    @property
    def signed(self) -> bool:
        """Whether the message has its optional column."""
        return self.optional and getattr(self, self.columns[-1].name) is not None

    @property
    def present(self) -> tuple[_ArrayField, ...]:
        """The columns that this message has."""
        return self.columns if self.signed or not self.optional else self.columns[:-1]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(np.shape(getattr(self, self.columns[0].name))[0])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Message) and to_bytes(self) == to_bytes(other)

    def __repr__(self) -> str:  # keys, shares and signatures do not belong in logs
        return f"{type(self).__name__}(rows={self.rows})"


@dataclass(frozen=True, eq=False, repr=False)
class AdvertiseKeys(Message):
    """Client to server: its two public keys, one to seal and one to mask.

    Args:
        seal_keys: uint8 (1, 32).
        mask_keys: uint8 (1, 32).
        signatures: uint8 (1, 64), or None outside malicious-server mode.
    """

    code, single, optional = 1, True, True
    columns = (_SEAL_KEYS, _MASK_KEYS, _SIGNATURES)
    seal_keys: NDArray[np.uint8]
    mask_keys: NDArray[np.uint8]
    signatures: NDArray[np.uint8] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class KeyRoster(Message):
    """Server to client: the public keys of its neighbours that advertised.

    Args:
        ids: uint32 (neighbours,).
        seal_keys: uint8 (neighbours, 32).
        mask_keys: uint8 (neighbours, 32).
        signatures: uint8 (neighbours, 64), or None outside malicious-server mode.
    """

    code, optional = 2, True
    columns = (_IDS, _SEAL_KEYS, _MASK_KEYS, _SIGNATURES)
    ids: NDArray[np.uint32]
    seal_keys: NDArray[np.uint8]
    mask_keys: NDArray[np.uint8]
    signatures: NDArray[np.uint8] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class SealedShares(Message):
    """Client to server: for each of its roster, a share of both its secrets that only the receiver can open.

    Args:
        ids: uint32 (neighbours,), the receivers.
        sealed: uint8 (neighbours, ``SEALED_BYTES``).
    """

    code = 3
    columns = (_IDS, _SEALED)
    ids: NDArray[np.uint32]
    sealed: NDArray[np.uint8]


@dataclass(frozen=True, eq=False, repr=False)
class DeliveredShares(Message):
    """Server to client: what its neighbours sealed for it.

    Args:
        ids: uint32 (neighbours,), the senders.
        sealed: uint8 (neighbours, ``SEALED_BYTES``).
    """

    code = 4
    columns = (_IDS, _SEALED)
    ids: NDArray[np.uint32]
    sealed: NDArray[np.uint8]


@dataclass(frozen=True, eq=False, repr=False)
class Survivors(Message):
    """Server to client: whose masked vectors arrived.

    Args:
        ids: uint32 (survivors,): all of them in malicious-server mode, else the client itself and its neighbours.
    """

    code = 5
    columns = (_IDS,)
    ids: NDArray[np.uint32]


@dataclass(frozen=True, eq=False, repr=False)
class Confirmation(Message):
    """Client to server, in malicious-server mode: its signature of the survivors that it was shown.

    Args:
        signatures: uint8 (1, 64).
    """

    code, single = 6, True
    columns = (_SIGNATURES,)
    signatures: NDArray[np.uint8]


@dataclass(frozen=True, eq=False, repr=False)
class Confirmed(Message):
    """Server to client, in malicious-server mode: what its neighbours signed.

    Args:
        ids: uint32 (signers,).
        signatures: uint8 (signers, 64).
    """

    code = 7
    columns = (_IDS, _SIGNATURES)
    ids: NDArray[np.uint32]
    signatures: NDArray[np.uint8]


@dataclass(frozen=True, eq=False, repr=False)
class Revealed(Message):
    """Client to server: one share of each peer, of its seed if it survived, else of its mask key.

    Args:
        ids: uint32 (peers,).
        kinds: uint8 (peers,), ``SEED`` or ``KEY``.
        shares: uint32 (peers, 9).
    """

    code = 8
    columns = (_IDS, _ArrayField("kinds", "u1"), _ArrayField("shares", "<u4", (LIMBS,)))
    ids: NDArray[np.uint32]
    kinds: NDArray[np.uint8]
    shares: NDArray[np.uint32]


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
    columns = (_ArrayField("values", "<u4"),)
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

    >>> size(Survivors(np.arange(10, dtype=np.uint32)))
    45
    >>> size(SealedPieces(np.array([4, 7], dtype=np.uint32), np.zeros((2, 100), dtype=np.uint8)))
    213
    """
    if isinstance(message, PieceMessage):
        return HEADER_BYTES + len(message.sealed) * (_IDS.width + message.width)
    return HEADER_BYTES + message.rows * sum(column.width for column in message.present)


def to_bytes(message: Message | PieceMessage) -> bytes:
    """Return a message as it travels.

    >>> to_bytes(Survivors(np.array([1, 258], dtype=np.uint32))).hex(" ")
    '05 02 00 00 00 01 00 00 00 02 01 00 00'
    """
    return b"".join(parts(message))


def parts(message: Message | PieceMessage) -> Iterator[bytes | memoryview]:
    """Yield a message as it travels, piece by piece: sealed pieces need not lie in memory together."""
    if isinstance(message, PieceMessage):
        yield _header(message.code, len(message.sealed))
        yield message.ids.astype(_IDS.dtype).tobytes()
        for row in message.sealed:
            yield np.ascontiguousarray(row).data
        return
    yield _header(message.code | (_SIGNED if message.signed else 0), message.rows)
    for column in message.present:
        yield getattr(message, column.name).astype(column.dtype, copy=False).tobytes()


def _header(kind: int, rows: int) -> bytes:
    return bytes([kind]) + rows.to_bytes(HEADER_BYTES - 1, "little")


def from_bytes(data: bytes, kind: type[M], limit: int) -> M:
    """Return the message that bytes hold.

    Kind, number of rows and length are checked before any array is made; arrays of bytes are read-only views
    of ``data``.

    Args:
        kind: The class of message that is expected.
        limit: The most rows it may have.

    Raises:
        SecureAbort: It is of another kind or length, or longer than the limit.

    >>> from_bytes(to_bytes(Survivors(np.array([1, 258], dtype=np.uint32))), Survivors, limit=10).ids.tolist()
    [1, 258]
    """
    name = kind.__name__
    if len(data) < HEADER_BYTES:
        raise SecureAbort(f"a message of {len(data)} bytes came where {name} was expected")
    signed = kind.optional and data[0] == kind.code | _SIGNED
    if data[0] != kind.code and not signed:
        raise SecureAbort(f"a message of kind {data[0]} came where {name} ({kind.code}) was expected")
    columns = kind.columns[:-1] if kind.optional and not signed else kind.columns
    rows = int.from_bytes(data[1:HEADER_BYTES], "little")
    if rows > limit or (kind.single and rows != 1):
        raise SecureAbort(f"{name} has {rows} rows; at most {1 if kind.single else limit} are expected")
    due = HEADER_BYTES + rows * sum(column.width for column in columns)
    if len(data) != due:
        raise SecureAbort(f"{name} of {rows} rows has {len(data)} bytes instead of {due}")
    return kind(**_read(data, rows, columns))


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
    due = HEADER_BYTES + rows * (_IDS.width + width)
    if rows > limit or len(data) != due:
        raise SecureAbort(
            f"{name} has {rows} rows in {len(data)} bytes; at most {limit} are expected, these in {due}"
        )
    ids = np.frombuffer(data, _IDS.dtype, rows, HEADER_BYTES).astype(np.uint32)
    rest = np.frombuffer(data, np.uint8)[HEADER_BYTES + ids.nbytes :]
    return kind(ids, tuple(rest.reshape(rows, width)))


def _read(data: bytes, rows: int, columns: tuple[_ArrayField, ...]) -> dict[str, NDArray[Any]]:
    arrays = {}
    offset = HEADER_BYTES
    for name, dtype, shape in columns:
        count = rows * int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(data, dtype, count, offset).reshape(rows, *shape)
        offset += array.nbytes
        # Numbers lie after an odd number of bytes: a copy puts them where a processor reads them quickly.
        arrays[name] = array if dtype == "u1" else array.astype(dtype[1:])
    return arrays
