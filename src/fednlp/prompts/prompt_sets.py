"""Prompts by name or file: which pattern a task takes, and which words suit the labels and the model."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednlp.checked_json.small_toml import read_small_toml, shown
from fednlp.disk import expanded
from fednlp.errors import ConfigError, ModelError
from fednlp.formatting.suggestions import did_you_mean
from fednlp.prompts.prompt_file import PromptSet, prompts_of
from fednlp.tasks.cloze import DECODER, mask_of, parts_of, suits_decoder, words_of

_FOLDER = Path(__file__).parent.parent / "prompts"
_TASK = "prompt-classification"
_LARGEST_FILE = 1 << 16
_CHOICE = re.compile(r"(?P<name>.+?)(?::(?P<pattern>\d{1,6})(?::(?P<words>\d{1,6}))?)?", re.DOTALL)


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
    return prompts_of(str(path), read_small_toml(path, _LARGEST_FILE, "file of prompts"))


def prompt_for(
    choice: str,
    labels: Sequence[str],
    tokenizer: Any,
    verbalizer: Mapping[str, str] | None = None,
    *,
    decoder: bool = False,
) -> tuple[str, dict[str, str]]:
    """Return a pattern, and a word for each label that is one token of the model's vocabulary.

    Where no pattern is chosen, it is the first; for a decoder, the first that it reads whole.

    Args:
        choice: ``name[:pattern[:words]]``, see :class:`PromptChoice`.
        labels: Label names of the data.
        verbalizer: Words by label that replace those of the prompt set.
        decoder: Whether the model is one.

    Raises:
        ConfigError: There is no such prompt set, it has no words for these labels, or no pattern for a decoder.
        ModelError: The model has no mask token, or no table of words fits its vocabulary.
    """
    parsed = parse_choice(choice)
    prompts = load_prompts(parsed.name)
    number = parsed.pattern
    if number is None:
        number = decoder_patterns(prompts)[0] if decoder else 0
    pattern = chosen_pattern(prompts, number)
    if verbalizer is not None:
        return pattern, dict(verbalizer)
    return pattern, words_for(prompts, pattern, labels, tokenizer, parsed.words, decoder=decoder)


def decoder_patterns(prompts: PromptSet) -> list[int]:
    """Return the numbers of the patterns that a decoder reads whole, since every text stands before the mask.

    Raises:
        ConfigError: There is none.
    """
    found = [n for n, pattern in enumerate(prompts.patterns) if suits_decoder(parts_of(pattern))]
    if not found:
        texts = "{text} {text_pair}" if "{text_pair}" in prompts.patterns[0] else "{text}"
        raise ConfigError(
            f"the prompts {prompts.name} have no pattern for a decoder, which reads what stands before {{mask}}: say "
            f'task.pattern = "{texts} Category: {{mask}}" and task.verbalizer, a word for each label, in place of '
            "task.prompt; or take a masked language model, e.g. bert-tiny"
        )
    return found


def with_prompt(options: Mapping[str, Any], labels: Sequence[str], tokenizer: Any) -> dict[str, Any]:
    """Return a task's options with ``prompt`` replaced by its pattern and words; without ``prompt``, unchanged.

    Args:
        options: ``[task]`` and the ``model_class``; a ``verbalizer`` replaces the words of the prompt set.
        labels: Label names of the data.

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
    decoder = rest.get("model_class") == DECODER
    pattern, words = prompt_for(choice, labels, tokenizer, rest.get("verbalizer"), decoder=decoder)
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
    prompts: PromptSet,
    pattern: str,
    labels: Sequence[str],
    tokenizer: Any,
    table: int | None = None,
    *,
    decoder: bool = False,
) -> dict[str, str]:
    """Return the first table of words that has one for each label, each one token where the mask stands.

    Args:
        pattern: The pattern; the position of its mask decides whether words have a leading space.
        labels: Label names of the data.
        table: Number of the only table to consider; None for all.
        decoder: Whether the model is one.

    Raises:
        ConfigError: No table has a word for each label.
        ModelError: There is no mask token, or no table fits the vocabulary.
    """
    if not decoder:
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
            words_of(labels, words, parts_of(pattern), tokenizer, decoder=decoder)
        except ModelError as error:
            faults.append(str(error).removeprefix("task.verbalizer: "))
        else:
            return {label: words[label] for label in labels}
    raise ModelError(f"the prompts {prompts.name} do not suit the model: {faults[0]}, with task.verbalizer")


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
