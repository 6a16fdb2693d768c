"""The texts of a batch laid end to end, without padding, and attention within each of them."""

from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fednlp.training.kernels.gradient_in_place import GradientInPlace
from fednlp.training.kernels.onednn import OneDnnLinear

_LINEAR = nn.Linear, GradientInPlace, OneDnnLinear
_LENGTH = 16
"""Attention is computed in rows of a multiple of it: PyTorch's softmax of 13 numbers takes nine times that of 16."""


class _Rows:
    """Rows of one length that have room for each text, and where the tokens lie among them.

    Args:
        places: Of all tokens, among those with padding.
        texts: Number of rows.
    """

    def __init__(self, places: Tensor, texts: int, length: int) -> None:
        self._places, self._shape = places, (texts, length)
        self.full = len(places) == texts * length

    def filled(self, tokens: Tensor) -> Tensor:
        """Return tokens laid into rows, (texts, length, width), with zeros as padding."""
        if not self.full:
            padded = tokens.new_zeros(self._shape[0] * self._shape[1], tokens.shape[-1])
            tokens = padded.index_copy(0, self._places, tokens)
        return tokens.reshape(*self._shape, -1)

    def emptied(self, rows: Tensor) -> Tensor:
        """Return the tokens of rows, (tokens, width)."""
        tokens = rows.flatten(0, 1)
        return tokens if self.full else tokens.index_select(0, self._places)


class PackedSequences:
    """Where the tokens of a padded batch lie when its texts are laid end to end.

    Args:
        mask: True for tokens, False for padding (texts, longest). A text without tokens keeps one of its padding.

    Attributes:
        rows: The batch as it was.
        firsts: The place of each text's first token, among those without padding.
    """

    def __init__(self, mask: Tensor) -> None:
        texts, longest = mask.shape
        mask = torch.cat([mask[:, :1] | ~mask.any(1, keepdim=True), mask[:, 1:]], 1)
        more = -longest % _LENGTH
        places = mask.flatten().nonzero().squeeze(1)
        self.rows = _Rows(places, texts, longest)
        self._wide = _Rows(places + places // longest * more, texts, longest + more)
        self._mask = None if self._wide.full else F.pad(mask, (0, more))[:, None, None, :]
        counts = mask.sum(1)
        self.firsts = counts.cumsum(0) - counts

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float, scale: float
    ) -> Tensor:
        """Return attention within each text, (tokens, width)."""
        q, k, v = (self._by_head(tokens, heads).transpose(1, 2) for tokens in (query, key, value))
        found = F.scaled_dot_product_attention(q, k, v, self._mask, dropout, scale=scale)
        return self._wide.emptied(found.transpose(1, 2).flatten(2))

    def attention_of_firsts(
        self,
        query: Tensor,
        key: nn.Module,
        value: nn.Module,
        tokens: Tensor,
        heads: int,
        dropout: float,
        scale: float,
    ) -> Tensor:
        """Return attention of the first token of each text alone, (texts, width).

        There is one query a text. So it is less work to multiply the weights of the keys with the queries than with all
        tokens, and those of the values with the mean of the tokens that attention finds.

        Args:
            query: Of the first tokens, (texts, width).
            key: Makes the keys of tokens.
            heads: Their number.
            dropout: The rate.
        """
        texts, width = query.shape
        asked, seen = query.view(texts, heads, -1) * scale, self._wide.filled(tokens)
        if is_plain(key):
            folded = (asked.transpose(0, 1) @ key.weight.view(heads, -1, width)).transpose(0, 1)
            scores = folded @ seen.mT + (asked * key.bias.view(heads, -1)).sum(-1, keepdim=True)
        else:
            scores = torch.einsum("thd,tlhd->thl", asked, self._by_head(key(tokens), heads))
        if self._mask is not None:
            scores = scores.masked_fill(~self._mask[:, 0], -torch.inf)
        weights = F.dropout(scores.softmax(-1), dropout)
        if is_plain(value):
            mean = (weights @ seen).transpose(0, 1) @ value.weight.view(heads, -1, width).mT
            found = mean.transpose(0, 1) + weights.sum(-1, keepdim=True) * value.bias.view(heads, -1)
        else:
            found = torch.einsum("thl,tlhd->thd", weights, self._by_head(value(tokens), heads))
        return found.flatten(1)

    def _by_head(self, tokens: Tensor, heads: int) -> Tensor:
        """Return tokens laid into rows and cut into heads, (texts, length, heads, width of each)."""
        rows = self._wide.filled(tokens)
        return rows.view(*rows.shape[:2], heads, -1)


def is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether a layer computes nothing but the product with its weight and the sum with its bias."""
    return type(layer) in _LINEAR and layer.bias is not None and "forward" not in vars(layer)
