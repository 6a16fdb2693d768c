"""Questions with options: which option a model chooses, by likelihood or in words, and how often that is right.

An option is chosen by the likelihood of its text as the answer, by the same over its characters, by the likelihood of
its letter after a question that lists all options, or by the answer that is generated to that question. The first three
are what EleutherAI's lm-evaluation-harness (0.4.13) calls ``acc`` and ``acc_norm``, and ``acc`` of a task whose choices
are letters.
"""

import json
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fednlp.data.choices import MOST_OPTIONS, options_in
from fednlp.data.features import Features
from fednlp.tasks.base import Batch
from fednlp.tasks.blocks import MAX_ROWS
from fednlp.tasks.whole_sums import quotient

WAYS = ("text", "letter", "generation")
"""What ``task.choices`` may name: the likelihood of texts, the likelihood of letters, and a generated answer."""
RATES: Mapping[str, str] = {
    "choice_accuracy": "text",
    "choice_accuracy_norm": "text",
    "letter_accuracy": "letter",
    "generated_accuracy": "generation",
    "format_rate": "generation",
}
"""The scores, each with the way that it is of; an example's entry is its choice, and of the last 1 or 0."""
NUM_SUMS = 1 + len(RATES) + MOST_OPTIONS
NO_CHOICE = -1
_NO_CHOICES = [NO_CHOICE] * len(RATES)
ROOM = 8
"""Tokens of a generated answer beyond those of the longest option: its letter, and what stands around it."""
_LETTER = re.compile(r"\(?([A-Z])([).:].*)?", re.DOTALL)

Encoded = tuple[list[int], int]
"""The tokens of a prompt and of an answer behind it, and how many of them are the answer's."""


def question_with_letters(messages: Sequence[dict[str, str]], options: Sequence[str]) -> list[dict[str, str]]:
    """Return a conversation whose last message, the user's, lists the options.

    The words are those that lm-evaluation-harness has for MMLU.

    >>> question_with_letters([{"role": "user", "content": "Colour of grass? "}], ["red", "green"])[0]["content"]
    'Colour of grass?\\nA. red\\nB. green\\nAnswer:'
    """
    *before, last = messages
    lines = [f"{letter}. {text}" for letter, text in zip(string.ascii_uppercase, options, strict=False)]
    return [*before, {**last, "content": "\n".join([last["content"].strip(), *lines, "Answer:"])}]


def read_answer(written: str, options: Sequence[str]) -> tuple[int, bool]:
    """Return which option an answer in words chooses, from 0 (-1 for none), and whether it has the asked format.

    The format is a capital letter of one of the options, by itself or with ``.``, ``)`` or ``:`` behind it and anything
    after that; a bracket may open it. Any other answer chooses the option whose text it is, whatever its case, and
    whether or not a full stop ends it.

    >>> options = ["a tax", "A tariff"]
    >>> [read_answer(text, options) for text in ("B", "(B) A tariff", "a tariff.", "A tax on imports", "C")]
    [(1, True), (1, True), (1, False), (-1, False), (-1, False)]
    """
    said = written.strip()
    letter = _LETTER.fullmatch(said)
    place = string.ascii_uppercase.index(letter[1]) if letter else len(options)
    if place < len(options):
        return place, True
    plain = [text.strip().rstrip(".").casefold() for text in options]
    said = said.rstrip(".").casefold()
    return (plain.index(said) if said in plain else NO_CHOICE), False


