"""Read the code blocks of a Markdown page, and check what can be checked of one without running it."""

import ast
import builtins
import importlib
import importlib.util
import inspect
import io
import re
import shlex
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import tomli_w
import typer

from fednlp import config
from fednlp.cli import app
from fednlp.costs import load_profile
from fednlp.deployment.site.policy import parse_policy
from fednlp.prompts.prompt_sets import load_prompts
from fednlp.reproduction.catalogue import read_paper

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"((?:^<!--[^\n]*-->\n)*)^```(\w*)\n(.*?)^```$", re.M | re.S)
MARK = re.compile(r"<!-- (\w+)(?:: ([^\n]*))? -->")
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]+(\.toml)?|.*=DIR")
"""A word of a command that stands for one of the reader's own, such as RUN."""
PROGRAMS = {"python3", "pip", "ruff", "mypy", ".ci/run", "mosquitto_passwd", "systemctl"}
"""What commands call beside fednlp and Python files; these are not run."""
COMPLETE: dict[str, Any] = {"data": {"name": "bbc"}}
"""A complete experiment, on which a part of one is laid."""


@dataclass(frozen=True)
class Command:
    """A line of a shell block: ``NAME=value echo stdin | words``."""

    words: list[str]
    variables: dict[str, str]
    stdin: str | None

    @property
    def is_fednlp(self) -> bool:
        return self.words[0] == "fednlp"

    @property
    def tests_the_page(self) -> bool:
        """Whether it runs tests that the page has written into its folder."""
        return self.words[:3] == ["python", "-m", "pytest"] and any(Path(w).is_file() for w in self.words[3:])

    @property
    def is_general(self) -> bool:
        """Whether a word stands for one of the reader's own."""
        return any(PLACEHOLDER.fullmatch(word) for word in self.words)


@dataclass(frozen=True)
class Block:
    """A fenced block: what it is, what the comments above it say, and what is shown as its output."""

    where: str
    language: str
    text: str
    marks: dict[str, str]
    output: str | None

    @property
    def commands(self) -> list[Command]:
        lines = self.text.replace("\\\n", " ").splitlines() if self.language in ("sh", "bash") else []
        if self.language == "console":
            lines = [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]
        return [_command(part) for line in lines for part in line.split(" && ") if part.strip()]

    @property
    def shows_error(self) -> bool:
        return self.output is not None and self.output.startswith("error: ")


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page, in order; a text block directly below another is its output."""
    text = page.read_text(encoding="utf-8")
    found = list(BLOCK.finditer(text))
    made = []
    for match, after in zip_longest(found, found[1:]):
        follows = after is not None and after[2] == "text" and not text[match.end() : after.start()].strip()
        line = text[: match.start(2)].count("\n") + 1
        marks = {kind: value or "" for kind, value in MARK.findall(match[1])}
        output = after[3] if after is not None and follows else None
        made.append(Block(f"{page.relative_to(ROOT)}:{line}", match[2], match[3], marks, output))
    return made


def _command(line: str) -> Command:
    before, _, rest = line.rpartition(" | ")
    words = shlex.split(rest, comments=True)
    variables = {}
    while re.match(r"\w+=", words[0]):
        name, _, variables[name] = words.pop(0).partition("=")
    words[0] = words[0].removeprefix(".venv/bin/")
    return Command(words, variables, shlex.split(before)[1] if before else None)


# ----------------------------------------------------------------------------------------------- commands


def check_command(command: Command) -> list[config.Experiment]:
    """Check that a command's options, files, experiments and settings exist; return its experiments."""
    words = command.words
    if words[:2] == ["mpirun", "-n"]:
        words = words[3:]
    if words[0] == "fednlp":
        return _check_fednlp(words[1:])
    if words[:3] == ["python", "-m", "pytest"]:
        assert command.tests_the_page or all((ROOT / path).exists() for path in words[3:])
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]), f"there is no module {words[2]}"
    elif words[0] == "python":
        source = (ROOT / words[1]).read_text(encoding="utf-8")
        missing = [word for word in words[2:] if word.startswith("--") and f'"{word}"' not in source]
        assert not missing, f"{words[1]} has no option {missing}"
    else:
        assert words[0] in PROGRAMS, f"no page should call {words[0]}: list it in PROGRAMS if it should"
    return []


