"""Gradient checkpointing: the backward pass computes each layer's activations again, so that none need be kept."""

from typing import Any

from torch import nn

from fednlp.errors import ModelError


def checkpoint_layers(model: nn.Module) -> None:
    """Keep only the input of each layer in training, with or without adapters.

    The layers run again with the same dropout, so weights after a step are the same, bit for bit.

    Raises:
        ModelError: The architecture does not support it.
    """
    enable: Any = getattr(model, "activation_checkpointing_enable", None)
    try:
        if enable is None:
            raise ValueError
        enable(activation_checkpointing_kwargs={"use_reentrant": False})
    except ValueError:
        name = type(model).__name__
        raise ModelError(
            f"{name} does not support gradient checkpointing: remove client.gradient_checkpointing, or choose another "
            "model"
        ) from None
