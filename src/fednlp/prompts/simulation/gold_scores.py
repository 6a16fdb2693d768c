"""Score patterns by gold labels that no search has looked at: half of those that a run has."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from fednlp.config import Experiment
from fednlp.data.features import Features
from fednlp.errors import ConfigError, FednlpError
from fednlp.fewshot.gold import GoldLabels, every_second
from fednlp.prompts.prompt_sets import load_prompts, parse_choice, words_for
from fednlp.seeds import generator
from fednlp.simulation.components import RunComponents
from fednlp.tasks.base import Batch, Row
from fednlp.tasks.prompt_classification import PromptClassification

AT_ONCE = 16
"""Gold examples that a model reads at once."""


@dataclass(frozen=True, order=True)
class GoldScore:
    """How well an untrained model predicts gold labels; the accuracy counts first, the likelihood where it is equal.

    Attributes:
        accuracy: Share of correct predictions, from 0 to 1.
        likelihood: Mean logarithm of the probability of the right label's word among the words of all labels.
    """

    accuracy: float
    likelihood: float


@dataclass(frozen=True)
class RankedPattern:
    """A pattern of a prompt set, and its score.

    Attributes:
        prompt: The value of ``task.prompt`` for it, such as ``"bbc:4"``.
        held_out: Score on the gold labels that are held out.
    """

    prompt: str
    pattern: str
    held_out: GoldScore


def held_out_half(gold: GoldLabels, seed: int) -> NDArray[np.bool_]:
    """Return which gold labels are held out of a search, bool (G,): half of each label's, rounded down, drawn.

    Raises:
        ConfigError: A label has fewer than two, so that none is held out.
    """
    order = generator(seed, "held-out gold").permutation(len(gold.labels))
    held = every_second(order, gold.labels)
    lacking = [name for number, name in enumerate(gold.label_names) if number not in gold.labels[held]]
    if lacking:
        raise ConfigError(
            f"fewer than two gold labels are {lacking[0]!r}, and half of each label's are held out: raise "
            "fewshot.gold, or take another seed"
        )
    return held


def some_of(gold: GoldLabels, which: NDArray[np.bool_]) -> GoldLabels:
    """Return some of the gold labels.

    Args:
        which: bool (G,).
    """
    return replace(gold, owners=gold.owners[which], examples=gold.examples[which], labels=gold.labels[which])


def gold_rows(components: RunComponents, gold: GoldLabels) -> list[Row]:
    """Return the texts of the gold examples, each with its gold label."""
    columns = components.data.columns_in("train")
    table = components.data.train.select(list(columns.values())).take(gold.examples)
    rows: list[dict[str, str | None]] = table.rename_columns(list(columns)).to_pylist()
    names = [gold.label_names[label] for label in gold.labels]
    return [row | {"label": name} for row, name in zip(rows, names, strict=True)]


def gold_batches(components: RunComponents, task: PromptClassification, gold: GoldLabels) -> list[Batch]:
    """Return the gold examples as a task reads them, some at a time."""
    rows = task.encode(gold_rows(components, gold), components.tokenizer, components.longest)
    features, numbers = Features.in_memory(rows), np.arange(len(rows))
    pieces = [numbers[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE)]
    return [task.collate(features, piece, torch.device("cpu")) for piece in pieces]


def gold_score(task: PromptClassification, model: Any, batches: Sequence[Batch]) -> GoldScore:
    """Return the score of a model on gold examples.

    Args:
        task: With the pattern and the words.
        model: In evaluation mode.
        batches: From :func:`gold_batches`.
    """
    with torch.inference_mode():
        logits = torch.cat([task.logits(model, batch) for batch in batches]).double()
        labels = torch.cat([batch["labels"] for batch in batches])
        right = (logits.argmax(dim=1) == labels).double().mean()
        return GoldScore(float(right), -float(F.cross_entropy(logits, labels)))


def given_words(
    experiment: Experiment, pattern: str, labels: Sequence[str], tokenizer: Any, *, decoder: bool = False
) -> dict[str, str]:
    """Return the words that an experiment gives labels in a pattern: its verbalizer's, its prompts', or their names.

    Args:
        experiment: For prompt classification.
        pattern: The place of its mask decides whether words have a leading space.
        labels: Label names of the data.
        decoder: Whether the model is one.

    Raises:
        ConfigError: The prompts have no words for these labels.
        ModelError: No table of words suits the vocabulary.
    """
    options = experiment.task.given()
    if "verbalizer" in options:
        return dict(options["verbalizer"])
    if "prompt" not in options:
        return {label: label for label in labels}
    choice = parse_choice(options["prompt"])
    return words_for(load_prompts(choice.name), pattern, labels, tokenizer, choice.words, decoder=decoder)


def rank_patterns(
    experiment: Experiment,
    components: RunComponents,
    held_out: GoldLabels,
    patterns: Sequence[tuple[str, str]],
    model: Any,
) -> list[RankedPattern]:
    """Score patterns with the words that the experiment gives, and return the best first.

    A pattern to which the words do not suit is left out.

    Args:
        experiment: For prompt classification.
        held_out: The gold labels that are held out.
        patterns: What each is called, and the pattern.
        model: In evaluation mode.
    """
    task, tokenizer = components.task, components.tokenizer
    assert isinstance(task, PromptClassification)
    ranked = []
    for name, pattern in patterns:
        try:
            words = given_words(experiment, pattern, task.labels, tokenizer, decoder=task.decodes)
            options = {"pattern": pattern, "verbalizer": words, "model_class": task.model_class}
            own = PromptClassification.build(task.labels, tokenizer, **options)
            batches = gold_batches(components, own, held_out)
        except FednlpError:
            continue
        ranked.append(RankedPattern(name, pattern, gold_score(own, model, batches)))
    return sorted(ranked, key=lambda one: one.held_out, reverse=True)
