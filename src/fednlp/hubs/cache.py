"""The folder of the cache."""

import os
from pathlib import Path

from fednlp.disk import ELSEWHERE, expanded
from fednlp.errors import RunError


def cache_dir() -> Path:
    """Return the cache folder: ``$FEDNLP_CACHE``, else ``$XDG_CACHE_HOME/fednlp``, else ``~/.cache/fednlp``.

    Raises:
        RunError: No folder is configured and there is no home folder.
    """
    if own := os.environ.get("FEDNLP_CACHE"):
        return expanded(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):
        return Path(shared) / "fednlp"
    try:
        return Path.home() / ".cache" / "fednlp"
    except RuntimeError:
        raise RunError(f"there is no home folder to keep the cache in: {ELSEWHERE}") from None
