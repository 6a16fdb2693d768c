"""Whatever a peer sends, a session raises ProtocolError or takes it: in bounded memory, and without an end in sight."""

import hashlib
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fednlp.deployment.session.client_session import ClientSession
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.messages import (
    Call,
    Get,
    Hello,
    ObjectChunk,
    ObjectRef,
    Reply,
    Resume,
    Stored,
    UploadChunk,
    Welcome,
    Withdrawn,
    make_frame,
    pack,
)
from fednlp.errors import ProtocolError

from .driven import session_in
from .ends import drain, greeting, welcome
from .fuzzer import Fuzzer

ZERO = "0" * 64
NEEDS_FIVE = Call("1.0.train", {}, {"model": ObjectRef(ZERO, 5)})
MODEL = hashlib.sha256(b"weights").hexdigest()


def fuzz(folder: Path, seed: int, frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the fuzzer."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    fuzzer = Fuzzer(folder, seed)
    fuzzer.run(frames)
    assert fuzzer.taken > frames / 5
    assert fuzzer.refused > frames / 5


def test_ten_thousand_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz(tmp_path / "fuzz", 1, 10_000, monkeypatch)


def test_memory_is_bounded_whatever_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracemalloc.start()
    fuzz(tmp_path / "fuzz", 2, 500, monkeypatch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.slow
def test_a_million_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz(tmp_path / "fuzz", 3, 1_000_000, monkeypatch)


def packed(frame: Any) -> bytes:
    """Return a frame: a message, or a message and its payload."""
    return pack(*frame) if isinstance(frame, tuple) else pack(frame)


def feed_all_but_the_last(session: Any, frames: list[Any]) -> None:
    for frame in frames[:-1]:
        session.receive(packed(frame))
        drain(session)


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    hub = Hub(tmp_path / "hub", "run")
    (tmp_path / "model").write_bytes(b"weights")
    hub.ask(0, Call("1.0.train", {}, {"model": hub.add_object(tmp_path / "model")}), 100)
    hub.ask(1, Call("1.1.train", {}), 100)
    return hub


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([Reply("1.1.train", {})], "1.1.train, which is another client's"),
        ([Hello(1, "1.0", None)], "a Hello out of turn"),
        ([Reply("1.0.train", {}, ZERO, 101)], "101 bytes for 1.0.train, which may have 100"),
        ([Reply("1.0.train", {}, None, 9)], "without a digest"),
        ([Reply("1.0.train", {}, ZERO, 9), Reply("1.0.train", {}, "1" * 64, 9)], "two replies to 1.0.train"),
        ([(UploadChunk("1.0.train", 0), b"x")], "1.0.train, which was not asked for"),
        ([(UploadChunk("1.1.train", 0), b"x")], "1.1.train, which was not asked for"),
        (
            [Reply("1.0.train", {}, ZERO, 9), (UploadChunk("1.0.train", 1), b"x")],
            "a chunk at 1 where 0 is next",
        ),
        (
            [Reply("1.0.train", {}, ZERO, 9), (UploadChunk("1.0.train", 0), b"x" * 10)],
            "up to 10 of an object of 9",
        ),
        ([Get(MODEL, 7)], "a Get at 7 of an object of 7 bytes"),
    ],
)
def test_what_a_client_may_not_say(hub: Hub, frames: list[Any], message: str) -> None:
    session = hub.session(0, lambda: None, lambda: 0.0)
    session.receive(greeting())
    drain(session)
    feed_all_but_the_last(session, frames)
    with pytest.raises(ProtocolError, match=message):
        session.receive(packed(frames[-1]))
    assert hub.take(0) is None


def test_nothing_is_heard_before_a_hello(hub: Hub) -> None:
    session = hub.session(0, lambda: None, lambda: 0.0)
    for frame in (pack(Reply("1.0.train", {})), make_frame(3, b"[" * (1 << 20)), make_frame(3, b"")):
        with pytest.raises(ProtocolError, match="a Reply out of turn"):
            session.receive(frame)


def test_a_reply_to_a_call_that_was_never_made_leaves_no_trace(hub: Hub, tmp_path: Path) -> None:
    session = hub.session(0, lambda: None, lambda: 0.0)
    session.receive(greeting())
    drain(session)
    for number in range(2, 5000):
        session.receive(pack(Reply(f"{number}.0.train", {"a": "x" * 100}, ZERO, 50)))
    assert drain(session) == []
    assert not list((tmp_path / "hub" / "inbox").iterdir())


def test_a_client_that_asks_and_never_reads_is_cut_off(hub: Hub) -> None:
    hub.withdraw("1.0.train")
    session = hub.session(0, lambda: None, lambda: 0.0)
    session.receive(greeting())
    drain(session)
    for _ in range(1024):
        session.receive(pack(Reply("1.0.train", {})))
    with pytest.raises(ProtocolError, match="1024 answers wait to be read"):
        session.receive(pack(Reply("1.0.train", {})))


def test_a_client_that_never_reads_does_not_stop_the_round(hub: Hub) -> None:
    """What the round says to it finds no place; that is the client's fault, and ends its connection alone."""
    hub.withdraw("1.0.train")
    hub.ask(0, Call("2.0.train", {}))
    session = hub.session(0, lambda: None, lambda: 0.0)
    session.receive(greeting())
    drain(session)
    for _ in range(1024):
        session.receive(pack(Reply("1.0.train", {})))
    hub.withdraw("2.0.train")
    with pytest.raises(ProtocolError, match="1024 answers wait to be read"):
        session.receive(pack(Reply("1.0.train", {})))
    with pytest.raises(ProtocolError, match="1024 answers wait to be read"):
        session.next_frame()


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([Call("1.1.train", {})], "1.1.train, which is another client's"),
        ([Stored("1.1.train")], "1.1.train, which is another client's"),
        ([Withdrawn("1.1.train")], "1.1.train, which is another client's"),
        ([Welcome(1, "1.0", "run", 0)], "a Welcome out of turn"),
        ([(ObjectChunk(ZERO, 0), b"x")], "which was not asked for"),
        ([Resume("1.0.train", 0)], "which has none"),
        ([NEEDS_FIVE, (ObjectChunk(ZERO, 1), b"x")], "a chunk at 1 where 0 is next"),
        ([NEEDS_FIVE, (ObjectChunk(ZERO, 0), b"123456")], "up to 6 of an object of 5"),
    ],
)
def test_what_a_server_may_not_say(frames: list[Any], message: str, tmp_path: Path) -> None:
    session = client(tmp_path)
    session.begin(lambda: None)
    session.receive(welcome())
    feed_all_but_the_last(session, frames)
    with pytest.raises(ProtocolError, match=message):
        session.receive(packed(frames[-1]))


def test_a_server_cannot_have_what_was_not_answered(tmp_path: Path) -> None:
    session = client(tmp_path, lambda call: session.answer(call.id, {}, None))
    session.begin(lambda: None)
    session.receive(welcome())
    session.receive(pack(Call("1.0.train", {})))
    with pytest.raises(ProtocolError, match=r"wants 1.0.train from 0, which has 0 bytes"):
        session.receive(pack(Resume("1.0.train", 0)))


def client(folder: Path, on_ready: Callable[[Any], None] = lambda call: None) -> ClientSession:
    return session_in(folder, on_ready)
