"""The protocol of transforms: named tensors become other named tensors, whose shapes both sides know in advance.

Shapes are a function of the layout only, so no sizes are read from a message. A transform that
needs more than one tensor for a parameter ``w`` names the others ``w#index``, ``w#scale``: no parameter's
name holds a ``#``. The steps after it leave those side tensors alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fednlp.federated.message import Shapes
from fednlp.seeds import generator

Tensors = Mapping[str, Tensor]


class RngKey(NamedTuple):
    """The key of a message's random streams.

    Attributes:
        round: Number of the round, from 1.
        client: The client's id; -1 for the server's messages.
    """

    seed: int
    round: int
    client: int


def stream(key: RngKey, purpose: str, name: str) -> np.random.Generator:
    """Return the random generator of one tensor of one message.

    Args:
        purpose: Name of the use, which separates the streams of a key.
    """
    return generator(key.seed, f"{purpose} {name}", key.round, key.client)


class Transform(Protocol):
    """One step of a chain."""

    def shapes(self, before: Shapes) -> Shapes:
        """Return the shapes and dtypes that :meth:`encode` gives for tensors of these shapes."""

    def encode(self, tensors: Tensors, key: RngKey) -> dict[str, Tensor]:
        """Return the encoded tensors; the given ones are not changed."""

    def decode(self, tensors: Tensors, before: Shapes, key: RngKey) -> dict[str, Tensor]:
        """Undo :meth:`encode`, exactly or approximately.

        Args:
            before: Shapes and dtypes of the original tensors.
            key: The key that they were encoded with.

        Returns:
            Tensors of the shapes ``before``, in their order.
        """


class PerTensor(ABC):
    """A transform of each float32 tensor by itself; a subclass defines that of one tensor."""

    @abstractmethod
    def parts(self, shape: tuple[int, ...]) -> Shapes:
        """Return suffix -> (shape, dtype) of the encoding of one tensor; the first suffix is empty."""

    @abstractmethod
    def pack(self, tensor: Tensor, name: str, key: RngKey) -> dict[str, Tensor]:
        """Encode one tensor.

        Args:
            tensor: float32, of any shape.

        Returns:
            suffix -> tensor, with the shapes and dtypes of :meth:`parts`.
        """

    @abstractmethod
    def unpack(self, parts: dict[str, Tensor], shape: tuple[int, ...], name: str, key: RngKey) -> Tensor:
        """Decode one tensor.

        Args:
            parts: suffix -> tensor, from :meth:`pack`.
            shape: Shape of the original tensor.
            key: The key that it was encoded with.

        Returns:
            float32, of the given shape.
        """

    def shapes(self, before: Shapes) -> Shapes:
        """Return the shapes and dtypes that :meth:`encode` gives for tensors of these shapes."""
        after: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for name, (shape, dtype) in before.items():
            if _is_value(name, dtype):
                after |= {name + suffix: part for suffix, part in self.parts(shape).items()}
            else:
                after[name] = (shape, dtype)
        return after

    def encode(self, tensors: Tensors, key: RngKey) -> dict[str, Tensor]:
        """Encode each float32 tensor except side tensors; the others are passed on unchanged."""
        after: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if _is_value(name, tensor.dtype):
                packed = self.pack(tensor.detach(), name, key)
                after |= {name + suffix: part for suffix, part in packed.items()}
            else:
                after[name] = tensor
        return after

    def decode(self, tensors: Tensors, before: Shapes, key: RngKey) -> dict[str, Tensor]:
        """Decode each float32 tensor except side tensors; the others are passed on unchanged."""
        after = {}
        for name, (shape, dtype) in before.items():
            if _is_value(name, dtype):
                parts = {suffix: tensors[name + suffix] for suffix in self.parts(shape)}
                after[name] = self.unpack(parts, shape, name, key)
            else:
                after[name] = tensors[name]
        return after


def _is_value(name: str, dtype: torch.dtype) -> bool:
    return dtype == torch.float32 and "#" not in name
