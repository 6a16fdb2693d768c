"""How updates and the global model travel, as values: which tensors, and through which transforms.

:mod:`fednlp.federated.communication` encodes and decodes by them. Nothing here needs torch, so that an experiment is
checked before it is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fednlp.errors import ModelError
from fednlp.federated.adapters import Adapters
from fednlp.federated.pulling import Pull

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.message import Shapes
    from fednlp.federated.transforms.base import RngKey, Tensors, Transform


@dataclass(frozen=True)
class Chain:
    """Transforms in the order in which a sender applies them; an empty chain changes nothing, bit for bit."""

    steps: tuple[Transform, ...] = ()

    def shapes(self, before: Shapes) -> Shapes:
        """Return the shapes and dtypes that :meth:`encode` gives for tensors of these shapes."""
        return self._stages(before)[-1]

    def encode(self, tensors: Tensors, key: RngKey) -> dict[str, Tensor]:
        """Encode named float32 tensors; the same key gives the same bytes."""
        current = dict(tensors)
        for step in self.steps:
            current = step.encode(current, key)
        return current

    def decode(self, encoded: Tensors, shapes: Shapes, key: RngKey) -> dict[str, Tensor]:
        """Decode tensors that :meth:`encode` encoded with the same key.

        Args:
            encoded: Tensors of ``self.shapes(shapes)``.
            shapes: Shapes and dtypes of the original tensors.

        Returns:
            float32 tensors of the original shapes, in the order of ``shapes``.

        Raises:
            RunError: The chain cannot have produced these values.
        """
        stages = self._stages(shapes)
        current = {name: encoded[name] for name in stages[-1]}
        for step, before in zip(reversed(self.steps), reversed(stages[:-1]), strict=True):
            current = step.decode(current, before, key)
        return current

    def _stages(self, before: Shapes) -> list[Shapes]:
        """Return the shapes before the first step, and after each.

        Raises:
            ModelError: A name contains "#", which is reserved for side tensors.
        """
        for name in before:
            if "#" in name:
                raise ModelError(f"the parameter {name} has a # in its name: rename it, # marks side tensors")
        stages: list[Shapes] = [dict(before)]
        for step in self.steps:
            stages.append(step.shapes(stages[-1]))
        return stages


@dataclass(frozen=True)
class Uplink:
    """How updates travel to the server.

    Attributes:
        error_feedback: Whether a client adds what compression lost of an update to its next one.
        pull: Which tensors a client sends.
        adapters: Low-rank ones, with the rule that they are averaged by.
        weights: Whether clients send their weights: the server subtracts the model that it sent from what arrives.
    """

    chain: Chain = field(default_factory=Chain)
    error_feedback: bool = False
    pull: Pull = field(default_factory=Pull)
    adapters: Adapters = field(default_factory=Adapters)
    weights: bool = False

    @property
    def plain(self) -> bool:
        """Whether updates travel as they are, all of them."""
        return not self.chain.steps and self.pull.rule == "all" and not self.adapters.pairs


@dataclass(frozen=True)
class Downlink:
    """How the global model travels to the clients, by the transforms of ``chain``."""

    chain: Chain = field(default_factory=Chain)

    @property
    def plain(self) -> bool:
        """Whether the model travels as it is."""
        return not self.chain.steps
