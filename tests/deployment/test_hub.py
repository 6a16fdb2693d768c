"""What a hub does for the round, and what it tells clients."""

import errno
from pathlib import Path
from typing import Any

import pytest

from fednlp.deployment.session.hub import Hub, ServerSession
from fednlp.deployment.session.messages import (
    Bye,
    Call,
    Finished,
    Get,
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
from fednlp.deployment.session.objects import Partial, ref_of
from fednlp.errors import ProtocolError, RunError

from .disks import FailingDisk, unreadable
from .ends import drain, greeting


def joined(hub: Hub, client: int = 0) -> ServerSession:
    """Return the session of a client that has been let in, and has read all that there was."""
    session = hub.session(client, lambda: None, lambda: 5.0)
    session.receive(greeting())
    assert isinstance(drain(session)[0], Welcome)
    return session


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path / "hub", "run")


def test_a_call_waits_for_its_client_and_comes_once(hub: Hub) -> None:
    call = Call("1.0.train", {"epochs": 1})
    hub.ask(0, call)
    hub.ask(0, call)
    hub.ask(1, Call("1.1.train", {}))
    session = hub.session(0, lambda: None, lambda: 0.0)
    assert drain(session) == []
    session.receive(greeting())
    assert [type(one) for one in drain(session)] == [Welcome, Call]
    assert drain(session) == []
    assert drain(joined(hub)) == []


def test_a_stored_reply_survives_the_server_and_is_not_asked_for_again(hub: Hub, tmp_path: Path) -> None:
    hub.ask(0, Call("1.0.keys", {}))
    session = joined(hub)
    session.receive(pack(Reply("1.0.keys", {"loss": 0.5})))
    assert drain(session) == [Stored("1.0.keys")]
    again = Hub(tmp_path / "hub", "run")
    assert again.take(0) is None
    again.ask(0, Call("1.0.keys", {}))
    reply = again.take(0)
    assert reply is not None
    assert reply.answer == {"loss": 0.5}
    assert again.take(0) is None
    session = joined(again)
    session.receive(pack(Reply("1.0.keys", {"loss": 0.7})))
    assert drain(session) == [Stored("1.0.keys")]
    assert again.take(0) is None


def test_a_reply_to_what_was_not_asked_since_the_start_waits(hub: Hub) -> None:
    """The server may have been started again, and not have come to it yet."""
    session = joined(hub)
    session.receive(pack(Reply("4.0.train", {})))
    assert drain(session) == []
    hub.ask(0, Call("4.0.train", {}))
    assert [type(one) for one in drain(session)] == [Call]
    session.receive(pack(Reply("4.0.train", {})))
    assert drain(session) == [Stored("4.0.train")]


def test_what_is_withdrawn_leaves_nothing(hub: Hub, tmp_path: Path) -> None:
    hub.ask(0, Call("1.0.train", {}), 10)
    session = joined(hub)
    session.receive(pack(Reply("1.0.train", {}, "0" * 64, 8)))
    assert drain(session) == [Resume("1.0.train", 0)]
    session.receive(pack(UploadChunk("1.0.train", 0), b"1234"))
    hub.withdraw("1.0.train")
    assert drain(session) == [Withdrawn("1.0.train")]
    session.receive(pack(UploadChunk("1.0.train", 4), b"5678"))  # it was on its way
    assert not list((tmp_path / "hub" / "inbox").iterdir())
    session.receive(pack(Reply("1.0.train", {})))
    assert drain(session) == [Withdrawn("1.0.train")]
    assert hub.take(0) is None


def test_a_client_that_was_away_is_told_what_is_no_longer_wanted(hub: Hub) -> None:
    for name in ("1.0.a", "2.0.b", "2.0.c"):
        hub.ask(0, Call(name, {}))
    hub.forget(1)
    hub.withdraw("2.0.b")
    session = hub.session(0, lambda: None, lambda: 0.0)
    session.receive(greeting(open=["1.0.a", "2.0.b", "2.0.c", "3.0.d"]))
    assert drain(session)[1:3] == [Withdrawn("1.0.a"), Withdrawn("2.0.b")]
    hub.forget(3)
    assert drain(session) == [Withdrawn("2.0.c"), Withdrawn("3.0.d")]
    hub.ask(0, Call("4.0.e", {}))
    assert [type(one) for one in drain(session)] == [Call]
    assert hub.connected()[0].doing == "works on a secure sum of round 4"


