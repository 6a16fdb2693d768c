"""Cloze patterns: text around one mask, and the words that may stand there.

A masked language model reads the whole pattern. A decoder reads what stands before the mask, and the words are scored
as the next token.
"""

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fednlp.data.label_names import label_name
from fednlp.errors import ConfigError, ModelError
from fednlp.formatting.units import plural
from fednlp.tasks.inputs import padding_of

DECODER = "AutoModelForCausalLM"
"""The auto class of decoders."""
_EXAMPLE = 'task.pattern = "{text} Category: {mask}"'
"""A pattern that masked models and decoders read."""
_TEXTS = ("text", "text_pair")
_BEHIND_TEXT = "x"
"""Stands for a text of which only matters that there is one."""


@dataclass(frozen=True)
class PatternPart:
    """A part of a pattern: its own words, or the place of the mask or of a text.

    Attributes:
        kind: ``"words"``, ``"mask"``, ``"text"`` or ``"text_pair"``.
        lead: A space, where one stands before it.
        words: Its own words, with their leading space.
    """

    kind: str
    lead: str = ""
    words: str = ""


def parts_of(pattern: str) -> list[PatternPart]:
    """Take a pattern to pieces; a space belongs to what follows it, as in byte-level vocabularies.

    Raises:
        ConfigError: It does not hold ``{mask}`` and ``{text}`` once each, or holds another field.

    >>> [(part.kind, part.lead, part.words) for part in parts_of("It was {mask}. {text}")]
    [('words', '', 'It was'), ('mask', ' ', ''), ('words', '', '.'), ('text', ' ', '')]
    """
    if not isinstance(pattern, str):
        raise ConfigError(f"task.pattern is missing or no text: say e.g. {_EXAMPLE}")
    try:
        found = list(string.Formatter().parse(pattern))
    except ValueError as error:
        raise ConfigError(f'task.pattern "{pattern}": {error}; a brace itself is written twice') from None
    parts: list[PatternPart] = []
    for words, field, detail, conversion in found:
        own = words.rstrip(" ")
        lead = " " if len(own) < len(words) else ""
        if own:
            parts.append(PatternPart("words", words=own))
        if field is None:
            continue
        written = field + (f"!{conversion}" if conversion else "") + (f":{detail}" if detail else "")
        if written not in ("mask", "text", "text_pair"):
            raise ConfigError(
                f'task.pattern "{pattern}" holds {{{written}}}: it may hold {{mask}}, {{text}}, {{text_pair}}'
            )
        parts.append(PatternPart(field, lead))
    kinds = [part.kind for part in parts]
    for kind in ("mask", "text"):
        if kinds.count(kind) != 1:
            raise ConfigError(f'task.pattern "{pattern}" must hold {{{kind}}} once, e.g. {_EXAMPLE}')
    if kinds.count("text_pair") > 1:
        raise ConfigError(f'task.pattern "{pattern}" holds {{text_pair}} more than once')
    return parts


def suits_decoder(parts: Sequence[PatternPart]) -> bool:
    """Return whether every text of a pattern stands before its mask, so that a decoder reads it.

    >>> suits_decoder(parts_of("{text} ( {mask} )")), suits_decoder(parts_of("{text} ? {mask}, {text_pair}"))
    (True, False)
    """
    kinds = [part.kind for part in parts]
    return not any(kind in kinds[kinds.index("mask") :] for kind in _TEXTS)


def require_decodable(pattern: str) -> None:
    """Check that a decoder reads every text of a pattern.

    Raises:
        ConfigError: A text stands behind the mask.
    """
    if not suits_decoder(parts_of(pattern)):
        raise ConfigError(
            f'task.pattern "{pattern.strip()}" has a text behind {{mask}}, and a decoder reads what stands before it: '
            f"say e.g. {_EXAMPLE}, or take a masked language model, e.g. bert-tiny"
        )


def mask_of(tokenizer: Any, task: str) -> int:
    """Return the id of the mask token.

    Raises:
        ModelError: There is none.
    """
    if tokenizer.mask_token_id is None:
        raise ModelError(
            f"the task {task} needs a mask token and this model's tokenizer has none: take a masked language "
            "model, e.g. BERT, DistilBERT, RoBERTa, ALBERT or ELECTRA's generator"
        )
    return int(tokenizer.mask_token_id)


def frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the special tokens that a tokenizer puts before and after a text."""
    encoded = tokenizer("a", return_special_tokens_mask=True, return_attention_mask=False)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    before = special.index(0) if 0 in special else len(ids)
    after = len(ids) - special[::-1].index(0) if 0 in special else len(ids)
    return list(ids[:before]), list(ids[after:])


def plain_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of texts as they stand: a ``[MASK]`` or ``</s>`` written out is no special token."""
    if not texts:
        return []
    encoded = tokenizer(
        list(texts),
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        verbose=False,
    )
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    return [[token for token in tokens if token not in special] for tokens in encoded["input_ids"]]


