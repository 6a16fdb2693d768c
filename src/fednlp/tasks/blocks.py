"""Helpers of tasks that predict tokens: blocks of long texts, logits at some positions, batches in pieces.

Such a batch holds ``places``, the positions whose logits are needed, counted through the batch row by row
(row * width + column), and ``labels``, the token that is right at each.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fednlp.tasks.base import Batch

MAX_ROWS = 64
"""Rows that a model reads at once in evaluation."""
MAX_LOGITS = 2**27
"""Logits (rows * width * vocabulary) that are made at once: half a gigabyte in float32."""


def split_into_rows(
    lengths: np.ndarray, sizes: np.ndarray, overlap: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut token lists that lie end to end into rows.

    Args:
        lengths: Tokens of each list, at least one.
        sizes: Tokens a row at most, for each list; more than ``overlap``.
        overlap: Tokens that a row repeats of the one before it.

    Returns:
        Of each row: where it starts, its tokens, and the list it comes from.

    >>> [part.tolist() for part in split_into_rows(np.array([5, 2]), np.array([3, 3]), overlap=1)]
    [[0, 2, 5], [3, 3, 2], [0, 0, 1]]
    """
    steps = sizes - overlap
    counts = np.maximum(1, -(-(lengths - overlap) // steps))
    owners = np.repeat(np.arange(len(lengths)), counts)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    ends = np.cumsum(lengths)
    starts = (ends - lengths)[owners] + within * steps[owners]
    return starts, np.minimum(sizes[owners], ends[owners] - starts), owners


def pad_rows(flat: np.ndarray, starts: np.ndarray, widths: np.ndarray, filler: int) -> np.ndarray:
    """Return rows of a flat array, int64 (rows, widest), filled up on the right.

    >>> pad_rows(np.array([7, 8, 9]), np.array([0, 2]), np.array([2, 1]), filler=0).tolist()
    [[7, 8], [9, 0]]
    """
    column = np.arange(int(widths.max(initial=0)))
    index = np.minimum(starts[:, None] + column, max(0, len(flat) - 1))
    rows: np.ndarray = np.where(column < widths[:, None], flat[index], filler).astype(np.int64)
    return rows


def logits_at(model: nn.Module, inputs: Mapping[str, Any], places: Tensor, shape: torch.Size) -> Tensor:
    """Return the logits at some positions only, (places, vocabulary).

    The last layer of a language model is its widest. Where it is a linear layer, as nearly everywhere, it is
    given these positions and no others; where it is not, all logits are made and these are picked.

    Args:
        model: With a head over the vocabulary.
        inputs: What it is called with.
        places: Positions, counted row by row.
        shape: Rows and width of the sequences whose tokens are predicted.
    """
    get = getattr(model, "get_output_embeddings", None)
    head = get() if callable(get) else None
    hook = None
    if isinstance(head, nn.Linear):

        def select(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            return (given[0].flatten(0, 1)[places],) if given and given[0].shape[:-1] == shape else None

        hook = head.register_forward_pre_hook(select)
    try:
        logits: Tensor = model(**inputs).logits
    finally:
        if hook is not None:
            hook.remove()
    return logits.flatten(0, 1)[places] if logits.dim() == 3 else logits


def split_batch(batch: Batch, vocabulary: int, width: int) -> Iterator[Batch]:
    """Cut a batch between rows, so that neither rows nor logits become too many at once.

    Args:
        batch: Tensors of two dimensions have a row a row; those of one have an entry a place.
        width: Columns that ``places`` counts in.
    """
    rows = len(batch["input_ids"])
    size = max(1, min(MAX_ROWS, MAX_LOGITS // max(1, width * vocabulary)))
    if rows <= size:
        yield batch
        return
    row_of_place = batch["places"] // width
    for start in range(0, rows, size):
        inside = (row_of_place >= start) & (row_of_place < start + size)
        piece = {
            name: tensor[start : start + size] if tensor.dim() == 2 else tensor[inside]
            for name, tensor in batch.items()
        }
        yield piece | {"places": piece["places"] - start * width}


def vocabulary_of(tokenizer: Any) -> int:
    """Return one more than the largest token id; ids may have gaps."""
    return max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=0))


def no_cache(model: nn.Module) -> dict[str, bool]:
    """Return the arguments that keep a decoder from storing keys and values, which are not read here."""
    return {"use_cache": False} if hasattr(getattr(model, "config", None), "use_cache") else {}
