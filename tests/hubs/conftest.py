"""A cache of its own for every test, wheels made on the spot, and a package index that is just a folder."""

import hashlib
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fednlp.hubs.archives import PinnedArchive


@pytest.fixture(autouse=True)
def cache(empty_cache: Path) -> Path:
    """An empty cache folder, in use."""
    return empty_cache


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that has nowhere to get anything from."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")


@pytest.fixture
def index(no_index: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pip that gets wheels from one folder, which is returned."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def make_wheel() -> Callable[[Path, Mapping[str, bytes]], PinnedArchive]:
    """Write ``made-up 1.0`` with some files into a folder; return what pins the wheel and no file."""

    def make(folder: Path, files: Mapping[str, bytes]) -> PinnedArchive:
        info = "made_up-1.0.dist-info"
        extra = {
            f"{info}/METADATA": b"Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n",
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": b"",
            "made_up/__init__.py": b"raise RuntimeError('never to be imported')\n",
        }
        path = folder / "made_up-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in {**files, **extra}.items():
                archive.writestr(name, content)
        content = path.read_bytes()
        return PinnedArchive(
            what="something made up",
            package="made-up",
            version="1.0",
            sha256=hashlib.sha256(content).hexdigest(),
            size=len(content),
            unpacked=sum(map(len, files.values())),
            files={},
        )

    return make
