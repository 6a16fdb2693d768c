"""Extractive question answering: a context and a question, the answer is a span of the context's characters.

A context that is too long is read in windows that overlap. All windows of an example lie end to end in its
features; ``collate`` makes each a row of the batch.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fednlp.data.features import Features
from fednlp.errors import ConfigError
from fednlp.tasks.base import Batch, Predictions, Row
from fednlp.tasks.inputs import model_inputs, padding_of, ratio, to_device
from fednlp.tasks.qa_windows import QALayout, Span, TokenisedText, qa_layout, tokenised, window_begins
from fednlp.tasks.whole_sums import fraction, quotient, total_steps

_ROWS_AT_ONCE = 64
_MOST_IN_TRAINING = 4
"""Windows of an example in a training batch."""
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True)
class QuestionAnswering:
    """Two logits a token, for an answer's first and last token; as in SQuAD 1.1, every question has an answer.

    Args:
        doc_stride: Tokens that a window shares with the next; at most half of the window's context.
        max_answer_length: Tokens of the longest answer that is predicted.
    """

    padding: int = 0
    doc_stride: int = 128
    max_answer_length: int = 30
    name: str = "question-answering"
    metric: str = "f1"
    model_class: str = "AutoModelForQuestionAnswering"
    uses_only_input_ids: bool = True

    @classmethod
    def build(cls, labels: Sequence[str], tokenizer: Any, **options: Any) -> Self:
        """Make the task; it has no labels.

        Raises:
            ConfigError: An option is out of its range.
        """
        for key, least in (("doc_stride", 0), ("max_answer_length", 1)):
            if options.get(key, least) < least:
                raise ConfigError(f"[task] {key} = {options[key]}: type a whole number of at least {least}")
        return cls(padding_of(tokenizer), **options)

    def settings(self) -> dict[str, Any]:
        """Return the head's two outputs, and the padding."""
        return {"pad_token_id": self.padding, "num_labels": 2}

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return each example's windows, end to end, and what leads back to characters.

        ``char_starts`` and ``char_ends`` are each token's characters in ``context``, -1 for tokens that are not
        of it; ``windows`` the windows' lengths; ``firsts`` and ``lasts`` the answer's first and last token in
        each window, and ``holds`` whether the answer lies wholly in it: if not, both are the null position.
        ``extra`` is 1 where the last window is for training only: it holds an answer that no other window does.

        Raises:
            ConfigError: ``max_length`` leaves no room for any context.
        """
        rows = list(rows)
        if not rows:
            return []
        layout = qa_layout(tokenizer, self.padding)
        if max_length <= layout.special:
            least = layout.special + 1
            raise ConfigError(
                f"[model] max_length = {max_length} leaves no room for a context: type at least {least}"
            )
        texts = list(dict.fromkeys(row["context"] or "" for row in rows))
        contexts = dict(zip(texts, tokenised(tokenizer, texts), strict=True))
        questions = tokenised(tokenizer, [(row["question"] or "").strip() for row in rows])
        most = (max_length - layout.special) // 2
        return [
            self._example(row, question.ids[:most], contexts[row["context"] or ""], layout, max_length)
            for row, question in zip(rows, questions, strict=True)
        ]

    def _example(
        self, row: Row, question: list[int], context: TokenisedText, layout: QALayout, max_length: int
    ) -> dict[str, Any]:
        room = max_length - layout.special - len(question)
        golds = json.loads(row["answers"] or "[]")
        answer = _answer(context, golds, room)
        begins = window_begins(len(context.ids), room, min(self.doc_stride, room // 2))
        extra = answer is not None and not any(_holds(begin, room, answer) for begin in begins)
        if answer is not None and extra:
            middle = (answer[0] + answer[1] + 1 - room) // 2
            begins.append(min(max(middle, 0), len(context.ids) - room))
        windows = [layout.window(question, context, begin, room) for begin in begins]
        targets = []
        for begin, window in zip(begins, windows, strict=True):
            if answer is not None and _holds(begin, room, answer):
                shift = layout.first(question) - begin
                targets.append((answer[0] + shift, answer[1] + shift, 1))
            else:
                targets.append((layout.null_position(window), layout.null_position(window), 0))
        kinds = {"token_type_ids": [kind for w in windows for kind in w.kinds]} if layout.typed else {}
        return kinds | {
            "input_ids": [token for w in windows for token in w.ids],
            "char_starts": [start for w in windows for start, _ in w.characters],
            "char_ends": [end for w in windows for _, end in w.characters],
            "windows": [len(w.ids) for w in windows],
            "firsts": [first for first, _, _ in targets],
            "lasts": [last for _, last, _ in targets],
            "holds": [held for _, _, held in targets],
            "extra": int(extra),
            "context": row["context"] or "",
            "golds": json.dumps([gold["text"] for gold in golds]),
        }

    def collate(
        self, features: Features, indices: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Return ``input_ids`` and ``attention_mask`` (windows, longest), ``firsts`` and ``lasts`` (windows), int64.

        In training an example brings four windows at most: those that hold its answer come first, and the
        others are drawn. Otherwise it brings all of them.
        """
        chosen = [_windows_of(features, index, training=training) for index in indices.tolist()]
        return self._batch(features, np.concatenate(chosen, axis=1), device)

    def _batch(self, features: Features, windows: np.ndarray, device: torch.device) -> Batch:
        """Return the batch of some windows, of :func:`_windows_of`, a column each."""
        made = {
            "input_ids": _values_in(features.arrays["input_ids"], windows, self.padding),
            "attention_mask": (np.arange(windows[1].max(initial=0)) < windows[1][:, None]).astype(np.int64),
            "firsts": windows[2],
            "lasts": windows[3],
        }
        if "token_type_ids" in features.arrays:
            made["token_type_ids"] = _values_in(features.arrays["token_type_ids"], windows, 0)
        return to_device({name: torch.from_numpy(array) for name, array in made.items()}, device)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean over the windows of the cross-entropies of first and last token, halved."""
        first, last = _logits(model, batch)
        return (F.cross_entropy(first, batch["firsts"]) + F.cross_entropy(last, batch["lasts"])) / 2

    def predict(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> Predictions:
        """Return each answer as text: the span with the largest sum of two logits, over all windows."""
        pieces = [_windows_of(features, index, training=False) for index in indices.tolist()]
        owners = np.repeat(np.arange(len(pieces)), [piece.shape[1] for piece in pieces])
        windows = np.concatenate(pieces, axis=1)
        best: list[tuple[float, str]] = [(-np.inf, "")] * len(pieces)
        loss = 0.0
        for at in range(0, len(owners), _ROWS_AT_ONCE):
            part = windows[:, at : at + _ROWS_AT_ONCE]
            batch = self._batch(features, part, device)
            logits = _logits(model, batch)
            for tensor, target in zip(logits, ("firsts", "lasts"), strict=True):
                loss += float(F.cross_entropy(tensor, batch[target], reduction="sum")) / 2
            allowed = torch.from_numpy(_values_in(features.arrays["char_starts"], part, -1) >= 0).to(device)
            found = zip(*best_spans(*logits, allowed, self.max_answer_length), strict=True)
            for owner, begin, (score, first, last) in zip(
                owners[at:].tolist(), part[0].tolist(), found, strict=False
            ):
                if score > best[owner][0]:
                    start = features.arrays["char_starts"][begin + first]
                    end = features.arrays["char_ends"][begin + last]
                    best[owner] = score, features.text("context", int(indices[owner]))[start:end]
        return Predictions(indices.tolist(), [text for _, text in best], loss, len(owners))

    def metrics(
        self, predictions: Sequence[Any], features: Features, indices: np.ndarray
    ) -> dict[str, float]:
        """Return exact match and F1 by the rules of SQuAD v1.1, in [0, 1] (:func:`best_scores`)."""
        exact, f1 = _scores(predictions, features, indices).sum(0)
        return {
            "exact_match": float(ratio(exact, len(indices))),
            "f1": float(ratio(f1, len(indices))),
        }

    def statistics(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
        """Return each example's F1, the best over its gold answers, and a count of 1."""
        f1 = _scores(predictions, features, indices)[:, 1]
        return np.stack([f1, np.ones(len(indices))], axis=1)

    def score(self, sums: np.ndarray) -> np.ndarray:
        """Return the mean F1."""
        return ratio(sums[..., 0], sums[..., 1])

    def truths(self, features: Features, indices: np.ndarray) -> list[list[str]]:
        """Return the right answers to each question."""
        return [json.loads(features.text("golds", index)) for index in indices.tolist()]

    @property
    def num_sums(self) -> int:
        """The number of questions, and the sums of two scores."""
        return 3

    def sums(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> list[int]:
        """Return the number of questions, of exact matches, and the sum of F1 in steps."""
        exact, f1 = _scores(predictions, features, indices).T
        return [len(indices), int(exact.sum()), total_steps(f1)]

    def metrics_of_sums(self, sums: Sequence[int]) -> dict[str, float]:
        """Return exact match and F1 from their sums."""
        questions, exact, f1 = sums
        return {"exact_match": quotient(exact, questions), "f1": quotient(fraction(f1), questions)}

    def baseline(
        self, train: Features, examples: np.ndarray, test: Features, indices: np.ndarray
    ) -> tuple[str, list[Any]]:
        """Answer every question with the first sentence of its context, cut after 200 characters."""
        contexts = (test.text("context", index)[:200] for index in indices.tolist())
        return "the context's first sentence", [
            re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0] for text in contexts
        ]

    def format_prediction(self, prediction: Any) -> Any:
        """Return the answer."""
        return prediction


