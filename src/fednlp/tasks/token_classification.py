"""Sequence tagging: a sentence of words, one tag a word, scored by the spans that the tags mark."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fednlp.data.features import Features
from fednlp.errors import ConfigError, ModelError
from fednlp.tasks.base import Batch, Predictions, Row
from fednlp.tasks.inputs import class_settings, model_inputs, padded_inputs, padding_of, ratio, to_device
from fednlp.tasks.label_scores import LabelScores, span_scores
from fednlp.tasks.spans import counts
from fednlp.tasks.whole_sums import quotient

_IGNORED = -100
_OUTSIDE = "O"
_MARKS = "BIESLU"
_METRICS = ("f1", "accuracy")
_SCHEMES = ("default", "strict")


@dataclass(frozen=True)
class TokenClassification:
    """Token classification with cross-entropy; a word's tag is that of its first token.

    Args:
        labels: Tag names in the order of their ids, e.g. ``("B-LOC", "I-LOC", "O")``.
        scheme: ``"default"``: spans are read as conlleval and seqeval read them; ``"strict"``: as IOB2 to the
            letter, seqeval's ``mode="strict", scheme=IOB2`` (:func:`fednlp.tasks.spans.spans`).
        metric: ``"f1"`` of the spans, or ``"accuracy"``, the share of words with the right tag.
    """

    labels: tuple[str, ...]
    padding: int = 0
    scheme: str = "default"
    name: str = "token-classification"
    metric: str = "f1"
    model_class: str = "AutoModelForTokenClassification"
    uses_only_input_ids: bool = True

    @classmethod
    def build(cls, labels: Sequence[str], tokenizer: Any, **options: Any) -> Self:
        """Make the task for a data set's tags.

        Raises:
            ConfigError: No such scheme, or a metric that tags do not have.
        """
        scheme = options.get("scheme", "default")
        if scheme not in _SCHEMES:
            raise ConfigError(
                f'[task] scheme = "{scheme}": there is no such scheme; type "default" or "strict"'
            )
        metric = options.pop("metric", None) or ("f1" if marks_spans(labels) else "accuracy")
        if metric not in _METRICS:
            raise ConfigError(f'task.metric = "{metric}" is not for tags: type "f1" or "accuracy"')
        return cls(tuple(labels), padding_of(tokenizer), metric=metric, **options)

    def settings(self) -> dict[str, Any]:
        """Return the head's size and its tag names, and the padding."""
        return class_settings(self.labels, self.padding)

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return each sentence's tokens, where its words begin among them, and its tags.

        ``places`` is the position of each word's first token, -1 for a word without any: of characters that the
        tokenizer drops, or beyond ``max_length``. ``tags`` are ids, -1 for a tag that training has not seen.
        ``gold`` is the names of all tags, as JSON.

        Raises:
            ModelError: The tokenizer does not take text that is split into words.
        """
        rows = list(rows)
        if not rows:
            return []
        sentences: list[list[str]] = [json.loads(row["words"] or "[]") for row in rows]
        ids = {name: i for i, name in enumerate(self.labels)}
        made = []
        for row, words, encoding in zip(
            rows, sentences, _encodings(tokenizer, sentences, max_length), strict=True
        ):
            tags = json.loads(row["tags"] or "[]")
            made.append(
                {
                    "input_ids": encoding.ids or [self.padding],
                    "places": _first_tokens(encoding.word_ids, len(words)),
                    "tags": [ids.get(tag, -1) for tag in tags],
                    "gold": json.dumps(tags),
                }
            )
        return made

    def input_lengths(self, features: Features) -> np.ndarray:
        """Return the tokens of each text as it is read."""
        return features.all_lengths

    def collate(
        self, features: Features, indices: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Return ``input_ids``, ``attention_mask`` and ``labels`` (batch, longest), int64; -100 is no label."""
        batch = padded_inputs(features, indices, self.padding, device)
        labels = np.full(batch["input_ids"].shape, _IGNORED, np.int64)
        for row, index in enumerate(indices.tolist()):
            places, tags = features.ragged("places", index), features.ragged("tags", index)
            labelled = (places >= 0) & (tags >= 0)
            labels[row, places[labelled]] = tags[labelled]
        return batch | to_device({"labels": torch.from_numpy(labels)}, device)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy over the words that have a label; 0 where there is none."""
        total, words = _cross_entropy(_logits(model, batch), batch["labels"])
        return total / words.clamp(min=1)

    def predict(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> Predictions:
        """Return the likeliest tag of each word, as names; ``O`` for words that the model did not read."""
        batch = self.collate(features, indices, device)
        logits = _logits(model, batch)
        total, words = _cross_entropy(logits, batch["labels"])
        best = logits.argmax(-1).cpu().numpy()
        predictions = [
            [self.labels[best[row, place]] if place >= 0 else _OUTSIDE for place in places.tolist()]
            for row, places in enumerate(features.ragged("places", index) for index in indices.tolist())
        ]
        return Predictions(indices.tolist(), predictions, float(total), float(words))

    def metrics(
        self, predictions: Sequence[Any], features: Features, indices: np.ndarray
    ) -> dict[str, float]:
        """Return precision, recall and F1 of the spans (micro), and two shares of the words.

        ``accuracy`` is the share with the right tag, ``unread_words`` the share that the model did not read.
        """
        return self.metrics_of_sums(self.sums(predictions, features, indices))

    def truths(self, features: Features, indices: np.ndarray) -> list[list[str]]:
        """Return the tags of each text."""
        return _gold(features, indices)

    @property
    def num_sums(self) -> int:
        """Three counts of spans, three of words."""
        return 6

    def sums(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> list[int]:
        """Return how many spans are right, predicted and gold, and how many words right, unread and all."""
        found = [int(count) for count in self._spans(predictions, features, indices).sum(0)]
        pairs = zip(predictions, _gold(features, indices), strict=True)
        hits = sum(_hits(sentence, tags) for sentence, tags in pairs)
        unread = sum(int((features.ragged("places", index) < 0).sum()) for index in indices.tolist())
        words = sum(len(features.ragged("places", index)) for index in indices.tolist())
        return [*found, hits, unread, words]

    def metrics_of_sums(self, sums: Sequence[int]) -> dict[str, float]:
        """Return what :meth:`metrics` does, from counts."""
        right, predicted, gold, hits, unread, words = sums
        return {
            "precision": quotient(right, predicted),
            "recall": quotient(right, gold),
            "f1": quotient(2 * right, predicted + gold),
            "accuracy": quotient(hits, words),
            "unread_words": quotient(unread, words),
        }

    def by_label(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> LabelScores:
        """Return precision, recall, F1 and support of the spans of each type."""
        gold = _gold(features, indices)
        return span_scores(self.labels, gold, predictions, strict=self.scheme == "strict")

    def statistics(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
        """Return each sentence's number of right, predicted and gold spans; for accuracy, of right words and words."""
        if self.metric == "accuracy":
            pairs = list(zip(predictions, _gold(features, indices), strict=True))
            return np.array([[_hits(guess, tags), len(tags)] for guess, tags in pairs], np.float64).reshape(
                -1, 2
            )
        return self._spans(predictions, features, indices)

    def _spans(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
        strict = self.scheme == "strict"
        found = [
            counts(tags, sentence, strict=strict)
            for sentence, tags in zip(predictions, _gold(features, indices), strict=True)
        ]
        return np.asarray(found, np.float64).reshape(-1, 3)

    def score(self, sums: np.ndarray) -> np.ndarray:
        """Return F1, 2 right / (predicted + gold); or the share of right words."""
        if self.metric == "accuracy":
            return ratio(sums[..., 0], sums[..., 1])
        return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])

    def baseline(
        self, train: Features, examples: np.ndarray, test: Features, indices: np.ndarray
    ) -> tuple[str, list[Any]]:
        """Predict for each word the tag that words with the same first token have most often in training."""
        seen: dict[int, Counter[int]] = {}
        for token, tag in self._first_tokens_and_tags(train, examples):
            seen.setdefault(token, Counter())[tag] += 1
        usual = {token: self.labels[tags.most_common(1)[0][0]] for token, tags in seen.items()}
        predictions = []
        for index in indices.tolist():
            tokens, places = test.ragged("input_ids", index), test.ragged("places", index)
            predictions.append(
                [usual.get(int(tokens[place]), _OUTSIDE) if place >= 0 else _OUTSIDE for place in places]
            )
        return "each word's most frequent tag, by its first token", predictions

    def _first_tokens_and_tags(self, features: Features, indices: np.ndarray) -> Iterator[tuple[int, int]]:
        for index in indices.tolist():
            tokens, places = features.ragged("input_ids", index), features.ragged("places", index)
            tags = features.ragged("tags", index)
            labelled = (places >= 0) & (tags >= 0)
            yield from zip(tokens[places[labelled]].tolist(), tags[labelled].tolist(), strict=True)

    def format_prediction(self, prediction: Any) -> str:
        """Return the tags, one a word."""
        return " ".join(prediction)


