"""Quantisation: integers of 8 or 4 bits, times a scale."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fednlp.federated.message import Shapes
from fednlp.federated.transforms.base import PerTensor, RngKey, stream

_SMALLEST = torch.finfo(torch.float32).tiny
"""The smallest scale: zeros need one, and a subnormal number has fewer digits."""


@dataclass(frozen=True)
class Quantise(PerTensor):
    """x becomes round(x / s), s = max|x| / 127 (or 7) over a tensor or a block of it.

    With stochastic rounding a value goes up with the probability of its fraction, so that the mean over draws is
    the value itself; the error is below one s. Rounded to nearest it is at most s / 2. After Alistarh et al. 2017,
    *QSGD*, section 3.1, with the largest value in place of the norm. NaN or infinity in a block make its
    scale so, and with it the whole block not finite on arrival.

    Args:
        bits: 8, or 4: two values a byte, the first in the lower half.
        block: Number of values with a common scale; None for all of a tensor.
        nearest: Round to nearest (ties to even) in place of stochastically.
    """

    bits: int
    block: int | None = None
    nearest: bool = False

    def parts(self, shape: tuple[int, ...]) -> Shapes:
        """Return the shapes of the codes, and of one scale for each block."""
        count = torch.Size(shape).numel()
        codes = (shape, torch.int8) if self.bits == 8 else ((-(-count // 2),), torch.uint8)
        return {"": codes, "#scale": ((self._blocks(count),), torch.float32)}

    def pack(self, tensor: Tensor, name: str, key: RngKey) -> dict[str, Tensor]:
        """Divide by the scales and round."""
        count, levels = tensor.numel(), 2 ** (self.bits - 1) - 1
        blocked = self._blocked(tensor.reshape(-1))
        largest = torch.linalg.vector_norm(blocked, torch.inf, dim=1)
        scale = (largest / levels).clamp_min_(_SMALLEST)
        ratio = blocked / scale.unsqueeze(1)
        if not bool(torch.isfinite(scale).all()):
            ratio.nan_to_num_()  # the conversion of NaN to an integer is undefined
        ratio.clamp_(-levels, levels)
        codes = (ratio.round_() if self.nearest else _round(ratio, stream(key, "rounding", name))).to(
            torch.int8
        )
        codes = codes.view(-1)[:count]
        return {"": _pair(codes) if self.bits == 4 else codes.view(tensor.shape), "#scale": scale}

    def unpack(self, parts: dict[str, Tensor], shape: tuple[int, ...], name: str, key: RngKey) -> Tensor:
        """Multiply by the scales."""
        count = torch.Size(shape).numel()
        codes = parts[""].view(-1) if self.bits == 8 else _unpair(parts[""], count)
        values = self._blocked(codes.float()).mul_(parts["#scale"].unsqueeze(1))
        return values.view(-1)[:count].reshape(shape)

    def _size(self, count: int) -> int:
        """Return the number of values with a common scale in a tensor of ``count`` values."""
        return max(1, count if self.block is None else min(self.block, count))

    def _blocks(self, count: int) -> int:
        return -(-count // self._size(count))

    def _blocked(self, values: Tensor) -> Tensor:
        """Return the values as a (blocks, size) matrix, the last row filled up with zeros."""
        size = self._size(values.numel())
        missing = -values.numel() % size
        return (pad(values, (0, missing)) if missing else values).view(-1, size)


def _round(ratio: Tensor, generator: np.random.Generator) -> Tensor:
    """Round each number up with the probability of its fraction, in place."""
    chance = torch.from_numpy(generator.random(ratio.numel(), dtype=np.float32)).view(ratio.shape)
    low = ratio.floor()
    # Not floor(ratio + chance): that sum is rounded, and the mean with it.
    return low.add_(chance < ratio.sub_(low))


def _pair(codes: Tensor) -> Tensor:
    """Pack codes in [-8, 7] two a byte, as code + 8."""
    shifted = pad(codes.add(8).view(torch.uint8), (0, codes.numel() % 2), value=8).view(-1, 2)
    return shifted[:, 0] | (shifted[:, 1] << 4)


def _unpair(pairs: Tensor, count: int) -> Tensor:
    both = torch.stack([pairs & 15, pairs >> 4], dim=1).view(-1)[:count]
    return both.view(torch.int8).sub_(8)