def test_a_round_that_is_forgotten_is_not_asked_again(hub: Hub) -> None:
    hub.forget(3)
    with pytest.raises(RunError, match=r"3.0.train is of a round that was forgotten"):
        hub.ask(0, Call("3.0.train", {}))


def test_wrong_calls_are_refused(hub: Hub) -> None:
    with pytest.raises(RunError, match="not for client 1"):
        hub.ask(1, Call("3.0.train", {}))
    with pytest.raises(RunError, match="'model', which was not added"):
        hub.ask(0, Call("3.0.train", {}, {"model": ObjectRef("0" * 64, 3)}))
    with pytest.raises(ProtocolError, match="the header of a Call has"):
        hub.ask(0, Call("3.0.train", {"text": "x" * (5 << 20)}))


def test_an_object_is_for_those_who_were_asked_to_have_it(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"weights")
    ref = hub.add_object(tmp_path / "model")
    assert ref == ref_of(tmp_path / "model") == hub.add_object(tmp_path / "model", ref.digest)
    hub.ask(0, Call("1.0.train", {}, {"model": ref}))
    session, other = joined(hub), joined(hub, 1)
    session.receive(pack(Get(ref.digest, 2)))
    assert drain(session) == [ObjectChunk(ref.digest, 2)]
    with pytest.raises(ProtocolError, match="which no call has"):
        other.receive(pack(Get(ref.digest, 2)))
    hub.drop_object(ref.digest)  # it was added twice
    session.receive(pack(Get(ref.digest, 3)))
    assert drain(session) == [ObjectChunk(ref.digest, 3)]
    with pytest.raises(RunError, match=r"the open call 1.0.train needs"):
        hub.drop_object(ref.digest)
    hub.withdraw("1.0.train")
    session.receive(pack(Get(ref.digest, 3)))  # it was on its way
    assert drain(session) == [Withdrawn("1.0.train")]
    hub.drop_object(ref.digest)
    hub.drop_object(ref.digest)


def test_what_is_given_up_is_answered_by_an_error(hub: Hub) -> None:
    hub.ask(0, Call("1.0.train", {}))
    session = joined(hub)
    session.next_frame()
    hub.give_up("1.0.train", "it took too long")
    assert drain(session) == [Withdrawn("1.0.train")]
    session.receive(pack(Reply("1.0.train", {})))
    assert drain(session) == [Stored("1.0.train")], "the site has nothing more to do"
    reply = hub.take(0)
    assert reply is not None
    assert (reply.id, reply.answer, reply.error) == ("1.0.train", None, "it took too long")
    hub.give_up("1.0.train", "again")
    hub.ask(0, Call("1.0.train", {}))
    assert hub.take(0) == reply


def test_a_newer_connection_takes_over(hub: Hub) -> None:
    first = joined(hub)
    second = joined(hub)
    (said,) = drain(first)
    assert isinstance(said, Refused)
    assert "has joined again from another process" in said.reason
    assert first.finished
    first.close()
    assert list(hub.connected()) == [0]
    second.close()
    assert hub.connected() == {}


def test_who_is_removed_is_refused_at_once_and_later(hub: Hub) -> None:
    session = joined(hub)
    hub.remove(0, "removed by\nthe operator")
    assert drain(session) == [Refused("removed by the operator")]
    assert session.finished
    session.receive(pack(Reply("1.0.train", {})))
    again = hub.session(0, lambda: None, lambda: 0.0)
    again.receive(greeting())
    assert drain(again) == [Refused("removed by the operator")]


def test_all_are_told_that_the_run_is_over(hub: Hub) -> None:
    session = joined(hub)
    hub.finish("10 rounds are done")
    assert drain(session) == [Finished("10 rounds are done")]
    assert session.finished
    late = hub.session(1, lambda: None, lambda: 0.0)
    assert not late.finished
    late.receive(greeting())
    assert [type(one) for one in drain(late)] == [Welcome, Finished]


