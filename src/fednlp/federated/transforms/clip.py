"""A bound on the norm of the whole update."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fednlp.federated.message import Shapes
from fednlp.federated.transforms.base import RngKey, Tensors


@dataclass(frozen=True)
class Clip:
    """Scale the whole update down to an L2 norm: u * min(1, bound / ||u||) over all its tensors together.

    McMahan et al. 2018, *Learning Differentially Private Recurrent Language Models*, section 2.1.
    An update within the bound passes bit for bit. One that holds NaN or infinity stays not finite.

    Args:
        bound: The largest norm, above 0.
    """

    bound: float

    def shapes(self, before: Shapes) -> Shapes:
        """Return the same shapes: clipping changes none."""
        return dict(before)

    def encode(self, tensors: Tensors, key: RngKey) -> dict[str, Tensor]:
        """Scale all tensors by one factor if the norm of the update exceeds the bound."""
        norm = sum(_square(tensor) for tensor in tensors.values()) ** 0.5
        if norm <= self.bound:
            return dict(tensors)
        factor = self.bound / norm  # 0 times infinity is NaN, and NaN stays NaN
        return {name: tensor * factor for name, tensor in tensors.items()}

    def decode(self, tensors: Tensors, before: Shapes, key: RngKey) -> dict[str, Tensor]:
        """Return the tensors unchanged: clipping is not undone."""
        return {name: tensors[name] for name in before}


def _square(tensor: Tensor) -> float:
    """Return the squared norm, in 64 bits; NumPy's sum is the same for any number of threads."""
    values = tensor.detach().numpy().ravel()
    return float(np.square(values, dtype=np.float64).sum())
