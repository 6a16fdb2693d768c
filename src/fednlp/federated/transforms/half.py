"""16 bits a value: each number rounded to the nearest one of float16 or bfloat16."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fednlp.federated.message import Shapes
from fednlp.federated.transforms.base import PerTensor, RngKey


@dataclass(frozen=True)
class Half(PerTensor):
    """Cast to 16 bits on the way, and back to 32 on arrival.

    float16 has 11 significant bits and a maximum of 65504: larger values become infinite, so that the message is
    refused, and never another number; values below 6e-8 may become zero. bfloat16 has 8 significant bits and the
    range of float32.

    Args:
        dtype: ``torch.float16`` or ``torch.bfloat16``.
    """

    dtype: torch.dtype = torch.float16

    def parts(self, shape: tuple[int, ...]) -> Shapes:
        """Return one tensor of the same shape, in 16 bits."""
        return {"": (shape, self.dtype)}

    def pack(self, tensor: Tensor, name: str, key: RngKey) -> dict[str, Tensor]:
        """Round to nearest, ties to even."""
        return {"": tensor.to(self.dtype)}

    def unpack(self, parts: dict[str, Tensor], shape: tuple[int, ...], name: str, key: RngKey) -> Tensor:
        """Convert to float32, which is exact."""
        return parts[""].float()
