"""The types of all messages between a server and its clients, with the bounds of their fields."""

from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints
from pydantic.dataclasses import dataclass

MOST_OBJECTS = 64
"""Objects of a call at most."""
MOST_TEXT = 2000
"""Characters of a reason or an error at most."""
MOST_SIZE = 1 << 40
"""Bytes of an object at most, whatever a peer says."""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it has characters that cannot be printed")
    return text


CallId = Annotated[
    str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.[a-z][a-z0-9-]{0,31}$")
]
"""``round.client.name``, which is safe as a file name."""
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 in hexadecimal digits."""
RunName = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][0-9A-Za-z._-]{0,63}$")]
"""A name of a run, which is safe as a file name."""
_ObjectName = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][0-9A-Za-z._:-]{0,63}$")]
Software = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+!-]{0,39}$")]
_Size = Annotated[int, Field(ge=0, le=MOST_SIZE)]
_Client = Annotated[int, Field(ge=0, lt=10**9)]
_Text = Annotated[str, StringConstraints(max_length=MOST_TEXT), AfterValidator(_printable)]

_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, config=_STRICT)
class ObjectRef:
    """An object: the SHA-256 of its bytes, and how many they are."""

    digest: Digest
    size: _Size


@dataclass(frozen=True, config=_STRICT)
class Hello:
    """A client begins.

    Attributes:
        version: Of the messages.
        software: Version of fednlp.
        run: The run that it is set up for; None if it is to be set up.
        open: Calls that it has not answered yet: the server withdraws those that it no longer wants.
    """

    version: int
    software: Software
    run: RunName | None
    open: Annotated[list[CallId], Field(max_length=256)] = Field(default_factory=list)


@dataclass(frozen=True, config=_STRICT)
class Get:
    """Have an object sent, from an offset to its end."""

    digest: Digest
    offset: _Size


@dataclass(frozen=True, config=_STRICT)
class Reply:
    """A client answers a call.

    Attributes:
        id: Of the call.
        answer: JSON; None where there is none.
        digest: Of the object that belongs to it; None where there is none.
        size: Bytes of this object.
        error: Why the call failed; None if it did not.
    """

    id: CallId
    answer: dict[str, Any] | None
    digest: Digest | None = None
    size: _Size = 0
    error: _Text | None = None


@dataclass(frozen=True, config=_STRICT)
class UploadChunk:
    """A piece of a reply's object, which is the payload."""

    id: CallId
    offset: _Size


@dataclass(frozen=True, config=_STRICT)
class Bye:
    """A client leaves."""

    reason: _Text


@dataclass(frozen=True, config=_STRICT)
class Welcome:
    """A server lets a client take part; ``client`` is its number."""

    version: int
    software: Software
    run: RunName
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

    id: CallId
    request: dict[str, Any]
    objects: Annotated[dict[_ObjectName, ObjectRef], Field(max_length=MOST_OBJECTS)] = Field(
        default_factory=dict
    )


@dataclass(frozen=True, config=_STRICT)
class Withdrawn:
    """A server no longer wants the answer to a call."""

    id: CallId


@dataclass(frozen=True, config=_STRICT)
class ObjectChunk:
    """A piece of an object, which is the payload."""

    digest: Digest
    offset: _Size


@dataclass(frozen=True, config=_STRICT)
class Resume:
    """Have a reply's object sent, from an offset to its end."""

    id: CallId
    offset: _Size


@dataclass(frozen=True, config=_STRICT)
class Stored:
    """A reply is on the server's disk with all that belongs to it."""

    id: CallId


@dataclass(frozen=True, config=_STRICT)
class Finished:
    """The run is over."""

    reason: _Text
