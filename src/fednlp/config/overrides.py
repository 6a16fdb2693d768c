"""Settings that are laid over an experiment's: ``a.b=c`` overrides, and the options that make way for them."""

import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from glob import has_magic
from pathlib import Path
from typing import Any

from fednlp.config.error_messages import report
from fednlp.config.method_options import own_keys
from fednlp.config.schema import Experiment
from fednlp.errors import ConfigError
from fednlp.partition.methods import ALIASES, METHODS
from fednlp.plugins import is_own

_OWN_FILE = ("path", "test_path", "test_columns", "text", "label", "columns", "delimiter", "quoting")
"""Keys of ``[data]`` that speak of the user's own file."""


def checked(document: Mapping[str, Any], where: str, overrides: Iterable[str] = ()) -> Experiment:
    """Return the experiment of a nested mapping with overrides, whose variants are not checked yet.

    Args:
        where: What it is called in messages.
        overrides: ``"a.b=c"`` settings over it.

    Raises:
        ConfigError: Every mistake, one a line.
    """
    changed = deepcopy(dict(document))
    overrides = list(overrides)
    typed = [problem for override in overrides if (problem := _apply(changed, override))]
    found: list[str] = []
    try:
        experiment = Experiment(**changed)
    except ConfigError as error:
        found = error.problems
    if typed or found:
        options = {problem: _blamed(problem, overrides) for problem in found}
        said = [f"{option}: {problem}" if (option := options[problem]) else problem for problem in found]
        only_typed = len([*typed, *found]) == 1 and (typed or options[found[0]])
        message = [*typed, *said][0] if only_typed else report(where, [*typed, *said])
        raise ConfigError(message, [*typed, *found])
    return experiment


def _blamed(problem: str, overrides: Iterable[str]) -> str | None:
    """Return the option whose key a mistake begins with; None where the mistake is in the file, or in both together.

    >>> _blamed("client.learning_rate = -1: input should be greater than 0", ["seed=1", "client.learning_rate=-1"])
    '--set client.learning_rate=-1'
    """
    words = problem.removeprefix("unknown key ")
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key and words.startswith(key) and not words[len(key) :][:1].isidentifier():
            return f"--set {override}"
    return None


def make_way(document: dict[str, Any], overrides: Iterable[str]) -> None:
    """Drop the options of what ``a.b=c`` overrides replace: a data set, a partition method, an algorithm."""
    given = (override.partition("=") for override in overrides)
    changes = {key.strip(): _value(text.strip()) for key, _, text in given}
    data, partition = (document.get(name) for name in ("data", "partition"))
    if isinstance(data, dict) and changes.get("data.name", data.get("name")) != data.get("name"):
        for key in _OWN_FILE:
            data.pop(key, None)
    elif isinstance(data, dict) and _is_own(changes.get("data.path", "")):
        data.pop("name", None)
    if isinstance(partition, dict):
        method = str(partition.get("method"))
        chosen = str(changes.get("partition.method", method))
        old, new = (ALIASES.get(name, name) for name in (method, chosen))
        if old != new and (new in METHODS.names() or is_own(new)):
            needs = ("clients",) if is_own(new) else METHODS.find(new).needs
            for option in set(partition) - {"method", "seed", *needs}:
                del partition[option]
    for section in ("algorithm", "aggregator", "attack", "cohort"):
        table = document.get(section)
        name = table.get("name") if isinstance(table, dict) else None
        if changes.get(f"{section}.name", name) != name:
            if section == "algorithm":
                document.pop("server", None)
            drop_options(document, section)


def drop_options(document: dict[str, Any], section: str) -> None:
    """Drop the options of the function that a section names, which is about to be replaced by another."""
    table = document.get(section)
    if isinstance(table, dict):
        document[section] = {
            key: value for key, value in table.items() if key in own_keys(section) - {"options"}
        }


def _is_own(path: Any) -> bool:
    """Say whether a path cannot be the folder of a known data set's published files."""
    return isinstance(path, list) or has_magic(str(path)) or Path(str(path)).is_file()


def _apply(document: dict[str, Any], override: str) -> str | None:
    """Set one ``a.b=c`` in a nested mapping; return what is wrong with it, if anything."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        return f"--set {override}: write key=value, for example --set client.learning_rate=3e-4"
    table = document
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return f"--set {override}: {part} is a value, not a section"
    table[parts[-1]] = _value(text.strip())
    return None


def _value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return str(value) if not isinstance(value, (bool, int, float, str, list, dict)) else value
