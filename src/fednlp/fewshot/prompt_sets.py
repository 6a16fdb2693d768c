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

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fednlp.checked_json.small_toml import read_small_toml, shown
from fednlp.disk import expanded
from fednlp.errors import ConfigError, ModelError
from fednlp.formatting.suggestions import did_you_mean
from fednlp.tasks.cloze import mask_of, parts_of, words_of

_FOLDER = Path(__file__).parent.parent / "prompts"
_TASK = "prompt-classification"
_LARGEST_FILE = 1 << 16
_LONGEST = {"pattern": 2_000, "word": 100, "text": 2_000}
_MOST = {"patterns": 64, "words": 16, "labels": 1_000, "data": 64}
_KEYS = ("name", "source", "data", "columns", "patterns", "words")
_CHOICE = re.compile(r"(?P<name>.+?)(?::(?P<pattern>\d{1,6})(?::(?P<words>\d{1,6}))?)?", re.DOTALL)


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


@dataclass(frozen=True)
class PromptChoice:
    """A parsed ``task.prompt``: ``"agnews"`` (pattern 0), ``"agnews:1"`` (pattern 1), ``"mnli:1:1"`` (and words 1).

    Attributes:
        name: Name of a prompt set, or path of a TOML file.
        pattern: Number of the pattern; None where it is left out.
        words: Number of the table of words; None where it is left out.
    """

    name: str
    pattern: int | None = None
    words: int | None = None


def parse_choice(choice: str) -> PromptChoice:
    """Return the parts of ``name[:pattern[:words]]``; the name may be a path.

    Raises:
        ConfigError: The text is blank.

    >>> parse_choice("mnli:1:0"), parse_choice("./my.toml")
    (PromptChoice(name='mnli', pattern=1, words=0), PromptChoice(name='./my.toml', pattern=None, words=None))
    """
    found = _CHOICE.fullmatch(choice)
    if found is None:
        raise ConfigError(f"task.prompt is blank: name one of {', '.join(prompt_names())}, or a TOML file")
    pattern, words = (
        None if number is None else int(number) for number in (found["pattern"], found["words"])
    )
    return PromptChoice(found["name"], pattern, words)


def prompt_names() -> list[str]:
    """Return the names of the prompt sets that come with fednlp."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_prompts(name_or_path: str | Path) -> PromptSet:
    """Read the prompts of a data set.

    Args:
        name_or_path: A name of :func:`prompt_names`, or the path of a TOML file.

    Raises:
        ConfigError: There is no prompt set of that name, or the file is not valid.

    >>> load_prompts("yelp-full").patterns[0]
    'It was {mask}. {text}'
    """
    known = prompt_names()
    given = str(name_or_path)
    path = _FOLDER / f"{given}.toml" if given in known else expanded(given)
    try:
        there = path.is_file()
    except (OSError, ValueError):  # too long for a path, or with a zero byte
        there = False
    if not there:
        raise ConfigError(
            f"there are no prompts {shown(given)}: {did_you_mean(given, known)}"
            f"known are {', '.join(known)}; or give the path of a TOML file"
        )
    return _prompts(str(path), read_small_toml(path, _LARGEST_FILE, "file of prompts"))


def prompt_for(
    choice: str, labels: Sequence[str], tokenizer: Any, verbalizer: Mapping[str, str] | None = None
) -> tuple[str, dict[str, str]]:
    """Return a pattern, and a word for each label that is one token of the model's vocabulary.

    Args:
        choice: ``name[:pattern[:words]]``, see :class:`PromptChoice`.
        labels: Label names of the data.
        tokenizer: The model's tokenizer.
        verbalizer: Words by label that replace those of the prompt set.

    Raises:
        ConfigError: There is no such prompt set, or it has no words for these labels.
        ModelError: The model has no mask token, or no table of words fits its vocabulary.
    """
    parsed = parse_choice(choice)
    prompts = load_prompts(parsed.name)
    pattern = chosen_pattern(prompts, parsed.pattern or 0)
    if verbalizer is not None:
        return pattern, dict(verbalizer)
    return pattern, words_for(prompts, pattern, labels, tokenizer, parsed.words)


def with_prompt(options: Mapping[str, Any], labels: Sequence[str], tokenizer: Any) -> dict[str, Any]:
    """Return a task's options with ``prompt`` replaced by its pattern and words; without ``prompt``, unchanged.

    Args:
        options: ``[task]``; a ``verbalizer`` in it replaces the words of the prompt set.
        labels: Label names of the data.
        tokenizer: The model's tokenizer.

    Raises:
        ConfigError: As for :func:`prompt_for`, or there is a pattern as well.
        ModelError: As for :func:`prompt_for`.
    """
    rest = dict(options)
    choice = rest.pop("prompt", None)
    if choice is None:
        return rest
    if "pattern" in rest:
        raise ConfigError("task.prompt and task.pattern both say a pattern: leave one of them out")

    pattern, words = prompt_for(choice, labels, tokenizer, rest.get("verbalizer"))
    return rest | {"pattern": pattern, "verbalizer": words}


def chosen_pattern(prompts: PromptSet, number: int) -> str:
    """Return a pattern by its number.

    Raises:
        ConfigError: There is none of that number.
    """
    return str(_nth(prompts, "pattern", prompts.patterns, number))


def chosen_words(prompts: PromptSet, number: int) -> Mapping[str, str]:
    """Return a table of words by its number.

    Raises:
        ConfigError: There is none of that number.
    """
    words: Mapping[str, str] = _nth(prompts, "words", prompts.words, number)
    return words


def words_for(
    prompts: PromptSet, pattern: str, labels: Sequence[str], tokenizer: Any, table: int | None = None
) -> dict[str, str]:
    """Return the first table of words that has one for each label, each one token where the mask stands.

    Args:
        prompts: The prompt set.
        pattern: The pattern; the position of its mask decides whether words have a leading space.
        labels: Label names of the data.
        tokenizer: The model's tokenizer.
        table: Number of the only table to consider; None for all.

    Raises:
        ConfigError: No table has a word for each label.
        ModelError: There is no mask token, or no table fits the vocabulary.
    """
    mask_of(tokenizer, _TASK)
    tables = prompts.words if table is None else (chosen_words(prompts, table),)
    fitting = [words for words in tables if set(labels) <= set(words)]
    if not fitting:
        raise ConfigError(
            f"the prompts {prompts.name} have words for {_listed(tables[0])} and the data has the labels "
            f"{_listed(labels)}: say task.verbalizer, a word for each"
        )
    faults = []
    for words in fitting:
        try:
            words_of(labels, words, parts_of(pattern), tokenizer)
        except ModelError as error:
            faults.append(str(error).removeprefix("task.verbalizer: "))
        else:
            return {label: words[label] for label in labels}
    raise ModelError(f"the prompts {prompts.name} do not suit the model: {faults[0]}, with task.verbalizer")


def _prompts(path: str, table: Mapping[str, Any]) -> PromptSet:
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


def _nth(prompts: PromptSet, what: str, found: Sequence[Any], number: int) -> Any:
    if number >= len(found):
        raise ConfigError(
            f"the prompts {prompts.name} have no {what} {number}: there are 0 to {len(found) - 1}"
        )
    return found[number]


def _listed(names: Iterable[str]) -> str:
    first, more = list(names), ""
    if len(first) > 20:
        first, more = first[:20], ", ..."
    return ", ".join(map(repr, first)) + more
