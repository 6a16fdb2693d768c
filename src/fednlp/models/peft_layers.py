"""Which layers of a model get adapters: the ones that are asked for, or PEFT's own choice for the architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fednlp.errors import ModelError

if TYPE_CHECKING:
    from torch import nn

LayerChoice = Callable[["nn.Module", Mapping[str, Any]], dict[str, Any]]
"""(model, options of ``[model.peft]``) -> arguments of PEFT's configuration.

It raises :class:`ModelError` where the model has no such layer.
"""


def linear_layers(method: str) -> LayerChoice:
    """Return the choice of a method that adapts linear layers: all of them where PEFT has no choice of its own.

    Args:
        method: As PEFT calls it in the name of its table of layers, such as ``"LORA"``.
    """

    def choose(model: nn.Module, options: Mapping[str, Any]) -> dict[str, Any]:
        targets = options.get("target_modules")
        if targets is None and type_of(model) not in _choices(method, "TARGET"):
            targets = "all-linear"
        _check_targets(model, "target_modules", targets)
        return {"target_modules": targets}

    return choose


def ia3_layers(model: nn.Module, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layers that IA3 scales: their outputs, and of the feed-forward ones the inputs.

    Raises:
        ModelError: The model has no such layer, or PEFT has no choice for it and none was given.
    """
    usual, usual_forward = (_choices("IA3", which).get(type_of(model)) for which in ("TARGET", "FEEDFORWARD"))
    targets, forward = options.get("target_modules") or usual, options.get("feedforward_modules")
    if targets is None:
        raise ModelError(
            f"[model.peft] PEFT has no choice of layers for {type_of(model)}: give target_modules, the layers of "
            "keys, values and the feed-forward's second half, and feedforward_modules, the last of these"
        )
    if forward is None:
        if usual_forward is None:
            raise ModelError(
                f"[model.peft] PEFT has no choice of layers for {type_of(model)}: give feedforward_modules, those "
                "of target_modules that end a feed-forward block, or [] for none"
            )
        forward = [name for name in usual_forward if isinstance(targets, str) or name in targets]
    if not isinstance(targets, str) and not set(forward) <= set(targets):
        raise ModelError(
            f"[model.peft] feedforward_modules: {', '.join(n for n in forward if n not in targets)} must be in "
            f"target_modules too, which holds {', '.join(targets)}"
        )
    _check_targets(model, "target_modules", targets)
    _check_targets(model, "feedforward_modules", forward)
    return {"target_modules": _listed(targets), "feedforward_modules": _listed(forward)}


def _listed(names: Any) -> Any:
    return names if isinstance(names, str) else list(names)


def _choices(method: str, which: str) -> Mapping[str, Any]:
    """Return PEFT's own choices of layers, by architecture."""
    from peft.utils import constants

    found: Mapping[str, Any] = getattr(constants, f"TRANSFORMERS_MODELS_TO_{method}_{which}_MODULES_MAPPING")
    return found


def _check_targets(model: nn.Module, key: str, targets: Any) -> None:
    if not isinstance(targets, (list, tuple)):
        return
    from torch import nn

    layers = [(f".{path}", module) for path, module in model.named_modules()]
    wrong = [name for name in targets if not any(path.endswith(f".{name}") for path, _ in layers)]
    if wrong:
        there = sorted({path.rpartition(".")[2] for path, layer in layers if isinstance(layer, nn.Linear)})
        raise ModelError(
            f"[model.peft] {key}: the model has no layer {', '.join(wrong)}; its linear ones are "
            f'{", ".join(there)}, or say "all-linear"'
        )


def type_of(model: nn.Module) -> str:
    """Return a model's architecture, the ``model_type`` of its configuration."""
    return str(getattr(getattr(model, "config", None), "model_type", ""))
