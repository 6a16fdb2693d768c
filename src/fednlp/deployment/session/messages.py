"""What a server and its clients say to each other: typed, versioned messages, each in one frame.

A server asks by a :class:`Call` and gets a :class:`Reply`. Large things are objects: they are named by the SHA-256 of
their bytes and travel in chunks. A message from the network is checked strictly: known keys, exact types and bounded
sizes.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fednlp.deployment.session.frames import MOST_HEADER, MOST_REPLY, SHORT_HEADER, join, split
from fednlp.deployment.session.message_types import (
    MOST_TEXT,
    Bye,
    Call,
    Finished,
    Get,
    Hello,
    ObjectChunk,
    Refused,
    Reply,
    Resume,
    Software,
    Stored,
    UploadChunk,
    Welcome,
    Withdrawn,
)
from fednlp.errors import ProtocolError

VERSION = 1
"""Of all messages here. A peer of another version is refused."""

ClientMessage = Hello | Get | Reply | UploadChunk | Bye
ServerMessage = Welcome | Refused | Call | Withdrawn | ObjectChunk | Resume | Stored | Finished

_CLIENT: Mapping[int, type] = dict(enumerate(ClientMessage.__args__, start=1))
_SERVER: Mapping[int, type] = dict(enumerate(ServerMessage.__args__, start=17))
_KIND = {message: kind for kind, message in (*_CLIENT.items(), *_SERVER.items())}
_ADAPTERS: Mapping[type, TypeAdapter[Any]] = {message: TypeAdapter(message) for message in _KIND}
_MOST_HEADER: Mapping[type, int] = {Reply: MOST_REPLY, Call: MOST_HEADER}
"""Bytes of the header of a message at most; of any other :data:`~fednlp.deployment.session.frames.SHORT_HEADER`."""
_WITH_PAYLOAD = (UploadChunk, ObjectChunk)


@dataclass(frozen=True, config=ConfigDict(extra="ignore", strict=True))
class _Greeting:
    version: int
    software: Software


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
    return clean if len(clean) <= MOST_TEXT else f"{clean[: MOST_TEXT - 1]}…"


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
    return join(_KIND[kind], made, payload)


def require_in_turn(data: bytes, greeted: bool) -> None:
    """Check that a client's frame greets if nothing else did before, and only then; its header is not read.

    Raises:
        ProtocolError: It is out of turn.
    """
    kind = _CLIENT.get(data[0]) if data else None
    if kind is not None and greeted == (kind is Hello):
        raise ProtocolError(f"a {kind.__name__} out of turn")


def from_client(data: bytes) -> tuple[ClientMessage, memoryview]:
    """Return the message of a frame that a client sent, and its payload.

    Raises:
        VersionMismatch: The client greets in another version.
        ProtocolError: It is no such frame.
    """
    message: tuple[ClientMessage, memoryview] = _parse(data, _CLIENT)
    return message


def from_server(data: bytes) -> tuple[ServerMessage, memoryview]:
    """Return the message of a frame that a server sent, and its payload.

    Raises:
        VersionMismatch: The server greets in another version.
        ProtocolError: It is no such frame.
    """
    message: tuple[ServerMessage, memoryview] = _parse(data, _SERVER)
    return message


def reply_of(text: bytes) -> Reply:
    """Return the reply that a file holds.

    Raises:
        ProtocolError: It is not the JSON of a reply.
    """
    reply: Reply = _checked(_ADAPTERS[Reply], text, "Reply")
    return reply


def _parse(data: bytes, kinds: Mapping[int, type]) -> Any:
    frame = split(data)
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
    most = _MOST_HEADER.get(kind, SHORT_HEADER)
    if len(header) > most:
        raise ProtocolError(f"the header of a {kind.__name__} has {len(header)} bytes, and may have {most}")


def _checked(adapter: TypeAdapter[Any], text: bytes, name: str) -> Any:
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(printable(str(part)[:40]) for part in first["loc"])
        raise ProtocolError(f"a {name} that does not fit: {place}: {printable(first['msg'][:200])}") from None
