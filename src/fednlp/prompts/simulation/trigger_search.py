"""Find the pattern of an experiment by gradients, from the gold labels that its run has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.config import Experiment
from fednlp.errors import ModelError
from fednlp.fewshot.gold import GoldLabels
from fednlp.fewshot.simulation.gold_labels import class_names_of
from fednlp.models.pretrained import prompt_class
from fednlp.prompts.simulation.gold_scores import (
    GoldScore,
    RankedPattern,
    given_words,
    gold_batches,
    gold_score,
    held_out_half,
    rank_patterns,
    some_of,
)
from fednlp.prompts.simulation.prompt_search import (
    found_words,
    gold_of,
    one_thread,
    patterns_of,
    require_gold,
)
from fednlp.prompts.trigger_gradient import input_embeddings, trigger_gradient, with_triggers
from fednlp.prompts.trigger_search import (
    Tokens,
    climb,
    first_order_gains,
    require_numbers,
    stand_in_pattern,
    trigger_offsets,
    trigger_pattern,
    written_pattern,
)
from fednlp.simulation.components import RunComponents, build_components
from fednlp.simulation.start_model import start_model
from fednlp.tasks.base import Batch
from fednlp.tasks.blocks import vocabulary_of
from fednlp.tasks.cloze import DECODER, mask_of
from fednlp.tasks.inputs import padding_of
from fednlp.tasks.prompt_classification import PromptClassification

_INSTEAD = (
    'triggers are found with a masked language model: take one, e.g. model.name_or_path = "bert-tiny", or leave '
    "--triggers out, and the patterns of task.prompt are compared"
)


@dataclass(frozen=True)
class AcceptedStep:
    """A step that set a trigger.

    Attributes:
        number: Of the step, from 1.
        triggers: All triggers as text; those that no step has set are masks.
        likelihood: Mean log-likelihood of the gold labels that are searched on.
        held_out: Score on the other gold labels.
    """

    number: int
    triggers: str
    likelihood: float
    held_out: GoldScore


@dataclass(frozen=True)
class FoundPattern:
    """What a search for triggers found.

    Attributes:
        pattern: That of the accepted step with the best score on the gold labels that are held out.
        words: The word of each label.
        words_found: Whether the words were found too, and not given.
        before: Score with masks for triggers, on the gold labels that are held out.
        after: Score of the pattern on these.
        searched_on: Number of gold labels that were searched on.
        held_out: Number of gold labels that are held out.
        ranked: The patterns of the experiment's prompts, the best first, by the gold labels that are held out; empty
            where there are not two.
    """

    pattern: str
    words: dict[str, str]
    words_found: bool
    before: GoldScore
    after: GoldScore
    searched_on: int
    held_out: int
    steps: list[AcceptedStep]
    ranked: list[RankedPattern]


@dataclass(frozen=True)
class _Examples:
    """Gold examples in a pattern whose triggers are replaced.

    Attributes:
        task: With the words of the labels.
        model: A masked language model in evaluation mode.
        offsets: Where each trigger stands, in tokens from the mask.
        paired: Whether there are two texts.
        searched_on: The examples that are searched on.
    """

    task: PromptClassification
    model: Any
    tokenizer: Any
    offsets: Sequence[int]
    paired: bool
    searched_on: Sequence[Batch]
    held_out: Sequence[Batch]

    def score(self, batches: Sequence[Batch], tokens: Tokens) -> GoldScore:
        return gold_score(self.task, self.model, self._with(batches, tokens))

    def gains(self, tokens: Tokens, place: int) -> NDArray[np.float32]:
        batches = self._with(self.searched_on, tokens)
        gradient = trigger_gradient(self.task, self.model, batches, self.offsets[place])
        return first_order_gains(input_embeddings(self.model).weight.detach().numpy(), gradient)

    def writable(self, tokens: Tokens) -> bool:
        return written_pattern(self.tokenizer, tokens, paired=self.paired) is not None

    def _with(self, batches: Sequence[Batch], tokens: Tokens) -> list[Batch]:
        return [with_triggers(one, tokens, self.offsets) for one in batches]


def search_triggers(
    experiment: Experiment,
    triggers: int,
    steps: int,
    candidates: int,
    log: Callable[[str], None],
    *,
    accepted: Callable[[AcceptedStep], None] = lambda step: None,
    tried: Callable[[int, int], None] = lambda done, total: None,
) -> FoundPattern:
    """Find trigger tokens that raise the likelihood of an experiment's gold labels (AutoPrompt); on one thread.

    Half of the gold labels are searched on, and the others choose among the accepted steps. Nothing but the gold labels
    and their texts is looked at. The likelihood is the task's own, among the words of the labels; in the paper it is
    among all tokens.

    Args:
        experiment: With ``[fewshot]``. Where it has no prompt, words are found first, from the half that is searched
            on.
        triggers: Number of trigger tokens.
        steps: Steps at most; each sets one trigger.
        candidates: Tokens that a step tries.
        log: Called with a message before each slow step.
        accepted: Called with each accepted step.
        tried: Told how many tokens have been tried, and of how many at most.

    Raises:
        ConfigError: A number is out of range, there are no gold labels, or a label has fewer than two.
        ModelError: The model is no masked language model.
        FednlpError: The data or the model cannot be loaded.
    """
    require_numbers(triggers, steps, candidates)
    experiment = experiment.resolved()
    require_gold(experiment, "patterns")
    components = build_components(experiment, log)
    given = isinstance(components.task, PromptClassification)
    paired = "text_pair" in components.data.columns_in("train")
    bare = trigger_pattern("", paired=paired)
    components = _for_masked_models(experiment, components, bare)
    tokenizer = components.tokenizer
    gold = gold_of(experiment, components, log)
    held = held_out_half(gold, experiment.seed)
    searched_on, held_out = some_of(gold, ~held), some_of(gold, held)
    model = start_model(experiment, components.source, components.task).eval()
    _refuse_encoder_decoder(experiment, model)
    with one_thread():
        patterns = patterns_of(experiment, components) if given else []
        ranked = rank_patterns(experiment, components, held_out, patterns, model) if len(patterns) > 1 else []
        if given:
            words = given_words(experiment, bare, gold.label_names, tokenizer)
        else:
            words = found_words(components, searched_on, bare, model).words
        examples = _examples_of(components, model, words, (searched_on, held_out), triggers)
        start = (examples.task.mask,) * triggers
        before = examples.score(examples.held_out, start)
        found = _accepted(examples, start, steps, candidates, accepted, tried)
    best = max((one for one in found if one.number >= triggers), key=lambda one: one.held_out)
    return FoundPattern(
        pattern=trigger_pattern(best.triggers, paired=paired),
        words=words,
        words_found=not given,
        before=before,
        after=best.held_out,
        searched_on=len(searched_on.labels),
        held_out=len(held_out.labels),
        steps=found,
        ranked=ranked,
    )


def _examples_of(
    components: RunComponents,
    model: Any,
    words: Mapping[str, str],
    halves: tuple[GoldLabels, GoldLabels],
    triggers: int,
) -> _Examples:
    """Return both halves of the gold examples in a pattern with so many triggers."""
    tokenizer, paired = components.tokenizer, "text_pair" in components.data.columns_in("train")
    options = {"pattern": stand_in_pattern(tokenizer, triggers, paired=paired), "verbalizer": dict(words)}
    task = PromptClassification.build(halves[0].label_names, tokenizer, **options)
    batches = [gold_batches(components, task, half) for half in halves]
    return _Examples(task, model, tokenizer, trigger_offsets(triggers, paired=paired), paired, *batches)


def _for_masked_models(experiment: Experiment, components: RunComponents, pattern: str) -> RunComponents:
    """Return the components with a task of prompts, one without words where the experiment has no prompt.

    Raises:
        ModelError: The model is a decoder, or has no mask token.
    """
    tokenizer, task = components.tokenizer, components.task
    if prompt_class(tokenizer.name_or_path) == DECODER:
        raise ModelError(f"{experiment.model.name_or_path} is a decoder, and {_INSTEAD}")
    if isinstance(task, PromptClassification):
        return components
    own = PromptClassification(
        class_names_of(task),
        padding=padding_of(tokenizer),
        pattern=pattern,
        mask=mask_of(tokenizer, "prompt-classification"),
        vocabulary=vocabulary_of(tokenizer),
    )
    return replace(components, task=own)


def _refuse_encoder_decoder(experiment: Experiment, model: Any) -> None:
    """Refuse a model that reads its input twice, so that a trigger has no one embedding.

    Raises:
        ModelError: It is one.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(f"{experiment.model.name_or_path} is an encoder-decoder, and {_INSTEAD}")


def _accepted(
    examples: _Examples,
    start: Tokens,
    steps: int,
    candidates: int,
    accepted: Callable[[AcceptedStep], None],
    tried: Callable[[int, int], None],
) -> list[AcceptedStep]:
    """Return the steps of a search that set a trigger."""
    done = 0

    def likelihood(tokens: Tokens) -> float:
        nonlocal done
        found = examples.score(examples.searched_on, tokens).likelihood
        tried(done, steps * candidates)
        done += 1
        return found

    numbers = {"steps": steps, "candidates": candidates}
    found = []
    for step in climb(start, examples.gains, likelihood, examples.writable, **numbers):
        if not step.changed:
            continue
        text = examples.tokenizer.decode(list(step.tokens), clean_up_tokenization_spaces=False).strip()
        score = examples.score(examples.held_out, step.tokens)
        found.append(AcceptedStep(step.number, text, step.likelihood, score))
        accepted(found[-1])
    return found
