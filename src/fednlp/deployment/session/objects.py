"""Large things that travel in chunks: files that grow until their SHA-256 can be checked."""

import hashlib
import mmap
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fednlp.deployment.session.messages import CHUNK, ObjectRef
from fednlp.disk import sync_again, sync_folder, writing
from fednlp.errors import FednlpError, ProtocolError, RunError
from fednlp.formatting.units import human_bytes

MOST_FETCHED = 64 * 10**9
"""Bytes that the calls which are open at a client may have it fetch in all."""
_SPARE = 10**9
"""Bytes of a disk that stay free, or a twentieth of a small one."""
_REMEDY = "then the transfer goes on from where it stands"


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the system's errors about a file that cannot be read into one line.

    Args:
        path: The file.

    Raises:
        RunError: It cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot read {path} ({error.strerror or error}): mend its disk, or remove the file, {_REMEDY}"
        ) from None


def make_folder(folder: Path, remedy: str) -> None:
    """Make a folder, and those above it that are missing, and put their names on the disk.

    Raises:
        RunError: It cannot be made.
    """
    if not folder.is_dir():
        make_folder(folder.parent, remedy)
        with writing(folder, remedy):
            sync_folder(folder.parent)


def ref_of(path: Path) -> ObjectRef:
    """Return the digest and size of a file's bytes."""
    with path.open("rb") as file:
        return ObjectRef(hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size)


class Written(NamedTuple):
    """A file whose digest is known."""

    path: Path
    ref: ObjectRef


def write_object(path: Path, pieces: Iterable[bytes | memoryview]) -> Written:
    """Write a file piece by piece; each is hashed in another thread while it is written.

    Args:
        path: The file, which is replaced if it is there.
        pieces: Its bytes.

    Raises:
        RunError: The disk is full, or cannot be written.
    """
    digest, size = _Hash(), 0
    with writing(path.parent, "then type the same command again"), path.open("wb", buffering=0) as file:
        for piece in pieces:
            view = memoryview(piece)
            digest.update(view)
            size += len(view)
            while len(view):
                view = view[file.write(view) :]
    return Written(path, ObjectRef(digest.hexdigest(), size))


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """Map a file for the time of a block."""
    if not path.stat().st_size:  # which cannot be mapped
        yield memoryview(b"")
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as found:
        view = memoryview(found)
        try:
            yield view
        finally:
            view.release()


def mapped_privately(path: Path) -> memoryview:
    """Map a file for as long as what is returned is held; what is written to it there does not reach the file."""
    if not path.stat().st_size:  # which cannot be mapped
        return memoryview(b"")
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


class _Hash:
    """SHA-256 of what arrives; long chunks are stored and hashed in another thread while the next one arrives."""

    _WORKER = ThreadPoolExecutor(
        1, thread_name_prefix="fednlp-hash"
    )  # one keeps the order; it starts on first use
    _ROOM = threading.BoundedSemaphore(4)  # chunks of all objects that wait to be hashed
    _LONG = 1 << 16

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._last: Future[None] | None = None
        self._error: FednlpError | None = None

    def update(self, data: memoryview, store: Callable[[], None] = lambda: None) -> None:
        """Take a chunk.

        Args:
            store: Puts it where it belongs, before it is hashed; nothing is stored after one that fails.

        Raises:
            FednlpError: This chunk, or one before it, was not stored.
        """
        if len(data) < self._LONG and (self._last is None or self._last.done()):
            self.settle()
            store()
            self._hash.update(data)
            return
        if self._error is None:
            self._ROOM.acquire()
            self._last = self._WORKER.submit(self._work, data, store)
        else:
            self.settle()

    def _work(self, data: memoryview, store: Callable[[], None]) -> None:
        try:
            if self._error is None:
                store()
                self._hash.update(data)
        except FednlpError as error:
            self._error = error
        finally:
            self._ROOM.release()

    def settle(self) -> None:
        """Wait until all chunks are stored and hashed.

        Raises:
            FednlpError: One was not stored.
        """
        if self._last is not None:
            self._last.result()
        if self._error is not None:
            raise self._error

    def hexdigest(self) -> str:
        self.settle()
        return self._hash.hexdigest()


