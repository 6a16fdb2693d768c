"""Tables of the cache: what goes in comes out, and no fault of a file goes unnoticed."""

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.data import store
from fednlp.data.store import Row, Rows, stored
from fednlp.errors import DataError, RunError

CONTENT: list[Row] = [("one", "a"), ("two", None), ("", "ü\n\t\"'")]


class Counted:
    """Rows that count how often they are read."""

    def __init__(self, content: Sequence[Row] = CONTENT, what: str = "x", identity: str = "1") -> None:
        self.content, self.reads = content, 0
        self.rows = Rows((what,), identity, what, self._read)

    def _read(self) -> tuple[Sequence[str], Iterator[Row]]:
        self.reads += 1
        return ("text", "label"), iter(self.content)


def table_file(cache: Path) -> Path:
    (path,) = (cache / "tables").glob("*.arrow")
    return path


def as_rows(found: store.Stored) -> list[Row]:
    return [tuple(row.values()) for row in found.table.to_pylist()]


@settings(deadline=None, max_examples=50)
@given(
    content=st.lists(st.tuples(st.text(), st.none() | st.text()), min_size=1, max_size=30),
    batch=st.integers(1, 8),
)
def test_what_goes_in_comes_out_in_batches_of_any_size(content: list[Row], batch: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDNLP_CACHE", folder)
        patch.setattr(store, "_BATCH_ROWS", batch)
        assert as_rows(stored(Counted(content).rows)) == content


def test_a_batch_is_bounded_in_characters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_BATCH_CHARACTERS", 10)
    found = stored(Counted([("a" * 6, "b")] * 4).rows)
    assert [chunk.num_rows for chunk in found.table.to_batches()] == [2, 2]


def test_rows_are_read_once_and_again_only_when_their_identity_changes() -> None:
    first = Counted()
    assert stored(first.rows).content == stored(first.rows).content
    assert first.reads == 1
    changed = Counted([("three", "c")], identity="2")
    assert as_rows(stored(changed.rows)) == [("three", "c")]
    assert changed.reads == 1


def test_content_is_what_is_in_the_rows_and_nothing_else() -> None:
    same = stored(Counted(what="y", identity="other").rows)
    assert stored(Counted().rows).content == same.content
    assert stored(Counted([("one", "a")], what="z").rows).content != same.content
    moved = [("a", "one"), *CONTENT[1:]]
    assert stored(Counted(moved, what="z", identity="2").rows).content != same.content


def damage_cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def damage_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    status = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def damage_gone(path: Path) -> None:
    path.unlink()


def damage_note(path: Path) -> None:
    path.with_suffix(".json").write_text("{")


@pytest.mark.parametrize("damage", [damage_cut, damage_byte, damage_gone, damage_note])
def test_a_damaged_table_is_written_anew(cache: Path, damage: object) -> None:
    assert callable(damage)
    counted = Counted()
    stored(counted.rows)
    damage(table_file(cache))
    assert as_rows(stored(counted.rows)) == CONTENT
    assert counted.reads == 2


def test_a_large_table_is_read_through_only_when_it_was_touched(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted()
    stored(counted.rows)
    monkeypatch.setattr(store, "_ALWAYS_HASHED", 0)
    hashed: list[Path] = []
    original = store.sha256_of
    monkeypatch.setattr(store, "sha256_of", lambda path: hashed.append(path) or original(path))
    stored(counted.rows)
    assert hashed == []
    os.utime(table_file(cache), ns=(0, 0))
    stored(counted.rows)
    assert hashed == [table_file(cache)]
    assert counted.reads == 1


def test_a_fault_of_the_rows_leaves_nothing_behind(cache: Path) -> None:
    def read() -> tuple[Sequence[str], Iterator[Row]]:
        def rows() -> Iterator[Row]:
            yield "one", "a"
            raise DataError("line 2: broken")

        return ("text", "label"), rows()

    with pytest.raises(DataError, match="line 2: broken"):
        stored(Rows(("x",), "1", "x", read))
    assert list((cache / "tables").iterdir()) == []


def test_a_full_disk_is_one_line_and_leaves_nothing_behind(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"^no space left on the disk .*: free some, or set FEDNLP_CACHE"):
        stored(Counted().rows)
    assert list((cache / "tables").iterdir()) == []


def test_a_disk_that_keeps_nothing_is_an_error_and_not_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "sha256_of", lambda path: os.urandom(4).hex())
    with pytest.raises(RunError, match="does not keep what is written to it"):
        stored(Counted().rows)
