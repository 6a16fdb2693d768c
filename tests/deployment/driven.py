"""A hub that a driver serves, and sessions that a driver runs in threads: what the tests of all drivers share."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from fednlp.deployment.session.client_session import ClientSession, ReadyCall
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.messages import Call
from fednlp.deployment.session.objects import ObjectCache
from fednlp.deployment.session.replies import Outbox
from fednlp.errors import FednlpError, RunError

from .throwaway import name_of

SOON = 60.0
MODEL = os.urandom((3 << 20) + 17)


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def session_in(folder: Path, on_ready: Callable[[ReadyCall], None], **more: Any) -> ClientSession:
    """Return a client's session that keeps all it has in a folder."""
    return ClientSession(
        Outbox(folder / "outbox"),
        ObjectCache(folder / "objects"),
        run=None,
        software="1.0",
        on_ready=on_ready,
        **more,
    )


class Served:
    """A hub; the name in a client's certificate is its number."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.hub = folder, Hub(folder / "hub", "run")
        self.lines: list[str] = []

    def new_session(self, peer: Any, wake: Callable[[], None]) -> Any:
        name = name_of(peer.certificate)
        if not name.isdigit():
            raise RunError(f"there is no site {name}")
        return self.hub.session(int(name), wake, time.monotonic)

    def enrol(self, peer: Any, data: bytes) -> bytes:
        if data == b"no":
            raise RunError("this token was used")
        return name_of(peer.certificate).encode() + b" " + data

    def ask(self, call_id: str, client: int) -> None:
        """Ask a client for the model, backwards."""
        (self.folder / "model").write_bytes(MODEL)
        self.hub.ask(
            client, Call(call_id, {}, {"model": self.hub.add_object(self.folder / "model")}), len(MODEL)
        )

    def answered(self) -> int:
        """Return who has answered, with the model backwards."""
        reply = self.hub.take(SOON)
        assert reply is not None
        assert reply.answer == {"done": reply.id}
        assert reply.path is not None
        assert reply.path.read_bytes() == MODEL[::-1]
        return int(reply.client)


class Driven:
    """A session that is driven in a thread, and answers by the object that it was given, backwards.

    Args:
        folder: Its own; made if missing.
        connect: Runs a session, given what begins it, until it is finished; ``on_state`` takes a line for people.
    """

    def __init__(self, folder: Path, connect: Callable[..., Coroutine[Any, Any, None]]) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.lines: list[str] = []
        self.error: FednlpError | None = None
        self.session = session_in(folder, self._work, on_state=self.lines.append)
        self.thread = threading.Thread(target=self._run, args=(connect,), daemon=True)
        self.thread.start()

    def _run(self, connect: Callable[..., Coroutine[Any, Any, None]]) -> None:
        try:
            asyncio.run(connect(self.session.begin, on_state=self.lines.append))
        except FednlpError as error:
            self.error = error

    def _work(self, call: ReadyCall) -> None:
        body = self.folder / "body"
        body.write_bytes(call.objects["model"].read_bytes()[::-1])
        self.session.answer(call.id, {"done": call.id}, body)

    def leave(self) -> None:
        self.session.leave("the test is over")
        self.thread.join(SOON)
        assert not self.thread.is_alive()
