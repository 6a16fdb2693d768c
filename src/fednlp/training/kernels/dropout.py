"""Dropout on a CPU at a fraction of what PyTorch's costs: masks from 16-bit numbers, and attention that takes them.

PyTorch draws a mask on a CPU number by number. Here one draw of its generator seeds a fast generator for each place
of dropout, which fills the place's whole mask at once. The distribution is the same, but for the rate, which is rounded
to a multiple of 2^-16. What is kept is scaled by the rounded rate, so that its expectation is exact. A mask is a
function of the state of PyTorch's generator alone. So it follows the client's stream
(:func:`fednlp.seeds.torch_stream`), and is the same when gradient checkpointing computes a layer again.

:func:`cheap_dropout` puts both functions in the place of PyTorch's in ``torch.nn.functional``, where ``nn.Dropout`` and
the models of transformers and peft look them up. Dropout that is not looked up there, such as that between the layers
of an ``nn.LSTM``, is PyTorch's own.

For the backward pass one byte an element is kept of a mask, and of attention the weights before dropout alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fednlp.seeds import random_words

_WORDS = 1 << 16
_DROPOUT, _ATTENTION = F.dropout, F.scaled_dot_product_attention


@contextmanager
def cheap_dropout() -> Iterator[None]:
    """Let models use :func:`dropout` and :func:`attention` inside the ``with`` block."""
    before = F.dropout, F.scaled_dot_product_attention
    F.dropout, F.scaled_dot_product_attention = dropout, attention
    try:
        yield
    finally:
        F.dropout, F.scaled_dot_product_attention = before


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drop elements with probability ``p``, and scale the others (``torch.nn.functional.dropout``).

    >>> kept = dropout(torch.ones(1000), 0.5)
    >>> sorted(set(kept.tolist())), bool(400 < kept.count_nonzero() < 600)
    ([0.0, 2.0], True)
    """
    if not training or not 0 < p < 1 or input.device.type != "cpu":
        return _DROPOUT(input, p, training, inplace)
    if inplace:
        return input.mul_(_thinned(input.new_ones(()), _kept(input, p), p))
    found: Tensor = _Dropped.apply(input, p)  # type: ignore[no-untyped-call]
    return found


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return scaled dot-product attention (``torch.nn.functional.scaled_dot_product_attention``).

    On a CPU it is made of products and a float32 softmax in two cases. With dropout it can so take a cheap mask. In
    training with bfloat16 that is faster than PyTorch's fused attention.
    """
    trained_low = query.dtype is torch.bfloat16 and query.requires_grad
    if query.device.type != "cpu" or not (dropout_p > 0 or trained_low):
        return _ATTENTION(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    weights = _softmax(scores.float(), attn_mask).to(value.dtype)
    if not dropout_p or weights.shape[:-2] != value.shape[:-2]:
        return dropout(weights, dropout_p) @ value
    found: Tensor = _DroppedProduct.apply(weights, value, dropout_p)  # type: ignore[no-untyped-call]
    return found


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the softmax of what is not masked; zeros where all of a row is masked, as PyTorch has it."""
    if mask is None:
        return scores.softmax(-1)
    if mask.dtype is not torch.bool:
        return torch._safe_softmax(scores.add_(mask), -1)
    seen = mask.any(-1, keepdim=True)
    added = torch.zeros(mask.shape).masked_fill_(seen & ~mask, -torch.inf)
    weights = scores.add_(added).softmax(-1)
    return weights if bool(seen.all()) else weights.masked_fill(~seen, 0)


class _Dropped(torch.autograd.Function):
    """Elements, thinned."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, p: float) -> Tensor:
        kept, ctx.p = _kept(input, p), p
        ctx.save_for_backward(kept)
        return _thinned(input, kept, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return _thinned(gradient, kept, ctx.p), None


class _DroppedProduct(torch.autograd.Function):
    """``dropout(weights) @ value``."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, value: Tensor, p: float) -> Tensor:
        kept, ctx.p = _kept(weights, p), p
        value = value.contiguous()  # products copy it otherwise, each by itself
        ctx.save_for_backward(weights, value, kept)
        return _thinned(weights, kept, p) @ value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        weights, value, kept = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_value = _thinned(weights, kept, ctx.p).transpose(-2, -1) @ gradient
        return _thinned(gradient @ value.transpose(-2, -1), kept, ctx.p), of_value, None


def _dropped(p: float) -> int:
    """Return how many of the 16-bit numbers drop an element."""
    return min(round(p * _WORDS), _WORDS - 1)


def _kept(like: Tensor, p: float) -> Tensor:
    """Draw which elements of a tensor are kept: False with probability ``p``."""
    words = random_words(like.numel())
    return torch.from_numpy(np.greater_equal(words, np.int16(_dropped(p) - _WORDS // 2))).view(like.shape)


def _thinned(elements: Tensor, kept: Tensor, p: float) -> Tensor:
    """Return what dropout makes of elements: 0 for what is dropped, and the others scaled to keep the expectation."""
    dtype = elements.dtype
    found = kept.view(torch.uint8).to(dtype)  # then one pass; a product with the bytes themselves is slower
    return torch.addcmul(elements.new_zeros(()), elements, found, value=_factor(p, dtype), out=found)


@cache
def _factor(p: float, dtype: torch.dtype) -> float:
    """Return what the elements that are kept are multiplied by, rounded to their precision."""
    return float(torch.tensor(_WORDS / (_WORDS - _dropped(p)), dtype=dtype))
