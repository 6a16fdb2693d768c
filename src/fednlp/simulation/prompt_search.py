"""Find words for the labels of an experiment, from the gold labels that its run has."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch

from fednlp.config import Experiment
from fednlp.data.features import Features
from fednlp.disk import atomic
from fednlp.errors import ConfigError
from fednlp.fewshot.gold import GoldLabels
from fednlp.fewshot.prompt_sets import decoder_patterns, load_prompts, parse_choice
from fednlp.fewshot.word_search import (
    assigned_words,
    candidate_words,
    common_words,
    likelihood_ratios,
    require_every_label,
)
from fednlp.simulation.assignment import build_partition
from fednlp.simulation.components import RunComponents, build_components
from fednlp.simulation.gold_labels import class_names_of, drawn_gold_labels
from fednlp.simulation.start_model import start_model
from fednlp.tasks.cloze import filled, mask_of, parts_of
from fednlp.tasks.prompt_classification import PromptClassification

_AT_ONCE = 16


@dataclass(frozen=True)
class FoundWords:
    """What a search found for one pattern.

    Attributes:
        pattern: The pattern.
        words: The word of each label.
        score: Mean over the labels of the words' likelihood ratios, for an example; higher is better.
        gold_accuracy: Share of the gold labels that the untrained model predicts with these words.
    """

    pattern: str
    words: dict[str, str]
    score: float
    gold_accuracy: float


def search_words(experiment: Experiment, log: Callable[[str], None]) -> list[FoundWords]:
    """Find words for each pattern of an experiment's prompts, the best pattern first; on one thread.

    Nothing but the gold labels of the experiment's run and their texts is looked at.

    Args:
        experiment: With ``[fewshot]`` and ``task.prompt`` or ``task.pattern``.
        log: Called with a message before each slow step.

    Raises:
        ConfigError: The experiment has no gold labels or no pattern, or a label has no gold label.
        FednlpError: The data or the model cannot be loaded.
    """
    experiment = experiment.resolved()
    if experiment.fewshot is None or not experiment.fewshot.gold:
        raise ConfigError("words are found from gold labels: say [fewshot] gold = 32, for example")
    components = build_components(experiment, log)
    if not isinstance(components.task, PromptClassification):
        raise ConfigError('words are for prompts: say [task] prompt = "bbc", for example')
    partition = build_partition(experiment, components.data, log)
    names = class_names_of(components.task)
    gold = drawn_gold_labels(experiment, components.train.values("label"), names, partition)
    require_every_label(gold.labels, names)
    model = start_model(experiment, components.source, components.task).eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        paired = "text_pair" in components.data.columns_in("train")
        patterns = _patterns(experiment, components.task.decodes, paired)
        found = [_found(components, gold, pattern, model) for pattern in patterns]
    finally:
        torch.set_num_threads(threads)
    return sorted(found, key=lambda one: -one.score)


def write_prompts(path: Path, name: str, source: str, found: Sequence[FoundWords]) -> None:
    """Write patterns and the words of the best one as a file for ``task.prompt``.

    Args:
        path: The file.
        name: Of the prompts.
        source: Where the words come from.
        found: From :func:`search_words`.
    """
    best = found[0]
    table = {"name": name, "source": source, "patterns": [best.pattern], "words": [best.words]}
    with atomic(path) as file:
        file.write(tomli_w.dumps(table).encode())


def _patterns(experiment: Experiment, decoder: bool, paired: bool) -> list[str]:
    """Return all patterns of a prompt set that suit the model and the data's columns, or the one that is chosen."""
    options = experiment.task.given()
    if "prompt" not in options:
        return [options["pattern"]]
    choice = parse_choice(options["prompt"])
    prompts = load_prompts(choice.name)
    suiting = decoder_patterns(prompts) if decoder else range(len(prompts.patterns))
    chosen = [prompts.patterns[n] for n in (suiting if choice.pattern is None else [choice.pattern])]
    return [pattern for pattern in chosen if paired or "{text_pair}" not in pattern] or chosen


def _found(components: RunComponents, gold: GoldLabels, pattern: str, model: Any) -> FoundWords:
    probabilities, texts = _at_the_mask(components, gold, pattern, model)
    tokenizer = components.tokenizer
    task = components.task
    assert isinstance(task, PromptClassification)
    words_among = partial(candidate_words, tokenizer, pattern, decoder=task.decodes)
    candidates = common_words(words_among, texts, len(gold.label_names), len(tokenizer))
    tokens = list(candidates)
    scores = likelihood_ratios(probabilities[:, tokens], gold.labels, len(gold.label_names))
    chosen = assigned_words(scores)
    own = probabilities[:, [tokens[one] for one in chosen]]
    return FoundWords(
        pattern=pattern,
        words={name: candidates[tokens[one]] for name, one in zip(gold.label_names, chosen, strict=True)},
        score=float(np.mean([scores[label, one] for label, one in enumerate(chosen)])) / len(gold.labels),
        gold_accuracy=float((own.argmax(axis=1) == gold.labels).mean()),
    )


def _at_the_mask(
    components: RunComponents, gold: GoldLabels, pattern: str, model: Any
) -> tuple[np.ndarray, list[set[int]]]:
    """Return the probability of every token at the mask of each gold example, and the tokens of its texts."""
    data, task = components.data, components.task
    assert isinstance(task, PromptClassification)
    columns = data.columns_in("train")
    table = data.train.select(list(columns.values())).take(gold.examples).rename_columns(list(columns))
    whole = replace(task, pattern=pattern, words=tuple(range(len(components.tokenizer))))
    rows = whole.encode(table.to_pylist(), components.tokenizer, components.longest)
    features = Features.in_memory(rows)
    found = []
    with torch.inference_mode():
        for start in range(0, len(rows), _AT_ONCE):
            numbers = np.arange(start, min(start + _AT_ONCE, len(rows)))
            batch = whole.collate(features, numbers, torch.device("cpu"))
            found.append(torch.softmax(whole.logits(model, batch).float(), dim=-1).numpy())
    own = _pattern_tokens(task, pattern, components.tokenizer)
    return np.concatenate(found), [set(Counter(row["input_ids"]) - own) for row in rows]


def _pattern_tokens(task: PromptClassification, pattern: str, tokenizer: Any) -> Counter[int]:
    """Return how often each token stands in a pattern without a text; these are not words of the texts."""
    mask = None if task.decodes else mask_of(tokenizer, task.name)
    ids, _ = next(filled(parts_of(pattern), {"text": [[]], "text_pair": [[]]}, mask, tokenizer, 1 << 30))
    return Counter(ids)
