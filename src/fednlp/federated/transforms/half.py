"""16 bits a value: each number rounded to the nearest one of float16 or bfloat16."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fednlp.federated.message import Shapes
from fednlp.federated.transforms.base import Key, PerTensor


@dataclass(frozen=True)
class Half(PerTensor):
    """Cast to 16 bits on the way, and back to 32 on arrival.

    float16 has 11 significant bits and ends at 65504: what is larger becomes infinite, so that it is refused
    and never silently another number; below 6e-8 it ends in zero. bfloat16 has 8 significant bits and the
    range of float32.

    Args:
        dtype: ``torch.float16`` or ``torch.bfloat16``.
    """

    dtype: torch.dtype = torch.float16

    def parts(self, shape: tuple[int, ...]) -> Shapes:
        """One tensor of the same shape."""
        return {"": (shape, self.dtype)}

    def pack(self, tensor: Tensor, name: str, key: Key) -> dict[str, Tensor]:
        """Round to nearest, ties to even."""
        return {"": tensor.to(self.dtype)}

    def unpack(self, parts: dict[str, Tensor], shape: tuple[int, ...], name: str, key: Key) -> Tensor:
        """Exact: float32 holds every number of 16 bits."""
        return parts[""].float()
