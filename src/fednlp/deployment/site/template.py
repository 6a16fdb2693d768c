"""Writes a site's file with every key, its meaning and its default."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fednlp.config.sections import DataFiles
from fednlp.deployment.site.policy import SitePolicy, parse_policy
from fednlp.disk import atomic
from fednlp.errors import RunError
from fednlp.section import Section

_HEAD = """\
What this site has, and what it allows. An experiment that goes beyond it is refused. Every key stands here with its \
default; a key that is left out has its default too. "fednlp join --dry-run" shows what an experiment would do, and \
sends nothing."""
_TITLES = {
    "data": "This site's own examples, which stay here.",
    "labels": "The experiment's names of labels, by this site's own names, where they differ. An empty name leaves the "
    "examples of a label out.",
    "allow": "What an experiment may do. In patterns * stands for any characters.",
    "device": "What this site trains with, and when.",
    "limits": "The most that travels in a round, in MB (10^6 bytes).",
}
_DATA = {
    "path": "file or folder of the examples; a relative path begins at the folder of this file",
    "text": "column of the text",
    "label": "column of the label",
    "columns": 'further columns of the task by its own names, such as { source = "dialogue" }',
    "test_path": "file of the test examples",
    "test_columns": "the columns of the test examples in the same way, where they are others; left out: those above",
    "test_fraction": "share of the examples that is held out for testing if there is no test_path",
    "delimiter": "what separates the cells of a CSV file; left out: found in the file",
    "quoting": '"none" where a quote in a CSV file is a character like any other',
    "encoding": "of text files that are not UTF-8; or { name = encoding } for files by their names",
    "validation": 'what a validation file is joined to, "train" or "test"; left out: it is not read',
    "on_invalid_row": 'a row that is no example: "refuse" the file, or "drop" the row',
}
_EXAMPLES = {
    "path": "notes.csv",
    "test_path": "test.csv",
    "test_columns": {"target": "summary"},
    "delimiter": ";",
    "quoting": "none",
    "encoding": "cp1252",
    "validation": "train",
}
_WIDTH = 100


def write_template(path: Path, data: Mapping[str, Any] | None = None, code: Sequence[str] = ()) -> None:
    """Write a site's file that says where the data lie, with the default of everything else.

    Args:
        path: The file to make.
        data: The keys of ``[data]`` that differ from their defaults.
        code: Beside fednlp, which experiments may name.

    Raises:
        ConfigError: A key of ``data`` is unknown, or its value is not valid.
        RunError: There is such a file already, or the folder cannot be written.
    """
    given = {"data": dict(data or {}), "allow": {"code": list(code)}}
    policy = parse_policy(given, "the options of the site's data")
    if path.exists():
        raise RunError(f"{path} is there already: edit it, or name another file")
    with atomic(path, "choose another folder") as file:
        file.write("".join(f"{line}\n" for line in _lines(policy)).encode())


def _lines(policy: SitePolicy) -> Iterator[str]:
    """Yield the lines of a policy's file."""
    yield from _comment(_HEAD)
    for name, title in _TITLES.items():
        yield from ("", *_comment(title), f"[{name}]")
        section = getattr(policy, name)
        if isinstance(section, Section):
            yield from _section(section)
        else:
            yield '# "our name" = "the experiment\'s name"'
            yield from (f"{_key(own)} = {_toml(theirs)}" for own, theirs in section.items())


def _section(section: Section) -> Iterator[str]:
    """Yield the lines of a section: of a key without a value an example, as a comment."""
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        own = isinstance(section, DataFiles)
        example = _EXAMPLES.get(key) if own else next(iter(field.examples or ()), None)
        yield from _comment(_DATA[key] if own else field.description or "")
        yield f"# {key} = {_toml(example)}" if value is None else f"{key} = {_toml(value)}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH, break_on_hyphens=False)]


def _toml(value: Any) -> str:
    """Return a value as TOML on one line.

    >>> _toml(["a", "b"]), _toml({"a b": True})
    ('["a", "b"]', '{ "a b" = true }')
    """
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        items = ", ".join(f"{_key(key)} = {_toml(one)}" for key, one in value.items())
        return f"{{ {items} }}" if items else "{}"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n")


def _key(name: str) -> str:
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")
