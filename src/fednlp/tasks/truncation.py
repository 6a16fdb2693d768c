"""The part of the texts that a model does not read because they are too long."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np

from fednlp.data.features import Features, row_batches
from fednlp.data.textdata import Split, TextData
from fednlp.disk import atomic
from fednlp.errors import RunError
from fednlp.tasks.base import Task
from fednlp.tasks.label_scores import defined_together

_SAMPLE = 256
_NO_LIMIT = 1 << 30


class Truncating(Task, Protocol):
    """A task that cuts an input at its end; others read all of it, in windows or blocks."""

    def input_lengths(self, features: Features) -> np.ndarray:
        """Return the tokens of each example's input, without those that are to be written behind it."""


def truncates(task: Task) -> TypeGuard[Truncating]:
    """Return whether a task says what it reads of an input that is too long."""
    return hasattr(task, "input_lengths")


@dataclass(frozen=True)
class Truncation:
    """Counts of what is cut off.

    Attributes:
        texts: Examples that are cut; estimated where more than 256 of them fill the model.
        tokens: Tokens that are cut off, estimated likewise.
        of_texts: All examples.
        of_tokens: All tokens, with those that are cut off.
    """

    texts: float = 0.0
    tokens: float = 0.0
    of_texts: int = 0
    of_tokens: float = 0.0

    def __add__(self, other: "Truncation") -> "Truncation":
        return Truncation(
            self.texts + other.texts,
            self.tokens + other.tokens,
            self.of_texts + other.of_texts,
            self.of_tokens + other.of_tokens,
        )


def truncation(
    data: TextData, split: Split, indices: np.ndarray, features: Features, task: Truncating, tokenizer: Any
) -> Truncation:
    """Return what is cut off of some examples.

    Where the task says how long each was, that is exact. Else only texts as long as the longest can have been cut; of
    these at most 256, evenly spaced, are tokenised again without a limit. Their lengths are kept in the folder of the
    features.

    Args:
        split: Which table.
        indices: Its examples, by number.
        features: Of the table, as ``task.encode`` made them.
        task: One that cuts inputs (:func:`truncates`).
    """
    if not len(indices):
        return Truncation()
    lengths = task.input_lengths(features)[indices]
    if defined_together(task, "whole_lengths", "encode"):
        missing = task.whole_lengths(features)[indices] - lengths  # type: ignore[attr-defined]
        cut, tokens = float((missing > 0).sum()), float(missing.sum())
        return Truncation(cut, tokens, len(indices), float(lengths.sum()) + tokens)
    longest = indices[lengths == lengths.max()]
    sample = longest[np.unique(np.linspace(0, len(longest) - 1, _SAMPLE).astype(np.int64))]

    def whole_lengths() -> np.ndarray:
        table = (data.train if split == "train" else data.test).take(sample)
        rows = [row for batch in row_batches(table, data.columns_in(split)) for row in batch]
        return task.input_lengths(Features.in_memory(task.encode(rows, tokenizer, _NO_LIMIT)))

    whole = _kept(features.folder, sample, whole_lengths)
    missing = np.maximum(whole - lengths.max(), 0)
    scale = len(longest) / len(sample)
    cut, tokens = float((missing > 0).sum() * scale), float(missing.sum() * scale)
    return Truncation(cut, tokens, len(indices), float(lengths.sum()) + tokens)


def _kept(folder: Path | None, sample: np.ndarray, count: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the lengths of a sample from a file of the folder, which is written if it is not there."""
    if folder is None:
        return count()
    file = folder / f"whole-{hashlib.sha256(sample.tobytes()).hexdigest()[:16]}.bin"
    with suppress(OSError):
        content = file.read_bytes()
        if len(content) == sample.nbytes:
            return np.frombuffer(content, np.int64)
    lengths = np.asarray(count(), np.int64)
    with suppress(RunError), atomic(file) as opened:  # without room for it, it is counted again the next time
        opened.write(lengths.tobytes())
    return lengths
