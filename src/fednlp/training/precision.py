"""Forward passes in bfloat16 or float16, with weights, gradients of weights and losses in float32."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fednlp.errors import ConfigError

_CROSS_ENTROPY = F.cross_entropy
_LOW = (torch.bfloat16, torch.float16)
_GAIN = 1.5
"""How many times as fast a product in bfloat16 must be, so that casts do not eat the gain up."""


def low_dtype(device: torch.device, bf16: bool, fp16: bool = False) -> torch.dtype | None:
    """Return the low precision of a forward pass on a device; None for float32.

    Args:
        bf16: Whether bfloat16 is wanted.
        fp16: Whether float16 is wanted.

    Raises:
        ConfigError: float16 is wanted on a device that is no GPU.
    """
    if fp16 and device.type != "cuda":
        raise ConfigError(
            f"client.fp16 = true is for GPUs, and this worker has {device}: say client.bf16 = true instead"
        )
    return torch.bfloat16 if bf16 else torch.float16 if fp16 else None


@contextmanager
def low_precision(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Run forward passes inside the ``with`` block with autocast, and see to it that what comes out is float32.

    Weights stay float32, and autocast casts each trained one once in a block. So a block is one forward pass: it must
    end before the weights change.

    Args:
        model: Its outputs become float32.
        dtype: bfloat16 or float16; None for float32, which changes nothing.
    """
    if dtype is None:
        yield
        return
    device = next(model.parameters()).device.type
    handle = model.register_forward_hook(_as_float32)
    before = F.cross_entropy
    F.cross_entropy = _cross_entropy  # PyTorch's autocast has it in float32 on a GPU, but not on a CPU
    try:
        with torch.autocast(device, dtype):
            yield
    finally:
        F.cross_entropy = before
        handle.remove()


def _cross_entropy(input: Tensor, *arguments: Any, **options: Any) -> Tensor:
    return _CROSS_ENTROPY(input.float(), *arguments, **options)


def _as_float32(module: nn.Module, arguments: Any, output: Any) -> Any:
    """Return a model's output with float32 tensors; its own loss is so already, and logits beside it are not read."""
    if isinstance(output, Tensor):
        return output.float() if output.dtype in _LOW else output
    if getattr(output, "loss", None) is None and isinstance(output, dict):
        for name, value in output.items():
            if isinstance(value, Tensor) and value.dtype in _LOW:
                output[name] = value.float()
    return output


@cache
def bf16_is_faster(device: str) -> bool:
    """Return whether products in bfloat16 are clearly faster than in float32 here, tried once a process.

    Args:
        device: Its type, ``"cpu"`` or ``"cuda"``.
    """
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device != "cpu" or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    inputs, weight = torch.ones(512, 768), torch.ones(768, 768)
    low = inputs.bfloat16(), weight.bfloat16()
    return _seconds(lambda: inputs @ weight) > _GAIN * _seconds(lambda: low[0] @ low[1])


def _seconds(work: Callable[[], Tensor]) -> float:
    """Return the least seconds of several tries."""
    taken = []
    for _ in range(8):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)
