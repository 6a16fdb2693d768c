"""A transfer that breaks off goes on: no byte that was stored is sent again, wherever it is cut."""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from fednlp.deployment.session import objects
from fednlp.deployment.session.client_session import ClientSession, ReadyCall
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.messages import (
    Call,
    ObjectChunk,
    ObjectRef,
    Reply,
    Resume,
    Stored,
    UploadChunk,
    Welcome,
    from_client,
    from_server,
    pack,
)
from fednlp.deployment.session.objects import ObjectCache
from fednlp.deployment.session.replies import Outbox

from .ends import drain, greeting
from .memory_link import MemoryLink

CHUNK, CHUNKS = 100, 7
DATA = Random(0).randbytes(CHUNK * CHUNKS - 30)


class Pair:
    """A server that asks one client once, whose answer is the object that it was given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "model").write_bytes(DATA)
        self.worked = 0
        self.lines: list[str] = []
        self.start_server()
        self.start_client()

    def start_server(self) -> None:
        self.hub = Hub(self.folder / "server", "run")
        self.hub.ask(
            0, Call("1.0.train", {}, {"model": self.hub.add_object(self.folder / "model")}), len(DATA)
        )

    def start_client(self) -> None:
        self.session = ClientSession(
            Outbox(self.folder / "outbox"),
            ObjectCache(self.folder / "objects"),
            run="run",
            software="1.0",
            on_ready=self._work,
            on_state=self.lines.append,
        )
        self.link = MemoryLink(self.session.begin, lambda wake: self.hub.session(0, wake, time.monotonic))

    def _work(self, call: ReadyCall) -> None:
        self.worked += 1
        body = self.folder / "body"
        body.write_bytes(call.objects["model"].read_bytes()[::-1])
        self.session.answer(call.id, {}, body)

    def move_until(self, condition: Callable[[], bool]) -> None:
        """Move frames in turn until the condition holds or nothing moves."""
        if not self.link.connected:
            self.link.connect()
        moving = True
        while moving and not condition():
            moving = False
            for end in (0, 1):
                moving |= self.link.connected and self.link.send(end)
                if condition():
                    return
                moving |= self.link.connected and self.link.deliver(end)
                if condition():
                    return

    def payloads(self, end: int) -> list[tuple[int, int]]:
        """Return (offset, bytes) of the chunks that an end sent, on all connections."""
        parse, kind = (from_client, UploadChunk) if end == 0 else (from_server, ObjectChunk)
        found = [parse(frame) for frame in self.link._old[end]]
        return [(message.offset, len(payload)) for message, payload in found if isinstance(message, kind)]

    def break_off(self, how: str) -> None:
        self.link.cut(half_open=how == "half-open")
        if how == "server":
            self.hub.close()
            self.start_server()
        elif how == "client":
            self.session.close()
            self.start_client()


@pytest.mark.parametrize("how", ["cut", "half-open", "server", "client"])
@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("count", range(CHUNKS))
def test_what_is_stored_is_not_sent_again(
    count: int, end: int, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "CHUNK", CHUNK)
    pair = Pair(tmp_path / "pair")
    file = "server/inbox/1.0.train.*" if end == 0 else "objects/*.part"

    def stored() -> int:
        found = [path for path in pair.folder.glob(file) if path.suffix != ".json"]
        return found[0].stat().st_size if found else -1

    pair.move_until(lambda: stored() >= count * CHUNK)
    assert stored() == count * CHUNK
    pair.break_off(how)
    for old in pair.link._old:
        old.clear()
    pair.move_until(lambda: False)
    assert pair.payloads(end)[0][0] == count * CHUNK
    assert sum(size for _, size in pair.payloads(end)) == len(DATA) - count * CHUNK
    reply = pair.hub.take(0)
    assert reply is not None
    assert reply.path is not None
    assert reply.path.read_bytes() == DATA[::-1]
    assert pair.worked == 1
    assert not pair.link.errors


def test_a_damaged_part_is_fetched_again_and_a_damaged_object_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "CHUNK", CHUNK)
    pair = Pair(tmp_path / "pair")
    pair.move_until(lambda: bool(pair.link.sent[1] > 500))
    (part,) = (tmp_path / "pair" / "objects").iterdir()
    pair.break_off("client")
    part.write_bytes(bytes(part.stat().st_size))
    pair.move_until(lambda: False)
    assert pair.hub.take(0) is not None

    wrong = ObjectRef("0" * 64, len(DATA))
    pair.hub.add_object(pair.folder / "model", wrong.digest)
    pair.hub.ask(0, Call("2.0.train", {}, {"model": wrong}))
    pair.move_until(lambda: False)
    reply = pair.hub.take(0)
    assert reply is not None
    assert "damaged 3 times" in str(reply.error)
    assert pair.worked == 1


def test_an_upload_that_is_damaged_each_time_is_an_error_of_the_client(tmp_path: Path) -> None:
    hub = Hub(tmp_path / "server", "run")
    hub.ask(3, Call("1.3.train", {}), 10)
    session = hub.session(3, lambda: None, lambda: 0.0)
    session.receive(greeting())
    said = drain(session)
    assert isinstance(said[0], Welcome)
    session.receive(pack(Reply("1.3.train", {}, "0" * 64, 4)))
    for _ in range(3):
        assert drain(session) == [Resume("1.3.train", 0)]
        session.receive(pack(UploadChunk("1.3.train", 0), b"1234"))
    assert drain(session) == [Stored("1.3.train")]
    reply = hub.take(0)
    assert reply is not None
    assert (reply.path, reply.error) == (None, "its upload arrived damaged each time")
    assert [path.name for path in (tmp_path / "server" / "inbox").iterdir()] == ["1.3.train.json"]
