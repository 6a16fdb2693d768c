"""What a client does with calls, and what it keeps."""

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fednlp.deployment.session.client_session import ClientSession, ReadyCall
from fednlp.deployment.session.messages import (
    Bye,
    Call,
    Finished,
    Get,
    Hello,
    ObjectChunk,
    ObjectRef,
    Refused,
    Reply,
    Resume,
    Stored,
    UploadChunk,
    Welcome,
    Withdrawn,
    pack,
)
from fednlp.deployment.session.objects import ObjectCache, ref_of
from fednlp.deployment.session.replies import Outbox
from fednlp.errors import ProtocolError, RunError

from .ends import drain, welcome


class Client:
    """A session, and what it has told."""

    def __init__(
        self, folder: Path, run: str | None = None, most_bytes: int = 1 << 20, admits: Any = lambda call: True
    ) -> None:
        self.ready: list[ReadyCall] = []
        self.withdrawn: list[str] = []
        self.lines: list[str] = []
        self.objects = ObjectCache(folder / "objects", most_bytes)
        self.session = ClientSession(
            Outbox(folder / "outbox"),
            self.objects,
            run=run,
            software="1.0",
            on_ready=self.ready.append,
            on_withdrawn=self.withdrawn.append,
            on_state=self.lines.append,
            admits=admits,
        )

    def connect(self, run: str = "run", client: int = 0) -> list[Any]:
        """Connect, and return what the client says at once."""
        self.session.begin(lambda: None)
        said = drain(self.session)
        self.session.receive(welcome(client, run))
        return said + drain(self.session)

    def get(self, message: Any, payload: bytes = b"") -> list[Any]:
        """Return what the client says to a message."""
        self.session.receive(pack(message, payload))
        return drain(self.session)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


def test_a_call_is_handed_over_once_on_all_connections(client: Client) -> None:
    assert client.connect() == [Hello(1, "1.0", None, [])]
    client.get(Call("1.0.train", {"epochs": 2}))
    assert client.connect() == [Hello(1, "1.0", "run", ["1.0.train"])]
    client.get(Call("1.0.train", {"epochs": 2}))
    assert client.ready == [ReadyCall("1.0.train", {"epochs": 2}, {})]


def test_an_answer_is_offered_until_it_is_stored_and_the_call_is_not_done_again(
    client: Client, tmp_path: Path
) -> None:
    client.connect()
    client.get(Call("1.0.train", {}))
    body = tmp_path / "body"
    body.write_bytes(b"update")
    ref = ref_of(body)
    client.session.answer("1.0.train", {"loss": 1.0}, body)
    reply = Reply("1.0.train", {"loss": 1.0}, ref.digest, ref.size)
    assert drain(client.session) == [reply]
    assert not body.exists()
    again = Client(tmp_path)
    assert again.connect() == [Hello(1, "1.0", None, []), reply]
    assert again.get(Call("1.0.train", {})) == [reply]
    assert again.get(Resume("1.0.train", 2)) == [UploadChunk("1.0.train", 2)]
    assert again.get(Stored("1.0.train")) == []
    assert again.connect() == [Hello(1, "1.0", "run", [])]
    (refused,) = again.get(Call("1.0.train", {}))
    assert "answered before" in refused.error
    assert again.get(Withdrawn("1.0.train")) == []
    assert again.ready == []
    assert again.withdrawn == []
    assert [path.name for path in (tmp_path / "outbox" / "run").iterdir()] == ["done"]


def test_an_answer_to_what_is_withdrawn_is_dropped(client: Client, tmp_path: Path) -> None:
    client.connect()
    client.get(Call("1.0.train", {}))
    client.get(Withdrawn("1.0.train"))
    assert client.withdrawn == ["1.0.train"]
    body = tmp_path / "body"
    body.write_bytes(b"update")
    client.session.answer("1.0.train", {}, body)
    assert drain(client.session) == []
    assert not body.exists()


def test_each_run_has_an_outbox_of_its_own(client: Client, tmp_path: Path) -> None:
    client.connect("first")
    client.get(Call("1.0.train", {}))
    client.session.answer("1.0.train", {}, None)
    other = Client(tmp_path)
    assert other.connect("second") == [Hello(1, "1.0", None, [])]
    other.get(Call("1.0.train", {}))
    assert len(other.ready) == 1
    other.connect("third")
    assert other.session.finished
    assert other.session.leaves


