"""Chains of transforms, and error feedback, which compensates for what they lose."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fednlp.errors import ModelError
from fednlp.federated.message import Shapes, message_bytes, shapes_of
from fednlp.federated.transform_spec import Step
from fednlp.federated.transforms.base import RngKey, Tensors, Transform
from fednlp.federated.transforms.clip import Clip
from fednlp.federated.transforms.half import Half
from fednlp.federated.transforms.quantise import Quantise
from fednlp.federated.transforms.sign import Sign
from fednlp.federated.transforms.sparse import RandomK, TopK
from fednlp.plugins import load

Carry = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True)
class Chain:
    """Transforms in the order in which a sender applies them; an empty chain changes nothing, bit for bit.

    Attributes:
        steps: The transforms.
    """

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
            key: The sender's key.

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

    def message_bytes(self, shapes: Shapes) -> int:
        """Return the exact length of the encoded message of tensors of these shapes, in bytes."""
        return message_bytes(self.shapes(shapes))

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


def make_chain(steps: Sequence[Step], *, nearest: bool = False) -> Chain:
    """Build a chain.

    Args:
        steps: Checked steps, in order (:func:`fednlp.federated.transform_spec.parse_chain`).
        nearest: Let ``int8`` and ``int4`` round to nearest, for weights on the downlink.
    """
    return Chain(tuple(_make(step, nearest) for step in steps))


def _make(step: Step, nearest: bool) -> Transform:
    number = float(step.argument or 0)
    match step.name:
        case "float16" | "bfloat16":
            return Half(getattr(torch, step.name))
        case "int8" | "int4":
            return Quantise(int(step.name[3:]), step.block, nearest)
        case "topk":
            return TopK(number)
        case "randomk":
            return RandomK(number)
        case "sign":
            return Sign()
        case "clip":
            return Clip(number)
    transform: Transform = load(step.name, "exchange")()
    return transform


def feedback(
    update: Tensors, residual: Tensors, chain: Chain, key: RngKey, carry: Carry = dict
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Encode an update with error feedback.

    residual' = update + residual - decoded (Stich et al. 2018, algorithm 1; Karimireddy et al. 2019, algorithm 2).
    The sum of all decoded messages and the last residual is the sum of all updates.

    Args:
        update: Named float32 tensors, all of the shared ones or some.
        residual: Residual of earlier rounds by name; a missing tensor counts as zeros.
        chain: The uplink's transforms.
        key: The message's key.
        carry: Transfers the encoded tensors to the receiver, and returns them as received.

    Returns:
        The encoded tensors, the receiver's decoded tensors, and the new residual. Tensors that are not in the update
        keep their residual; all do if a value is not finite, because the receiver will refuse that message.
    """
    target = {
        name: value + residual[name] if name in residual else value.detach() for name, value in update.items()
    }
    shapes = shapes_of(target)
    encoded = chain.encode(target, key)
    decoded = chain.decode(carry(encoded), shapes, key)
    rest = {name: value - decoded[name] for name, value in target.items()}
    if not _finite(rest):
        return encoded, decoded, dict(residual)
    return encoded, decoded, {**residual, **rest}


def _finite(tensors: Mapping[str, Tensor]) -> bool:
    # One number a tensor: least and largest are NaN where any value is.
    return all(
        bool(torch.isfinite(torch.stack(torch.aminmax(value))).all())
        for value in tensors.values()
        if value.numel()
    )
