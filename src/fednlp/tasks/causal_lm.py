"""Causal language modelling: a text, each of whose tokens is predicted from those before it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch

from fednlp.data.features import Features
from fednlp.tasks.base import Batch, Row
from fednlp.tasks.blocks import pad_rows, split_into_rows, vocabulary_of
from fednlp.tasks.inputs import padding_of, to_device
from fednlp.tasks.language_modeling import LanguageModeling


@dataclass(frozen=True)
class CausalLM(LanguageModeling):
    """Next-token prediction with cross-entropy.

    A text is the tokenizer's BOS if it has one, the text's own tokens, and EOS if it has one. A long text is
    read in blocks of at most ``max_length`` tokens; a block begins with the last token of the one before, so
    that every token but the very first is predicted once, and none is dropped.

    Args:
        padding: The id to pad with; it may be that of a word, since the mask alone marks the padding.
        vocabulary: Tokens that the tokenizer knows.
    """

    padding: int = 0
    vocabulary: int = 1
    name: str = "causal-lm"
    metric: str = "accuracy"
    model_class: str = "AutoModelForCausalLM"
    uses_only_input_ids: bool = True
    decoder: ClassVar[bool] = True

    @classmethod
    def build(cls, labels: Sequence[str], tokenizer: Any, **options: Any) -> Self:
        """Make the task for a tokenizer."""
        return cls(padding_of(tokenizer), vocabulary_of(tokenizer), **options)

    def settings(self) -> dict[str, Any]:
        """Return the padding."""
        return {"pad_token_id": self.padding}

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return all of each text's tokens, ``input_ids``, and ``block``, how many are read at once."""
        texts = [row["text"] or "" for row in rows]
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        first, last = (
            [] if number is None else [number] for number in (tokenizer.bos_token_id, tokenizer.eos_token_id)
        )
        return [
            {"input_ids": [*first, *tokens, *last] or [self.padding], "block": max(2, max_length)}
            for tokens in encoded["input_ids"]
        ]

    def collate(
        self, features: Features, indices: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Return a row a block: ``input_ids``, ``attention_mask``, ``places``, ``labels`` and ``owners``."""
        sizes = features.values("block")[indices]
        starts, widths, owners = split_into_rows(features.lengths(indices), sizes, overlap=1)
        ids = pad_rows(features.words(indices), starts, widths, self.padding)
        column = np.arange(ids.shape[1])
        followed = column < widths[:, None] - 1
        batch = {
            "input_ids": ids,
            "attention_mask": (column < widths[:, None]).astype(np.int64),
            "places": np.flatnonzero(followed),
            "labels": np.roll(ids, -1, axis=1)[followed],
            "owners": np.repeat(owners, widths - 1),
        }
        return to_device({name: torch.from_numpy(array) for name, array in batch.items()}, device)