def _windows_of(features: Features, index: int, *, training: bool) -> np.ndarray:
    """Return the windows of an example, int64 (4, windows): where each begins, its length, first and last token.

    Args:
        index: The example's number.
        training: Whether four windows are enough: those that hold the answer, and others drawn. Otherwise all of them
            are returned but the one that is for training only.
    """
    lengths = features.ragged("windows", index).astype(np.int64)
    begins = features.offsets["input_ids"][index] + np.cumsum(lengths) - lengths
    targets = [features.ragged(name, index) for name in ("firsts", "lasts")]
    windows = np.stack([begins, lengths, *targets])
    if not training:
        return windows[:, : len(lengths) - int(features.values("extra")[index])]
    if len(lengths) <= _MOST_IN_TRAINING:
        return windows
    drawn = torch.randperm(len(lengths)).numpy()
    drawn = drawn[np.argsort(1 - features.ragged("holds", index)[drawn], kind="stable")]
    return windows[:, np.sort(drawn[:_MOST_IN_TRAINING])]


def _values_in(values: np.ndarray, windows: np.ndarray, padding: int) -> np.ndarray:
    """Return the values of some windows, int64 (windows, longest).

    Args:
        values: Of all tokens of a data set.
        windows: Of :func:`_windows_of`, a column each.
        padding: Stands behind the end of a window.
    """
    begins, lengths = windows[:2]
    gathered = np.full((len(begins), int(lengths.max(initial=0))), padding, np.int64)
    for row, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
        gathered[row, :length] = values[begin : begin + length]
    return gathered


