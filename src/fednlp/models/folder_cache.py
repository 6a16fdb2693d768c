"""Model folders that are made once and kept in the cache, whole or not at all."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fednlp.disk import locked, writing
from fednlp.hubs.cache import cache_dir
from fednlp.models.origins import name_origins


def cache_key(*parts: Any) -> str:
    """Return a digest of JSON values, to name a folder that depends on nothing else.

    >>> len(cache_key("bilstm", {"hidden_size": 64}))
    32
    """
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def model_cache_folder(name: str) -> Path:
    """Return the cache's folder for a model made here."""
    return cache_dir() / "models" / name


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder, made by ``make`` in an empty folder next to it if it does not exist yet.

    Two processes may ask at once: one makes it, the other waits. A folder that exists is whole.

    Raises:
        RunError: The disk is full, or the cache cannot be written.
    """
    if folder.is_dir():
        return folder
    work = folder.with_name(f".{folder.name}.part")
    with locked(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            return folder
        try:
            with writing(folder.parent):
                shutil.rmtree(work, ignore_errors=True)  # of a process that was killed
                work.mkdir()
            make(work)
            with writing(folder.parent):
                name_origins(work)  # sites get such a folder from the server
                for path in work.iterdir():  # some libraries keep a file to its owner; a cache may be shared
                    path.chmod(work.stat().st_mode & 0o666)
                work.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder
