"""Linear layers whose float32 products are oneDNN's, which PyTorch has on board beside MKL.

MKL takes its AVX2 kernels on a processor that is not of Intel. oneDNN takes what the processor has, such as AVX-512.
Both compute in float32; sums are added in another order, so that results differ by rounding.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fednlp.processor import processor

_ZEN_5 = 26
"""The family of AMD's processors of the generation Zen 5, as ``/proc/cpuinfo`` has it."""


def onednn_is_faster() -> bool:
    """Return whether this processor computes 512 bits at once and MKL does not: AMD's from Zen 5 on.

    Zen 4 has AVX-512 too, but computes its halves one after the other, so that MKL's AVX2 kernels are as fast. It
    follows from the processor alone, and nothing is timed: all runs on a machine decide alike.
    """
    if not torch.backends.mkl.is_available() or not has_onednn():  # type: ignore[no-untyped-call]
        return False
    family = processor("cpu family")
    zen5 = processor("vendor_id") == "AuthenticAMD" and family.isdecimal() and int(family) >= _ZEN_5
    return zen5 and torch.backends.cpu.get_cpu_capability() == "AVX512"


def has_onednn() -> bool:
    """Return whether PyTorch was built with oneDNN."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise")


def use_onednn(model: nn.Module) -> None:
    """Let oneDNN compute the linear layers of a model, forwards and backwards; changed in place.

    Args:
        model: Its weights may change later. It stays as it is where PyTorch was built without oneDNN.
    """
    for module in model.modules() if has_onednn() else ():
        if type(module) is nn.Linear:
            module.__class__ = OneDnnLinear


class OneDnnLinear(nn.Linear):
    """``nn.Linear`` by oneDNN, where rows and weights are float32 on a CPU; within ``torch.func`` it is PyTorch's."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows, projected."""
        in_float32 = input.dtype is self.weight.dtype is torch.float32 and not torch.is_autocast_enabled(
            "cpu"
        )
        transformed = torch._C._are_functorch_transforms_active()
        if not in_float32 or transformed or input.device.type != "cpu" or not input.numel():
            return F.linear(input, self.weight, self.bias)
        rows = input.reshape(-1, input.shape[-1])
        return _linear(rows, self.weight, self.bias).view(*input.shape[:-1], -1)


class _Linear(torch.autograd.Function):
    """``rows @ weight.T + bias`` and its gradients, which can be differentiated in turn."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _product(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        return (
            _linear(gradient, weight.t()) if of_rows else None,
            _linear(gradient.t(), rows.t()) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``rows @ weight.T + bias``, with gradients."""
    found: Tensor = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return found


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``rows @ weight.T + bias``."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return found
