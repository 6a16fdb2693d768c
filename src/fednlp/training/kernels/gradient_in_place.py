"""Linear layers whose backward product is added to the gradient where it lies.

PyTorch computes the gradient of a weight in memory of its own, and then adds it to the one that is there. With few rows
that takes a good part of the product's time. Here the product itself adds.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import Node, get_gradient_edge

_LEAST = 1 << 19
"""Numbers of a weight from which it pays."""


def add_gradients_in_place(modules: Iterable[nn.Module]) -> Callable[[], None]:
    """Let large linear layers that are trained add to their gradients in place; return what undoes it.

    Args:
        modules: Changed in place; those that are something else stay as they are.
    """
    changed = [module for module in modules if type(module) is nn.Linear and module.weight.numel() >= _LEAST]
    for module in changed:
        module.__class__ = GradientInPlace

    def undo() -> None:
        for module in changed:
            module.__class__ = nn.Linear

    return undo


class GradientInPlace(nn.Linear):
    """``nn.Linear`` that adds to its weight's gradient in place, where rows and weights are float32 on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows, projected."""
        weight = self.weight
        plain = input.dtype is weight.dtype and not torch.is_autocast_enabled("cpu")
        trained = weight.requires_grad and weight.is_leaf and torch.is_grad_enabled()
        if not plain or not trained or input.device.type != "cpu" or not input.numel():
            return F.linear(input, weight, self.bias)
        rows = input.reshape(-1, input.shape[-1])
        found: Tensor = _Linear.apply(rows, weight, self.bias)  # type: ignore[no-untyped-call]
        return found.view(*input.shape[:-1], -1)


class _Linear(torch.autograd.Function):
    """``rows @ weight.T + bias`` and its gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows)
        # Gradient checkpointing would hand out a copy of a weight that is saved, without its gradient.
        ctx.weight, ctx.adds = weight, get_gradient_edge(weight).node
        return F.linear(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (rows,), weight = ctx.saved_tensors, ctx.weight
        of_rows, _, of_bias = ctx.needs_input_grad
        return (
            gradient @ weight if of_rows else None,
            _of_weight(weight, ctx.adds, gradient, rows),
            gradient.sum(0) if of_bias else None,
        )


def _of_weight(weight: Tensor, adds: Node, gradient: Tensor, rows: Tensor) -> Tensor | None:
    """Add to a weight's gradient; return what is to be added where it has none yet, or something waits for it."""
    awaited = weight._backward_hooks or weight._post_accumulate_grad_hooks
    if weight.grad is None or awaited or not _will_run(adds):
        return gradient.t() @ rows
    weight.grad.addmm_(gradient.t(), rows)
    return None


def _will_run(node: Node) -> bool:
    """Return whether the backward pass that is under way comes to a node.

    ``torch.autograd.grad`` comes to none that adds to a tensor's ``grad``.
    """
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # it is asked for this very gradient
        return False
