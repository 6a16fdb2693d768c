"""Every code block of README, CONTRIBUTING and docs is true: what can be run is run, and all else is checked.

Blocks of a page are run in order, in one empty folder. What is done with a block stands in comments above it:

- ``<!-- file: NAME -->`` writes it to a file of that name in the folder.
- ``<!-- needs: NAME -->`` first makes a thing of :data:`MAKERS`; with one of :data:`ELSEWHERE` it is never run.
- ``<!-- slow -->`` runs it with ``-m slow`` alone. What trains anything but the experiment "small" or a file of the
  page's folder is slow without a comment.
- ``<!-- fragment -->`` says that Python code uses names that stand elsewhere: it is never run.

A block that is not run is checked: its options, files, experiments, settings, imports and attributes exist. Without
``-m slow`` training is cut to one short round, and of what it prints only the words are compared.
"""

import ast
import glob
import io
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fednlp.cli import app
from fednlp.errors import FednlpError, FetchError

from .docs_blocks import (
    PAGES,
    ROOT,
    Block,
    Command,
    blocks,
    check_command,
    check_python,
    check_toml,
    leaf,
    run_python,
    shown_lines,
)

pytestmark = pytest.mark.whole

SHORT = [
    "num_rounds=1",
    "clients_per_round=2",
    "client.max_steps=1",
    "model.max_length=16",
    "runtime.workers=1",
]
SHORTER = {
    "run": [word for change in SHORT for word in ("--set", change)],
    "compare": [word for change in SHORT for word in ("--set", change)] + ["--seeds", "1"],
}
"""What a command is given so that it takes a second; it is the page's otherwise."""
TRAINS = {"run", "compare", "plan", "measure"}
READS_MODELS = {"evaluate", "predict", "export", "report"}
ELSEWHERE = {"published files", "a run of your own", "a file of your own"}
MARKS = {"file", "needs", "slow", "fragment", "from"}


def _table(path: str, header: str, row: Callable[[int], str], rows: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / path).parent.mkdir(exist_ok=True, parents=True)
        lines = [header, *(row(number) for number in range(rows))]
        (folder / path).write_text("\n".join(lines) + "\n", encoding="utf-8")

    return make


def _note(number: int) -> str:
    return f"note {number} of pain,{('cardiology', 'surgery')[number % 2]}"


def _hospitals(folder: Path) -> None:
    for name in ("Mitte/notes", "Nord/train", "Nord/test", "Ost/notes", "Süd/notes", "West/notes"):
        _table(f"hospitals/{name}.csv", "note,department", _note, 20)(folder)


MAKERS: dict[str, Callable[[Path], None]] = {
    "tickets.csv": _table(
        "tickets.csv",
        "id,body,team,office",
        lambda n: f"{n},question {n % 7} of {n},{('entity', 'human')[n % 2]},{('Bonn', 'Leeds')[n // 2 % 2]}",
        160,
    ),
    "talks.jsonl": _table(
        "talks.jsonl", '{"dialogue": "a b", "summary": "a"}', lambda n: f'{{"dialogue": "word {n}", "summary": "w"}}', 9
    ),
    "notes.csv": _table(
        "notes.csv", "note,text,label", lambda n: f"a note,the market fell {n},{('business', 'tech')[n % 2]}", 3
    ),
    "hospitals": _hospitals,
}  # fmt: skip


EXTRAS = {*tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]}
INSTALLED = re.compile(
    r"\.venv/bin/pip install (-q )?(-c constraints\.txt (-e \.|-e '\.\[(?P<clone>\w+)\]'|"
    r"'fednlp-0\.2\.0-py3-none-any\.whl\[(?P<wheel>\w+)\]')|tensorboard)(?![\w\[])"
)
"""The forms in which pages install something: from a clone, or a wheel that was built in one; fednlp is on no index."""


def test_what_pages_and_messages_install_can_be_installed() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for place in re.finditer("pip install", text):
            form = INSTALLED.match(text, place.start() - len(".venv/bin/"))
            assert form, f"{page.name}: {text[place.start() - 10 : place.end() + 50]!r}"
            assert {form["clone"], form["wheel"]} - {None} <= EXTRAS, form[0]
    asked: set[str] = set()
    for module in (ROOT / "src").rglob("*.py"):
        code = module.read_text(encoding="utf-8")
        assert not re.search(r"pip install \W?fednlp", code), f"{module}: say install_command(extra)"
        asked |= {extra for _, extra in re.findall(r"install_command\((['\"])(\w+)\1\)", code)}
    assert len(asked) > 5
    assert asked <= EXTRAS


