"""Batches of windows: which windows of an example are read, and the tokens of each as a row."""

import numpy as np
import torch

from fednlp.data.features import Features
from fednlp.tasks.base import Batch

_MOST_IN_TRAINING = 4
"""Windows of an example in a training batch."""


def windows_of(features: Features, index: int, *, training: bool) -> np.ndarray:
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


def values_in(values: np.ndarray, windows: np.ndarray, padding: int) -> np.ndarray:
    """Return the values of some windows, int64 (windows, longest).

    Args:
        values: Of all tokens of a data set.
        windows: Of :func:`windows_of`, a column each.
        padding: Stands behind the end of a window.
    """
    begins, lengths = windows[:2]
    gathered = np.full((len(begins), int(lengths.max(initial=0))), padding, np.int64)
    for row, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
        gathered[row, :length] = values[begin : begin + length]
    return gathered


def batch_of(features: Features, windows: np.ndarray, padding: int) -> Batch:
    """Return the batch of some windows, on the CPU: ``input_ids``, ``attention_mask``, ``firsts`` and ``lasts``.

    Args:
        windows: Of :func:`windows_of`, a column each.
    """
    made = {
        "input_ids": values_in(features.arrays["input_ids"], windows, padding),
        "attention_mask": (np.arange(windows[1].max(initial=0)) < windows[1][:, None]).astype(np.int64),
        "firsts": windows[2],
        "lasts": windows[3],
    }
    if "token_type_ids" in features.arrays:
        made["token_type_ids"] = values_in(features.arrays["token_type_ids"], windows, 0)
    return {name: torch.from_numpy(array) for name, array in made.items()}
