"""Find words for the labels of an experiment, from the gold labels that its run has."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch

from fednlp.config import Experiment
from fednlp.data.features import Features
from fednlp.disk import atomic, regular
from fednlp.errors import ConfigError
from fednlp.fewshot.gold import GoldLabels
from fednlp.fewshot.simulation.gold_labels import class_names_of, drawn_gold_labels
from fednlp.prompts.prompt_file import prompts_of
from fednlp.prompts.prompt_sets import decoder_patterns, load_prompts, parse_choice, prompt_names
from fednlp.prompts.simulation.gold_scores import (
    AT_ONCE,
    RankedPattern,
    gold_rows,
    held_out_half,
    rank_patterns,
    some_of,
)
from fednlp.prompts.word_search import (
    assigned_words,
    candidate_words,
    common_words,
    likelihood_ratios,
    require_every_label,
)
from fednlp.simulation.assignment import build_partition
from fednlp.simulation.components import RunComponents, build_components
from fednlp.simulation.start_model import start_model
from fednlp.tasks.cloze import filled, mask_of, parts_of
from fednlp.tasks.prompt_classification import PromptClassification


@dataclass(frozen=True)
class FoundWords:
    """What a search found for one pattern.

    Attributes:
        words: The word of each label.
        score: Mean over the labels of the words' likelihood ratios, for an example; higher is better.
        gold_accuracy: Share of the gold labels that the untrained model predicts with these words.
    """

    pattern: str
    words: dict[str, str]
    score: float
    gold_accuracy: float


@dataclass(frozen=True)
class WordSearch:
    """What a search for words found.

    Attributes:
        found: For each pattern, the best first.
        ranked: The patterns with the words that the experiment gives, the best first, by the half of the gold labels
            that is held out; empty where there are not two to compare.
        held_out: Number of these gold labels.
        unranked: Why patterns could not be ranked; None where they were, or where there are not two.
    """

    found: list[FoundWords]
    ranked: list[RankedPattern]
    held_out: int = 0
    unranked: str | None = None


def search_words(experiment: Experiment, log: Callable[[str], None]) -> WordSearch:
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
    require_gold(experiment, "words")
    components = build_components(experiment, log)
    if not isinstance(components.task, PromptClassification):
        raise ConfigError('words are for prompts: say [task] prompt = "bbc", for example')
    gold = gold_of(experiment, components, log)
    require_every_label(gold.labels, gold.label_names)
    model = start_model(experiment, components.source, components.task).eval()
    with one_thread():
        patterns = patterns_of(experiment, components)
        found = [found_words(components, gold, pattern, model) for _, pattern in patterns]
        found.sort(key=lambda one: -one.score)
        if len(patterns) < 2:
            return WordSearch(found, [])
        try:
            held_out = some_of(gold, held_out_half(gold, experiment.seed))
        except ConfigError as error:
            return WordSearch(found, [], unranked=str(error))
        ranked = rank_patterns(experiment, components, held_out, patterns, model)
    return WordSearch(found, ranked, len(held_out.labels))


def require_gold(experiment: Experiment, what: str) -> None:
    """Check that an experiment has gold labels.

    Args:
        what: What is found from them.

    Raises:
        ConfigError: It has none.
    """
    if experiment.fewshot is None or not experiment.fewshot.gold:
        raise ConfigError(f"{what} are found from gold labels: say [fewshot] gold = 32, for example")


def gold_of(experiment: Experiment, components: RunComponents, log: Callable[[str], None]) -> GoldLabels:
    """Return the gold labels that the experiment's run has.

    Args:
        experiment: With ``[fewshot]``.
        log: Called with a message before each slow step.

    Raises:
        ConfigError: The task has no labels, or there are fewer examples than gold labels.
    """
    partition = build_partition(experiment, components.data, log)
    names = class_names_of(components.task)
    return drawn_gold_labels(experiment, components.train.values("label"), names, partition)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread within a block, so that results do not depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def require_place(path: Path) -> None:
    """Check, before a search, that a file of prompts may be written to a place.

    Raises:
        ConfigError: Something else lies there than a file of prompts, or its name is that of prompts that come with
            fednlp.
    """
    if str(path) in prompt_names():
        raise ConfigError(f"--out {path} is the name of prompts that come with fednlp: name another file")
    if path.is_dir():
        raise ConfigError(f"--out {path} is a folder: name a file in it, such as {path / 'found.toml'}")
    if path.exists():
        try:
            load_prompts(regular(path))
        except (ConfigError, OSError):
            raise ConfigError(
                f"--out {path} is there, and is no file of prompts that may be replaced: name another file"
            ) from None


def write_prompts(path: Path, source: str, pattern: str, words: Mapping[str, str]) -> None:
    """Write a pattern and its words as a file for ``task.prompt``.

    Args:
        path: The file; the prompts are named like it.
        source: Where pattern and words come from.
        words: The word of each label.

    Raises:
        ConfigError: The file's name or a label cannot stand in such a file.
        RunError: It cannot be written.
    """
    table = {"name": path.stem, "source": source, "patterns": [pattern], "words": [dict(words)]}
    prompts_of(str(path), table)
    with atomic(path, "name another file with --out") as file:
        file.write(tomli_w.dumps(table).encode())


def patterns_of(experiment: Experiment, components: RunComponents) -> list[tuple[str, str]]:
    """Return all patterns of a prompt set that suit the model and the data's columns, or the one that is chosen.

    Args:
        experiment: For prompt classification.

    Returns:
        Of each, the ``task.prompt`` that names it, or ``task.pattern``; and the pattern.
    """
    options, task = experiment.task.given(), components.task
    assert isinstance(task, PromptClassification)
    if "prompt" not in options:
        return [("task.pattern", options["pattern"])]
    choice = parse_choice(options["prompt"])
    prompts = load_prompts(choice.name)
    suiting = decoder_patterns(prompts) if task.decodes else range(len(prompts.patterns))
    numbers = suiting if choice.pattern is None else [choice.pattern]
    chosen = [(f"{choice.name}:{number}", prompts.patterns[number]) for number in numbers]
    paired = "text_pair" in components.data.columns_in("train")
    return [one for one in chosen if paired or "{text_pair}" not in one[1]] or chosen


def found_words(components: RunComponents, gold: GoldLabels, pattern: str, model: Any) -> FoundWords:
    """Find a word for each label in one pattern.

    Args:
        components: With a task of prompts.
        gold: The gold labels that are looked at; each label has one or more.
        model: In evaluation mode.

    Raises:
        ConfigError: The vocabulary has too few words.
    """
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
    task = components.task
    assert isinstance(task, PromptClassification)
    whole = replace(task, pattern=pattern, words=tuple(range(len(components.tokenizer))))
    rows = whole.encode(gold_rows(components, gold), components.tokenizer, components.longest)
    features = Features.in_memory(rows)
    found = []
    with torch.inference_mode():
        for start in range(0, len(rows), AT_ONCE):
            numbers = np.arange(start, min(start + AT_ONCE, len(rows)))
            batch = whole.collate(features, numbers, torch.device("cpu"))
            found.append(torch.softmax(whole.logits(model, batch).float(), dim=-1).numpy())
    own = _pattern_tokens(task, pattern, components.tokenizer)
    return np.concatenate(found), [set(Counter(row["input_ids"]) - own) for row in rows]


def _pattern_tokens(task: PromptClassification, pattern: str, tokenizer: Any) -> Counter[int]:
    """Return how often each token stands in a pattern without a text; these are not words of the texts."""
    mask = None if task.decodes else mask_of(tokenizer, task.name)
    ids, _ = next(filled(parts_of(pattern), {"text": [[]], "text_pair": [[]]}, mask, tokenizer, 1 << 30))
    return Counter(ids)
