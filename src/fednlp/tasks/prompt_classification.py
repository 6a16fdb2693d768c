"""Prompt classification: a cloze pattern, and a word for each label that may stand in its gap."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from fednlp.data.features import Features
from fednlp.errors import ConfigError
from fednlp.tasks.base import Batch, Row
from fednlp.tasks.blocks import logits_at, no_cache, split_batch, vocabulary_of
from fednlp.tasks.cloze import DECODER, filled, mask_of, part_ids, parts_of, require_decodable, words_of
from fednlp.tasks.inputs import model_inputs, padded_inputs, padding_of, to_device
from fednlp.tasks.text_classification import TextClassification


@dataclass(frozen=True)
class PromptClassification(TextClassification):
    """Classification by a language model's own head (Cai et al. 2023, *FeS*, section 2.2).

    The text is put into a pattern with one mask. The logits of the labels' words at the mask are the labels'
    logits; the rest of the vocabulary does not enter the loss. Scores are those of text classification. A decoder reads
    what stands before the mask, and the words' logits are those of the next token.

    Args:
        pattern: E.g. ``"{mask} News: {text}"``.
        words: Token of each label's word, in the order of the labels.
        mask: Id of the mask token; not used by a decoder.
        vocabulary: Tokens that the tokenizer knows.
        model_class: The auto class of masked language models, or that of decoders.
    """

    pattern: str = ""
    words: tuple[int, ...] = ()
    mask: int = 0
    vocabulary: int = 1
    name: str = "prompt-classification"
    model_class: str = "AutoModelForMaskedLM"

    @classmethod
    def build(cls, labels: Sequence[str], tokenizer: Any, **options: Any) -> Self:
        """Make the task for a data set's labels.

        Args:
            labels: Label names in the order of their ids.
            tokenizer: The model's; it needs a mask token, unless the model is a decoder.
            options: ``pattern``; ``verbalizer``: a word for each label, by default its own name; ``model_class``.

        Raises:
            ConfigError: The pattern is none or does not suit a decoder, or a label has no word.
            ModelError: There is no mask token, or a word is not one token.
        """
        pattern = options.pop("pattern", None)
        verbalizer = options.pop("verbalizer", None) or {label: label for label in labels}
        decoder = options.get("model_class") == DECODER
        parts, mask = parts_of(pattern), 0
        if decoder:
            require_decodable(pattern)
        else:
            mask = mask_of(tokenizer, "prompt-classification")  # before any word: without it no word can help
        return cls(
            tuple(labels),
            padding=padding_of(tokenizer),
            pattern=pattern,
            words=words_of(labels, verbalizer, parts, tokenizer, decoder=decoder),
            mask=mask,
            vocabulary=vocabulary_of(tokenizer),
            **options,
        )

    @property
    def decodes(self) -> bool:
        """True if the model is a decoder."""
        return self.model_class == DECODER

    def settings(self) -> dict[str, Any]:
        """Return the padding; the head is the model's own."""
        return {"pad_token_id": self.padding}

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return each row's ``input_ids``, where in them the words are scored (``gap``), and its ``label``.

        What is too long is cut from the texts, the longer first, from their ends; never from the pattern.

        Raises:
            ConfigError: The pattern has ``{text_pair}`` and the rows have none.
            ModelError: The pattern leaves no room for the text.
        """
        rows = list(rows)
        parts = parts_of(self.pattern)
        texts = {
            part.kind: part_ids(
                tokenizer,
                parts,
                number,
                [part.lead + _text(row, part.kind) for row in rows],
                decoder=self.decodes,
            )
            for number, part in enumerate(parts)
            if part.kind in ("text", "text_pair")
        }
        mask = None if self.decodes else self.mask
        ids = {name: i for i, name in enumerate(self.labels)}
        return [
            {"input_ids": tokens, "gap": gap, "label": ids.get(row["label"] or "", -1)}
            for row, (tokens, gap) in zip(
                rows, filled(parts, texts, mask, tokenizer, max_length), strict=True
            )
        ]

    def collate(
        self, features: Features, indices: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Return ``input_ids`` and ``attention_mask`` (batch, longest), ``places`` and ``labels`` (batch)."""
        batch = padded_inputs(features, indices, self.padding, torch.device("cpu"))
        width = batch["input_ids"].shape[1]
        gaps = features.values("gap")[indices] + width * np.arange(len(indices))
        labels = features.values("label")[indices]
        return to_device(
            batch | {"places": torch.from_numpy(gaps), "labels": torch.from_numpy(labels)}, device
        )

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the logit of each label's word in its place (batch, labels), some rows at a time."""
        width = batch["input_ids"].shape[1]
        parts = [batch] if model.training else split_batch(batch, self.vocabulary, width)
        return torch.cat([self._at_gaps(model, part) for part in parts])

    def _at_gaps(self, model: nn.Module, batch: Batch) -> Tensor:
        extra = no_cache(model) if self.decodes else {}
        logits = logits_at(model, model_inputs(batch) | extra, batch["places"], batch["input_ids"].shape)
        return logits[:, list(self.words)]


def _text(row: Row, column: str) -> str:
    if column not in row:
        raise ConfigError(
            f"task.pattern holds {{{column}}} and the data has no column for it: name one in data.columns, "
            f"or leave {{{column}}} out"
        )
    return (row[column] or "").strip()
