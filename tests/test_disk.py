"""Which paths are files to be read."""

import os
import socket
from pathlib import Path

import pytest

from fednlp.disk import regular


def test_pipes_sockets_and_devices_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket may not be long
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    for name in ("pipe", "socket", os.devnull):
        with pytest.raises(OSError, match="a pipe or a device, no file"):
            regular(Path(name))
    with pytest.raises(FileNotFoundError):
        regular(Path("absent"))


def test_files_and_links_to_them_are(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    assert regular(tmp_path / "link") == tmp_path / "link"
