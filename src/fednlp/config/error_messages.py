"""Mistakes in an experiment, each as one sentence in the user's own words; all of them at once."""

import difflib
import json
import math
import types
import typing
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from fednlp.config.experiment_paths import plain_name
from fednlp.config.renamed import RENAMED
from fednlp.formatting.safe_text import clean_lines

_OTHER_NAMES = dict.fromkeys(("steps", "local_steps", "num_local_steps"), "max_steps")
"""What a key is called elsewhere, and here."""

_MOST_SHOWN = 300
_NAMING = ("name", "name_or_path", "method", "protocol", "rule", "optimizer", "device", "up")
"""The key that a single word for a whole section stands for, in the order of preference."""


def report(where: str, problems: list[str]) -> str:
    """Return one line for one mistake, and a list for several, harmless for a terminal."""
    problems = list(map(clean_lines, problems))
    if len(problems) == 1:
        return f"{where}: {problems[0]}"
    return "\n".join([f"{where}: {len(problems)} mistakes", *(f"  - {problem}" for problem in problems)])


def explain(detail: dict[str, Any], experiment: type[BaseModel]) -> str:
    """Turn one of pydantic's findings into a sentence with the key as it is typed."""
    path = [str(part) for part in detail["loc"]]
    kind, value = detail["type"], detail.get("input")
    if path[:2] == ["model", "config"] and len(path) > 2:
        path = path[:3]  # beyond the key pydantic names the types that it tried
    tried = {"bool": "bool_type", "literal['auto']": "literal_error"}  # by pydantic, with a mistake of each
    if path and tried.get(path[-1]) == kind:
        return f'{".".join(path[:-1])} = {_shown(value)} is none of true, false, "auto"'
    key = ".".join(path)
    if kind == "extra_forbidden":
        return _unknown(path, experiment)
    if kind == "missing":
        return _missing(path)
    if kind == "literal_error":
        options = detail["ctx"]["expected"].replace("'", '"')
        near = difflib.get_close_matches(
            str(value).lower(), options.replace('"', "").replace(" or ", ", ").split(", "), n=1
        )
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{key} = {_shown(value)} is none of {options}{hint}"
    if kind == "value_error":
        place = f"[{key}]" if len(path) == 1 else f"{key}:"
        return f"{place} {detail['ctx']['error']}" if key else str(detail["ctx"]["error"])
    if kind == "string_pattern_mismatch":
        return _misnamed(path, str(value))
    if kind == "dict_type":
        return f"{key} = {_shown(value)} is no table: write {key} = {{ ... }}"
    if kind == "model_type":
        return _no_section(path, value, experiment)
    return f"{key} = {_shown(value)}: {detail['msg'][0].lower()}{detail['msg'][1:]}"


def _missing(path: list[str]) -> str:
    if path == ["data"]:
        return 'data is missing: add a [data] section, for example name = "20news"'
    *section, key = path
    return f"{'.'.join(path)} is missing: add {key} = ... to [{'.'.join(section)}]"


def _misnamed(path: list[str], name: str) -> str:
    """Return which characters the name of an experiment or of a variant may have, and one that is like it."""
    shown, near = _shown(name), plain_name(name)
    key, spaces = (f"[variants.{shown}]", ", spaces") if path[0] == "variants" else (f"name = {shown}", "")
    say = f"; say {_shown(near)}" if near else ""
    return f"{key}: a name has only letters from A to Z, digits{spaces} and . _ + -, and a letter or a digit first{say}"


def _no_section(path: list[str], value: Any, experiment: type[BaseModel]) -> str:
    """Return what to type in place of a value that stands where a section belongs."""
    key, section = ".".join(path), _section(path, experiment)
    what = f"{key} = {_shown(value)}: [{key}] is a section"
    if not isinstance(value, str):
        return f"{what} with the keys {', '.join(section.model_fields)}"
    file = ["path"] if "." in value or "/" in value else []
    named = next((one for one in [*file, *_NAMING] if one in section.model_fields), None)
    return f"{what}; say {key}.{named or next(iter(section.model_fields))} = {_shown(value)}"


def _shown(value: Any) -> str:
    infinite = isinstance(value, float) and not math.isfinite(value)
    text = str(value) if infinite else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _unknown(path: list[str], experiment: type[BaseModel]) -> str:
    key = ".".join(path)
    if key in RENAMED:
        return f"{key} is now {RENAMED[key]}, which is there too: leave {key} out"
    section = _section(path[:-1], experiment)
    near = _nearest(path[-1].lower(), list(section.model_fields))
    if near:
        return f"unknown key {key}; did you mean {'.'.join([*path[:-1], near])}?"
    elsewhere = [f"{name}.{path[-1]}" for name, sub in _sections(experiment) if path[-1] in sub.model_fields]
    if elsewhere:
        return f"unknown key {key}; did you mean {elsewhere[0]}?"
    known = f"unknown key {key}; known here: {', '.join(section.model_fields)}"
    if "options" in section.model_fields:
        return f"{known}; options of your own function go into [{'.'.join([*path[:-1], 'options'])}]"
    return known


def _section(path: list[str], experiment: type[BaseModel]) -> Any:
    """Return the model of a section."""
    section: Any = experiment
    for part in path:
        section = _model_of(section.model_fields[part].annotation)
    return section


def _nearest(typed: str, known: list[str]) -> str | None:
    """Return the known name that is meant: by another name, by its spelling, by a part of it, or by its initials.

    >>> names = ["learning_rate", "per_device_train_batch_size", "num_train_epochs"]
    >>> [_nearest(typed, names) for typed in ("learning_rat", "batch_size", "lr", "colour")]
    ['learning_rate', 'per_device_train_batch_size', 'learning_rate', None]
    """
    if _OTHER_NAMES.get(typed) in known:
        return _OTHER_NAMES[typed]
    for near in difflib.get_close_matches(typed, known, n=1):
        return near
    for name in known:
        words = name.split("_")
        if f"_{typed}_" in f"_{name}_" or (len(typed) > 1 and typed == "".join(word[0] for word in words)):
            return name
    return None


def _model_of(annotation: Any) -> Any:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return next(arg for arg in typing.get_args(annotation) if hasattr(arg, "model_fields"))
    return annotation


def _sections(experiment: type[BaseModel]) -> Iterable[tuple[str, Any]]:
    for name, field in experiment.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            yield name, field.annotation
