"""Contexts in windows that overlap: which tokens each window has, and which characters each token is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fednlp.errors import ModelError

Span = tuple[int, int]
"""First and last token, both included."""


@dataclass(frozen=True)
class TokenisedText:
    """The tokens of a context, without special ones.

    Attributes:
        characters: Of each token, first character and the one after the last, without white space at either
            end; (-1, -1) for a token that is nothing but white space.
    """

    ids: list[int]
    characters: list[tuple[int, int]]

    @cached_property
    def _edges(self) -> np.ndarray:
        return np.asarray(self.characters, np.int64).reshape(-1, 2).T

    def tokens_of(self, start: int, stop: int) -> Span | None:
        """Return the tokens that have any of the characters from ``start`` up to ``stop``; None where none has."""
        starts, ends = self._edges
        found = np.flatnonzero((starts >= 0) & (starts < stop) & (ends > start))
        return (int(found[0]), int(found[-1])) if len(found) else None


class Window(NamedTuple):
    """One row of a batch: its token ids, their types, and their characters in the context ((-1, -1): none)."""

    ids: list[int]
    kinds: list[int]
    characters: list[tuple[int, int]]


@dataclass(frozen=True)
class QALayout:
    """The layout in which a tokenizer joins a question and a context, e.g. ``[CLS] question [SEP] context [SEP]``.

    Attributes:
        before: Special tokens before the question, as (id, type).
        kinds: The types of the question's tokens and of the context's.
        typed: Whether the model is given the types.
        null: Id of the token that stands for "no answer here", None where there is none.
        padding: Stands for an example that would have no token at all.
    """

    before: list[tuple[int, int]]
    between: list[tuple[int, int]]
    after: list[tuple[int, int]]
    kinds: tuple[int, int]
    typed: bool
    null: int | None
    padding: int

    @property
    def special(self) -> int:
        """Number of special tokens."""
        return len(self.before) + len(self.between) + len(self.after)

    def window(self, question: list[int], context: TokenisedText, begin: int, room: int) -> Window:
        """Return the window of at most ``room`` context tokens that begins at token ``begin``."""
        part = slice(begin, begin + room)
        tokens = [
            *self.before,
            *((token, self.kinds[0]) for token in question),
            *self.between,
            *((token, self.kinds[1]) for token in context.ids[part]),
            *self.after,
        ] or [(self.padding, 0)]
        characters = [(-1, -1)] * len(tokens)
        first = self.first(question)
        inside = context.characters[part]
        characters[first : first + len(inside)] = inside
        return Window([token for token, _ in tokens], [kind for _, kind in tokens], characters)

    def first(self, question: list[int]) -> int:
        """Return the position of the context's first token in a window."""
        return len(self.before) + len(question) + len(self.between)

    def null_position(self, window: Window) -> int:
        """Return the position that stands for "no answer here": of the classification token, or else the first."""
        return window.ids.index(self.null) if self.null in window.ids else 0


def qa_layout(tokenizer: Any, padding: int) -> QALayout:
    """Find out how a tokenizer joins two texts, by having it join two.

    Raises:
        ModelError: It makes nothing of a plain letter, or puts the second text first.
    """
    encoding = tokenizer("a", "a").encodings[0]
    tokens = list(zip(encoding.ids, encoding.type_ids, strict=True))
    places = [[i for i, text in enumerate(encoding.sequence_ids) if text == number] for number in (0, 1)]
    if not places[0] or not places[1] or places[0][-1] > places[1][0]:
        raise ModelError("this model's tokenizer cannot join a question and a context; choose another model")
    (start, stop), (start_context, stop_context) = ((found[0], found[-1] + 1) for found in places)
    return QALayout(
        before=tokens[:start],
        between=tokens[stop:start_context],
        after=tokens[stop_context:],
        kinds=(tokens[start][1], tokens[start_context][1]),
        typed="token_type_ids" in tokenizer.model_input_names,
        null=tokenizer.cls_token_id,
        padding=padding,
    )


def tokenised(tokenizer: Any, texts: Sequence[str]) -> list[TokenisedText]:
    """Tokenise texts, whole, each token with its characters."""
    encoded = tokenizer(
        list(texts),
        add_special_tokens=False,
        return_offsets_mapping=True,
        return_attention_mask=False,
        verbose=False,  # too long for the model: that is what the windows are for
    )
    return [
        TokenisedText(ids, [_without_space(text, *edges) for edges in offsets])
        for text, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True)
    ]


def window_begins(tokens: int, room: int, overlap: int) -> list[int]:
    """Return the first token of each window of ``room`` tokens, so that all tokens are in one.

    >>> window_begins(10, room=6, overlap=2)
    [0, 4]
    >>> window_begins(11, room=6, overlap=2)
    [0, 4, 8]
    """
    return list(range(0, max(tokens - overlap, 1), room - overlap))


def _without_space(text: str, start: int, stop: int) -> tuple[int, int]:
    while start < stop and text[start].isspace():
        start += 1
    while start < stop and text[stop - 1].isspace():
        stop -= 1
    return (start, stop) if start < stop else (-1, -1)
