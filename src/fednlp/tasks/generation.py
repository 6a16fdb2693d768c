"""Shared by tasks that generate a text: the loss, the texts, the references, the scores, and a baseline."""

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fednlp.data.features import Features
from fednlp.errors import ConfigError, DataError
from fednlp.tasks import moses, scorers
from fednlp.tasks.base import Batch, Predictions, Row
from fednlp.tasks.inputs import ratio
from fednlp.tasks.whole_sums import fraction, quotient, total_steps


class Generation:
    """Generates texts, and scores them against an example's ``references``; a subclass says what a model reads.

    It has batches whose ``labels`` are a target's tokens.
    """

    tokenizer: str
    padding: int
    end: int | None
    max_target_length: int
    num_beams: int
    label_smoothing_factor: float
    scorer: str
    moses: str
    languages: str

    @property
    def metric(self) -> str:
        """The metric that stands for the task."""
        return "bleu" if self.scorer == "bleu" else "rouge_l"

    def checked(self) -> Self:
        """Return the task itself.

        Raises:
            ConfigError: An option has no such value.
        """
        if self.scorer not in ("rouge", "bleu"):
            raise ConfigError(f'task.scorer is "{self.scorer}": say "rouge" or "bleu"')
        for key, least in (("max_target_length", 2), ("num_beams", 1)):
            if getattr(self, key) < least:
                raise ConfigError(f"task.{key} is {getattr(self, key)}: say {least} or more")
        return self

    def settings(self) -> dict[str, Any]:
        """Return the padding; the input of an encoder-decoder's decoder is shifted with it."""
        return {"pad_token_id": self.padding}

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the logits of a target's tokens (labels, vocabulary)."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy a target token, in nats."""
        logits = self._logits(model, batch)
        return F.cross_entropy(logits, batch["labels"], label_smoothing=self.label_smoothing_factor)

    def _predictions(self, model: nn.Module, indices: np.ndarray, parts: Iterable[Batch]) -> Predictions:
        """Return the texts that are generated for the parts of a batch, and the loss of the targets' tokens."""
        texts: list[str] = []
        loss, tokens = torch.zeros((), dtype=torch.float64), 0
        for part in parts:
            logits = self._logits(model, part).float()
            loss += F.cross_entropy(logits, part["labels"], reduction="sum").double().cpu()
            tokens += len(part["labels"])
            texts += self._written(model, part)
        return Predictions(indices.tolist(), texts, float(loss), tokens)

    def _written(self, model: nn.Module, batch: Batch) -> list[str]:
        """Return the text that is generated for each row of a batch."""
        raise NotImplementedError

    def _generated(self, model: nn.Module, batch: Batch, tokenizer: Any) -> list[str]:
        """Return the texts of :func:`generate_ids` as they are scored and shown.

        Args:
            tokenizer: That of targets.
        """
        return self._readable(decode_texts(tokenizer, generate_ids(model, batch, self.generation(model))))

    def generation(self, model: nn.Module) -> Any:
        """Return transformers' ``GenerationConfig`` of the task, without sampling; padding is never chosen."""
        from transformers import GenerationConfig

        start = self._decoder_start(model)
        return GenerationConfig(
            max_new_tokens=self.max_target_length,
            num_beams=self.num_beams,
            do_sample=False,
            decoder_start_token_id=start,
            bos_token_id=start,
            eos_token_id=self.end,
            pad_token_id=self.padding,
            suppress_tokens=None if self.padding == self.end else [self.padding],
        )

    def _decoder_start(self, model: nn.Module) -> int | None:
        """Return what a decoder begins with; None for a decoder alone, which goes on with its input."""
        return None

    def _target_sizes(self, features: Features, examples: np.ndarray) -> np.ndarray:
        """Return the tokens of examples' targets, without special ones."""
        raise NotImplementedError

    def _sources(self, features: Features, indices: np.ndarray, tokenizer: Any) -> Iterator[np.ndarray]:
        """Yield the tokens of examples' sources, without special ones and what is put around them."""
        raise NotImplementedError

    def _prepared(self, rows: Sequence[Row]) -> tuple[list[str], list[str]]:
        """Return the sources and the targets of rows, prepared by Moses if configured."""
        prepare = moses.column_preparation(self.moses, self.languages)
        sources, targets = (
            prepare.get(name, list)([row[name] or "" for row in rows]) for name in ("source", "target")
        )
        return sources, targets

    def _readable(self, texts: list[str]) -> list[str]:
        """Return texts of tokens as they are scored and shown."""
        return moses.restored(texts, self.moses, self.languages.rpartition("-")[2])

    def metrics(
        self, predictions: Sequence[Any], features: Features, indices: np.ndarray
    ) -> dict[str, float]:
        """Return ROUGE-1, -2 and -L (mean F-measures, 0 to 1) and corpus BLEU (0 to 100)."""
        references = _texts(features, indices)
        means = scorers.rouge(predictions, references).sum(0) / max(1, len(indices))
        bleu = scorers.bleu(scorers.bleu_counts(predictions, references).sum(0))
        return dict(zip(scorers.ROUGE, means.tolist(), strict=True)) | {"bleu": float(bleu)}

    def truths(self, features: Features, indices: np.ndarray) -> list[list[str]]:
        """Return the texts that each is scored against."""
        return _texts(features, indices)

    def statistics(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
        """Return each example's ROUGE-L and a count of 1; or its counts for BLEU."""
        references = _texts(features, indices)
        if self.scorer == "bleu":
            return scorers.bleu_counts(predictions, references)
        scores = scorers.rouge(predictions, references)[:, scorers.ROUGE.index("rouge_l")]
        return np.stack([scores, np.ones(len(scores))], axis=1)

    def score(self, sums: np.ndarray) -> np.ndarray:
        """Return the mean ROUGE-L, or corpus BLEU."""
        return scorers.bleu(sums) if self.scorer == "bleu" else ratio(sums[..., 0], sums[..., 1])

    @property
    def num_sums(self) -> int:
        """The number of texts, the sums of ROUGE, and the counts of BLEU."""
        return 1 + len(scorers.ROUGE) + scorers.BLEU_COUNTS

    def sums(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> list[int]:
        """Return the number of texts, the sums of ROUGE-1, -2 and -L in steps, and the counts that BLEU sums."""
        references = _texts(features, indices)
        rouge, counts = scorers.rouge(predictions, references), scorers.bleu_counts(predictions, references)
        means = [total_steps(column) for column in rouge.T]
        return [len(indices), *means, *(int(count) for count in counts.sum(0))]

    def metrics_of_sums(self, sums: Sequence[int]) -> dict[str, float]:
        """Return ROUGE and corpus BLEU from their sums."""
        texts, means, counts = sums[0], sums[1 : 1 + len(scorers.ROUGE)], sums[1 + len(scorers.ROUGE) :]
        scores = [quotient(fraction(total), texts) for total in means]
        bleu = scorers.bleu(np.clip(np.array(counts, np.float64), 0, 2.0**53))
        return dict(zip(scorers.ROUGE, scores, strict=True)) | {"bleu": float(bleu)}

    def baseline(
        self, train: Features, examples: np.ndarray, test: Features, indices: np.ndarray
    ) -> tuple[str, list[Any]]:
        """Predict the beginning of the source, as long as targets are on average."""
        tokenizer = cached_tokenizer(self.tokenizer)
        length = max(1, round(float(self._target_sizes(train, examples).mean())))
        words = [source[:length].tolist() for source in self._sources(test, indices, tokenizer)]
        return "the beginning of the source", self._readable(decode_texts(tokenizer, words))

    def format_prediction(self, prediction: Any) -> str:
        """Return the text."""
        return str(prediction)


def generate_ids(model: nn.Module, batch: Batch, options: Any) -> Tensor:
    """Return what a model generates, (batch, longest), by greedy or beam search, without sampling.

    A function of the weights and these arguments: the defaults that a checkpoint brings are not used, so
    that a model loaded from it and one built from its configuration generate the same.

    Args:
        model: An encoder-decoder, or a decoder alone.
        batch: ``input_ids`` and ``attention_mask``; of a decoder alone, padded on the left.
        options: From :meth:`Generation.generation`. Neither the input that a decoder alone goes on with, nor the token
            that an encoder-decoder's decoder begins with is part of the result.
    """
    from transformers import GenerationConfig

    owners: list[Any] = [part for part in model.modules() if "generation_config" in vars(part)]
    own = [part.generation_config for part in owners]
    generate: Any = model.generate
    try:
        for part in owners:  # its defaults would fill in all that is not given here
            part.generation_config = GenerationConfig()
        made: Tensor = generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], generation_config=options
        )
    finally:
        for part, before in zip(owners, own, strict=True):
            part.generation_config = before
    return made[:, batch["input_ids"].shape[1] if options.decoder_start_token_id is None else 1 :]


@functools.cache
def cached_tokenizer(source: str) -> Any:
    """Load the tokenizer of sources, once a process."""
    from fednlp.models.pretrained import load_tokenizer

    return load_tokenizer(source)


def decode_texts(tokenizer: Any, ids: Any) -> list[str]:
    """Return token ids as texts, without special tokens and the blanks around."""
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    return [text.strip() for text in tokenizer.batch_decode(ids, **options)]


def references_of(row: Row) -> str:
    """Return the texts that a row is scored against, as JSON: its references, or else its target.

    Raises:
        DataError: They are no JSON list of texts.
    """
    text, target = row.get("references"), [row["target"] or ""]
    if not text or not text.strip():
        return json.dumps(target)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise DataError(
            f'references: write a JSON list of texts, e.g. ["a summary", "another"], not {text[:60]!r}'
        )
    return json.dumps(found or target)


def _texts(features: Features, indices: np.ndarray) -> list[list[str]]:
    return [json.loads(features.text("references", index)) for index in indices.tolist()]