def marks_spans(labels: Sequence[str]) -> bool:
    """Say whether tags mark spans: one is ``O``, or begins with the mark of a span and a dash.

    >>> marks_spans(["B-PER", "I-PER"]), marks_spans(["O", "PER"]), marks_spans(["DET", "NOUN", "VERB"])
    (True, True, False)
    """
    return any(label == _OUTSIDE or (label[:1] in _MARKS and label[1:2] == "-") for label in labels)


def _hits(guess: Sequence[str], tags: Sequence[str]) -> int:
    return sum(one == truth for one, truth in zip(guess, tags, strict=True))


def _gold(features: Features, indices: np.ndarray) -> list[list[str]]:
    return [json.loads(features.text("gold", index)) for index in indices.tolist()]


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    logits: Tensor = model(**model_inputs(batch)).logits.float()
    return logits


def _cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum over all labelled words, and how many they are."""
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=_IGNORED)
    return total, (labels != _IGNORED).sum()


def _first_tokens(word_of: Sequence[int | None], words: int) -> list[int]:
    """Return the position of each word's first token, -1 for words without a token."""
    places = [-1] * words
    for place, word in enumerate(word_of):
        if word is not None and places[word] < 0:
            places[word] = place
    return places


def _encodings(tokenizer: Any, sentences: list[list[str]], max_length: int) -> Sequence[Any]:
    """Tokenise words apart, so that each token belongs to one word, yet as they would be in running text."""

    def encode(split: list[list[str]]) -> Sequence[Any]:
        encoded = tokenizer(split, is_split_into_words=True, truncation=True, max_length=max_length)
        found: Sequence[Any] = encoded.encodings
        return found

    try:
        # Byte-level tokenizers (GPT-2, RoBERTa) count the space before a word as part of it.
        whole = tokenizer("a a", add_special_tokens=False)["input_ids"]
        apart, spaced = (
            tokenizer(words, is_split_into_words=True, add_special_tokens=False)["input_ids"]
            for words in (["a", "a"], ["a", " a"])
        )
        if apart != whole and spaced == whole:
            sentences = [[*words[:1], *(f" {word}" for word in words[1:])] for words in sentences]
        return encode(sentences)
    except (AssertionError, NotImplementedError, TypeError, ValueError) as error:
        raise ModelError(
            f"this model's tokenizer does not take text that is split into words ({error}): put "
            '"add_prefix_space": true into its tokenizer_config.json, or choose another model'
        ) from None