def best_spans(
    first: Tensor, last: Tensor, allowed: Tensor, longest: int
) -> tuple[list[float], list[int], list[int]]:
    """Return the best span of each row: its score, first and last token.

    Args:
        first: Logits of the first token (rows, tokens).
        last: Logits of the last token (rows, tokens).
        allowed: Where an answer may begin and end (rows, tokens); a row without any scores -inf.
        longest: Tokens that a span has at most.
    """
    none = float("-inf")
    longest = min(longest, first.shape[1])
    lasts = F.pad(last.masked_fill(~allowed, none), (0, longest - 1), value=none).unfold(1, longest, 1)
    scores = (first.masked_fill(~allowed, none)[:, :, None] + lasts).flatten(1)
    scores = torch.nan_to_num(scores, nan=none, posinf=float("inf"), neginf=none)
    best, place = scores.max(1)
    begin = place // longest
    return best.tolist(), begin.tolist(), (begin + place % longest).tolist()


def _answer(context: TokenisedText, golds: Sequence[dict[str, Any]], room: int) -> Span | None:
    """Return the tokens of the first gold answer that fits in a window."""
    for gold in golds:
        found = context.tokens_of(gold["start"], gold["start"] + len(gold["text"]))
        if found is not None and found[1] - found[0] < room:
            return found
    return None


def _holds(begin: int, room: int, answer: Span) -> bool:
    return begin <= answer[0] and answer[1] < begin + room


def _logits(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the logits of first and last token; padding is no choice, so that it never matters."""
    output = model(**model_inputs(batch))
    padding = batch["attention_mask"] == 0
    first, last = (
        logits.float().masked_fill(padding, float("-inf"))
        for logits in (output.start_logits, output.end_logits)
    )
    return first, last


def _scores(predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
    golds = (json.loads(features.text("golds", index)) for index in indices.tolist())
    pairs = zip(predictions, golds, strict=True)
    return np.asarray([best_scores(prediction, gold) for prediction, gold in pairs], np.float64).reshape(
        -1, 2
    )


def normalised(text: str) -> str:
    """Return a text in lower case, without ASCII punctuation, English articles and superfluous white space.

    >>> normalised("The  Cat's (a) mat!")
    'cats mat'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """Return 1.0 where two answers are the same once normalised, else 0.0.

    >>> exact_match("the Denver Broncos.", "Denver Broncos")
    1.0
    """
    return float(normalised(prediction) == normalised(gold))


def token_f1(prediction: str, gold: str) -> float:
    """Return the F1 of two normalised answers as bags of words, in [0, 1].

    As in the official script of version 1.1, two answers that are both empty once normalised score 0.

    >>> token_f1("the Broncos of Denver", "Denver Broncos")
    0.8
    """
    words, truth = Counter(normalised(prediction).split()), Counter(normalised(gold).split())
    same = (words & truth).total()
    return 2 * same / (words.total() + truth.total()) if same else 0.0


def best_scores(prediction: str, golds: Sequence[str]) -> tuple[float, float]:
    """Return exact match and F1 of SQuAD v1.1, each the best over all gold answers; without any, both are 0.

    Rajpurkar et al. 2016, section 6.1, by the rules of the official script.
    """
    exact = max((exact_match(prediction, gold) for gold in golds), default=0.0)
    return exact, max((token_f1(prediction, gold) for gold in golds), default=0.0)
