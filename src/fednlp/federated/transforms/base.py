"""What a transform is: named tensors become other named tensors, whose shapes both sides know beforehand.

Shapes are a function of the layout alone, so nothing about sizes is read from a message. A transform that
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


class Key(NamedTuple):
    """What a message's randomness depends on: the experiment's seed, the round, and the client."""

    seed: int
    round: int
    client: int


def stream(key: Key, purpose: str, name: str) -> np.random.Generator:
    """Return the generator of one tensor of one message."""
    return generator(key.seed, f"{purpose} {name}", key.round, key.client)


class Transform(Protocol):
    """One step of a chain."""

    def shapes(self, before: Shapes) -> Shapes:
        """Return what :meth:`encode` makes of tensors of these shapes."""

    def encode(self, tensors: Tensors, key: Key) -> dict[str, Tensor]:
        """Encode named tensors; new ones, the given are left as they are."""

    def decode(self, tensors: Tensors, before: Shapes, key: Key) -> dict[str, Tensor]:
        """Undo :meth:`encode`, as far as it can be: tensors of the shapes ``before``, in their order."""


class PerTensor(ABC):
    """A transform of each float32 tensor by itself; a subclass says what becomes of one."""

    @abstractmethod
    def parts(self, shape: tuple[int, ...]) -> Shapes:
        """Return suffix -> (shape, dtype) of what one tensor becomes; the first suffix is empty."""

    @abstractmethod
    def pack(self, tensor: Tensor, name: str, key: Key) -> dict[str, Tensor]:
        """Encode one tensor: suffix -> tensor, as :meth:`parts` says."""

    @abstractmethod
    def unpack(self, parts: dict[str, Tensor], shape: tuple[int, ...], name: str, key: Key) -> Tensor:
        """Decode one tensor: float32 of the shape given."""

    def shapes(self, before: Shapes) -> Shapes:
        """Return what :meth:`encode` makes of tensors of these shapes."""
        after: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for name, (shape, dtype) in before.items():
            if _is_value(name, dtype):
                after |= {name + suffix: part for suffix, part in self.parts(shape).items()}
            else:
                after[name] = (shape, dtype)
        return after

    def encode(self, tensors: Tensors, key: Key) -> dict[str, Tensor]:
        """Encode each float32 tensor that is no side tensor; the others pass."""
        after: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if _is_value(name, tensor.dtype):
                packed = self.pack(tensor.detach(), name, key)
                after |= {name + suffix: part for suffix, part in packed.items()}
            else:
                after[name] = tensor
        return after

    def decode(self, tensors: Tensors, before: Shapes, key: Key) -> dict[str, Tensor]:
        """Return float32 tensors of the shapes ``before``."""
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
