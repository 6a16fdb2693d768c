"""The input of a decoder in training, and the tokens that it generates: the same for every architecture."""

from typing import Any

import torch
from torch import Tensor, nn

from fednlp.tasks.base import Batch

IGNORED = -100
"""Fills up targets; transformers' own shifting knows it."""


def decoder_input(model: nn.Module, target: Tensor, padding: int, start: int) -> Tensor:
    """Return targets shifted right by one, as the model itself does it.

    Args:
        target: Token ids (batch, longest), filled up with -100.
        padding: Stands where nothing is read.
        start: What the decoder begins with, where neither the model nor its configuration defines it.
    """
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is not None:
        try:
            shifted: Tensor = shift(target)
            return shifted
        except (AttributeError, TypeError, ValueError):
            pass  # its configuration does not define the first token of a decoder
    first = torch.full_like(target[:, :1], decoder_start(model, start))
    return torch.cat([first, target[:, :-1]], dim=1).masked_fill(target == IGNORED, padding)


def decoder_start(model: nn.Module, start: int) -> int:
    """Return the token that a model's decoder begins with; ``start`` where its configuration defines none."""
    begun = getattr(getattr(model, "config", None), "decoder_start_token_id", None)
    return start if begun is None else int(begun)


def generation_options(
    *,
    max_new_tokens: int,
    num_beams: int,
    end: int | None,
    padding: int,
    start: int | None = None,
) -> Any:
    """Return transformers' ``GenerationConfig`` of a task, without sampling; padding is never chosen.

    Args:
        max_new_tokens: At most.
        num_beams: 1 is greedy search.
        end: What ends a text; None for nothing.
        padding: Fills up what ends early.
        start: What an encoder-decoder's decoder begins with; None for a decoder alone, which goes on with its
            input.
    """
    from transformers import GenerationConfig

    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        num_beams=num_beams,
        do_sample=False,
        decoder_start_token_id=start,
        bos_token_id=start,
        eos_token_id=end,
        pad_token_id=padding,
        suppress_tokens=None if padding == end else [padding],
    )


def generate_ids(
    model: nn.Module,
    batch: Batch,
    options: Any,
) -> Tensor:
    """Return what a model generates, (batch, longest), by greedy or beam search, without sampling.

    A function of the weights and these arguments: the defaults that a checkpoint brings are not used, so
    that a model loaded from it and one built from its configuration generate the same.

    Args:
        model: An encoder-decoder, or a decoder alone.
        batch: ``input_ids`` and ``attention_mask``; of a decoder alone, padded on the left.
        options: From :func:`generation_options`. Neither the input that a decoder alone goes on with, nor the token
            that an encoder-decoder's decoder begins with is part of the result.
    """
    from transformers import GenerationConfig

    owners: list[Any] = [part for part in model.modules() if "generation_config" in vars(part)]
    own = [part.generation_config for part in owners]
    generate: Any = model.generate
    try:
        for part in owners:  # its defaults would fill in all that is not given here
            part.generation_config = GenerationConfig()
        made: Tensor = generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], generation_config=options
        )
    finally:
        for part, before in zip(owners, own, strict=True):
            part.generation_config = before
    return made[:, batch["input_ids"].shape[1] if options.decoder_start_token_id is None else 1 :]
