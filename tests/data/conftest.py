"""A cache of its own for every test."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(empty_cache: Path) -> Path:
    """An empty cache folder, in use."""
    return empty_cache
