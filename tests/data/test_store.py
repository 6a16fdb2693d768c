"""Tables of the cache: what goes in comes out, and no fault of a file goes unnoticed."""

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.data import store
from fednlp.data.store import Fault, Located, Row, Rows, Stored, View
from fednlp.errors import DataError, RunError

CONTENT: list[Row] = [("one", "a"), ("two", None), ("", "ü\n\t\"'")]
NAMES = ("text", "label")


def view(drop: bool = False, **roles: str) -> View:
    """No check but that the first column is not "bad"."""
    return View(
        "any", roles, lambda columns: lambda row: Fault("it is bad") if row[0] == "bad" else row, drop
    )


def stored(rows: Rows, how: View | None = None) -> Stored:
    return store.stored(rows, how or view())


class Counted:
    """Rows that count how often they are read."""

    def __init__(self, content: Sequence[Row] = CONTENT, what: str = "x", identity: str = "1") -> None:
        self.content, self.reads = content, 0
        self.rows = Rows((what,), identity, what, lambda: NAMES, self._read)

    def _read(self, roles: Mapping[str, str]) -> tuple[Sequence[str], Iterator[Located]]:
        self.reads += 1
        return NAMES, ((f"x:{number}", row) for number, row in enumerate(self.content, 1))


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
    def read(roles: Mapping[str, str]) -> tuple[Sequence[str], Iterator[Located]]:
        def rows() -> Iterator[Located]:
            yield "line 1", ("one", "a")
            raise DataError("line 2: broken")

        return NAMES, rows()

    with pytest.raises(DataError, match="line 2: broken"):
        stored(Rows(("x",), "1", "x", lambda: NAMES, read))
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


BAD: list[Row] = [("one", "a"), ("bad", "b"), ("two", None), ("bad", "c"), *[("bad", "d")] * 3]


def test_rows_that_do_not_pass_are_refused_or_left_out_and_counted(cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        stored(Counted(BAD).rows)
    assert str(caught.value) == 'x:2: it is bad, or leave such rows out with data.on_invalid_row = "drop"'
    assert list((cache / "tables").iterdir()) == []
    counted = Counted(BAD)
    first, again = (stored(counted.rows, view(drop=True)) for _ in range(2))
    assert counted.reads == 1
    assert as_rows(first) == as_rows(again) == [("one", "a"), ("two", None)]
    assert (first.dropped, first.reasons) == (again.dropped, again.reasons)
    assert (first.dropped, first.reasons) == (5, tuple(f"x:{number}: it is bad" for number in (2, 4, 5)))
    assert first.content == stored(Counted([BAD[0], BAD[2]], what="y").rows).content


def test_at_least_one_row_must_be_left() -> None:
    with pytest.raises(DataError, match=r"^x: it holds no example \(1 left out; x:1: it is bad\)$"):
        stored(Counted(BAD[1:2]).rows, view(drop=True))
    with pytest.raises(DataError, match=r"^x: it holds no example$"):
        stored(Counted([]).rows)


def test_a_fault_of_the_reader_counts_as_a_row_that_does_not_pass() -> None:
    def read(roles: Mapping[str, str]) -> tuple[Sequence[str], Iterator[Located]]:
        return NAMES, iter([("x:1", Fault("too few cells")), ("x:2", ("one", "a"))])

    rows = Rows(("x",), "1", "x", lambda: NAMES, read)
    with pytest.raises(DataError, match=r"^x:1: too few cells, or leave"):
        stored(rows)
    assert stored(rows, view(drop=True)).dropped == 1


def test_each_way_of_reading_has_its_own_table() -> None:
    counted = Counted()
    for how in (view(), view(drop=True), view(text="source"), View("other", {}, view().check)):
        stored(counted.rows, how)
    assert counted.reads == 4
