"""Shared by tasks that generate a text: the references, the scores, and a baseline."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np

from fednlp.data.features import Features
from fednlp.errors import ConfigError, DataError
from fednlp.tasks import moses, scorers
from fednlp.tasks.base import Row
from fednlp.tasks.inputs import ratio
from fednlp.tasks.target_tokenizers import cached_tokenizer, decode_texts
from fednlp.tasks.whole_sums import fraction, quotient, total_steps


class GenerationMetrics:
    """Scores texts against an example's ``references``; a subclass generates them."""

    tokenizer: str
    end: int | None
    max_target_length: int
    num_beams: int
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
