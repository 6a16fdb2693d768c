"""Preferences: a decoder learns which of two answers to prefer, by direct preference optimisation (DPO).

With the log-likelihoods log p of the answers to a prompt x, and those of the model that the run began with, log r:

    margin = beta ((log p(chosen | x) - log r(chosen | x)) - (log p(rejected | x) - log r(rejected | x)))
    loss = -(1 - s) log sigmoid(margin) - s log sigmoid(-margin)

Source: R. Rafailov et al., 2023, arXiv 2305.18290, equation 7; s, the label smoothing of "conservative" DPO, is the
share of pairs that are taken to be the wrong way round (E. Mitchell, 2023, "A note on DPO with noisy preferences").
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fednlp.data.features import Features
from fednlp.tasks.base import Batch, Predictions, Row
from fednlp.tasks.chat import Chat, first_learnt, shortened
from fednlp.tasks.inputs import ratio, to_device
from fednlp.tasks.whole_sums import fraction, quotient, total_steps

_REFERENCE = ("reference_chosen", "reference_rejected")
_WORST = -700.0
"""Nats a token; a model that has diverged has no less."""


@dataclass(frozen=True)
class Preference(Chat):
    """Direct preference optimisation over pairs of answers to one prompt, in the words of the chat template.

    An answer's log-likelihood is summed over its tokens and the token that ends it. A prompt that is too long loses its
    beginning, the same in both sides; an answer that is too long by itself its end (:meth:`cuts`). The loss is
    the mean over the pairs of a batch.

    A prediction is ``[preferred, margin, chosen, tokens of chosen, rejected, tokens of rejected]``: 1 where the
    margin is above 0, 1/2 where it is 0, and log-likelihoods in nats.

    Args:
        beta: How strongly the model is held at the one that the run began with; above 0.
        label_smoothing: The share s of wrong pairs, at least 0 and below 1/2.
    """

    beta: float = 0.1
    label_smoothing: float = 0.0
    name: str = "preference"
    metric: str = "preference_accuracy"

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return each pair's ``input_ids``, the chosen side before the rejected one, of how many tokens it is
        (``chosen``), which tokens are of answers (``learnt``, 1 or 0), and what is cut off, as of a conversation.
        """
        encoded = []
        for row in rows:
            given = prompt = json.loads(row["messages"] or "[]")
            whole = sides = self._sides(prompt, row, tokenizer)
            if _longest(sides) > max_length:
                prompt = shortened(prompt, max_length, partial(self._length, row, tokenizer))
                sides = self._sides(prompt, row, tokenizer)
            # A token of the prompt is read before the answer.
            firsts = [first_learnt(learnt, tokenizer) for _, learnt in sides]
            begin = max(0, min(_longest(sides) - max_length, min(firsts) - 1))
            kept = [(ids[begin:][:max_length], learnt[begin:][:max_length]) for ids, learnt in sides]
            encoded.append(
                {
                    "input_ids": [token for ids, _ in kept for token in ids],
                    "learnt": np.concatenate([learnt for _, learnt in kept]).astype(int).tolist(),
                    "chosen": len(kept[0][0]),
                    "cut_exchanges": (len(given) - len(prompt)) // 2,
                    "cut_prompt": begin,
                    "cut_answer": _answers(sides) - _answers(kept),
                    "cut_tokens": _longest(whole) - _longest(kept),
                }
            )
        return encoded

    def _length(self, row: Row, tokenizer: Any, prompt: list[dict[str, str]]) -> int:
        return _longest(self._sides(prompt, row, tokenizer))

    def _sides(
        self, prompt: list[dict[str, str]], row: Row, tokenizer: Any
    ) -> list[tuple[list[int], np.ndarray]]:
        answers = [{"role": "assistant", "content": row[side] or ""} for side in ("chosen", "rejected")]
        return [self.tokens([*prompt, answer], tokenizer, len(prompt)) for answer in answers]

    def input_lengths(self, features: Features) -> np.ndarray:
        """Return the tokens of the longer side of each pair."""
        chosen = features.values("chosen")
        longer: np.ndarray = np.maximum(chosen, features.all_lengths - chosen)
        return longer

    def whole_lengths(self, features: Features) -> np.ndarray:
        """Return the same before anything was cut off."""
        whole: np.ndarray = self.input_lengths(features) + features.values("cut_tokens")
        return whole

    def cuts(self, features: Features, indices: np.ndarray) -> dict[str, int]:
        """Return how many pairs lose what, in words."""
        return super().cuts(features, indices)

    def collate(
        self, features: Features, indices: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Return a batch of pairs: the rows of all chosen sides, then those of all rejected ones.

        ``reference`` (pairs) is the reference's log r(chosen) - log r(rejected), where the features have it; then come
        ``input_ids``, ``attention_mask`` (2 pairs, longest), ``places`` and ``targets``, the answers' tokens.
        """
        chosen = features.values("chosen")[indices].tolist()
        rows = [
            [features.ragged(column, number)[side] for column in ("input_ids", "learnt")]
            for side_of in (lambda length: slice(length), lambda length: slice(length, None))
            for number, side in zip(indices.tolist(), map(side_of, chosen), strict=True)
        ]
        shape = len(rows), max((len(ids) for ids, _ in rows), default=0)
        ids, mask, learnt = (np.full(shape, filler, np.int64) for filler in (self.padding, 0, 0))
        for row, (tokens, marks) in enumerate(rows):
            ids[row, : len(tokens)], learnt[row, : len(tokens)] = tokens, marks
            mask[row, : len(tokens)] = 1
        learnt[:, :1] = 0  # nothing stands before the first token
        flat = np.flatnonzero(learnt)
        batch = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            # Each token is predicted from the place before it.
            "places": torch.from_numpy(flat - 1),
            "targets": torch.from_numpy(ids.reshape(-1)[flat]),
        }
        if all(name in features.arrays for name in _REFERENCE):
            one, other = (features.values(name)[indices] for name in _REFERENCE)
            batch = {"reference": torch.from_numpy(one - other), **batch}
        return to_device(batch, device)

    def _log_likelihoods(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return log p of the answers, float64 (2, pairs): chosen, rejected.

        Long texts make more rows than fit at once; then each piece is computed again on the way back, as in
        :meth:`fednlp.tasks.language_modeling.LanguageModeling.loss`.
        """
        parts = self._pieces({name: tensor for name, tensor in batch.items() if name != "reference"})
        if len(parts) == 1 or not torch.is_grad_enabled():
            sums = [self._sums_of_rows(model, part) for part in parts]
        else:
            sums = [checkpoint(self._sums_of_rows, model, part, use_reentrant=False) for part in parts]
        return torch.cat(sums).view(2, -1)

    def _sums_of_rows(self, model: nn.Module, part: Batch) -> Tensor:
        losses = F.cross_entropy(self._logits(model, part), part["targets"], reduction="none").double()
        rows, width = part["input_ids"].shape
        return -losses.new_zeros(rows * width).index_copy(0, part["places"], losses).view(rows, width).sum(1)

    def losses(self, margins: Tensor) -> Tensor:
        """Return the loss of each margin."""
        share = self.label_smoothing
        return -(1 - share) * F.logsigmoid(margins) - share * F.logsigmoid(-margins)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a pair."""
        chosen, rejected = self._log_likelihoods(model, batch)
        return self.losses(self.beta * (chosen - rejected - batch["reference"])).mean().float()

    def reference(
        self, model: nn.Module, features: Features, number: int, device: torch.device
    ) -> Mapping[str, float]:
        """Return log r of both answers of a pair, in nats, by a model in evaluation mode."""
        found = self._log_likelihoods(model, self.collate(features, np.array([number]), device))
        return dict(zip(_REFERENCE, found.flatten().tolist(), strict=True))

    def predict(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> Predictions:
        """Return ``[preferred, margin, chosen, tokens, rejected, tokens]`` of each pair."""
        batch = self.collate(features, indices, device)
        found = self._log_likelihoods(model, batch).cpu().numpy()
        tokens = self._answer_lengths(features, indices)
        found = np.maximum(np.where(np.isfinite(found), found, _WORST * tokens), _WORST * tokens)
        margins = self.beta * (found[0] - found[1] - batch["reference"].cpu().numpy())
        columns = (_preferred(margins), margins, found[0], tokens[0], found[1], tokens[1])
        losses = self.losses(torch.from_numpy(margins))
        return Predictions(
            indices.tolist(), np.stack(columns, axis=1).tolist(), float(losses.sum()), len(indices)
        )

    def _answer_lengths(self, features: Features, indices: np.ndarray) -> np.ndarray:
        """Return the tokens of both answers of pairs, float64 (2, pairs)."""
        chosen, found = features.values("chosen"), np.zeros((2, len(indices)))
        for place, number in enumerate(indices.tolist()):
            learnt, length = features.ragged("learnt", number), int(chosen[number])
            found[:, place] = learnt[1:length].sum(), learnt[length + 1 :].sum()
        return found

    def metrics(
        self, predictions: Sequence[Any], features: Features, indices: np.ndarray
    ) -> dict[str, float]:
        """Return the share of pairs whose chosen answer is preferred, the mean margin, and log p of a token of each."""
        right, margin, chosen, length, rejected, other = _columns(predictions).sum(0)
        return {
            "preference_accuracy": float(ratio(right, len(indices))),
            "reward_margin": float(ratio(margin, len(indices))),
            "chosen_log_likelihood": float(ratio(chosen, length)),
            "rejected_log_likelihood": float(ratio(rejected, other)),
        }

    @property
    def num_sums(self) -> int:
        """Pairs, half ones preferred, margins, and of each side log p and tokens."""
        return 7

    def sums(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> list[int]:
        """Return these, with fractions in steps."""
        right, margins, chosen, length, rejected, other = _columns(predictions).T
        return [
            len(indices),
            int((2 * right).sum()),
            total_steps(margins),
            total_steps(chosen),
            int(length.sum()),
            total_steps(rejected),
            int(other.sum()),
        ]

    def metrics_of_sums(self, sums: Sequence[int]) -> dict[str, float]:
        """Return the metrics from their sums."""
        pairs, right, margin, chosen, length, rejected, other = sums
        return {
            "preference_accuracy": quotient(right, 2 * pairs),
            "reward_margin": quotient(fraction(margin), pairs),
            "chosen_log_likelihood": quotient(fraction(chosen), length),
            "rejected_log_likelihood": quotient(fraction(rejected), other),
        }

    def statistics(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
        """Return whether the chosen answer of each pair is preferred, and a count of 1."""
        right = _columns(predictions)[:, 0]
        return np.stack([right, np.ones(len(right))], axis=1)

    def score(self, sums: np.ndarray) -> np.ndarray:
        """Return the share of pairs whose chosen answer is preferred."""
        return ratio(sums[..., 0], sums[..., 1])

    def baseline(
        self, train: Features, examples: np.ndarray, test: Features, indices: np.ndarray
    ) -> tuple[str, list[Any]]:
        """Prefer the longer answer, or the shorter one: whichever is right more often in training.

        The reference itself has a margin of 0 everywhere: it prefers none.
        """
        longer, tested = (
            np.subtract(*self._answer_lengths(features, numbers))
            for features, numbers in ((train, examples), (test, indices))
        )
        sign = 1 if _preferred(longer).sum() * 2 >= len(examples) else -1
        unknown = [float("nan")] * 5
        found = [[one, *unknown] for one in _preferred(sign * tested).tolist()]
        return f"the {'longer' if sign > 0 else 'shorter'} answer, as in training", found

    def format_prediction(self, prediction: Any) -> float:
        """Return the margin."""
        return float(prediction[1])


def _columns(predictions: Sequence[Any]) -> np.ndarray:
    return np.asarray(predictions, np.float64).reshape(-1, 6)


def _preferred(margins: np.ndarray) -> np.ndarray:
    found: np.ndarray = (np.sign(margins) + 1) / 2
    return found


def _longest(sides: Sequence[tuple[list[int], np.ndarray]]) -> int:
    return max(len(ids) for ids, _ in sides)


def _answers(sides: Sequence[tuple[list[int], np.ndarray]]) -> int:
    """Return the tokens of the answers."""
    return sum(int(learnt.sum()) for _, learnt in sides)
