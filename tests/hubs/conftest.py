"""A cache of its own for every test, wheels made on the spot, and a package index that is just a folder."""

import hashlib
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fednlp.hubs.archives import PinnedArchive

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
