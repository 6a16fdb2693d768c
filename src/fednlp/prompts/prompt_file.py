"""Prompt sets: several patterns for a data set, and the words of its labels (verbalizers).

A file of prompts is TOML::

    name = "reviews"
    source = "where the patterns and words come from"
    data = ["yelp-full"]               # data sets of the catalogue that they are for; may be left out
    patterns = ["It was {mask}. {text}", "{text} All in all, it was {mask}."]

    [[words]]                          # a word a label; the first table that fits data and model is used
    "1" = "terrible"
    "5" = "great"

``columns = { text = "title", text_pair = "answer" }`` names the columns of the pair for ``{text_pair}``.
"""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fednlp.checked_json.small_toml import shown
from fednlp.errors import ConfigError
from fednlp.formatting.suggestions import did_you_mean
from fednlp.tasks.cloze import parts_of

_LONGEST = {"pattern": 2_000, "word": 100, "text": 2_000}
_MOST = {"patterns": 64, "words": 16, "labels": 1_000, "data": 64}
_KEYS = ("name", "source", "data", "columns", "patterns", "words")


@dataclass(frozen=True)
class PromptSet:
    """Patterns and words for one data set.

    Attributes:
        name: Name of the prompt set.
        source: Citation of patterns and words.
        patterns: Patterns such as ``"{text} ? {mask}, {text_pair}"``; the first is the default.
        words: Tables of one word for each label, in order of preference.
        data: Names of the data sets in the catalogue that the prompts are for.
        columns: Columns for ``text`` and ``text_pair`` in patterns with pairs, where the data set's usual text is one
            column.
    """

    name: str
    source: str
    patterns: tuple[str, ...]
    words: tuple[Mapping[str, str], ...]
    data: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)


def prompts_of(path: str, table: Mapping[str, Any]) -> PromptSet:
    """Check a file of prompts.

    Args:
        path: Of the file, for messages.

    Raises:
        ConfigError: It is not valid.
    """
    for key in table:
        if key not in _KEYS:
            near = did_you_mean(key, _KEYS)
            raise ConfigError(f"{path}: unknown key {shown(key)}: {near}known are {', '.join(_KEYS)}")
    patterns = _texts(path, "patterns", table.get("patterns"), "pattern")
    for number, pattern in enumerate(patterns):
        try:
            parts_of(pattern)
        except ConfigError as error:
            problem = str(error).removeprefix("task.").replace("\n", " ")
            raise ConfigError(f"{path}: patterns[{number}]: {problem}") from None
    words = table.get("words")
    if not isinstance(words, list) or not 1 <= len(words) <= _MOST["words"]:
        raise ConfigError(f"{path}: words are missing: write a table [[words]] with a word for each label")
    columns = _words(path, "columns", table.get("columns", {}))
    if columns and set(columns) != {"text", "text_pair"}:
        raise ConfigError(f'{path}: columns: write {{ text = "title", text_pair = "answer" }}')
    return PromptSet(
        name=_text(path, "name", table.get("name"), "word"),
        source=" ".join(_text(path, "source", table.get("source"), "text").split()),
        patterns=patterns,
        words=tuple(_words(path, f"words[{n}]", one, least=2) for n, one in enumerate(words)),
        data=_texts(path, "data", table.get("data", []), "word", least=0),
        columns=columns,
    )


def _words(path: str, key: str, value: Any, least: int = 0) -> dict[str, str]:
    if not isinstance(value, dict) or not least <= len(value) <= _MOST["labels"]:
        raise ConfigError(f'{path}: {key} must be a table, label = "word", of {least} to {_MOST["labels"]:,}')
    return {
        _text(path, key, label, "word"): _text(path, f"{key}.{label}", word, "word").strip()
        for label, word in value.items()
    }


def _texts(path: str, key: str, value: Any, kind: str, least: int = 1) -> tuple[str, ...]:
    most = _MOST[key]
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise ConfigError(f'{path}: {key} must be a list of {least} to {most} texts: {key} = ["..."]')
    return tuple(_text(path, f"{key}[{number}]", one, kind) for number, one in enumerate(value))


def _text(path: str, key: str, value: Any, kind: str) -> str:
    longest = _LONGEST[kind]
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f'{path}: {shown(key)} is missing or blank: say {shown(key)} = "..."')
    if len(value) > longest or not (value if kind == "word" else value.replace("\n", " ")).isprintable():
        raise ConfigError(
            f"{path}: {shown(key)} = {reprlib.repr(value)}: at most {longest:,} characters, no control characters"
        )
    return value
