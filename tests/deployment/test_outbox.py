"""What a client's disk holds after a crash."""

from pathlib import Path
from random import Random

import pytest

from fednlp.deployment.messages import Reply
from fednlp.deployment.objects import ref_of
from fednlp.deployment.outbox import Outbox

from .disks import Disk


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