def _ids_behind(tokenizer: Any, before: str, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of texts as they stand behind another one.

    The tokenizers of LLaMA and Mistral put a space before the first word of all that they are given, so that the tokens
    of a text alone are not those that it has within a sentence.
    """
    alone = plain_ids(tokenizer, texts)
    first = plain_ids(tokenizer, [before])[0]
    whole = plain_ids(tokenizer, [before + text for text in texts])
    return [
        ids[len(first) :] if ids[: len(first)] == first else other
        for ids, other in zip(whole, alone, strict=True)
    ]


def part_ids(
    tokenizer: Any, parts: Sequence[PatternPart], number: int, texts: Sequence[str], *, decoder: bool
) -> list[list[int]]:
    """Return the tokens of texts as they stand in the place of a part of a pattern.

    Args:
        texts: With the space before them, where the part has one.
        decoder: Whether a decoder reads them; a masked language model's tokenizer treats each part alone.
    """
    if not decoder or not number:
        return plain_ids(tokenizer, texts)
    return _ids_behind(tokenizer, parts[number - 1].words or _BEHIND_TEXT, texts)


def word_ids(
    tokenizer: Any, parts: Sequence[PatternPart], words: Sequence[str], *, decoder: bool
) -> list[list[int]]:
    """Return the tokens of words as they stand in the place of the mask, with its space before them."""
    number = next(number for number, part in enumerate(parts) if part.kind == "mask")
    texts = [parts[number].lead + word for word in words]
    return part_ids(tokenizer, parts, number, texts, decoder=decoder)


def words_of(
    labels: Sequence[str],
    verbalizer: Mapping[str, str],
    parts: Sequence[PatternPart],
    tokenizer: Any,
    *,
    decoder: bool = False,
) -> tuple[int, ...]:
    """Return the token of each label's word, as it stands in the place of the mask.

    Args:
        labels: Label names, in the order of their ids.
        verbalizer: A word for each label.
        decoder: Whether the model is one.

    Raises:
        ConfigError: A label has no word.
        ModelError: A word is not one token of the vocabulary, or two labels have the same one.
    """
    verbalizer = {label_name(label): word for label, word in verbalizer.items()} | dict(verbalizer)
    missing = [label for label in labels if not str(verbalizer.get(label, "")).strip()]
    if missing:
        raise ConfigError(
            f"task.verbalizer has no word for {', '.join(map(repr, missing))}: "
            f"it needs one for each of {', '.join(map(repr, labels))}"
        )
    pieces_of = word_ids(tokenizer, parts, [verbalizer[name] for name in labels], decoder=decoder)
    found: dict[int, str] = {}
    for label, ids in zip(labels, pieces_of, strict=True):
        word = verbalizer[label]
        if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
            pieces = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(ids)))
            raise ModelError(
                f'task.verbalizer: "{word}" for {label!r} is not one token of this model\'s vocabulary but '
                f"{pieces or 'nothing'}: choose another word"
            )
        if ids[0] in found:
            raise ModelError(
                f'task.verbalizer: the words for {found[ids[0]]!r} and {label!r} are the same token, "{word}": '
                "choose another for one of them"
            )
        found[ids[0]] = label
    return tuple(found)


def filled(
    parts: Sequence[PatternPart],
    texts: Mapping[str, Sequence[Sequence[int]]],
    mask: int | None,
    tokenizer: Any,
    max_length: int,
) -> Iterator[tuple[list[int], int]]:
    """Yield the tokens of each row's text in the pattern, and at which of them the words are scored.

    A decoder's tokens end before the mask, and the words are scored at the last of them.

    Args:
        texts: By kind, ``"text"`` and perhaps ``"text_pair"``, the tokens of each row.
        mask: Id of the mask token; None for a decoder.
        max_length: Tokens at most; what is too long is cut from the texts.

    Raises:
        ModelError: The pattern leaves no room for a text.
    """
    before, after = frame(tokenizer)
    if mask is None:
        parts, after = parts[: [part.kind for part in parts].index("mask")], []
    own = [
        part_ids(tokenizer, parts, number, [part.words], decoder=mask is None)[0]
        if part.kind == "words"
        else [mask]
        if part.kind == "mask" and mask is not None
        else []
        for number, part in enumerate(parts)
    ]
    taken = len(before) + len(after) + sum(map(len, own))
    if taken >= max_length:
        raise ModelError(
            f"task.pattern alone is {plural(taken, 'token')} and model.max_length is {max_length}: "
            "shorten the one or raise the other"
        )
    pairs = texts.get("text_pair") or [[]] * len(texts["text"])
    for text, pair in zip(texts["text"], pairs, strict=True):
        first, second = kept(len(text), len(pair), max_length - taken)
        chosen = {"text": text[:first], "text_pair": pair[:second]}
        ids, gap = list(before), 0
        for part, own_ids in zip(parts, own, strict=True):
            gap = len(ids) if part.kind == "mask" else gap
            ids += chosen.get(part.kind, own_ids)
        if mask is None:
            ids = ids or [padding_of(tokenizer)]
            gap = len(ids) - 1
        yield ids + after, gap


def kept(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of two texts are kept so that they fit: the longer is cut first.

    >>> kept(10, 10, 5), kept(1, 10, 5), kept(10, 0, 5), kept(2, 2, 5)
    ((3, 2), (1, 4), (5, 0), (2, 2))
    """
    second = min(second, max(room // 2, room - first))
    return min(first, room - second), second
