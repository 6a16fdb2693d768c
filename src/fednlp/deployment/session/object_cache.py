"""The objects that a client has fetched, whole or in part."""

import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from fednlp.deployment.session.message_types import ObjectRef
from fednlp.deployment.session.objects import REMEDY, Partial, make_folder, reading, ref_of
from fednlp.disk import writing
from fednlp.errors import RunError
from fednlp.formatting.units import human_bytes

MOST_FETCHED = 64 * 10**9
"""Bytes that the calls which are open at a client may have it fetch in all."""
_SPARE = 10**9
"""Bytes of a disk that stay free, or a twentieth of a small one."""


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
        make_folder(folder, REMEDY)

    def find(self, ref: ObjectRef) -> Path | None:
        """Return the file of an object, or None if it is not there as a whole.

        Raises:
            RunError: The file cannot be read, or is damaged and cannot be removed.
        """
        path = self.folder / ref.digest
        with reading(path):
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
        with reading(self.folder):
            missing = sum(self._missing(ref) for ref in {*refs})
            disk = shutil.disk_usage(self.folder)
        if missing and missing > disk.free - min(_SPARE, disk.total // 20):
            raise RunError(
                f"the server sends {human_bytes(missing)}, for which the disk here has no room: free some, {REMEDY}"
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
        with writing(self.folder, REMEDY):
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
        with writing(self.folder, REMEDY):
            path.unlink(missing_ok=True)

    def digests(self) -> list[str]:
        """Return the objects that are there, whole or in part."""
        return sorted({path.name.removesuffix(".part") for path in self.folder.iterdir()})
