"""A cache of its own for every test."""

import os
from pathlib import Path

import pytest

_OWN = {name: os.environ.get(name) for name in ("FEDNLP_CACHE", "FEDNLP_WHEELS")}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, in use, and pip without any index or folder of wheels."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDNLP_CACHE", str(folder))
    monkeypatch.delenv("FEDNLP_WHEELS", raising=False)
    return folder


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of whoever runs the tests: only for reading what is fetched once."""
    for name, value in _OWN.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
