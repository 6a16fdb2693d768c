"""What a server and its clients say to each other: typed, versioned messages, each in one frame.

A server asks by a :class:`Call` and gets a :class:`Reply`. Large things are objects: they are named by the SHA-256 of
their bytes and travel in chunks. A message from the network is checked strictly: known keys, exact types and bounded
sizes.

A frame is one byte for its kind, four for the length of its header, the header in JSON, and a payload. Integers are
little-endian. Nothing is allocated before its size has been checked, and a payload is a view of the bytes that arrived.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fednlp.errors import ProtocolError

VERSION = 1
"""Of all messages here. A peer of another version is refused."""

CHUNK = 1 << 20
"""Bytes of a payload at most."""
MOST_HEADER = 4 << 20
"""Bytes of a header at most."""
_SHORT_HEADER = 16 << 10
"""Bytes of the header of a message that has no JSON of others in it."""
_MOST_REPLY = 1 << 20
"""Bytes of the header of a site's answer at most."""
MOST_FRAME = 5 + MOST_HEADER + CHUNK
"""Bytes of a frame at most."""
MOST_FROM_SITE = 5 + _SHORT_HEADER + CHUNK
"""Bytes of a frame that a site sends at most; an answer has no payload."""
_MOST_OBJECTS = 64
"""Objects of a call at most."""
_MOST_TEXT = 2000
"""Characters of a reason or an error at most."""
_MOST_SIZE = 1 << 40
"""Bytes of an object at most, whatever a peer says."""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it has characters that cannot be printed")
    return text


_CallId = Annotated[
    str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.[a-z][a-z0-9-]{0,31}$")
]
"""``round.client.name``, which is safe as a file name."""
_Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 in hexadecimal digits."""
_RunName = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][0-9A-Za-z._-]{0,63}$")]
"""A name of a run, which is safe as a file name."""
_ObjectName = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][0-9A-Za-z._:-]{0,63}$")]
_Software = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+!-]{0,39}$")]
_Size = Annotated[int, Field(ge=0, le=_MOST_SIZE)]
_Client = Annotated[int, Field(ge=0, lt=10**9)]
_Text = Annotated[str, StringConstraints(max_length=_MOST_TEXT), AfterValidator(_printable)]

_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, config=_STRICT)
class ObjectRef:
    """An object: the SHA-256 of its bytes, and how many they are."""

    digest: _Digest
    size: _Size


@dataclass(frozen=True, config=_STRICT)
class Hello:
    """A client begins.

    Attributes:
        run: The run that it is set up for; None if it is to be set up.
        open: Calls that it has not answered yet: the server withdraws those that it no longer wants.
    """

    version: int
    software: _Software
    run: _RunName | None
    open: Annotated[list[_CallId], Field(max_length=256)] = Field(default_factory=list)


@dataclass(frozen=True, config=_STRICT)
class Get:
    """Have an object sent, from an offset to its end."""

    digest: _Digest
    offset: _Size


@dataclass(frozen=True, config=_STRICT)
class Reply:
    """A client answers a call.

    Attributes:
        answer: JSON; None where there is none.
        digest: Of the object that belongs to it; None where there is none.
        size: Bytes of this object.
        error: Why the call failed; None if it did not.
    """

    id: _CallId
    answer: dict[str, Any] | None
    digest: _Digest | None = None
    size: _Size = 0
    error: _Text | None = None


@dataclass(frozen=True, config=_STRICT)
class UploadChunk:
    """A piece of a reply's object, which is the payload."""

    id: _CallId
    offset: _Size


@dataclass(frozen=True, config=_STRICT)
class Bye:
    """A client leaves."""

    reason: _Text


@dataclass(frozen=True, config=_STRICT)
class Welcome:
    """A server lets a client take part; ``client`` is its number."""

    version: int
    software: _Software
    run: _RunName
    client: _Client


@dataclass(frozen=True, config=_STRICT)
class Refused:
    """A server does not let a client take part."""

    reason: _Text


