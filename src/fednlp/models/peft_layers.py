"""Which layers of a model get adapters: the ones that are asked for, or PEFT's own choice for the architecture."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from fednlp.errors import ModelError

_CHOICES = {
    "lora": ("TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING",),
    "ia3": (
        "TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING",
        "TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING",
    ),
}


def lora_layers(model: nn.Module, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of PEFT's LoRA, with the layers filled in.

    Raises:
        ModelError: The model has no such layer.
    """
    chosen = {key: value for key, value in options.items() if key not in ("method", "averaging")}
    if chosen.get("target_modules") is None:
        known = _choices("lora")[0]
        chosen["target_modules"] = None if type_of(model) in known else "all-linear"
    _check_targets(model, "target_modules", chosen["target_modules"])
    return chosen


def ia3_layers(model: nn.Module, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layers that IA3 scales: their outputs, and of the feed-forward ones the inputs.

    Raises:
        ModelError: The model has no such layer, or PEFT has no choice for it and none was given.
    """
    usual, usual_forward = (known.get(type_of(model)) for known in _choices("ia3"))
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


def _choices(method: str) -> list[dict[str, Any]]:
    """Return PEFT's own choices of layers, by architecture."""
    from peft.utils import constants

    return [getattr(constants, name) for name in _CHOICES[method]]


def _check_targets(model: nn.Module, key: str, targets: Any) -> None:
    if not isinstance(targets, (list, tuple)):
        return
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
