"""A client's cache of objects: what an earlier process has left is checked before it is used."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednlp.deployment.session.messages import ObjectRef
from fednlp.deployment.session.objects import ObjectCache, ObjectFile, Partial, ref_of, write_object
from fednlp.errors import RunError

from .disks import unreadable

DATA = b"weights" * 1000
REF = ObjectRef(hashlib.sha256(DATA).hexdigest(), len(DATA))


def fetched(folder: Path) -> Path:
    """Fetch an object, and return its file."""
    cache = ObjectCache(folder)
    partial = cache.begin(REF)
    partial.append(0, memoryview(DATA))
    assert cache.keep(partial)
    path = cache.find(REF)
    assert path is not None
    return path


def test_an_object_is_there_for_the_next_process(tmp_path: Path) -> None:
    path = fetched(tmp_path)
    assert ObjectCache(tmp_path).find(REF) == path
    assert path.read_bytes() == DATA


@pytest.mark.parametrize("left", [b"", DATA[:-1], bytes(len(DATA))])
def test_an_object_that_a_loss_of_power_has_damaged_is_fetched_again(tmp_path: Path, left: bytes) -> None:
    fetched(tmp_path).write_bytes(left)
    cache = ObjectCache(tmp_path)
    assert cache.find(REF) is None
    assert cache.begin(REF).length == 0
    assert fetched(tmp_path).read_bytes() == DATA


def test_wrong_bytes_are_not_kept(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    partial = cache.begin(REF)
    partial.append(0, memoryview(bytes(len(DATA))))
    assert not cache.keep(partial)
    assert cache.find(REF) is None
    assert partial.length == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([0, 1, 7, 1 << 16, (1 << 16) + 1, 1 << 18]), max_size=8))
def test_a_file_that_is_written_piece_by_piece_has_the_digest_of_its_bytes(
    tmp_path: Path, sizes: list[int]
) -> None:
    pieces = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    path, ref = write_object(tmp_path / "object", pieces)
    assert path.read_bytes() == b"".join(pieces)
    assert ref == ref_of(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_said_where_an_object_is_made() -> None:
    with pytest.raises(
        RunError, match=r"no space left on the disk that holds /dev: .*type the same command again"
    ):
        write_object(Path("/dev/full"), [bytes(1 << 20)])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.sampled_from([1, 7, (1 << 16) - 1, 1 << 16, 1 << 18]), min_size=1, max_size=8),
    st.integers(0, 7),
)
def test_a_disk_that_is_full_at_any_chunk_leaves_what_arrived_before_and_the_rest_can_follow(
    tmp_path: Path, sizes: list[int], full_at: int
) -> None:
    """Long chunks are stored by another thread: the error comes with a later chunk or the check, and once at least."""
    chunks = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    data, calls, plain = b"".join(chunks), iter(range(len(chunks))), os.pwrite
    path = tmp_path / "object.part"
    path.unlink(missing_ok=True)

    def pwrite(handle: int, data: bytes, offset: int) -> int:
        if next(calls) == full_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(handle, data, offset)

    ref = ObjectRef(hashlib.sha256(data).hexdigest(), len(data))
    partial = Partial(path, ref)
    failed = False
    with mock.patch.object(os, "pwrite", pwrite):
        try:
            for chunk in chunks:
                partial.append(partial.length, memoryview(chunk))
            assert partial.check()
        except RunError as error:
            failed = "no space left" in str(error)
        partial.close()
    assert failed == (full_at < len(chunks))
    assert path.read_bytes() == b"".join(chunks[:full_at])
    later = Partial(path, ref)
    while not later.whole:
        later.append(later.length, memoryview(data)[later.length :][: 1 << 17])
    assert later.check()
    later.close()
    assert path.read_bytes() == data


def test_a_file_that_cannot_be_read_is_said_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "object"
    path.write_bytes(b"an object")
    ref = ref_of(path)
    (tmp_path / "cache").mkdir()
    for name in (ref.digest, f"{ref.digest}.part"):
        (tmp_path / "cache" / name).write_bytes(b"an object")
    cache, sent = ObjectCache(tmp_path / "cache"), ObjectFile(path, ref)
    partial = cache.begin(ref)
    reads: list[Callable[[], object]] = [
        lambda: cache.find(ref),
        lambda: cache.keep(partial),
        lambda: sent.chunk(0),
    ]
    for read in reads:
        with (
            unreadable(),
            pytest.raises(RunError, match=r"cannot read .* \(Input/output error\): mend its disk"),
        ):
            read()
    assert cache.keep(partial)
    assert sent.chunk(0) == b"an object"
    sent.close()
    with pytest.raises(RunError, match=r"cannot read .*gone \(No such file or directory\)"):
        ObjectFile(tmp_path / "gone", ref)


def test_an_object_that_cannot_be_removed_is_said_in_a_line(tmp_path: Path) -> None:
    cache, path = ObjectCache(tmp_path), tmp_path / "object"
    path.write_bytes(b"an object")
    ref = ref_of(path)
    path.rename(tmp_path / ref.digest)
    (tmp_path / ref.digest).write_bytes(b"no object")  # its bytes are wrong: it is to be fetched again
    refused = mock.patch.object(
        Path, "unlink", side_effect=PermissionError(errno.EACCES, "Permission denied")
    )
    for remove in (lambda: cache.find(ref), lambda: cache.drop(ref.digest)):
        with refused, pytest.raises(RunError, match=r"cannot write .*Permission denied"):
            remove()
    assert cache.find(ref) is None
    assert cache.digests() == []