@dataclass(frozen=True, config=_STRICT)
class Call:
    """A server wants something of a client.

    Attributes:
        id: Of the call, ``round.client.name``.
        request: JSON.
        objects: What the client has to have first, by name.
    """

    id: _CallId
    request: dict[str, Any]
    objects: Annotated[dict[_ObjectName, ObjectRef], Field(max_length=_MOST_OBJECTS)] = Field(
        default_factory=dict
    )


@dataclass(frozen=True, config=_STRICT)
class Withdrawn:
    """A server no longer wants the answer to a call."""

    id: _CallId


@dataclass(frozen=True, config=_STRICT)
class ObjectChunk:
    """A piece of an object, which is the payload."""

    digest: _Digest
    offset: _Size


@dataclass(frozen=True, config=_STRICT)
class Resume:
    """Have a reply's object sent, from an offset to its end."""

    id: _CallId
    offset: _Size


@dataclass(frozen=True, config=_STRICT)
class Stored:
    """A reply is on the server's disk with all that belongs to it."""

    id: _CallId


@dataclass(frozen=True, config=_STRICT)
class Finished:
    """The run is over."""

    reason: _Text


_ClientMessage = Hello | Get | Reply | UploadChunk | Bye
_ServerMessage = Welcome | Refused | Call | Withdrawn | ObjectChunk | Resume | Stored | Finished

_CLIENT: Mapping[int, type] = dict(enumerate(_ClientMessage.__args__, start=1))
_SERVER: Mapping[int, type] = dict(enumerate(_ServerMessage.__args__, start=17))
_KIND = {message: kind for kind, message in (*_CLIENT.items(), *_SERVER.items())}
_ADAPTERS: Mapping[type, TypeAdapter[Any]] = {message: TypeAdapter(message) for message in _KIND}
_MOST_HEADER: Mapping[type, int] = {Reply: _MOST_REPLY, Call: MOST_HEADER}
"""Bytes of the header of a message at most; of any other :data:`_SHORT_HEADER`."""
_WITH_PAYLOAD = (UploadChunk, ObjectChunk)


@dataclass(frozen=True, config=ConfigDict(extra="ignore", strict=True))
class _Greeting:
    version: int
    software: _Software


_GREETING: TypeAdapter[Any] = TypeAdapter(_Greeting)


class VersionMismatch(ProtocolError):
    """A peer speaks another version of the messages; ``software`` is its version of fednlp."""

    def __init__(self, version: int, software: str) -> None:
        super().__init__(
            f"the other side speaks version {version} of the messages (fednlp {software}), and this side version "
            f"{VERSION}: install the same version of fednlp on both"
        )
        self.version, self.software = version, software


def software() -> str:
    """Return the version of fednlp that is installed."""
    try:
        return installed("fednlp")
    except PackageNotFoundError:
        return "0"


def printable(text: str) -> str:
    """Return a text as a reason or an error may be: one line, without control characters, not too long.

    >>> printable("disk full\\nfree some")
    'disk full free some'
    """
    clean = "".join(one if one.isprintable() else " " for one in text)
    return clean if len(clean) <= _MOST_TEXT else f"{clean[: _MOST_TEXT - 1]}…"


def header(message: Any) -> bytes:
    """Return the JSON of a message, in UTF-8."""
    value = {one.name: getattr(message, one.name) for one in fields(message)}
    return json.dumps(value, default=asdict, separators=(",", ":")).encode()


def pack(message: Any, payload: bytes = b"") -> bytes:
    """Return the frame of a message.

    Raises:
        ProtocolError: It is too long.
    """
    kind = type(message)
    made = header(message)
    _check_length(kind, made)
    return make_frame(_KIND[kind], made, payload)


def require_in_turn(data: bytes, greeted: bool) -> None:
    """Check that a client's frame greets if nothing else did before, and only then; its header is not read.

    Raises:
        ProtocolError: It is out of turn.
    """
    kind = _CLIENT.get(data[0]) if data else None
    if kind is not None and greeted == (kind is Hello):
        raise ProtocolError(f"a {kind.__name__} out of turn")


