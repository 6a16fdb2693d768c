"""One end alone: what it says, and how it is greeted."""

from typing import Any

from fednlp.deployment.session.client_session import ClientSession
from fednlp.deployment.session.hub import ServerSession
from fednlp.deployment.session.messages import VERSION, Hello, Welcome, from_client, from_server, pack


def greeting(run: str | None = None, version: int = VERSION, open: list[str] | None = None) -> bytes:
    """Return a client's first frame."""
    return pack(Hello(version, "1.0", run, open or []))


def welcome(client: int = 0, run: str = "run") -> bytes:
    """Return a server's first frame."""
    return pack(Welcome(VERSION, "1.0", run, client))


def drain(session: ServerSession | ClientSession) -> list[Any]:
    """Return all that a session has to say."""
    parse = from_server if isinstance(session, ServerSession) else from_client
    said = []
    while (frame := session.next_frame()) is not None:
        said.append(parse(frame)[0])
    return said