def test_an_error_is_one_printable_line(client: Client) -> None:
    client.connect()
    client.get(Call("1.0.train", {}))
    client.session.answer("1.0.train", None, None, "CUDA\x1b[2J\nout of memory" + "x" * 5000)
    (reply,) = drain(client.session)
    assert reply.error.startswith("CUDA [2J out of memoryxxx")
    assert len(reply.error) == 2000


def refused(call: Call) -> bool:
    raise RunError("not this one")


@pytest.mark.parametrize(
    ("sizes", "admits", "message"),
    [
        ([101], lambda call: True, "the server sends 101 B at once, and a site takes 100 B at most"),
        ([60, 41], lambda call: True, "the server sends 101 B at once, and a site takes 100 B at most"),
        ([1], refused, "not this one"),
        ([], refused, "not this one"),
        ([1], lambda call: call.request["missing"], "'missing'"),
    ],
)
def test_nothing_is_fetched_for_a_call_that_is_refused(
    sizes: list[int], admits: Any, message: str, tmp_path: Path
) -> None:
    """It is handed over once with the reason; the objects of all calls that are open count together."""
    client = Client(tmp_path, most_bytes=100, admits=admits)
    client.connect()
    *before, last = sizes or [0]
    for number, size in enumerate(before):
        assert (
            len(client.get(Call(f"{number}.0.train", {}, {"model": ObjectRef(f"{number}" * 64, size)}))) == 1
        )
    call = Call("9.0.train", {}, {"model": ObjectRef("9" * 64, last)} if sizes else {})
    for _ in range(2):
        assert client.get(call) == []
    assert [(one.id, one.objects, str(one.refusal)) for one in client.ready] == [("9.0.train", {}, message)]
    client.session.answer("9.0.train", None, None, "no")
    assert [one.error for one in drain(client.session)] == ["no"]


def test_a_call_that_is_not_admitted_yet_waits(tmp_path: Path) -> None:
    """On a new connection it waits until the server asks again."""
    admitted = False
    client = Client(tmp_path, admits=lambda call: admitted)
    calls = [Call("1.0.train", {}, {"model": ObjectRef("1" * 64, 9)}), Call("1.0.test", {})]
    client.connect()
    assert [one for call in calls for one in client.get(call)] == []
    client.session.go_on()
    assert drain(client.session) == client.ready == []
    assert client.connect() == [Hello(1, "1.0", "run", ["1.0.train", "1.0.test"])]
    admitted = True
    client.session.go_on()
    assert drain(client.session) == client.ready == []
    assert client.get(calls[1]) == []
    assert client.get(calls[0]) == [Get("1" * 64, 0)]
    assert [call.id for call in client.ready] == ["1.0.test"]


