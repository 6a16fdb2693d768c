"""Chains of transforms, and error feedback, which compensates for what they lose."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fednlp.errors import ConfigError, FednlpError
from fednlp.federated.links import Chain
from fednlp.federated.message import shapes_of
from fednlp.federated.transform_spec import Step
from fednlp.federated.transforms.base import RngKey, Tensors, Transform
from fednlp.federated.transforms.clip import Clip
from fednlp.federated.transforms.half import Half
from fednlp.federated.transforms.quantise import Quantise
from fednlp.federated.transforms.sign import Sign
from fednlp.federated.transforms.sparse import RandomK, TopK
from fednlp.plugins import load, raised

Carry = Callable[[dict[str, Tensor]], dict[str, Tensor]]


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
    try:
        transform: Transform = load(step.name, "exchange")()
    except Exception as error:
        if isinstance(error, FednlpError):
            raise
        raise ConfigError(f'exchange: "{step.name}": making it raised {raised(error)}') from error
    lacking = [part for part in ("shapes", "encode", "decode") if not hasattr(transform, part)]
    if lacking:
        raise ConfigError(f'exchange: "{step.name}" is no transform: it has no {lacking[0]}')
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