class Partial:
    """A file that arrives in chunks; what is there already stays, so that a transfer goes on where it broke off.

    Args:
        path: The file; made if missing.
        ref: What it is to be.

    Attributes:
        length: Bytes that are there.

    Raises:
        RunError: The file cannot be made.
    """

    def __init__(self, path: Path, ref: ObjectRef) -> None:
        self.path, self.ref = path, ref
        with writing(path.parent, _REMEDY):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.length = os.fstat(self._handle).st_size
        if self.length > ref.size:
            self.discard()
        # What was there before is read again when the file is whole.
        self._hash = _Hash() if self.length == 0 else None

    @property
    def whole(self) -> bool:
        """Whether all bytes are there; :meth:`check` says whether they are the right ones."""
        return self.length == self.ref.size

    def append(self, offset: int, data: memoryview) -> None:
        """Add a chunk.

        Raises:
            ProtocolError: It does not begin where the file ends, or goes beyond the object's size.
            RunError: The disk is full, or cannot be written; of a long chunk the next one says so, or :meth:`check`.
        """
        if offset != self.length:
            raise ProtocolError(f"a chunk at {offset} where {self.length} is next")
        if offset + len(data) > self.ref.size:
            raise ProtocolError(f"a chunk up to {offset + len(data)} of an object of {self.ref.size} bytes")
        if self._hash is None:
            self._store(offset, data)
        else:
            self._hash.update(data, lambda: self._store(offset, data))
        self.length += len(data)

    def _store(self, offset: int, data: memoryview) -> None:
        with writing(self.path.parent, _REMEDY):
            if os.pwrite(self._handle, data, offset) != len(data):
                os.ftruncate(self._handle, offset)
                raise OSError("the chunk was not written whole")

    def check(self) -> bool:
        """Return whether the bytes of the whole file are the right ones; discard them if they are not.

        Raises:
            RunError: The disk cannot be written, or what was there before cannot be read.
        """
        if self._hash is None:
            with _reading(self.path), open(self._handle, "rb", closefd=False) as file:
                file.seek(0)
                found = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            found = self._hash.hexdigest()
        if found == self.ref.digest:
            return True
        self.discard()
        return False

    def sync(self) -> None:
        """Put the bytes of the whole file on the disk.

        Raises:
            RunError: The disk is full, or cannot be written.
        """
        with writing(self.path.parent, _REMEDY):
            if self._hash is None:  # these bytes, or some of them, may be of an attempt that failed
                sync_again(self._handle)
            else:
                os.fsync(self._handle)

    def discard(self) -> None:
        """Remove all bytes, which are stored by now: the object begins at 0 again."""
        with writing(self.path.parent, _REMEDY):
            os.ftruncate(self._handle, 0)
        self.length, self._hash = 0, _Hash()

    def close(self) -> None:
        """Let go of the file, which stays; what has arrived of it is stored first."""
        if self._handle >= 0:
            with suppress(FednlpError):  # what was stored before stays
                if self._hash is not None:
                    self._hash.settle()
            os.close(self._handle)
        self._handle = -1


class ObjectFile:
    """A file that is sent in chunks, to any number of readers.

    Args:
        path: The file.

    Raises:
        RunError: The file cannot be opened.
    """

    def __init__(self, path: Path, ref: ObjectRef) -> None:
        self.path, self.ref = path, ref
        with _reading(path):
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def chunk(self, offset: int, most: int | None = None) -> bytes:
        """Return the chunk at an offset.

        Args:
            offset: From the file's beginning, in bytes.
            most: Its bytes at most; :data:`CHUNK` if left out.

        Raises:
            RunError: The file cannot be read.
        """
        with _reading(self.path):
            return os.pread(self._handle, min(most or CHUNK, self.ref.size - offset), offset)

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


class ObjectCache:
    """A folder of objects that a client has fetched, whole or in part, named by their digests.

    A server has them too, so they are not put on the disk at once. Those of an earlier process are checked before they
    are used: a machine that lost its power may have lost some of their bytes.

    Args:
        folder: Made if missing.
        most_bytes: Bytes that the calls which are open may have fetched in all.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_FETCHED) -> None:
        self.folder, self.most_bytes = folder, most_bytes
        self._checked: set[str] = set()
        make_folder(folder, _REMEDY)

    def find(self, ref: ObjectRef) -> Path | None:
        """Return the file of an object, or None if it is not there as a whole.

        Raises:
            RunError: The file cannot be read, or is damaged and cannot be removed.
        """
        path = self.folder / ref.digest
        with _reading(path):
            if not path.is_file():
                return None
            whole = ref.digest in self._checked or ref_of(path) == ref
        if not whole:
            self._remove(path)
            return None
        self._checked.add(ref.digest)
        return path

    def require_room(self, refs: Iterable[ObjectRef]) -> None:
        """Check that what is missing of objects fits on the disk.

        Raises:
            RunError: It does not, or the disk cannot be read.
        """
        with _reading(self.folder):
            missing = sum(self._missing(ref) for ref in {*refs})
            disk = shutil.disk_usage(self.folder)
        if missing and missing > disk.free - min(_SPARE, disk.total // 20):
            raise RunError(
                f"the server sends {human_bytes(missing)}, for which the disk here has no room: free some, {_REMEDY}"
            )

    def _missing(self, ref: ObjectRef) -> int:
        path = self.folder / ref.digest
        there = next((one for one in (path, path.with_suffix(".part")) if one.is_file()), None)
        return max(0, ref.size - (0 if there is None else there.stat().st_size))

    def begin(self, ref: ObjectRef) -> Partial:
        """Return the part of an object that is there."""
        return Partial(self.folder / f"{ref.digest}.part", ref)

    def keep(self, partial: Partial) -> bool:
        """Give a whole object its name and return True, or discard it and return False if its bytes are wrong.

        Raises:
            RunError: The file cannot be read, or the folder cannot be written.
        """
        if not partial.check():
            return False
        partial.close()
        with writing(self.folder, _REMEDY):
            os.replace(partial.path, self.folder / partial.ref.digest)
        self._checked.add(partial.ref.digest)
        return True

    def drop(self, digest: str) -> None:
        """Remove an object, whole or in part.

        Raises:
            RunError: It cannot be removed.
        """
        for name in (digest, f"{digest}.part"):
            self._remove(self.folder / name)

    def keep_only(self, needed: Collection[str]) -> None:
        """Remove the objects that are not needed, whole or in part.

        Raises:
            RunError: They cannot be removed.
        """
        for digest in self.digests():
            if digest not in needed:
                self.drop(digest)

    def _remove(self, path: Path) -> None:
        with writing(self.folder, _REMEDY):
            path.unlink(missing_ok=True)

    def digests(self) -> list[str]:
        """Return the objects that are there, whole or in part."""
        return sorted({path.name.removesuffix(".part") for path in self.folder.iterdir()})
