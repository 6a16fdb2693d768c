"""Real data where the environment names a folder of it, and files written on the spot."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real() -> Path:
    """The folder of published files that FEDNLP_TEST_DATA names."""
    folder = os.environ.get("FEDNLP_TEST_DATA")
    if not folder:
        pytest.skip("set FEDNLP_TEST_DATA to a folder of published data sets")
    return Path(folder)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Write a file into an empty folder; one whose name ends in .gz is gzipped."""

    def make(name: str, content: str | bytes) -> Path:
        content = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return make
