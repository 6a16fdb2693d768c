"""Where the cache folder is."""

from pathlib import Path

import pytest

from fednlp.hubs.cache import cache_dir


def test_cache_folder_is_the_users_choice_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("FEDNLP_CACHE", "~/mine")
    assert cache_dir() == tmp_path / "mine"
    monkeypatch.setenv("FEDNLP_CACHE", "")
    assert cache_dir() == tmp_path / "xdg" / "fednlp"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == tmp_path / ".cache" / "fednlp"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_dir() == tmp_path / ".cache" / "fednlp"