@pytest.mark.parametrize("run", [None, "last-year", "run"])
def test_a_site_that_is_set_up_for_nothing_or_another_run_is_to_be_set_up(hub: Hub, run: str | None) -> None:
    """Whether it takes part in another run than before is for the site to say."""
    session = hub.session(0, lambda: None, lambda: 0.0)
    session.receive(greeting(run))
    assert [one.run for one in drain(session)] == ["run"]
    assert hub.connected()[0].set_up is (run == "run")


def test_another_version_is_refused_with_what_to_type(hub: Hub) -> None:
    session = hub.session(0, lambda: None, lambda: 0.0)
    session.receive(greeting(version=2))
    (said,) = drain(session)
    assert "you speak version 2 (fednlp 1.0): install" in said.reason
    assert session.finished


def test_presence_counts_bytes(hub: Hub) -> None:
    session = hub.session(0, lambda: None, lambda: 7.0)
    assert hub.connected() == {}
    session.receive(greeting())
    out = session.next_frame()
    assert out is not None
    there = hub.connected()[0]
    assert (there.since, there.heard, there.doing) == (7.0, 7.0, "waits")
    assert (there.bytes_in, there.bytes_out) == (len(greeting()), len(out))
    session.receive(pack(Bye("Ctrl-C")))
    assert session.finished


def test_slow_work_goes_to_the_background(tmp_path: Path) -> None:
    """A reply that is on its way to the disk may be offered again, withdrawn, or wait for another connection."""
    later = []
    hub = Hub(tmp_path / "hub", "run", later.append)
    for name in ("1.0.a", "1.0.b"):
        hub.ask(0, Call(name, {}))
    first = joined(hub)
    for name in ("1.0.a", "1.0.b"):
        first.receive(pack(Reply(name, {})))
    assert drain(first) == []
    second = joined(hub)
    second.receive(pack(Reply("1.0.a", {})))
    hub.withdraw("1.0.b")
    assert len(later) == 2
    for job in later:
        job()
    assert Stored("1.0.a") in drain(second)
    reply = hub.take(0)
    assert reply is not None
    assert reply.id == "1.0.a"
    assert hub.take(0) is None


