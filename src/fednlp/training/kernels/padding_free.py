"""Batches without padding: the layers of an encoder compute the tokens of a batch's texts laid end to end.

Everything that treats each token alone (projections, feed-forward networks, layer norms, dropout) runs over the real
tokens of a batch. Attention is limited to each text: queries, keys and values are laid back into rows for it. Where a
model's head reads the first token alone, as that of a classifier does, the last layer computes that token alone.

Two families of architectures are known, by the names of their layers' parts: that of BERT, RoBERTa and ELECTRA, and
that of DistilBERT. A model is tried before it is trusted: its outputs and gradients for a few tokens have to be those
with padding.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as Output

from fednlp.errors import ModelError
from fednlp.training.frozen_prefix import layer_stack
from fednlp.training.kernels.gradient_in_place import GradientInPlace, add_gradients_in_place
from fednlp.training.kernels.onednn import OneDnnLinear

_ALIKE = 1e-4
"""Tolerance between outputs and gradients with and without padding, as a share of the largest."""
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


class _PackedSequences:
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
        if _is_plain(key):
            folded = (asked.transpose(0, 1) @ key.weight.view(heads, -1, width)).transpose(0, 1)
            scores = folded @ seen.mT + (asked * key.bias.view(heads, -1)).sum(-1, keepdim=True)
        else:
            scores = torch.einsum("thd,tlhd->thl", asked, self._by_head(key(tokens), heads))
        if self._mask is not None:
            scores = scores.masked_fill(~self._mask[:, 0], -torch.inf)
        weights = F.dropout(scores.softmax(-1), dropout)
        if _is_plain(value):
            mean = (weights @ seen).transpose(0, 1) @ value.weight.view(heads, -1, width).mT
            found = mean.transpose(0, 1) + weights.sum(-1, keepdim=True) * value.bias.view(heads, -1)
        else:
            found = torch.einsum("thl,tlhd->thd", weights, self._by_head(value(tokens), heads))
        return found.flatten(1)

    def _by_head(self, tokens: Tensor, heads: int) -> Tensor:
        """Return tokens laid into rows and cut into heads, (texts, length, heads, width of each)."""
        rows = self._wide.filled(tokens)
        return rows.view(*rows.shape[:2], heads, -1)


Layer = Callable[[_PackedSequences, nn.Module, Tensor, Tensor | None], Tensor]


def _bert_layer(texts: _PackedSequences, layer: Any, tokens: Tensor, read: Tensor | None) -> Tensor:
    """Compute a layer of BERT's family: all tokens, or those that are read."""
    attention = layer.attention.self
    projections = attention.query, attention.key, attention.value
    asked, found = _attended(texts, attention, projections, attention.num_attention_heads, tokens, read)
    found = layer.attention.output(found, asked)
    computed: Tensor = layer.output(layer.intermediate(found), found)
    return computed


def _distilbert_layer(texts: _PackedSequences, layer: Any, tokens: Tensor, read: Tensor | None) -> Tensor:
    """Compute a layer of DistilBERT's family: all tokens, or those that are read."""
    attention = layer.attention
    projections = attention.q_lin, attention.k_lin, attention.v_lin
    asked, found = _attended(texts, attention, projections, attention.n_heads, tokens, read)
    found = layer.sa_layer_norm(attention.out_lin(found) + asked)
    computed: Tensor = layer.output_layer_norm(layer.ffn(found) + found)
    return computed


def _attended(
    texts: _PackedSequences,
    attention: Any,
    projections: tuple[nn.Module, nn.Module, nn.Module],
    heads: int,
    tokens: Tensor,
    read: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the tokens that a layer computes, and what they attend to.

    Args:
        texts: Where tokens lie.
        attention: The module that knows the rate of dropout and the scale.
        projections: To queries, keys and values.
        heads: Their number.
        read: The places of those to compute; None for all.
    """
    query, key, value = projections
    asked = tokens if read is None else tokens.index_select(0, read)
    options = heads, attention.dropout.p if attention.training else 0.0, attention.scaling
    if read is not None:
        return asked, texts.attention_of_firsts(query(asked), key, value, tokens, *options)
    return asked, texts.attention(query(asked), key(tokens), value(tokens), *options)


_FAMILIES: dict[tuple[str, ...], Layer] = {
    ("attention.self.query", "attention.output", "intermediate", "output"): _bert_layer,
    ("attention.q_lin", "attention.out_lin", "sa_layer_norm", "ffn", "output_layer_norm"): _distilbert_layer,
}


class PaddingFree:
    """What can take the place of an encoder's layers (:func:`find_padding_free`).

    Args:
        owner: The innermost model around the layers, which is called with token ids and a mask.
        stack: The module that calls one layer after the other.
        compute: Computes one of them.
        first_only: Whether nothing reads the stack's output but at each text's first token.

    Attributes:
        padded: How many of the layers, from the lowest up, run as they are: those of a frozen prefix.
    """

    def __init__(
        self, owner: nn.Module, stack: nn.Module, layers: list[nn.Module], compute: Layer, first_only: bool
    ) -> None:
        self.owner, self.stack, self.layers = owner, stack, layers
        self.compute, self.first_only, self.padded = compute, first_only, 0
        self._mask: Tensor | None = None

    def install(self, padded: int = 0) -> Callable[[], None]:
        """Compute without padding from now on, in training and in evaluation; return what undoes it.

        Args:
            padded: How many of the lowest layers are left as they are.
        """
        self.padded = padded
        hook = self.owner.register_forward_pre_hook(self._see, with_kwargs=True)
        vars(self.stack)["forward"] = self._forward
        added = add_gradients_in_place(part for layer in self.layers[padded:] for part in layer.modules())

        def undo() -> None:
            added()
            hook.remove()
            del vars(self.stack)["forward"]

        return undo

    def _see(self, owner: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Note the mask that a model is called with, before the model makes another of it."""
        self._mask = kwargs.get("attention_mask")
        return args, kwargs if self.padded else {**kwargs, "attention_mask": None}

    def _forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **others: Any) -> Output:
        """Return the stack's output, (texts, longest, width); (texts, 1, width) where no other token is read."""
        for layer in self.layers[: self.padded]:
            hidden_states = layer(hidden_states, attention_mask, **others)
        seen = hidden_states.new_ones(hidden_states.shape[:2]) if self._mask is None else self._mask
        texts = _PackedSequences(seen.bool())
        tokens, read = texts.rows.emptied(hidden_states), None
        for layer in self.layers[self.padded :]:
            read = texts.firsts if self.first_only and layer is self.layers[-1] else None
            run = partial(self.compute, texts, layer)
            if getattr(layer, "gradient_checkpointing", False) and layer.training:
                tokens = checkpoint(run, tokens, read, use_reentrant=False)
            else:
                tokens = run(tokens, read)
        found = texts.rows.filled(tokens) if read is None else tokens[:, None]
        return Output(last_hidden_state=found)