def from_client(data: bytes) -> tuple[_ClientMessage, memoryview]:
    """Return the message of a frame that a client sent, and its payload.

    Raises:
        VersionMismatch: The client greets in another version.
        ProtocolError: It is no such frame.
    """
    message: tuple[_ClientMessage, memoryview] = _parse(data, _CLIENT)
    return message


def from_server(data: bytes) -> tuple[_ServerMessage, memoryview]:
    """Return the message of a frame that a server sent, and its payload.

    Raises:
        VersionMismatch: The server greets in another version.
        ProtocolError: It is no such frame.
    """
    message: tuple[_ServerMessage, memoryview] = _parse(data, _SERVER)
    return message


def reply_of(text: bytes) -> Reply:
    """Return the reply that a file holds.

    Raises:
        ProtocolError: It is not the JSON of a reply.
    """
    reply: Reply = _checked(_ADAPTERS[Reply], text, "Reply")
    return reply


def _parse(data: bytes, kinds: Mapping[int, type]) -> Any:
    frame = split_frame(data)
    kind = kinds.get(frame.kind)
    if kind is None:
        raise ProtocolError(f"a frame of an unknown kind: {frame.kind}")
    _check_length(kind, frame.header)
    if bool(frame.payload) != (kind in _WITH_PAYLOAD):
        raise ProtocolError(f"a {kind.__name__} with {len(frame.payload)} bytes of payload")
    if kind in (Hello, Welcome):
        greeting = _checked(_GREETING, frame.header, kind.__name__)
        if greeting.version != VERSION:
            raise VersionMismatch(greeting.version, greeting.software)
    return _checked(_ADAPTERS[kind], frame.header, kind.__name__), frame.payload


def _check_length(kind: type, header: bytes) -> None:
    most = _MOST_HEADER.get(kind, _SHORT_HEADER)
    if len(header) > most:
        raise ProtocolError(f"the header of a {kind.__name__} has {len(header)} bytes, and may have {most}")


def _checked(adapter: TypeAdapter[Any], text: bytes, name: str) -> Any:
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(printable(str(part)[:40]) for part in first["loc"])
        raise ProtocolError(f"a {name} that does not fit: {place}: {printable(first['msg'][:200])}") from None


_START = struct.Struct("<BI")


class _Frame(NamedTuple):
    """A frame that has arrived; the header is not parsed yet."""

    kind: int
    header: bytes
    payload: memoryview


def make_frame(kind: int, header: bytes, payload: bytes = b"") -> bytes:
    """Return the bytes of a frame.

    Args:
        kind: From 0 to 255.
        header: A JSON object in UTF-8.
        payload: At most :data:`CHUNK` bytes.

    Raises:
        ProtocolError: The header or the payload is too long.

    >>> make_frame(5, b"{}", b"payload")
    b'\\x05\\x02\\x00\\x00\\x00{}payload'
    """
    _check_sizes(len(header), len(payload))
    return b"".join((_START.pack(kind, len(header)), header, payload))


def split_frame(data: bytes) -> _Frame:
    """Return the parts of a frame.

    Raises:
        ProtocolError: It is cut short, or a part is too long.

    >>> split_frame(make_frame(5, b"{}", b"payload")).header
    b'{}'
    """
    if len(data) < _START.size:
        raise ProtocolError(f"a frame of {len(data)} bytes is cut short")
    kind, length = _START.unpack_from(data)
    start = _START.size + length
    if start > len(data):
        raise ProtocolError(f"a frame of {len(data)} bytes with a header of {length} bytes is cut short")
    _check_sizes(length, len(data) - start)
    return _Frame(kind, bytes(data[_START.size : start]), memoryview(data)[start:])


def _check_sizes(header: int, payload: int) -> None:
    if header > MOST_HEADER:
        raise ProtocolError(f"a header of {header} bytes is longer than {MOST_HEADER}")
    if payload > CHUNK:
        raise ProtocolError(f"a payload of {payload} bytes is longer than {CHUNK}")