def encode_options(
    value: str | None,
    messages: Sequence[dict[str, str]],
    ways: Sequence[str],
    max_length: int,
    encode: Callable[[Sequence[dict[str, str]], str], Encoded],
    prompt_of: Callable[[Sequence[dict[str, str]]], list[int]],
) -> dict[str, Any]:
    """Return the features of an example's options; empty ones where it has none, or where one is too long.

    Args:
        value: Its options, JSON; empty for none.
        messages: Its conversation, which the right option ends.
        ways: Of :data:`WAYS`.
        max_length: Tokens that the model reads; of a longer prompt the beginning is left out.
        encode: Returns the tokens of messages with an answer behind them.
        prompt_of: Returns the tokens that an answer to messages is generated from.

    Returns:
        ``choices``: the texts, JSON; ``gold``: the right one, -1 for none; ``candidates``: what the model reads for
        each text and then for each letter, end to end, with ``candidate_sizes`` and ``candidate_answers``, how many
        tokens each has, and how many of these are the answer's; ``asked``: the prompt of a generated answer, and
        ``longest_option``, the tokens of the longest text; ``long_options``: 1 where an option is longer than the model
        reads, and the example is not scored; ``cut_options``: 1 where a prompt loses its beginning.
    """
    options = options_in(value) or []
    features: dict[str, Any] = {"choices": json.dumps(options, ensure_ascii=False), "gold": NO_CHOICE}
    lists: dict[str, list[int]] = {name: [] for name in _LISTS}
    features |= {**lists, "longest_option": 0, "long_options": 0, "cut_options": 0}
    if not options:
        return features
    *before, last = messages
    texts = [encode(before, text) for text in options]
    candidates = texts if "text" in ways else []
    asking = question_with_letters(before, options)
    letters = [encode(asking, letter) for letter in string.ascii_uppercase[: len(options)]]
    candidates = [*candidates, *(letters if "letter" in ways else [])]
    if any(answer > max_length for _, answer in texts):
        return features | {"long_options": 1}
    prompt = prompt_of(asking) if "generation" in ways else []
    used = [len(prompt), *(len(ids) - 1 for ids, _ in candidates)]
    kept = [ids[-max_length - 1 :] for ids, _ in candidates]
    return features | {
        "gold": [text.strip() for text in options].index(last["content"].strip()),
        "candidates": [token for ids in kept for token in ids],
        "candidate_sizes": [len(ids) for ids in kept],
        "candidate_answers": [answer for _, answer in candidates],
        "asked": prompt[-max_length:],
        "longest_option": max(answer for _, answer in texts),
        "cut_options": int(max(used) > max_length),
    }


_LISTS = ("candidates", "candidate_sizes", "candidate_answers", "asked")


@dataclass(frozen=True)
class _Candidate:
    """A possible answer to one example: what is read of it, without its last token, and the tokens that are scored."""

    read: tuple[int, ...]
    answer: tuple[int, ...]


def candidates_of(features: Features, number: int) -> list[_Candidate]:
    """Return the possible answers to an example: each text, then each letter."""
    ids = features.ragged("candidates", number)
    sizes = features.ragged("candidate_sizes", number)
    ends = np.cumsum(sizes)
    answers = features.ragged("candidate_answers", number)
    rows = [ids[end - size : end].tolist() for size, end in zip(sizes, ends, strict=True)]
    return [
        _Candidate(tuple(row[:-1]), tuple(row[-count:])) for row, count in zip(rows, answers, strict=True)
    ]


