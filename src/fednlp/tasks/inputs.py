"""Helpers of tasks that read one text or a pair of texts: encoding it, and making a padded batch of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fednlp.data.features import Features
from fednlp.tasks.base import Batch, Row


def encode_texts(
    rows: Sequence[Row], tokenizer: Any, max_length: int, padding: int
) -> list[dict[str, list[int]]]:
    """Return ``input_ids`` of each row's ``text``, with its ``text_pair`` where the rows have one.

    A text that is too long is cut at its end; of a pair, the longer is cut. An empty text becomes one padding
    token, so that no example is without any. ``token_type_ids`` come with pairs, where the model knows them.
    """
    texts = [row["text"] or "" for row in rows]
    pairs = [row["text_pair"] or "" for row in rows] if rows and "text_pair" in rows[0] else None
    encoded = tokenizer(texts, pairs, truncation=True, max_length=max_length, return_attention_mask=False)
    kinds = encoded.get("token_type_ids") if pairs is not None else None
    if kinds is None:
        return [{"input_ids": tokens or [padding]} for tokens in encoded["input_ids"]]
    return [
        {"input_ids": tokens or [padding], "token_type_ids": kind or [0]}
        for tokens, kind in zip(encoded["input_ids"], kinds, strict=True)
    ]


def padded_inputs(features: Features, indices: np.ndarray, padding: int, device: torch.device) -> Batch:
    """Return ``input_ids`` and ``attention_mask`` (batch, longest), int64, and ``token_type_ids`` if there are any."""
    ids, mask = features.padded("input_ids", indices, padding)
    batch = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
    if "token_type_ids" in features.offsets:
        batch["token_type_ids"] = torch.from_numpy(features.padded("token_type_ids", indices, 0)[0])
    return to_device(batch, device)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch on a device; on its way to a GPU it lies in pinned memory, so that nothing waits for the copy."""
    if device.type == "cuda":
        batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def model_inputs(batch: Batch) -> dict[str, Tensor]:
    """Return the part of a batch that a model takes: tokens, mask and token types."""
    return {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch}


def padding_of(tokenizer: Any) -> int:
    """Return the token id to pad with; a tokenizer of a decoder may have none of its own."""
    for number in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if number is not None:
            return int(number)
    return 0


def ratio(part: np.ndarray | float, whole: np.ndarray | float) -> np.ndarray:
    """Return part / whole, and 0 where there is nothing."""
    part, whole = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    shares: np.ndarray = np.where(whole != 0, part / np.where(whole != 0, whole, 1.0), 0.0)
    return shares


def class_settings(labels: Sequence[str], padding: int) -> dict[str, Any]:
    """Return a model's settings for classes: their names, and the padding that decoders need."""
    return {
        "pad_token_id": padding,
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {name: i for i, name in enumerate(labels)},
    }
