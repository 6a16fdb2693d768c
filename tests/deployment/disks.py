"""A disk that forgets: what was written and never synced may be there after a crash, or not, or in part."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NoReturn
from unittest import mock

import pytest


class Disk:
    """Takes note of what ``os.fsync`` has made durable, and makes the folder that a loss of power leaves.

    The real ``os.fsync`` is not called: the disk of the tests need not be fast.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._content: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._held: list[int] = []
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, handle: int) -> None:
        status = os.fstat(handle)
        path = Path(f"/proc/self/fd/{handle}")
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = {one.name: one.stat().st_ino for one in path.iterdir()}
        else:
            if status.st_ino not in self._content:
                self._held.append(os.dup(handle))  # so that its number is not given to another file
            self._content[status.st_ino] = path.read_bytes()

    def close(self) -> None:
        """Let go of the files."""
        while self._held:
            os.close(self._held.pop())

    def after_a_crash(self, folder: Path, to: Path, random: Random) -> None:
        """Write what a crash may leave of a folder to another one."""
        to.mkdir()
        durable = self._names.get(folder.stat().st_ino, {})
        present = {one.name: one for one in folder.iterdir()}
        for name in sorted({*durable, *present}):
            path = present.get(name)
            if name not in durable and random.random() < 0.5:
                continue  # the name had not been written yet
            if path is not None and path.is_dir():
                self.after_a_crash(path, to / name, random)
                continue
            inode = durable.get(name)
            now = path.read_bytes() if path is not None else b""
            if path is None or (inode is not None and path.stat().st_ino != inode and random.random() < 0.5):
                if path is None and random.random() < 0.5:
                    continue  # it had been removed already
                left = self._content.get(inode or 0, b"")
            else:
                left = self._torn(now, self._content.get(path.stat().st_ino, b""), random)
            (to / name).write_bytes(left)
            self._sync(to / name)
        self._sync(to)

    def _sync(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY)
        self._fsync(handle)
        os.close(handle)

    @staticmethod
    def _torn(now: bytes, synced: bytes, random: Random) -> bytes:
        """Return what may be there of a file: all that was synced, and of what came later any of it, or zeros."""
        if not now.startswith(synced):
            return random.choice([now, synced])
        later = now[len(synced) :]
        cut = random.randrange(len(later) + 1)
        return synced + random.choice([later, later[:cut], bytes(cut), b""])


class FailingDisk:
    """Fails to write bytes when it is told to, and takes them for written from then on, as Linux does.

    Attributes:
        fails: Whether ``os.fsync`` fails.
        durable: What is on the disk of each file that was written by ``os.pwrite``, by its number.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails, self.durable = False, dict[int, bytearray]()
        self._dirty: dict[int, dict[int, bytes]] = {}
        self._pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", self._write)
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _write(self, handle: int, data: bytes, offset: int) -> int:
        self._dirty.setdefault(os.fstat(handle).st_ino, {})[offset] = bytes(data)
        return self._pwrite(handle, data, offset)

    def _fsync(self, handle: int) -> None:
        number = os.fstat(handle).st_ino
        dirty = self._dirty.pop(number, {})
        if self.fails:
            raise OSError(errno.EIO, "Input/output error")
        there = self.durable.setdefault(number, bytearray())
        for offset, data in sorted(dirty.items()):
            there.extend(bytes(max(0, offset + len(data) - len(there))))
            there[offset : offset + len(data)] = data


@contextmanager
def unreadable() -> Iterator[None]:
    """Have files fail to be read for the time of a block, as on a disk with bad sectors."""

    def fails(*given: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    with mock.patch.object(hashlib, "file_digest", fails), mock.patch.object(os, "pread", fails):
        yield