def batches_of(candidates: Sequence[_Candidate], padding: int) -> Iterator[Batch]:
    """Yield batches with the places of candidates' answers, of rows of like length; letters share a row.

    ``owners`` are places among the candidates.
    """
    rows: dict[tuple[int, ...], list[int]] = {}
    for number, candidate in enumerate(candidates):
        rows.setdefault(candidate.read, []).append(number)
    ordered = sorted(rows, key=len, reverse=True)
    for start in range(0, len(ordered), MAX_ROWS):
        part = ordered[start : start + MAX_ROWS]
        width = len(part[0])
        ids = torch.full((len(part), width), padding, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        places, labels, owners = list[int](), list[int](), list[int]()
        for row, read in enumerate(part):
            ids[row, : len(read)] = torch.tensor(read)
            mask[row, : len(read)] = 1
            for number in rows[read]:
                answer = candidates[number].answer
                first = row * width + len(read) - len(answer)
                places += range(first, first + len(answer))
                labels += answer
                owners += [number] * len(answer)
        yield {
            "input_ids": ids,
            "attention_mask": mask,
            "places": torch.tensor(places),
            "labels": torch.tensor(labels),
            "owners": torch.tensor(owners),
        }


def chosen(options: Sequence[str], likelihoods: np.ndarray, ways: Sequence[str], written: str) -> list[int]:
    """Return what an example adds to each of :data:`RATES`: the options that are chosen, and the format.

    Args:
        options: Their texts.
        likelihoods: Summed log-probabilities of the tokens of each text, then of each letter, as far as there are any.
        ways: Of :data:`WAYS`.
        written: The generated answer.
    """
    found = dict.fromkeys(RATES, NO_CHOICE)
    values = np.where(np.isfinite(likelihoods), likelihoods, -np.inf)
    if "text" in ways:
        texts = values[: len(options)]
        found["choice_accuracy"] = int(texts.argmax())
        found["choice_accuracy_norm"] = int((texts / [len(option) for option in options]).argmax())
    if "letter" in ways:
        found["letter_accuracy"] = int(values[-len(options) :].argmax())
    if "generation" in ways:
        found["generated_accuracy"], formatted = read_answer(written, options)
        found["format_rate"] = int(formatted)
    return list(found.values())


def letters(picks: Sequence[int], ways: Sequence[str]) -> dict[str, str | None]:
    """Return which option each score chooses, by its letter; None where it chooses none.

    >>> letters([1, 0, -1, -1, 0], ["text", "generation"])
    {'choice': 'B', 'choice_norm': 'A', 'generated': None}
    """
    named = zip(RATES.items(), picks, strict=True)
    return {
        name.replace("_accuracy", ""): string.ascii_uppercase[place] if place >= 0 else None
        for (name, way), place in named
        if way in ways and name != "format_rate"
    }


def right_of(choices: Sequence[Sequence[int]], gold: np.ndarray) -> np.ndarray:
    """Return of each example whether each of :data:`RATES` counts it, int64 (examples, rates); 0 without options."""
    picks = np.array([one or _NO_CHOICES for one in choices], np.int64).reshape(-1, len(RATES))
    right = picks == gold[:, None]
    right[:, -1] = picks[:, -1] == 1
    return np.where(gold[:, None] >= 0, right, False).astype(np.int64)


def choice_sums(choices: Sequence[Sequence[int]], gold: np.ndarray) -> list[int]:
    """Return how many examples are scored, how many of them each rate counts, and how often each place is right."""
    places = np.bincount(gold[gold >= 0], minlength=MOST_OPTIONS)
    return [int((gold >= 0).sum()), *map(int, right_of(choices, gold).sum(0)), *map(int, places)]


def choice_metrics(sums: Sequence[int], ways: Sequence[str]) -> dict[str, float]:
    """Return the rates, and that of the best constant answer, from :func:`choice_sums`; nothing without examples.

    >>> choice_metrics([4, 3, 2, 0, 0, 0, 1, 3, *[0] * 24], ["text"])
    {'choice_accuracy': 0.75, 'choice_accuracy_norm': 0.5, 'constant_accuracy': 0.75}
    """
    examples, counts, places = sums[0], sums[1 : 1 + len(RATES)], sums[1 + len(RATES) :]
    if not examples:
        return {}
    rates = {
        name: quotient(count, examples)
        for (name, way), count in zip(RATES.items(), counts, strict=True)
        if way in ways
    }
    return rates | {"constant_accuracy": quotient(max(places), examples)}


def constant_choices(gold: np.ndarray) -> list[list[int]]:
    """Return the choices of one answer to all questions: the place that is right most often on these."""
    best = int(np.bincount(gold[gold >= 0], minlength=1).argmax())
    return [[best] * (len(RATES) - 1) + [1] if place >= 0 else _NO_CHOICES for place in gold.tolist()]


def by_length(rows: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], Tensor]]:
    """Yield rows of one length together, so that none is padded: their places, and their tokens, int64."""
    lengths = np.array([len(row) for row in rows])
    for length in np.unique(lengths):
        places = np.flatnonzero(lengths == length)
        for start in range(0, len(places), MAX_ROWS):
            some = places[start : start + MAX_ROWS].tolist()
            yield some, torch.tensor([list(rows[place]) for place in some], dtype=torch.int64)
