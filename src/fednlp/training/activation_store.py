"""Rows of hidden states on disk: append-only files that any number of processes read without locks.

Each writer has a pair of files. ``states-N.f32`` holds states end to end, float32; ``index-N.bin`` has one
record of 32 bytes a row, which is written once its states are on the disk. Nothing that is written changes,
so a process that stops halfway leaves nothing false behind. Reading goes straight from the file into the
batch: in memory are 48 bytes a row, and the batch.
"""

import fcntl
import logging
import os
import shutil
from pathlib import Path

import numpy as np

from fednlp.disk import writing

_RECORD = np.dtype([("key", "S16"), ("offset", "<i8"), ("tokens", "<i4"), ("file", "<i4")])
"""A row: its digest, where its states begin (bytes), how many tokens it has; in memory, also in which file."""

_LEAVE_FREE = 2 * 2**30
"""Bytes that stay free on the disk."""

_APPEND = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
_SORTED_IN = 4096
"""Rows that are looked up one by one before they are sorted in among the others."""

Place = tuple[int, int, int]
"""File, offset in bytes, tokens."""


class ActivationStore:
    """Rows of hidden states on disk, shared between processes.

    Args:
        folder: Where the files are; made if need be.
        writer: Number of the files to write; the next that is free, where another process writes these.
        width: Hidden size: numbers per token.

    Raises:
        RunError: The folder cannot be made.
    """

    def __init__(self, folder: Path, writer: int, width: int) -> None:
        with writing(folder):
            pass
        self.folder = folder
        self.width = width
        self.may_grow = True
        self._writer = writer
        self._rows = np.empty(0, _RECORD)
        self._keys = np.empty(0, "S16")
        self._recent: dict[bytes, Place] = {}
        self._files: dict[str, int] = {}
        self._handles: list[int] = []
        self._read: dict[str, int] = {}
        self._own: tuple[int, int, int] | None = None
        self._unflushed: list[tuple[bytes, int, int, int]] = []
        self.refresh()

    def __len__(self) -> int:
        return len(self._rows) + len(self._recent)

    def refresh(self) -> None:
        """Read what other processes have written since."""
        found = [self._rows]
        for path in sorted(self.folder.glob("index-*.bin")):
            number = path.stem.removeprefix("index-")
            with path.open("rb") as file:
                file.seek(self._read.get(number, 0))
                data = file.read()
            whole = len(data) // _RECORD.itemsize * _RECORD.itemsize
            self._read[number] = self._read.get(number, 0) + whole
            rows = np.frombuffer(data[:whole], _RECORD).copy()
            if len(rows) and (handle := self._opened(number)) is not None:
                rows["file"] = handle
                ends = rows["offset"] + rows["tokens"].astype(np.int64) * self.width * 4
                size = os.fstat(self._handles[handle]).st_size
                found.append(rows[(rows["offset"] >= 0) & (rows["tokens"] > 0) & (ends <= size)])
        if len(found) > 1:
            self._sort_in(found)

    def _opened(self, number: str) -> int | None:
        """Return the number in this process of a file of states; None where there is none."""
        if number not in self._files:
            try:
                self._handles.append(
                    os.open(self.folder / f"states-{number}.f32", os.O_RDONLY | os.O_CLOEXEC)
                )
            except OSError:
                return None
            self._files[number] = len(self._handles) - 1
        return self._files[number]

    def _sort_in(self, found: list[np.ndarray]) -> None:
        recent = [(key, offset, tokens, file) for key, (file, offset, tokens) in self._recent.items()]
        rows = np.concatenate([np.array(recent, _RECORD), *found])
        self._keys, first = np.unique(rows["key"], return_index=True)
        self._rows = rows[first]
        self._recent.clear()

    def find(self, key: bytes) -> Place | None:
        """Return where a row's states are; None where they are not known."""
        place = self._recent.get(key)
        if place is not None or not len(self._rows):
            return place
        looked_up = np.array(key, "S16")
        at = int(np.searchsorted(self._keys, looked_up))
        if at == len(self._keys) or self._keys[at] != looked_up:
            return None
        _, offset, tokens, file = self._rows[at].item()
        return file, offset, tokens

    def read(self, place: Place, into: np.ndarray) -> bool:
        """Read states into (tokens, width) float32; return False where they are not all there."""
        file, offset, tokens = place
        if tokens != len(into):
            return False
        return os.preadv(self._handles[file], [into.data], offset) == into.nbytes

    def add(self, key: bytes, states: np.ndarray) -> None:
        """Keep a row's states, (tokens, width) float32, if there is room; :meth:`flush` tells other processes."""
        if not self.may_grow:
            return
        try:
            if shutil.disk_usage(self.folder).free - states.nbytes < _LEAVE_FREE:
                raise OSError("less than 2 GiB are free")
            handle, file = self._writing()[::2]
            offset = os.fstat(handle).st_size
            if os.write(handle, states.data) != states.nbytes:
                raise OSError("the disk is full")
        except OSError as error:
            self._stop(error)
            return
        self._recent[key] = (file, offset, len(states))
        self._unflushed.append((key, offset, len(states), 0))
        if len(self._recent) > _SORTED_IN:
            self._sort_in([self._rows])

    def _stop(self, error: OSError) -> None:
        self.may_grow, reason = False, error.strerror or str(error)
        logging.getLogger(__name__).warning(
            "what the frozen layers compute of further texts is no longer kept in %s: %s", self.folder, reason
        )

    def _writing(self) -> tuple[int, int, int]:
        """Return the handles of this process's states and index, and the number of its file; made and locked."""
        while self._own is None:
            number = str(self._writer)
            states = os.open(self.folder / f"states-{number}.f32", _APPEND, 0o666)
            try:
                fcntl.flock(states, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(states)
                self._writer += 1
                continue
            index = os.open(self.folder / f"index-{number}.bin", _APPEND, 0o666)
            os.ftruncate(index, os.fstat(index).st_size // _RECORD.itemsize * _RECORD.itemsize)
            file = self._opened(number)
            assert file is not None
            self._own = states, index, file
        return self._own

    def flush(self) -> None:
        """Make what was added visible to other processes: the states go to the disk first, then the index."""
        if not self._unflushed or self._own is None:
            return
        states, index, _ = self._own
        try:
            os.fdatasync(states)
            os.write(index, np.array(self._unflushed, _RECORD).tobytes())
        except OSError as error:
            self._stop(error)
        self._unflushed.clear()

    def close(self) -> None:
        """Write what is left and close all files."""
        self.flush()
        for handle in (*self._handles, *(self._own or ())[:2]):
            os.close(handle)
        self._handles, self._own = [], None
