"""One bit a value: its sign, times the mean absolute value of the tensor."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fednlp.federated.message import Shapes
from fednlp.federated.transforms.base import PerTensor, RngKey


@dataclass(frozen=True)
class Sign(PerTensor):
    """x becomes ±mean|x|, eight signs a byte, the lowest bit first; zero counts as positive.

    Karimireddy et al. 2019, *Error Feedback Fixes SignSGD and other Gradient Compression Schemes*, algorithm 1,
    tensor by tensor. It is biased, and should be used with error feedback.
    """

    def parts(self, shape: tuple[int, ...]) -> Shapes:
        """Return the shapes of the bits, and of one scale."""
        return {"": ((-(-torch.Size(shape).numel() // 8),), torch.uint8), "#scale": ((1,), torch.float32)}

    def pack(self, tensor: Tensor, name: str, key: RngKey) -> dict[str, Tensor]:
        """Pack the signs; NaN or infinity make the scale NaN or infinite."""
        values = tensor.numpy().ravel()
        scale = np.abs(values).mean(dtype=np.float64) if values.size else 0.0
        bits = np.packbits(values >= 0, bitorder="little")
        return {"": torch.from_numpy(bits), "#scale": torch.tensor([scale], dtype=torch.float32)}

    def unpack(self, parts: dict[str, Tensor], shape: tuple[int, ...], name: str, key: RngKey) -> Tensor:
        """Return the scale, with the sign of each value."""
        count = torch.Size(shape).numel()
        bits = np.unpackbits(parts[""].numpy(), count=count, bitorder="little")
        scale = parts["#scale"].numpy()
        values = np.array([-scale[0], scale[0]], dtype=np.float32)[bits]
        return torch.from_numpy(values).view(shape)
