"""Sequence to sequence: a text is made from a text, e.g. a summary, a reply or a translation."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fednlp.data.features import Features
from fednlp.errors import ConfigError
from fednlp.tasks import moses
from fednlp.tasks.base import Batch, Predictions, Row
from fednlp.tasks.blocks import logits_at, no_cache, split_batch, vocabulary_of
from fednlp.tasks.decoding import IGNORED, decoder_input, decoder_start, generate_ids, generation_options
from fednlp.tasks.generation_metrics import GenerationMetrics, references_of
from fednlp.tasks.inputs import padded_inputs, padding_of, to_device
from fednlp.tasks.target_tokenizers import (
    cached_tokenizer,
    decode_texts,
    own_target_tokenizer,
    require_target_tokenizer,
    target_start_token,
    tokenizer_digest,
)


@dataclass(frozen=True)
class SequenceToSequence(GenerationMetrics):
    """Generation with an encoder-decoder, trained with cross-entropy over the target's tokens.

    Args:
        tokenizer: Folder or name of the tokenizer, and of the one of targets if they have their own.
        start: What a decoder begins with, where the model's configuration defines none.
        end: What ends a target; None where the tokenizer has no such token.
        first: The special token that the tokenizer begins every target with; None if it begins none.
        vocabulary: Tokens that the tokenizer of targets knows.
        max_target_length: Tokens of a target, and of what is generated, at most.
        num_beams: Beams of the search; 1 is greedy.
        source_prefix: Put before every source, e.g. ``"summarize: "``.
        label_smoothing_factor: Share of the target that is spread over the vocabulary in training, in [0, 1).
        scorer: ``"rouge"`` or ``"bleu"``: whether ROUGE-L or BLEU stands for the task.
        target_vocabulary: SHA-256 of the targets' own tokenizer
            (:func:`fednlp.models.pretrained.target_tokenizer`); empty where they share that of the sources.
        moses: ``"none"``, ``"normalise"`` or ``"tokenise"``: how texts are prepared (:mod:`fednlp.tasks.moses`).
        languages: Of source and target, such as ``"de-en"``, where texts are prepared.
        moses_version: The version of the library that prepares them; empty where none does.
    """

    tokenizer: str
    padding: int = 0
    start: int = 0
    end: int | None = None
    first: int | None = None
    vocabulary: int = 1
    max_target_length: int = 64
    num_beams: int = 1
    source_prefix: str = ""
    label_smoothing_factor: float = 0.0
    scorer: str = "rouge"
    target_vocabulary: str = ""
    moses: str = "none"
    languages: str = ""
    moses_version: str = ""
    name: str = "sequence-to-sequence"
    model_class: str = "AutoModelForSeq2SeqLM"
    uses_only_input_ids: bool = False

    @classmethod
    def build(cls, labels: Sequence[str], tokenizer: Any, **options: Any) -> Self:
        """Make the task for a tokenizer.

        Raises:
            ConfigError: An option has no such value, or two tokenizers do not go together.
            MissingDependency: Texts are to be prepared by Moses, whose library is not installed.
        """
        step = options.get("moses", "none")
        moses.language_pair(step, options.get("languages", ""))
        source, padding = str(tokenizer.name_or_path), padding_of(tokenizer)
        own = own_target_tokenizer(source)
        writes = tokenizer if own is None else own
        if padding_of(writes) != padding:
            raise ConfigError(
                f"{source}: its tokenizers pad with different ids, {padding} and {padding_of(writes)}: "
                "give both the same special tokens in the same order"
            )
        starts = (writes.bos_token_id, writes.cls_token_id)
        return cls(
            source,
            padding,
            next((number for number in starts if number is not None), padding),
            next((n for n in (writes.eos_token_id, writes.sep_token_id) if n is not None), None),
            target_start_token(writes),
            vocabulary_of(writes),
            target_vocabulary="" if own is None else tokenizer_digest(own),
            moses_version=moses.library_version(step),
            **options,
        ).checked()

    def settings(self) -> dict[str, Any]:
        """Return the padding, that the decoder's input is shifted with."""
        return {"pad_token_id": self.padding}

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return each row's ``input_ids``, ``target`` ids, and ``references``, JSON, to be scored against.

        Sources without their prefix and targets are prepared by Moses if configured; references stay as they are. A
        source is cut to ``max_length`` at its end, a target to ``max_target_length``; its end token stays.
        """
        rows = list(rows)
        cut: dict[str, Any] = {"truncation": True, "return_attention_mask": False}
        sources, targets = self._prepared(rows)
        sources = [self.source_prefix + text for text in sources]
        source_ids = tokenizer(sources, max_length=max_length, **cut)["input_ids"]
        writes = self._writes(tokenizer)
        target_ids = writes(text_target=targets, max_length=self.max_target_length, **cut)["input_ids"]
        return [
            {
                "input_ids": source or [self.padding],
                "target": self._ended(target) or [self.padding],
                "references": references_of(row),
            }
            for source, target, row in zip(source_ids, target_ids, rows, strict=True)
        ]

    def _writes(self, tokenizer: Any) -> Any:
        """Return the tokenizer of targets, given that of sources."""
        return require_target_tokenizer(self.tokenizer) if self.target_vocabulary else tokenizer

    def _ended(self, ids: list[int]) -> list[int]:
        return (
            ids
            if self.end is None or self.end in ids[-2:]
            else [*ids[: self.max_target_length - 1], self.end]
        )

    def input_lengths(self, features: Features) -> np.ndarray:
        """Return the tokens of each text as it is read."""
        return features.all_lengths

    def collate(
        self, features: Features, indices: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Return a padded batch.

        ``input_ids`` and ``attention_mask`` (batch, longest source); ``target`` (batch, longest target), -100
        where there is none, and its ``target_mask``; ``places`` and ``labels`` of its tokens.
        """
        ids, mask = features.padded("target", indices, IGNORED)
        batch = {
            "target": torch.from_numpy(ids),
            "target_mask": torch.from_numpy(mask),
            "places": torch.from_numpy(np.flatnonzero(mask)),
            "labels": torch.from_numpy(ids[mask.astype(bool)]),
        }
        return padded_inputs(features, indices, self.padding, device) | to_device(batch, device)

    def _logits(self, model: nn.Module, batch: Batch, read: Tensor) -> Tensor:
        inputs: dict[str, Any] = {
            "input_ids": batch["input_ids"],
            "attention_mask": batch["attention_mask"],
            "decoder_input_ids": read,
            "decoder_attention_mask": batch["target_mask"],
        }
        return logits_at(model, inputs | no_cache(model), batch["places"], read.shape)

    def _begun(self, model: nn.Module, batch: Batch) -> Batch:
        """Leave out a target's first token where it is what the decoder begins with anyhow.

        So it is with BERT's [CLS] in an encoder-decoder of two encoders, which else would learn to begin with it
        twice, and go on. Models that were trained as encoder-decoders (BART) keep theirs.
        """
        made_of_two = getattr(getattr(model, "config", None), "model_type", None) == "encoder-decoder"
        if not made_of_two or self.first != decoder_start(model, self.start):
            return batch
        target, mask = batch["target"][:, 1:], batch["target_mask"][:, 1:]
        predicted = mask.bool()
        places = predicted.flatten().nonzero().squeeze(1)
        return batch | {"target": target, "target_mask": mask, "places": places, "labels": target[predicted]}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy a target token, in nats."""
        batch = self._begun(model, batch)
        logits = self._logits(model, batch, decoder_input(model, batch["target"], self.padding, self.start))
        return F.cross_entropy(logits, batch["labels"], label_smoothing=self.label_smoothing_factor)

    def predict(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> Predictions:
        """Return the texts that are generated, and the loss of the targets' tokens."""
        batch = self._begun(model, self.collate(features, indices, device))
        texts: list[str] = []
        loss = torch.zeros((), dtype=torch.float64)
        for part in split_batch(batch, self.vocabulary, batch["target"].shape[1]):
            read = decoder_input(model, part["target"], self.padding, self.start)
            logits = self._logits(model, part, read).float()
            loss += F.cross_entropy(logits, part["labels"], reduction="sum").double().cpu()
            made = generate_ids(model, part, self.generation(model))
            texts += self._readable(decode_texts(self._writes(cached_tokenizer(self.tokenizer)), made))
        return Predictions(indices.tolist(), texts, float(loss), len(batch["labels"]))

    def generation(self, model: nn.Module) -> Any:
        """Return transformers' ``GenerationConfig`` that texts are generated with."""
        return generation_options(
            max_new_tokens=self.max_target_length,
            num_beams=self.num_beams,
            start=decoder_start(model, self.start),
            end=self.end,
            padding=self.padding,
        )

    def _target_sizes(self, features: Features, examples: np.ndarray) -> np.ndarray:
        special = np.array(self._writes(cached_tokenizer(self.tokenizer)).all_special_ids)
        words_before = np.concatenate([[0], np.cumsum(~np.isin(features.arrays["target"], special))])
        offsets = features.offsets["target"]
        sizes: np.ndarray = words_before[offsets[examples + 1]] - words_before[offsets[examples]]
        return sizes

    def _sources(self, features: Features, indices: np.ndarray, tokenizer: Any) -> Iterator[np.ndarray]:
        special = np.array(tokenizer.all_special_ids)
        skipped = len(tokenizer(self.source_prefix, add_special_tokens=False)["input_ids"])
        for index in indices.tolist():
            ids = features.ragged("input_ids", index)
            yield ids[~np.isin(ids, special)][skipped:]
