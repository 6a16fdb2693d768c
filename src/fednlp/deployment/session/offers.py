"""Files that a server or a site offers, and how they are sent in chunks."""

import os
from collections import Counter
from pathlib import Path

from fednlp.deployment.session.frames import CHUNK
from fednlp.deployment.session.message_types import ObjectRef
from fednlp.deployment.session.objects import reading


class ObjectFile:
    """A file that is sent in chunks, to any number of readers.

    Args:
        path: The file.
        ref: What it is.

    Raises:
        RunError: The file cannot be opened.
    """

    def __init__(self, path: Path, ref: ObjectRef) -> None:
        self.path, self.ref = path, ref
        with reading(path):
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def chunk(self, offset: int, most: int | None = None) -> bytes:
        """Return the chunk at an offset.

        Args:
            offset: From the file's beginning, in bytes.
            most: Its bytes at most; :data:`~fednlp.deployment.session.frames.CHUNK` if left out.

        Raises:
            RunError: The file cannot be read.
        """
        with reading(self.path):
            return os.pread(self._handle, min(most or CHUNK, self.ref.size - offset), offset)

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


class Offers:
    """The files that a server offers. One that is added several times is offered until it is dropped as often."""

    def __init__(self) -> None:
        self._files: dict[str, ObjectFile] = {}
        self._times = Counter[str]()

    def __contains__(self, digest: str) -> bool:
        return digest in self._files

    def add(self, path: Path, ref: ObjectRef) -> None:
        """Offer a file."""
        self._times[ref.digest] += 1
        if ref.digest not in self._files:
            self._files[ref.digest] = ObjectFile(path, ref)

    def find(self, digest: str) -> ObjectFile | None:
        """Return a file that is offered; None if it is not."""
        return self._files.get(digest)

    def is_last(self, digest: str) -> bool:
        """Return whether a file is offered no longer once it is dropped."""
        return self._times[digest] == 1

    def drop(self, digest: str) -> None:
        """Offer a file once less."""
        if self.is_last(digest):
            self._files.pop(digest).close()
        self._times[digest] = max(0, self._times[digest] - 1)

    def close(self) -> None:
        """Let go of all files."""
        while self._files:
            self._files.popitem()[1].close()
        self._times.clear()