class Page:
    """A page that is followed from its beginning, in a folder."""

    def __init__(self, folder: Path, slow: bool, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.slow, self.patch = folder, slow, patch
        self.names: dict[str, Any] = {"__name__": "page"}
        self.missing = ""
        for name in ("experiments", "examples", "benchmarks"):
            (folder / name).symlink_to(ROOT / name)
        patch.chdir(folder)

    def follow(self, block: Block, said: Callable[[], str]) -> None:
        """Check a block, and run it if it is to be run now."""
        assert set(block.marks) <= MARKS, block.marks
        needs = [name for name in block.marks.get("needs", "").split(", ") if name]
        for name in set(needs) - ELSEWHERE:
            MAKERS[name](self.folder)
        if "file" in block.marks:
            (self.folder / block.marks["file"]).write_text(block.text, encoding="utf-8")
        runs = not self.missing and not {*needs} & ELSEWHERE and (self.slow or "slow" not in block.marks)
        if block.language in ("sh", "bash", "console"):
            self.shell(block, runs, said)
        elif block.language == "python":
            self.python(block, runs)
        elif block.language == "toml":
            check_toml(block.text, self.folder)
        else:
            assert block.language == "text", f"nothing is known of {block.language!r} blocks"

    def shell(self, block: Block, runs: bool, said: Callable[[], str]) -> None:
        trained = []
        for command in block.commands:
            self.paths(command)
            trained += [] if block.shows_error else self.trained(command)
        if not runs or (
            not self.slow and set(trained) - {"small", *(p.stem for p in self.folder.glob("*.toml"))}
        ):
            return
        printed = ""
        for command in block.commands:
            self.paths(command)
            if command.is_general:
                continue
            if command.is_fednlp:
                self.run(command, block.shows_error)
            elif command.words[0] == "python" and (command.words[1] != "-m" or command.tests_the_page):
                ended = subprocess.run(
                    [sys.executable, *command.words[1:]], capture_output=True, text=True, check=True
                )
                print(ended.stdout)
            printed += said()
        if block.output is not None and printed.strip():
            self.compare(block, printed)

    def trained(self, command: Command) -> list[str]:
        """Check a command; return the names of the experiments that it trains."""
        experiments = [one.name for one in check_command(command)]
        name = leaf(command.words[1:])[0].name if command.is_fednlp else command.words[0]
        if command.tests_the_page:
            return []
        return (experiments or [name]) if name in TRAINS | {"python"} else []

    def paths(self, command: Command) -> None:
        """Let Python find what the command's PYTHONPATH names."""
        if "PYTHONPATH" in command.variables:
            path = str(self.folder / command.variables["PYTHONPATH"])
            self.patch.syspath_prepend(path)
            self.patch.setenv("PYTHONPATH", os.pathsep.join([path, os.environ.get("PYTHONPATH", "")]))

    def run(self, command: Command, fails: bool) -> None:
        name = leaf(command.words[1:])[0].name
        words = [match for word in command.words for match in sorted(glob.glob(word)) or [word]]
        if not self.slow and name in SHORTER and not fails and "--resume" not in words:
            words += SHORTER[name]
        self.patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((command.stdin or "").encode())))
        if fails:
            with pytest.raises(FednlpError) as mistake:
                app(words[1:])
            print(f"error: {mistake.value}")
        else:
            with pytest.raises(SystemExit) as ended:
                app(words[1:])
            assert not ended.value.code, " ".join(words)

    def compare(self, block: Block, printed: str) -> None:
        """Compare all that is shown where nothing was shortened, else the words that lines begin with."""
        lines = [as_compared(line) for line in printed.splitlines()]
        names = {leaf(one.words[1:])[0].name for one in block.commands if one.is_fednlp}
        exact = block.shows_error or ("needs" not in block.marks and not names & (TRAINS | READS_MODELS))
        for shown in shown_lines(block.output or ""):
            begin = as_compared(shown if exact else re.split(r"[\d–]", shown)[0])
            pattern = ".*".join(map(re.escape, begin.split(" ... "))) + ("$" if exact else "")
            wrapped = not exact and as_compared(begin) in " ".join(lines)  # prose is as wide as the terminal
            assert wrapped or any(re.match(pattern, line) for line in lines), f"{shown!r} is not printed"

    def python(self, block: Block, runs: bool) -> None:
        tree = ast.parse(textwrap.dedent(block.text))
        if "file" not in block.marks:
            check_python(tree)
        slow = re.search(r"experiments/(?!small)\w+\.toml", block.text) and not self.slow
        if runs and not slow and not {"file", "fragment"} & set(block.marks):
            run_python(block.text, block.where, self.names)


