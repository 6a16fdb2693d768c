"""The gradient of the gold labels' likelihood with respect to the input embedding of a trigger."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fednlp.errors import ModelError
from fednlp.tasks.base import Batch
from fednlp.tasks.prompt_classification import PromptClassification


def input_embeddings(model: Any) -> nn.Embedding:
    """Return the table of a model's input embeddings.

    Raises:
        ModelError: It has none.
    """
    table = model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        raise ModelError(
            f"triggers are found by the gradient of word embeddings, and this model has a {type(table).__name__} in "
            "their place: leave model.peft out, or take another model, e.g. bert-tiny"
        )
    return table


def with_triggers(batch: Batch, tokens: Sequence[int], offsets: Sequence[int]) -> Batch:
    """Return a batch with other triggers.

    Args:
        batch: Of prompt classification.
        offsets: Where each stands, in tokens from the place where words are scored.

    >>> batch = {"input_ids": torch.tensor([[1, 5, 4], [2, 3, 5]]), "places": torch.tensor([2, 5])}
    >>> with_triggers(batch, [9], [-1])["input_ids"].tolist()
    [[1, 9, 4], [2, 9, 5]]
    """
    ids = batch["input_ids"].clone()
    for token, offset in zip(tokens, offsets, strict=True):
        ids.view(-1)[batch["places"] + offset] = token
    return batch | {"input_ids": ids}


def trigger_gradient(
    task: PromptClassification, model: nn.Module, batches: Sequence[Batch], offset: int
) -> NDArray[np.float32]:
    """Return the gradient of the mean log-likelihood of gold labels with respect to a trigger's input embedding.

    Args:
        task: With the words of the labels.
        model: In evaluation mode.
        batches: Gold examples in the pattern.
        offset: Where the trigger stands, in tokens from the place where words are scored.

    Returns:
        (dimensions,).

    Raises:
        ModelError: The model has no table of input embeddings.
    """
    table = input_embeddings(model)
    total = torch.zeros(table.embedding_dim)
    for batch in batches:
        looked_up: list[Tensor] = []

        def keep(module: nn.Module, given: Any, output: Tensor, kept: list[Tensor] = looked_up) -> Tensor:
            kept.append(output.detach().requires_grad_())
            return kept[-1]

        hook = table.register_forward_hook(keep)
        try:
            loss = F.cross_entropy(task.logits(model, batch).float(), batch["labels"], reduction="sum")
        finally:
            hook.remove()
        gradients = torch.cat(torch.autograd.grad(loss, looked_up))
        total -= gradients.flatten(0, 1)[batch["places"] + offset].sum(dim=0)
    mean: NDArray[np.float32] = (total / sum(len(batch["labels"]) for batch in batches)).numpy()
    return mean
