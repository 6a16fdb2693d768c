"""What a server knows of its calls and of those who answer them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednlp.deployment.session.message_types import Call


@dataclass(frozen=True)
class StoredReply:
    """A reply that lies on the server's disk.

    Attributes:
        id: Of the call.
        client: Who answered.
        answer: JSON; None where there is none.
        path: The file of the object that belongs to it, whole and checked; None where there is none.
        size: Bytes of this file.
        error: Why the call failed; None if it did not.
    """

    id: str
    client: int
    answer: dict[str, Any] | None
    path: Path | None
    size: int
    error: str | None


@dataclass(frozen=True)
class Presence:
    """A client that is connected.

    Attributes:
        since: When the connection began.
        heard: When something arrived last.
        bytes_in: Bytes of the frames that arrived.
        bytes_out: Bytes of the frames that were sent.
        doing: What it does, in words.
        set_up: Whether it was set up for the run when the connection began.
    """

    since: float
    heard: float
    bytes_in: int
    bytes_out: int
    doing: str
    set_up: bool = True


@dataclass
class OpenCall:
    """A call whose reply is not stored yet.

    Attributes:
        call: What is asked.
        frame: Its bytes.
        client: Who is asked.
        most_bytes: Bytes of the reply's object at most.
        damaged: How many times the object arrived with wrong bytes.
        sealing: Whether a reply is on its way to the disk.
        handed_over: Whether the round may take its reply.
    """

    call: Call
    frame: bytes
    client: int
    most_bytes: int
    damaged: int = 0
    sealing: bool = False
    handed_over: bool = False