def as_compared(line: str) -> str:
    """Return a line without what a terminal decides: columns' width, and how the rule under a table's head looks."""
    words = line.split()
    return "─" if words and all(re.fullmatch("─+|-{3,}", word) for word in words) else " ".join(words)


def follow(page: Path, slow: bool, folder: Path, patch: pytest.MonkeyPatch, capsys: Any) -> None:
    patch.setenv("COLUMNS", "200")
    patch.setenv("MPLBACKEND", "agg")
    modules = set(sys.modules)
    followed = Page(folder, slow, patch)

    def said() -> str:
        out, err = capsys.readouterr()
        return f"{out}\n{err}"

    for block in blocks(page):
        try:
            followed.follow(block, said)
        except FetchError as error:  # the rest of the page is still checked
            followed.missing = f"{block.where} needs what cannot be fetched: {error}"
        except BaseException as error:
            error.add_note(f"{block.where}\n{said()}")
            raise
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent in (folder, ROOT / "examples"):
            del sys.modules[name]
    if followed.missing:
        pytest.skip(followed.missing)


def test_each_row_of_the_cohort_rules_has_its_commands() -> None:
    """A reader types what a row was made by: each rule, with each of the two seeds."""
    text = (ROOT / "docs/methods/client-selection.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)`.* MB \|$", text, re.MULTILINE)
    typed = re.findall(r"^fednlp run .* --set cohort\.name=(\S+) --seed (\d)$", text, re.MULTILINE)
    assert len(rows) == 3
    assert typed == [(rule, seed) for rule in rows for seed in "01"]


FOLLOWED = [page for page in PAGES if page.parent != ROOT / "docs/results"]
"""The others are written by a command, and tests/reproduction checks theirs, which take hours."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", FOLLOWED, ids=name_of)
@pytest.mark.usefixtures("undrawn")
def test_a_page_is_true(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follow(page, False, tmp_path, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("page", FOLLOWED, ids=name_of)
def test_a_page_followed_literally(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follow(page, True, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("sh", "fednlp run small --sett num_rounds=3"),
        ("sh", "fednlp run smal"),
        ("sh", "fednlp run small --set num_round=3"),
        ("sh", "fednlp compare small --algorithms fedavg,fedavgg"),
        ("sh", "fednlp prompts chek bbc"),
        ("sh", "python benchmarks/secure.py --compar"),
        ("sh", "python benchmarks/securer.py"),
        ("toml", "[client]\nlearning_rates = 0.1"),
        ("toml", "[variants.one.client]\nlearning_rate = -1"),
        ("python", "import fednlp\nfednlp.runs"),
        ("python", "from fednlp.costs import Plann"),
        ("python", "from fednlp import run\nrun('small', overides=[])"),
        ("python", "1 + 1  # about 3"),
        ("python", "print('a')  # \"b\""),
        ("yaml", "a: 1"),
    ],
)
def test_a_mistake_on_a_page_is_found(
    language: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page(tmp_path, False, monkeypatch)
    with pytest.raises((Exception, SystemExit)):
        page.follow(Block("page:1", language, text, {}, None), lambda: "")


def test_what_is_shown_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Page(tmp_path, False, monkeypatch)
    block = Block("page:1", "sh", "fednlp --help", {}, "fednlp is something else")
    with pytest.raises(AssertionError, match="something else"):
        page.follow(block, lambda: capsys.readouterr().out)
