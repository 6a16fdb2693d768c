"""What a client's disk holds after a crash."""

from pathlib import Path
from random import Random

import pytest

from fednlp.deployment.session.messages import Reply
from fednlp.deployment.session.objects import ref_of
from fednlp.deployment.session.replies import Outbox
from fednlp.errors import RunError

from .disks import Disk, FailingDisk


@pytest.mark.parametrize("seed", range(20))
def test_what_is_done_with_is_known_after_a_loss_of_power(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    (tmp_path / "site").mkdir()
    box = Outbox(tmp_path / "site" / "outbox").of("run")
    for name in ("1.0.a", "1.0.b"):
        body = tmp_path / "body"
        body.write_bytes(name.encode() * 9)
        box.put(Reply(name, {}, ref_of(body).digest, ref_of(body).size), body)
    box.settle("1.0.a")
    disk.after_a_crash(tmp_path / "site", tmp_path / "after", Random(seed))
    disk.close()
    left = Outbox(tmp_path / "after" / "outbox").of("run")
    assert left.done == {"1.0.a"}
    assert list(left) == ["1.0.b"]
    digest = left.read("1.0.b").digest
    assert digest is not None
    assert left.body("1.0.b", digest).read_bytes() == b"1.0.b" * 9
    names = {path.name for path in left.folder.iterdir()}
    assert names == {"done", "1.0.b.json", f"1.0.b.{digest}"}


def test_a_line_that_was_cut_short_is_no_id(tmp_path: Path) -> None:
    Outbox(tmp_path).of("run").settle("1.0.a")
    log = tmp_path / "run" / "done"
    log.write_text(log.read_text() + "2.0.tr")
    box = Outbox(tmp_path).of("run")
    assert box.done == {"1.0.a"}
    box.settle("3.0.b")
    assert Outbox(tmp_path).of("run").done == {"1.0.a", "3.0.b"}


@pytest.mark.parametrize("seed", range(20))
def test_a_reply_that_is_sent_before_it_is_on_the_disk_is_whole_or_not_there_after_a_loss_of_power(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, body = Disk(monkeypatch), tmp_path / "body"
    (tmp_path / "site").mkdir()
    box = Outbox(tmp_path / "site" / "outbox").of("run")
    body.write_bytes(b"update" * 9)
    reply = Reply("1.0.a", {}, ref_of(body).digest, ref_of(body).size)
    box.hold(reply, body)
    assert (list(box), box.read("1.0.a")) == (["1.0.a"], reply)
    disk.after_a_crash(tmp_path / "site", tmp_path / "before", Random(seed))
    left = Outbox(tmp_path / "before" / "outbox").of("run")
    whole = [left.body("1.0.a", str(reply.digest)).read_bytes() for _ in left]
    assert whole in ([], [b"update" * 9])
    assert len([*left.folder.iterdir()]) == 2 * len(whole)
    box.keep("1.0.a")
    disk.after_a_crash(tmp_path / "site", tmp_path / "after", Random(seed))
    disk.close()
    left = Outbox(tmp_path / "after" / "outbox").of("run")
    assert left.read("1.0.a") == reply
    assert left.body("1.0.a", str(reply.digest)).read_bytes() == b"update" * 9


@pytest.mark.parametrize("settled", [True, False])
def test_what_the_server_has_or_does_not_want_before_it_is_on_the_disk_is_not_kept(
    settled: bool, tmp_path: Path
) -> None:
    box, body = Outbox(tmp_path).of("run"), tmp_path / "body"
    body.write_bytes(b"update")
    box.hold(Reply("1.0.a", {}, ref_of(body).digest, ref_of(body).size), body)
    (box.settle if settled else box.remove)("1.0.a")
    box.keep("1.0.a")
    assert list(box) == []
    assert {path.name for path in (tmp_path / "run").iterdir()} == ({"done"} if settled else set())


@pytest.mark.parametrize("damage", [None, "body", "reply"])
def test_a_process_that_is_killed_before_its_reply_is_on_the_disk_finds_it_again(
    damage: str | None, tmp_path: Path
) -> None:
    box, body = Outbox(tmp_path).of("run"), tmp_path / "body"
    body.write_bytes(b"update")
    reply = Reply("1.0.a", {"loss": 1.0}, ref_of(body).digest, ref_of(body).size)
    box.hold(reply, body)
    if damage is not None:
        (path,) = (tmp_path / "run").glob("*.held.json" if damage == "reply" else "1.0.a.[0-9a-f]*[0-9a-f]")
        path.write_bytes(bytes(len(path.read_bytes())))
    again = Outbox(tmp_path).of("run")
    assert list(again) == ([] if damage else ["1.0.a"])
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == (set() if damage else {"1.0.a.json", f"1.0.a.{reply.digest}"})
    if not damage:
        assert again.read("1.0.a") == reply


def test_a_body_that_the_disk_failed_to_write_is_written_once_more_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, body = Outbox(tmp_path).of("run"), tmp_path / "body"
    body.write_bytes(b"update")
    ref = ref_of(body)
    disk = FailingDisk(monkeypatch)
    disk.fails = True
    box.hold(Reply("1.0.a", {}, ref.digest, ref.size), body)
    with pytest.raises(RunError, match="Input/output error"):
        box.keep("1.0.a")
    disk.fails = False
    again = Outbox(tmp_path).of("run")
    assert bytes(disk.durable[again.body("1.0.a", ref.digest).stat().st_ino]) == b"update"