def test_a_full_disk_ends_the_connection_and_loses_nothing(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.ask(0, Call("1.0.train", {}), 10)
    session = joined(hub)
    body = tmp_path / "body"
    body.write_bytes(b"12345678")
    ref = ref_of(body)
    session.receive(pack(Reply("1.0.train", {}, ref.digest, ref.size)))
    drain(session)
    session.receive(pack(UploadChunk("1.0.train", 0), b"1234"))
    with monkeypatch.context() as full:
        full.setattr("os.pwrite", lambda handle, data, offset: 2)
        with pytest.raises(RunError, match="cannot write"):
            session.receive(pack(UploadChunk("1.0.train", 4), b"5678"))
    session.close()
    session = joined(hub)
    session.receive(pack(Reply("1.0.train", {}, ref.digest, ref.size)))
    assert drain(session) == [Resume("1.0.train", 4)]
    session.receive(pack(UploadChunk("1.0.train", 4), b"5678"))
    assert drain(session) == [Stored("1.0.train")]


def test_a_disk_that_is_full_when_a_reply_is_stored_ends_the_connection(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.ask(0, Call("1.0.keys", {}))
    session = joined(hub)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        session.receive(pack(Reply("1.0.keys", {})))
    with pytest.raises(RunError, match="no space left"):
        session.next_frame()
    session.close()
    session = joined(hub)
    session.receive(pack(Reply("1.0.keys", {})))
    assert drain(session) == [Stored("1.0.keys")]


def test_a_client_that_was_removed_may_be_let_in_again(tmp_path: Path) -> None:
    hub = Hub(tmp_path, "run")
    hub.remove(0, "it was removed")
    for expected in (Refused, Welcome):
        session = hub.session(0, lambda: None, lambda: 0.0)
        session.receive(greeting())
        assert isinstance(drain(session)[0], expected)
        session.close()
        hub.readmit(0)


def test_the_round_has_an_update_before_it_is_on_the_disk_and_the_client_hears_nothing_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update, later = tmp_path / "update", []
    update.write_bytes(b"update")
    ref = ref_of(update)
    hub = Hub(tmp_path / "hub", "run", later.append)
    hub.ask(0, Call("1.0.train", {}), ref.size)
    session = joined(hub)
    session.receive(pack(Reply("1.0.train", {"loss": 0.5}, ref.digest, ref.size)))
    drain(session)
    session.receive(pack(UploadChunk("1.0.train", 0), b"update"))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        later.pop()()
    reply = hub.take(0)
    assert reply is not None
    assert reply.path is not None
    assert (reply.answer, reply.path.read_bytes()) == ({"loss": 0.5}, b"update")
    with pytest.raises(RunError, match="no space left"):
        session.next_frame()
    session.close()
    assert Hub(tmp_path / "hub", "run").stored() == []
    session = joined(hub)
    session.receive(pack(Reply("1.0.train", {"loss": 0.5}, ref.digest, ref.size)))
    assert drain(session) == []
    later.pop()()
    assert drain(session) == [Stored("1.0.train")]
    assert hub.take(0) is None, "the round has it already"
    assert Hub(tmp_path / "hub", "run").stored() == ["1.0.train"]


def test_an_update_that_was_used_and_is_not_on_the_disk_is_forgotten_with_its_round(tmp_path: Path) -> None:
    update, later = tmp_path / "update", []
    update.write_bytes(b"update")
    ref = ref_of(update)
    hub = Hub(tmp_path / "hub", "run", later.append)
    hub.add_object(update)  # the site sends the model back
    hub.ask(0, Call("1.0.train", {}, {"model": ref}), ref.size)
    session = joined(hub)
    session.receive(pack(Reply("1.0.train", {}, ref.digest, ref.size)))
    drain(session)
    session.receive(pack(UploadChunk("1.0.train", 0), b"update"))
    (store,) = later
    partial_sync = Partial.sync

    def forgotten(partial: Partial) -> None:
        assert hub.take(0) is not None
        hub.drop_object(ref.digest)
        hub.forget(1)
        partial_sync(partial)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Partial, "sync", forgotten)
        store()
    later.pop()()
    assert drain(session) == [Withdrawn("1.0.train")]
    assert list((tmp_path / "hub" / "inbox").iterdir()) == []


def arriving(hub: Hub, folder: Path, data: bytes = b"update") -> ServerSession:
    """Return the session of a client whose update has arrived, and is to be put on the disk next."""
    update = folder / "update"
    update.write_bytes(data)
    ref = ref_of(update)
    hub.ask(0, Call("1.0.train", {}), ref.size)
    session = joined(hub)
    session.receive(pack(Reply("1.0.train", {}, ref.digest, ref.size)))
    drain(session)
    session.receive(pack(UploadChunk("1.0.train", 0), data))
    return session


def test_a_reply_that_is_on_its_way_to_the_disk_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With FedBuff a site's time may be over while its update is synced."""
    later: list[Any] = []
    hub = Hub(tmp_path / "hub", "run", later.append)
    hub.eager = False
    session = arriving(hub, tmp_path)
    partial_sync = Partial.sync

    def over(partial: Partial) -> None:
        partial_sync(partial)
        hub.give_up("1.0.train", "no answer in time")

    monkeypatch.setattr(Partial, "sync", over)
    later.pop()()
    assert drain(session) == [Stored("1.0.train")]
    reply = hub.take(0)
    assert reply is not None
    assert reply.path is not None
    assert (reply.error, reply.path.read_bytes()) == (None, b"update")


@pytest.mark.parametrize("size", [3, 6, 9])
def test_what_the_round_uses_is_not_touched_by_another_reply_to_the_same_call(
    size: int, tmp_path: Path
) -> None:
    """The disk was full, and the client comes with other bytes than before; the round may have the file open."""
    later: list[Any] = []
    hub = Hub(tmp_path / "hub", "run", later.append)
    session = arriving(hub, tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        FailingDisk(patched).fails = True
        later.pop()()
    session.close()
    used = hub.take(0)
    assert used is not None
    assert used.path is not None
    for digest in (used.path.name.rpartition(".")[2], "a" * 64):
        if (digest, size) != (used.path.name.rpartition(".")[2], used.size):
            session = joined(hub)
            session.receive(pack(Reply("1.0.train", {}, digest, size)))
            assert drain(session) == []
            assert used.path.read_bytes() == b"update"
    hub.forget(1)
    assert Withdrawn("1.0.train") in drain(session)


def test_bytes_that_a_disk_failed_to_write_are_written_once_more_before_they_are_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, later = FailingDisk(monkeypatch), list[Any]()
    hub, data = Hub(tmp_path / "hub", "run", later.append), bytes(range(256)) * 3000
    session = arriving(hub, tmp_path, data)
    disk.fails = True
    later.pop()()
    session.close()
    disk.fails = False
    (body,) = (path for path in (tmp_path / "hub" / "inbox").iterdir() if path.suffix != ".json")
    assert bytes(disk.durable.get(body.stat().st_ino, b"")) == b""
    session = joined(hub)
    session.receive(pack(Reply("1.0.train", {}, body.suffix[1:], len(data))))
    assert drain(session) == []
    later.pop()()
    assert drain(session) == [Stored("1.0.train")]
    assert bytes(disk.durable[body.stat().st_ino]) == data


def test_an_upload_that_went_on_and_cannot_be_read_ends_the_connection_and_is_checked_in_the_next(
    tmp_path: Path,
) -> None:
    data, update, later = b"the first half, the second half", tmp_path / "update", list[Any]()
    update.write_bytes(data)
    ref, hub = ref_of(update), Hub(tmp_path / "hub", "run", later.append)
    hub.inbox.body("1.0.train", ref.digest).write_bytes(data[:15])
    hub.ask(0, Call("1.0.train", {}), ref.size)
    for _ in range(2):
        session = joined(hub)
        session.receive(pack(Reply("1.0.train", {}, ref.digest, ref.size)))
        if drain(session) == [Resume("1.0.train", 15)]:
            session.receive(pack(UploadChunk("1.0.train", 15), data[15:]))
        with unreadable():
            later.pop()()
        with pytest.raises(
            RunError, match=r"cannot read .*1\.0\.train\..* \(Input/output error\): mend its disk"
        ):
            session.next_frame()
        session.close()
    session = joined(hub)
    session.receive(pack(Reply("1.0.train", {}, ref.digest, ref.size)))
    assert drain(session) == []
    later.pop()()
    assert drain(session) == [Stored("1.0.train")]


def test_the_files_of_a_round_go_when_an_object_of_the_next_arrives(tmp_path: Path) -> None:
    hub = Hub(tmp_path / "hub", "run")
    hub.forget(0)
    arriving(hub, tmp_path)
    before = sorted(hub.inbox.folder.iterdir())
    assert before
    hub.forget(1)
    assert sorted(hub.inbox.folder.iterdir()) == before
    hub.partial(Reply("2.0.train", {}, "a" * 64, 9)).close()
    assert [path.name for path in hub.inbox.folder.iterdir()] == [f"2.0.train.{'a' * 64}"]


def test_the_files_of_an_earlier_process_go_before_any_object_arrives(tmp_path: Path) -> None:
    """The disk may have no room for the next model, without which none arrives."""
    arriving(Hub(tmp_path / "hub", "run"), tmp_path)
    again = Hub(tmp_path / "hub", "run")
    again.forget(0)
    assert [path.name for path in again.inbox.folder.iterdir()] != []
    again = Hub(tmp_path / "hub", "run")
    again.forget(1)
    assert list(again.inbox.folder.iterdir()) == []


def test_an_error_of_the_removal_in_the_background_reaches_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[Any] = []
    hub = Hub(tmp_path / "hub", "run", later.append)
    arriving(hub, tmp_path)
    later.pop()()

    def broken(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, "Input/output error")

    hub.forget(1)
    hub.partial(Reply("2.0.train", {}, "a" * 64, 9)).close()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", broken)
        later.pop()()
    with pytest.raises(RunError, match="Input/output error"):
        hub.forget(2)


def test_what_the_background_has_removed_already_is_no_error(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.ask(0, Call("1.0.train", {}), 9)
    place = hub.inbox.folder / f"1.0.train.{'a' * 64}"
    place.write_bytes(b"half")
    unlink = Path.unlink

    def late(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=True)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", late)
    hub.withdraw("1.0.train")
    assert not place.exists()
