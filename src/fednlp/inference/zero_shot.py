"""Zero-shot evaluation of prompts: how patterns read, which words suit a model, and its accuracy before training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from fednlp.data import TextData, load_data
from fednlp.data.catalogue import CATALOGUE
from fednlp.data.features import Features
from fednlp.errors import FednlpError
from fednlp.models.pretrained import load_tokenizer, longest_text, pretrained_model, prompt_class
from fednlp.models.resolve import resolve_model
from fednlp.prompts.prompt_file import PromptSet
from fednlp.prompts.prompt_sets import PromptChoice, chosen_pattern, chosen_words, words_for
from fednlp.tasks.cloze import DECODER, filled, mask_of, parts_of, word_ids
from fednlp.tasks.prompt_classification import PromptClassification
from fednlp.training.batches import evaluation_batches

_MOST_EXAMPLES = 500
_LONGEST_TEXT = 128
_SHOWN_TOKENS = 40
_TASK = "prompt-classification"
_NO_EXAMPLE: dict[str, str | None] = {"text": "(the text)", "text_pair": "(the other text)", "label": ""}


@dataclass(frozen=True)
class ZeroShotScore:
    """The predictions of a model for some examples before any training.

    Attributes:
        accuracy: Share of correct predictions, from 0 to 1.
        majority: Share of the most frequent label, from 0 to 1.
        examples: Number of examples.
        predicted_most: The label that is predicted most often.
        predicted_share: Share of the examples for which it is predicted.
        true_share: Share of the examples whose label it is.
        mistaken: The true label of most examples that are wrongly predicted as it; None where there are none.
    """

    accuracy: float
    majority: float
    examples: int
    predicted_most: str
    predicted_share: float
    true_share: float
    mistaken: str | None


@dataclass(frozen=True)
class PromptCheck:
    """The result of checking one pattern.

    Attributes:
        number: Number of the pattern.
        reads: An example in the pattern, as the model reads it.
        tokens: Length of the pattern without any text, special tokens counted.
        words: The word of each label.
        pieces: The tokens of each label's word.
        problem: The reason why the model cannot use the pattern; None if it can.
        score: Zero-shot score; None without data, or with a problem.
    """

    number: int
    pattern: str
    reads: str
    tokens: int
    words: Mapping[str, str]
    pieces: Mapping[str, list[str]]
    problem: str | None
    score: ZeroShotScore | None


@dataclass(frozen=True)
class _Scorer:
    """A language model as prompts are checked with it.

    Attributes:
        kind: The auto class of the model.
        model: The model itself, in evaluation mode.
        limit: Maximum number of tokens of an example.
        scored: Told of the examples of each batch that is predicted.
    """

    kind: str
    model: Any
    tokenizer: Any
    limit: int
    scored: Callable[[int], None]

    @property
    def decoder(self) -> bool:
        return self.kind == DECODER


def check_prompts(
    prompts: PromptSet,
    choice: PromptChoice,
    model: str,
    data: str | None = None,
    path: str | None = None,
    *,
    text: str = "text",
    label: str = "label",
    columns: Mapping[str, str] | None = None,
    scored: Callable[[int, int], None] = lambda done, total: None,
) -> list[PromptCheck]:
    """Check one pattern of a prompt set, or all of them, without training; on one thread.

    Args:
        choice: The pattern and words; a pattern of None selects all, words of None the first that fit.
        model: Name or folder, as in ``[model] name_or_path``; a masked language model, or a decoder.
        data: A known data set, of which up to 500 test examples are predicted, spread evenly.
        path: Files of this data set, or the user's own.
        text: Column of the texts in these files.
        columns: The files' own names of other columns, such as ``{"text_pair": "answer"}``.
        scored: Told how many predictions are made, and of how many at most.

    Raises:
        ConfigError: There is no such pattern, or there are no such words.
        DataError: The data set cannot be loaded, or has no labels.
        ModelError: The model cannot be loaded, or has no head of a language model.
    """
    numbers = range(len(prompts.patterns)) if choice.pattern is None else [choice.pattern]
    patterns = {number: chosen_pattern(prompts, number) for number in numbers}
    if choice.words is not None:
        chosen_words(prompts, choice.words)  # refused before a model is loaded
    source = resolve_model(model)
    tokenizer = load_tokenizer(source)
    kind = prompt_class(source)
    if kind != DECODER:
        mask_of(tokenizer, _TASK)
    loaded = pretrained_model(source, kind, {}, {}, seed=0, require_head=True).eval()
    opened = cache(partial(_data_for, prompts, data, path, text, label, columns))
    known = {number: opened(_own_columns(prompts, one, data)) for number, one in patterns.items()}
    rows = {number: [] if one is None else _rows(one) for number, one in known.items()}
    total, done = sum(map(len, rows.values())), 0

    def told(examples: int) -> None:
        nonlocal done
        done += examples
        scored(done, total)

    scorer = _Scorer(kind, loaded, tokenizer, min(_LONGEST_TEXT, longest_text(source, tokenizer)), told)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [
            _check_pattern(prompts, number, one, choice.words, scorer, known[number], rows[number])
            for number, one in patterns.items()
        ]
    finally:
        torch.set_num_threads(threads)


def available_data(prompts: PromptSet, path: str | None) -> str | None:
    """Return a downloadable data set of a prompt set; None if there is none, or with the user's own files.

    Args:
        path: The user's own files, if any.
    """
    known = (name for name in prompts.data if name in CATALOGUE)
    return next((n for n in known if path is None and CATALOGUE[n].fetched == "package index"), None)


def _own_columns(prompts: PromptSet, pattern: str, data: str | None) -> bool:
    """Return whether a pattern has two texts that the data's usual text column joins."""
    return bool(prompts.columns) and data in prompts.data and "{text_pair}" in pattern


