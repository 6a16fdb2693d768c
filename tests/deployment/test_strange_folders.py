"""A run directory or a file of somebody else: what is no file, or holds something else, is refused by one line."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fednlp.deployment.identity.enrolment import kind_of
from fednlp.deployment.identity.site_registry import Register
from fednlp.deployment.server.run_directory import run_name
from fednlp.deployment.site.policy import load_policy
from fednlp.errors import FednlpError

READERS: list[tuple[str, Callable[[Path], Any]]] = [
    ("federation/sites.json", lambda folder: Register(folder / "federation").sites()),
    ("federation/server.json", lambda folder: kind_of(folder / "federation")),
    ("federation/run.json", lambda folder: run_name(SimpleNamespace(folder=folder))),  # type: ignore[arg-type]
    ("site.toml", lambda folder: load_policy(folder / "site.toml")),
]


@pytest.mark.parametrize(("name", "read"), READERS, ids=[name for name, _ in READERS])
@pytest.mark.parametrize(
    "content", ["pipe", "[" * 100_000, '{"run": ' + "9" * 10_000 + "}", '{"run": 1}', "\x00"]
)
def test_what_is_no_file_of_ours_is_refused(
    name: str, read: Callable[[Path], Any], content: str, tmp_path: Path
) -> None:
    (tmp_path / "federation").mkdir()
    if content == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(FednlpError) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)