def test_what_has_no_room_on_the_disk_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand bytes of it are there; a part of the disk stays free."""
    client, ref = Client(tmp_path), ObjectRef("1" * 64, 1 << 19)
    free = 1000
    monkeypatch.setattr("shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(20_000, 0, free))  # type: ignore[attr-defined]
    client.connect()
    (client.objects.folder / f"{ref.digest}.part").write_bytes(bytes(1000))
    with pytest.raises(
        RunError, match="the server sends 523 kB, for which the disk here has no room: free some"
    ):
        client.get(Call("1.0.train", {}, {"model": ref}))
    assert drain(client.session) == client.ready == []
    free = ref.size - 1
    client.connect()
    with pytest.raises(RunError, match="no room"):
        client.get(Call("1.0.train", {}, {"model": ref}))
    free = ref.size
    client.connect()
    assert client.get(Call("1.0.train", {}, {"model": ref})) == [Get(ref.digest, 1000)]


def test_an_object_is_fetched_once_for_all_calls_and_dropped_when_told(
    client: Client, tmp_path: Path
) -> None:
    (tmp_path / "model").write_bytes(b"weights")
    ref = ref_of(tmp_path / "model")
    client.connect()
    call = Call("1.0.train", {}, {"model": ref, "same": ref})
    assert client.get(call) == [Get(ref.digest, 0)]
    assert client.get(Call("1.0.test", {}, {"model": ref})) == []
    client.get(ObjectChunk(ref.digest, 0), b"weig")
    client.get(Withdrawn("1.0.train"))
    client.get(ObjectChunk(ref.digest, 4), b"hts")
    assert [call.id for call in client.ready] == ["1.0.test"]
    assert client.ready[0].objects["model"].read_bytes() == b"weights"
    assert client.get(call) == []
    assert len(client.ready) == 2
    assert client.objects.digests() == [ref.digest]
    client.objects.drop(ref.digest)
    assert client.objects.digests() == []


def test_objects_stay_until_a_call_needs_others_and_no_open_call_needs_them(client: Client) -> None:
    refs = []
    for content in (b"first", b"second", b"half"):
        (client.objects.folder / "made").write_bytes(content)
        refs.append(ref_of(client.objects.folder / "made"))
        (client.objects.folder / "made").rename(client.objects.folder / refs[-1].digest)
    first, second, half = (ref.digest for ref in refs)
    (client.objects.folder / half).rename(client.objects.folder / f"{half}.part")
    client.connect()
    client.get(Call("1.0.train", {}, {"model": refs[0]}))
    assert client.objects.digests() == [first]
    client.session.answer("1.0.train", {}, None)
    client.get(Call("1.0.keys", {}))
    assert client.get(Call("1.0.evaluate", {}, {"model": refs[0]})) == []  # it is not fetched again
    client.connect()  # the server has not asked for the evaluation again yet, which waits for its turn
    assert Get(second, 0) in client.get(Call("2.0.train", {}, {"model": refs[1]}))
    assert client.objects.digests() == sorted([first, second])
    client.session.answer("1.0.evaluate", {}, None)
    client.get(Call("2.0.evaluate", {}, {"model": refs[1]}))
    assert client.objects.digests() == [second]


def test_a_secure_sum_between_an_evaluation_and_the_next_round_leaves_the_model(client: Client) -> None:
    refs = {}
    for name in ("model", "pieces", "next model", "next pieces"):
        (client.objects.folder / "made").write_bytes(name.encode())
        refs[name] = ref_of(client.objects.folder / "made")
        (client.objects.folder / "made").unlink()

    def asked(call_id: str, kind: str, name: str) -> bool:
        """Have a call answered; return whether its object was fetched."""
        said = client.get(Call(call_id, {}, {kind: refs[name]}))
        if said:
            assert said == [Get(refs[name].digest, 0)]
            client.get(ObjectChunk(refs[name].digest, 0), name.encode())
        client.session.answer(call_id, {}, None)
        drain(client.session)
        return bool(said)

    def kept() -> set[str]:
        return {name for name, ref in refs.items() if ref.digest in client.objects.digests()}

    client.connect()
    assert asked("1.0.evaluate", "model", "model")
    assert asked("2.0.deliver", "body", "pieces")
    assert kept() == {"model", "pieces"}
    assert not asked("2.0.train", "model", "model")
    assert asked("2.0.evaluate", "model", "next model")
    assert kept() == {"next model"}
    assert asked("3.0.deliver", "body", "next pieces")
    assert kept() == {"next model", "next pieces"}
    for number, name in enumerate(refs):  # of names that change from call to call, two stay
        asked(f"4.0.other-{number}", f"name-{number}", name)
        assert len(kept()) <= 2


def test_what_is_no_longer_needed_may_still_be_on_its_way(client: Client) -> None:
    ref = ObjectRef("0" * 64, 9)
    client.connect()
    client.get(Call("1.0.train", {}, {"model": ref}))
    client.get(ObjectChunk(ref.digest, 0), b"abc")
    client.get(Withdrawn("1.0.train"))
    client.get(ObjectChunk(ref.digest, 3), b"def")
    assert client.get(Call("2.0.train", {}, {"model": ref})) == [Get(ref.digest, 3)]


def test_a_call_that_the_server_has_not_repeated_gets_no_objects(client: Client) -> None:
    """It may be a call of a server that was started again, and has not come to it, or never will."""
    ref = ObjectRef("0" * 64, 9)
    client.connect()
    client.get(Call("1.0.train", {}, {"model": ref}))
    client.connect()
    assert client.get(Call("1.0.test", {}, {"model": ref})) == [Get(ref.digest, 0)]
    client.get(Withdrawn("1.0.test"))
    assert client.get(Call("2.0.test", {}, {"model": ref})) == [Get(ref.digest, 0)]


def test_a_call_is_handed_over_where_another_one_that_needs_its_object_cannot_be_prepared(
    client: Client, tmp_path: Path
) -> None:
    """The disk is full when what was there of the other one is to be fetched again."""
    client.connect()
    shared, gone = tmp_path / "shared", tmp_path / "gone"
    shared.write_bytes(b"shared")
    gone.write_bytes(b"gone")
    there, lost = ref_of(shared), ref_of(gone)
    client.get(Call("1.0.train", {}, {"x": there}))
    gone.rename(client.objects.folder / lost.digest)
    client.get(Call("2.0.train", {}, {"x": there, "y": lost}))
    client.objects.drop(lost.digest)
    full = mock.patch.object(client.objects, "begin", side_effect=RunError("the disk is full"))
    with full, pytest.raises(RunError, match="the disk is full"):
        client.get(ObjectChunk(there.digest, 0), b"shared")
    assert [one.id for one in client.ready] == ["1.0.train"]
    client.connect()
    client.get(Call("1.0.train", {}, {"x": there}))
    assert client.get(Call("2.0.train", {}, {"x": there, "y": lost})) == [Get(lost.digest, 0)]
    client.get(ObjectChunk(lost.digest, 0), b"gone")
    assert [one.id for one in client.ready] == ["1.0.train", "2.0.train"]


def test_an_answer_is_offered_once_however_often_the_server_asks(client: Client) -> None:
    client.connect()
    client.get(Call("1.0.train", {}))
    client.session.answer("1.0.train", {}, None)
    for _ in range(2000):  # without reading what the client says
        client.session.receive(pack(Call("1.0.train", {})))
    assert drain(client.session) == [Reply("1.0.train", {})]


def test_a_part_that_is_longer_than_the_object_is_not_of_it(client: Client) -> None:
    client.connect()
    client.get(Call("1.0.train", {}, {"model": ObjectRef("0" * 64, 9)}))
    client.get(ObjectChunk("0" * 64, 0), b"12345")
    client.get(Withdrawn("1.0.train"))
    shorter = Call("2.0.train", {}, {"model": ObjectRef("0" * 64, 4)})
    assert client.get(shorter) == [Get("0" * 64, 0)]


def test_an_empty_object_needs_no_transfer(client: Client, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    client.connect()
    assert client.get(Call("1.0.train", {}, {"none": ref_of(tmp_path / "empty")})) == []
    assert client.ready[0].objects["none"].read_bytes() == b""


def test_a_session_ends_when_the_server_or_the_user_says_so(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.connect()
    client.get(Finished("10 rounds are done"))
    assert client.session.finished
    assert (client.session.reason, client.session.refused) == ("10 rounds are done", False)
    client = Client(tmp_path)
    client.session.begin(lambda: None)
    client.session.receive(pack(Refused("removed")))
    assert client.session.finished
    assert (client.session.reason, client.session.refused) == ("removed", True)
    assert client.lines == []
    client = Client(tmp_path)
    client.connect()
    client.session.leave("Ctrl-C")
    assert not client.session.finished
    assert drain(client.session) == [Bye("Ctrl-C")]
    assert client.session.finished
    client = Client(tmp_path)
    client.session.begin(lambda: None)
    client.session.leave("Ctrl-C")
    assert client.session.finished
    client = Client(tmp_path)
    client.connect()
    client.session.leave("Ctrl-C")
    client.session.close()  # the connection went before the goodbye did
    assert client.session.finished


def test_a_server_of_another_version_is_named_with_what_to_type(client: Client) -> None:
    client.session.begin(lambda: None)
    with pytest.raises(
        ProtocolError, match=r"version 9 of the messages \(fednlp 3.1\).*install the same version"
    ):
        client.session.receive(pack(Welcome(9, "3.1", "run", 0)))


def test_a_damaged_outbox_is_named(client: Client, tmp_path: Path) -> None:
    client.connect()
    client.get(Call("1.0.train", {}))
    client.session.answer("1.0.train", {}, None)
    (tmp_path / "outbox" / "run" / "1.0.train.json").write_text("{}")
    with pytest.raises(RunError, match=r"1.0.train.json is damaged"):
        drain(client.session)


def test_a_server_cannot_fill_the_memory_with_calls(client: Client) -> None:
    client.connect()
    for number in range(256):
        client.get(Call(f"{number}.0.train", {}))
    with pytest.raises(ProtocolError, match="256 calls are open"):
        client.get(Call("300.0.train", {}))