def _data_for(
    prompts: PromptSet,
    data: str | None,
    path: str | None,
    text: str,
    label: str,
    given: Mapping[str, str] | None,
    own_columns: bool,
) -> TextData | None:
    """Open the data, with ``own_columns`` by the prompt set's columns, which split a joined text into a pair."""
    if data is None and path is None:
        return None
    columns = {**(prompts.columns if own_columns else {}), **(given or {})}
    return load_data(data, path, task=_TASK, columns=columns, text=text, label=label)


def _check_pattern(
    prompts: PromptSet,
    number: int,
    pattern: str,
    table: int | None,
    scorer: _Scorer,
    data: TextData | None,
    rows: Sequence[dict[str, str | None]],
) -> PromptCheck:
    """Check one pattern.

    Args:
        number: Number of the pattern.
        table: Number of the table of words; None for the first that fits.
        data: The data set to score on, if any.
        rows: Its examples that are predicted.
    """
    parts, tokenizer, decoder = parts_of(pattern), scorer.tokenizer, scorer.decoder
    mask = None if decoder else mask_of(tokenizer, _TASK)
    labels = list(prompts.words[table or 0]) if data is None else list(data.label_names)
    words = {label: prompts.words[table or 0].get(label, "") for label in labels}
    ids, _ = next(filled(parts, {"text": [[]]}, mask, tokenizer, 1 << 30))
    problem, score, reads = None, None, ""
    try:
        words = words_for(prompts, pattern, labels, tokenizer, table, decoder=decoder)
        options = {"pattern": pattern, "verbalizer": words, "model_class": scorer.kind}
        task = PromptClassification.build(labels, tokenizer, **options)
        example = rows[0] if rows else _NO_EXAMPLE
        shown = task.encode([example], tokenizer, min(scorer.limit, len(ids) + _SHOWN_TOKENS))[0]
        reads = tokenizer.decode(shown["input_ids"])
        score = _score(task, scorer, rows) if rows else None
    except FednlpError as error:
        problem = str(error)
    tokens = word_ids(tokenizer, parts, list(words.values()), decoder=decoder)
    pieces = dict(zip(words, map(tokenizer.convert_ids_to_tokens, tokens), strict=True))
    return PromptCheck(number, pattern, reads, len(ids), words, pieces, problem, score)


def _rows(data: TextData) -> list[dict[str, str | None]]:
    """Return test examples, spread evenly over the test set, since files are often sorted by label."""
    count = min(_MOST_EXAMPLES, len(data.test_numbers))
    chosen = data.test_numbers[np.linspace(0, len(data.test_numbers) - 1, count).round().astype(np.int64)]
    columns = data.columns_in("test")
    table = data.test.select(list(columns.values())).take(chosen)
    found: list[dict[str, str | None]] = table.rename_columns(list(columns)).to_pylist()
    return found


def _score(task: Any, scorer: _Scorer, rows: Sequence[Any]) -> ZeroShotScore:
    """Return the zero-shot score of a task on examples."""
    features = Features.in_memory(task.encode(rows, scorer.tokenizer, scorer.limit))
    guess, truth = np.empty(len(rows), np.int64), features.values("label")
    with torch.inference_mode():
        for batch in evaluation_batches(np.arange(len(rows)), features.all_lengths, 64):
            guess[batch] = task.predict(scorer.model, features, batch, torch.device("cpu")).predictions
            scorer.scored(len(batch))
    many = len(task.labels)
    predicted_most = int(np.bincount(guess, minlength=many).argmax())
    wrong = np.bincount(truth[(guess == predicted_most) & (truth != predicted_most)], minlength=many)
    return ZeroShotScore(
        accuracy=float((guess == truth).mean()),
        majority=float(np.bincount(truth, minlength=many).max() / len(rows)),
        examples=len(rows),
        predicted_most=task.labels[predicted_most],
        predicted_share=float((guess == predicted_most).mean()),
        true_share=float((truth == predicted_most).mean()),
        mistaken=task.labels[int(wrong.argmax())] if wrong.any() else None,
    )