def leaf(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command of fednlp that words call, and its arguments."""
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    return command, words


def _check_fednlp(words: list[str]) -> list[config.Experiment]:
    command, words = leaf(words)
    if words == ["--help"]:
        return []
    given = command.make_context(command.name, list(words)).params
    names = given.get("experiments") or [given.get("experiment")]
    if command.name not in ("run", "compare", "inspect", "plan") or PLACEHOLDER.fullmatch(names[0] or ""):
        return []
    if given.get("resume") and not {"--set", *names} & set(words):
        return []
    changes = list(given["changes"] or [])
    changes += [f'model.name_or_path="{given["model"]}"'] if given.get("model") else []
    loaded = [config.load(name or _DEFAULT, changes, given["full"]) for name in names]
    methods = f"{given.get('algorithms') or ''},{given.get('references') or ''},{given.get('variant') or ''}"
    for experiment in loaded:
        for method in filter(None, methods.split(",")):
            config.with_method(experiment, method, 0)
    return loaded


_DEFAULT = "experiments/quickstart.toml"

# ------------------------------------------------------------------------------------------------ TOML


def check_toml(text: str, folder: Path) -> None:
    """Check that TOML is a device profile, prompts, a site's file, a paper's manifest, or (part of) an experiment."""
    document = tomllib.loads(text)
    path = folder / "checked.toml"
    if "allow" in document:
        parse_policy(document)
        return
    if "patterns" in document or "training" in document:
        path.write_text(text, encoding="utf-8")
        load_prompts(str(path)) if "patterns" in document else load_profile(path)
        return
    if "entry" in document:
        path.write_text(text, encoding="utf-8")
        read_paper(path)
        return
    path.write_text(tomli_w.dumps(COMPLETE | document), encoding="utf-8")
    for full in {False, "full" in document}:
        experiment = config.load(path, full=full)
        for variant in experiment.variants:
            config.with_method(experiment, variant, 0)


# ---------------------------------------------------------------------------------------------- Python


def check_python(tree: ast.Module) -> None:
    """Check that what Python code imports exists, attributes of it too, and that calls of it fit."""
    known: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                module = importlib.import_module(name.name)
                known[name.asname or name.name.partition(".")[0]] = (
                    module if name.asname else importlib.import_module(name.name.partition(".")[0])
                )
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            known |= {name.asname or name.name: getattr(module, name.name) for name in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not any(isinstance(one, ast.Starred) for one in node.args):
            called = _looked_up(node.func, known)
            names = [one.arg for one in node.keywords]
            if inspect.isfunction(called) and None not in names:
                inspect.signature(called).bind(*node.args, **dict.fromkeys(map(str, names)))
        elif isinstance(node, ast.Attribute):
            _looked_up(node, known)


def _looked_up(node: ast.expr, known: dict[str, Any]) -> Any:
    """Return what a name of an import, or an attribute of one, stands for; None for all else."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _looked_up(node.value, known)
        return getattr(owner, node.attr) if inspect.ismodule(owner) else None
    return None


def run_python(text: str, where: str, names: dict[str, Any]) -> None:
    """Run Python code in a namespace; an expression's value must be what the comment behind it shows."""
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    for statement in ast.parse(text).body:
        shown = comments.get(statement.end_lineno or 0, "")
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), where, "exec"), names)
            continue
        value = statement.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print":
            got = [eval(compile(ast.Expression(one), where, "eval"), names) for one in value.args]
            builtins.print(*got)
            got = got[0] if len(got) == 1 else got
        else:
            got = eval(compile(ast.Expression(value), where, "eval"), names)
        _compare(got, shown, where)


def _compare(got: Any, shown: str, where: str) -> None:
    number = re.search(r"-?\d[\d,]*(\.\d+)?( MB)?", shown)
    if isinstance(got, str) and shown.startswith('"'):
        assert got == ast.literal_eval(shown), where
    elif isinstance(got, (int, float)) and number is not None:
        digits = len(number[1] or ".") - 1
        text = number[0].removesuffix(" MB").replace(",", "")
        assert round(got / (1e6 if number[2] else 1), digits) == float(text), f"{where}: {got}, not {shown}"


def shown_lines(output: str) -> Iterator[str]:
    """Yield the lines of a shown output without commands, blanks and what is left out, spaces put together."""
    for line in output.splitlines():
        if line.strip() and not line.startswith("$ ") and line.strip() != "...":
            yield " ".join(line.split())