def find_padding_free(model: nn.Module) -> PaddingFree:
    """Return what lets a model compute the texts of a batch without padding.

    What it computes stays the same but for rounding; dropout draws other masks.

    Args:
        model: An encoder with a head for one text, or a pair, with or without adapters; its weights do not matter.

    Raises:
        ModelError: The architecture does not allow for it.
    """
    found, prompts = layer_stack(model), getattr(model, "active_peft_config", None)
    if found is not None and not getattr(prompts, "is_prompt_learning", False):
        owner, layers = found
        stack = next(
            (m for m in owner.modules() if any(_lists(child, layers) for child in m.children())), None
        )
        compute = _family(layers)
        if stack is not None and compute is not None:
            for first_only in (True, False):
                tried = PaddingFree(owner, stack, layers, compute, first_only)
                if _does_the_same(model, tried):
                    return tried
    name = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    raise ModelError(
        f"a model of type {name} with this head cannot compute without padding: remove client.padding_free, or choose "
        "an encoder such as BERT, RoBERTa, ELECTRA or DistilBERT for labels, tags, scores or answers"
    )


def _lists(module: nn.Module, layers: list[nn.Module]) -> bool:
    return isinstance(module, nn.ModuleList) and list(module) == layers


def _family(layers: list[nn.Module]) -> Layer | None:
    """Return what computes a layer; None for an unknown architecture, or one that calls a layer more than once."""
    if len({*layers}) < len(layers):
        return None
    names = [{name for name, _ in layer.named_modules()} for layer in layers]
    return next(
        (compute for parts, compute in _FAMILIES.items() if all(found >= {*parts} for found in names)), None
    )


def _does_the_same(model: nn.Module, tried: PaddingFree) -> bool:
    """Return whether outputs and gradients stay the same, in evaluation mode and with weights that are drawn."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    weights = _drawn_weights(model)
    try:
        plain = _outputs_and_gradients(model, tried.owner, weights)
        undo = tried.install()
        try:
            found = _outputs_and_gradients(model, tried.owner, weights)
        finally:
            undo()
        largest = max(float(one.detach().abs().max()) for one in plain if one is not None)
        return all(_alike(*pair, largest) for pair in zip(plain, found, strict=True))
    except (
        RuntimeError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
    ):  # of an unknown architecture or head
        return False
    finally:
        for module, mode in modes:
            module.training = mode


def _drawn_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return weights to try a model with, none of them zero: its own may not be loaded yet."""
    draw = torch.Generator().manual_seed(0)
    drawn = {}
    for name, parameter in model.named_parameters():
        value = torch.empty(parameter.shape).normal_(0.0, 0.05, generator=draw)
        if parameter.dim() == 1 and name.endswith("weight"):
            value += 1
        drawn[name] = value.to(parameter.device).requires_grad_(parameter.requires_grad)
    return drawn


def _outputs_and_gradients(model: nn.Module, owner: Any, weights: dict[str, Tensor]) -> list[Tensor | None]:
    """Return what a model computes of two texts, the second shorter, where there is no padding; and its gradients."""
    words, padding = owner.get_input_embeddings(), owner.config.pad_token_id
    ids = torch.tensor([w for w in range(min(words.num_embeddings, 12)) if w != padding])
    batch = torch.stack([ids[:5], ids[-5:]]).to(words.weight.device)
    mask = torch.ones_like(batch)
    mask[1, 3:] = 0
    made = functional_call(model, weights, kwargs={"input_ids": batch, "attention_mask": mask})
    outputs = [made[name] for name in ("logits", "start_logits", "end_logits") if name in made]
    outputs = [out[mask.bool()] if out.shape[:2] == mask.shape else out for out in outputs]
    total = torch.stack([out.square().sum() for out in outputs]).sum()
    trained = [value for value in weights.values() if value.requires_grad]
    return [*outputs, *torch.autograd.grad(total, trained, allow_unused=True)]


def _alike(one: Tensor | None, other: Tensor | None, largest: float) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and bool((one - other).abs().max() <= _ALIKE * largest)


def _is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether a layer computes nothing but the product with its weight and the sum with its bias."""
    return type(layer) in _LINEAR and layer.bias is not None and "forward" not in vars(layer)
