"""Sequence to sequence: a text is made from a text, e.g. a summary, a reply or a translation."""

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from fednlp.data.features import Features
from fednlp.errors import ConfigError, ModelError
from fednlp.tasks import moses
from fednlp.tasks.base import Batch, Predictions, Row
from fednlp.tasks.blocks import logits_at, no_cache, split_batch, vocabulary_of
from fednlp.tasks.generation import Generation, cached_tokenizer, references_of
from fednlp.tasks.inputs import padded_inputs, padding_of, to_device

_IGNORED = -100
"""Fills up targets; transformers' own shifting knows it."""


@dataclass(frozen=True)
class SequenceToSequence(Generation):
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
        own = _own_target_tokenizer(source)
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
            _target_start_token(writes),
            vocabulary_of(writes),
            target_vocabulary="" if own is None else _tokenizer_digest(own),
            moses_version=moses.library_version(step),
            **options,
        ).checked()

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
        return _require_target_tokenizer(self.tokenizer) if self.target_vocabulary else tokenizer

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
        ids, mask = features.padded("target", indices, _IGNORED)
        batch = {
            "target": torch.from_numpy(ids),
            "target_mask": torch.from_numpy(mask),
            "places": torch.from_numpy(np.flatnonzero(mask)),
            "labels": torch.from_numpy(ids[mask.astype(bool)]),
        }
        return padded_inputs(features, indices, self.padding, device) | to_device(batch, device)

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        read = self._decoder_input(model, batch["target"])
        inputs: dict[str, Any] = {
            "input_ids": batch["input_ids"],
            "attention_mask": batch["attention_mask"],
            "decoder_input_ids": read,
            "decoder_attention_mask": batch["target_mask"],
        }
        return logits_at(model, inputs | no_cache(model), batch["places"], read.shape)

    def _decoder_input(self, model: nn.Module, target: Tensor) -> Tensor:
        """Return targets (batch, longest) shifted right by one, as the model itself does it."""
        shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        if shift is not None:
            try:
                shifted: Tensor = shift(target)
                return shifted
            except (AttributeError, TypeError, ValueError):
                pass  # its configuration does not define the first token of a decoder
        first = torch.full_like(target[:, :1], self._decoder_start(model))
        return torch.cat([first, target[:, :-1]], dim=1).masked_fill(target == _IGNORED, self.padding)

    def _decoder_start(self, model: nn.Module) -> int:
        begun = getattr(getattr(model, "config", None), "decoder_start_token_id", None)
        return self.start if begun is None else int(begun)

    def _begun(self, model: nn.Module, batch: Batch) -> Batch:
        """Leave out a target's first token where it is what the decoder begins with anyhow.

        So it is with BERT's [CLS] in an encoder-decoder of two encoders, which else would learn to begin with it
        twice, and go on. Models that were trained as encoder-decoders (BART) keep theirs.
        """
        made_of_two = getattr(getattr(model, "config", None), "model_type", None) == "encoder-decoder"
        if not made_of_two or self.first != self._decoder_start(model):
            return batch
        target, mask = batch["target"][:, 1:], batch["target_mask"][:, 1:]
        predicted = mask.bool()
        places = predicted.flatten().nonzero().squeeze(1)
        return batch | {"target": target, "target_mask": mask, "places": places, "labels": target[predicted]}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy a target token, in nats."""
        return super().loss(model, self._begun(model, batch))

    def predict(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> Predictions:
        """Return the texts that are generated, and the loss of the targets' tokens."""
        batch = self._begun(model, self.collate(features, indices, device))
        parts = split_batch(batch, self.vocabulary, batch["target"].shape[1])
        return self._predictions(model, indices, parts)

    def _written(self, model: nn.Module, batch: Batch) -> list[str]:
        return self._generated(model, batch, self._writes(cached_tokenizer(self.tokenizer)))

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


@functools.cache
def _own_target_tokenizer(source: str) -> Any | None:
    """Load the targets' own tokenizer, once a process; None where they share that of the sources."""
    from fednlp.models.pretrained import target_tokenizer

    return target_tokenizer(source)


def _require_target_tokenizer(source: str) -> Any:
    """Load the targets' own tokenizer.

    Raises:
        ModelError: There is none.
    """
    found = _own_target_tokenizer(source)
    if found is None:
        raise ModelError(
            f"{source}: the tokenizer of its targets is missing, that was in its folder target: "
            "put it back, or run again"
        )
    return found


def _tokenizer_digest(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer, whatever texts it has been used for."""
    inner = tokenizer.backend_tokenizer
    inner.no_truncation()
    inner.no_padding()
    return hashlib.sha256(inner.to_str().encode()).hexdigest()


def _target_start_token(tokenizer: Any) -> int | None:
    """Return the special token that every target begins with, if there is one."""
    special = set(tokenizer.all_special_ids)
    ids = tokenizer(text_target="a")["input_ids"]
    return int(ids[0]) if len(ids) > 1 and ids[0] in special else None
