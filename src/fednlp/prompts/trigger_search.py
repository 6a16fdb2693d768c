"""A pattern that is found by gradients: tokens, the triggers, that stand between a text and the mask.

Shin, Razeghi, Logan, Wallace and Singh 2020, "AutoPrompt: Eliciting Knowledge from Language Models with Automatically
Generated Prompts" (arXiv:2010.15980), sections 2.2 and 2.3.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError, ModelError
from fednlp.formatting.units import plural
from fednlp.tasks.cloze import parts_of, plain_ids

Tokens = tuple[int, ...]

MOST_TRIGGERS = 32
"""So many stay within the length that a file of prompts allows."""


@dataclass(frozen=True)
class TriggerStep:
    """What one step of a search leaves.

    Attributes:
        number: Of the step, from 1.
        likelihood: Of the gold labels, with these.
        changed: Whether the step set a trigger.
    """

    number: int
    tokens: Tokens
    likelihood: float
    changed: bool


def require_numbers(triggers: int, steps: int, candidates: int) -> None:
    """Check the numbers of a search.

    Raises:
        ConfigError: One is out of range.
    """
    if not 1 <= triggers <= MOST_TRIGGERS:
        raise ConfigError(f"{plural(triggers, 'trigger')}: ask for 1 to {MOST_TRIGGERS}")
    if steps < triggers:
        raise ConfigError(
            f"{plural(steps, 'step')} for {plural(triggers, 'trigger')}: a step sets one, so ask for {triggers} steps "
            "or more"
        )
    if candidates < 1:
        raise ConfigError(f"{plural(candidates, 'candidate')} a step: ask for 1 or more")


def trigger_pattern(words: str, *, paired: bool) -> str:
    """Return the pattern in which some words stand as triggers; between two texts, they stand behind the mask.

    Args:
        words: Of the triggers; blank for none.
        paired: Whether there are two texts.

    >>> trigger_pattern("atmosphere dialogue", paired=False), trigger_pattern("{", paired=True)
    ('{text} atmosphere dialogue {mask}', '{text} {mask} {{ {text_pair}')
    """
    own = words.replace("{", "{{").replace("}", "}}")
    pieces = ("{text}", "{mask}", own, "{text_pair}") if paired else ("{text}", own, "{mask}")
    return " ".join(piece for piece in pieces if piece)


def trigger_offsets(count: int, *, paired: bool) -> list[int]:
    """Return where each trigger of :func:`trigger_pattern` stands, in tokens from the mask.

    >>> trigger_offsets(2, paired=False), trigger_offsets(2, paired=True)
    ([-2, -1], [1, 2])
    """
    return [number + 1 if paired else number - count for number in range(count)]


def written_pattern(tokenizer: Any, tokens: Tokens, *, paired: bool) -> str | None:
    """Return the pattern that a masked language model reads as these triggers; None where there is none.

    Not every token can be written: BERT reads the text of the two tokens ``play`` and ``##ing`` as one, ``playing``.

    Args:
        paired: Whether there are two texts.
    """
    words = tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False).strip()
    if not words.isprintable() or set(tokens) & set(tokenizer.all_special_ids):
        return None
    pattern = trigger_pattern(words, paired=paired)
    own = plain_ids(tokenizer, [part.words for part in parts_of(pattern) if part.kind == "words"])
    return pattern if tuple(chain.from_iterable(own)) == tokens else None


def stand_in_pattern(tokenizer: Any, count: int, *, paired: bool) -> str:
    """Return a pattern with which texts are encoded before triggers are found: one token, as often as asked.

    Args:
        count: Number of triggers.
        paired: Whether there are two texts.

    Raises:
        ModelError: No token can be written.
    """
    patterns = (
        written_pattern(tokenizer, (token,) * count, paired=paired) for token in range(len(tokenizer))
    )
    found = next((pattern for pattern in patterns if pattern is not None), None)
    if found is None:
        raise ModelError(
            "no token of the model's vocabulary can be written in a pattern: take another model, e.g. bert-tiny, or "
            "write patterns by hand"
        )
    return found


def first_order_gains(embeddings: NDArray[np.float32], gradient: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return by how much each token would raise the log-likelihood, to first order, but for a common constant.

    AutoPrompt, equation 1 and section 2.3: the product of the token's embedding and the gradient at the trigger.

    Args:
        embeddings: (tokens, dimensions), the model's input embeddings.
        gradient: (dimensions,), of the log-likelihood with respect to the trigger's input embedding.

    Returns:
        (tokens,).

    >>> first_order_gains(np.array([[1, 0], [1, 2]], np.float32), np.array([3, -1], np.float32)).tolist()
    [3.0, 1.0]
    """
    gains: NDArray[np.float32] = embeddings @ gradient
    return gains


def climb(
    start: Tokens,
    gains: Callable[[Tokens, int], NDArray[np.float32]],
    likelihood: Callable[[Tokens], float],
    writable: Callable[[Tokens], bool],
    *,
    steps: int,
    candidates: int,
) -> Iterator[TriggerStep]:
    """Yield the steps of a search; each tries other tokens for one trigger, for the first to the last in turn.

    The first turn puts a token in the place of each mask, the best that is tried: a mask cannot be written. From then
    on a trigger is only replaced where this raises the likelihood. The search ends early when a whole turn replaces
    none, since the next would try the same.

    Args:
        start: A mask token for each trigger.
        gains: Returns the gain (tokens,) that each token promises as the trigger of this number.
        likelihood: Of the gold labels with some triggers.
        writable: Whether triggers, up to the last that is set, can be written in a pattern.
        steps: Steps at most; no fewer than triggers.
        candidates: Tokens that a step tries at most, those with the greatest gains.

    Raises:
        ModelError: No token can be written in the place of a trigger.
    """
    present, best, idle = start, likelihood(start), 0
    for step in range(steps):
        place, filling = step % len(start), step < len(start)
        others = (
            (*present[:place], int(token), *present[place + 1 :])
            for token in np.argsort(-gains(present, place), kind="stable")
            if token != present[place]
        )
        known = place + 1 if filling else len(start)
        tried = list(islice((one for one in others if writable(one[:known])), candidates))
        if filling and not tried:
            raise ModelError(
                f"no token of the model's vocabulary can be written in a pattern as trigger {place + 1}: ask for "
                f"{plural(place, 'trigger')}, or take another model"
            )
        scores = [likelihood(one) for one in tried]
        top = max(range(len(tried)), key=scores.__getitem__, default=None)
        changed = top is not None and (filling or scores[top] > best)
        if top is not None and changed:
            present, best = tried[top], scores[top]
        idle = 0 if changed else idle + 1
        yield TriggerStep(step + 1, present, best, changed)
        if idle == len(start):
            return
