"""``[model.peft]``: its methods, one entry each, the layers that they adapt, and the checks of options."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fednlp.errors import ModelError

if TYPE_CHECKING:
    from torch import nn

AVERAGED_BY = ("averaging", "averaging_gap", "ranks")
"""Options of LoRA that PEFT is not given: how a federation averages adapters, which checks them."""
FIXED_A = "ffa"
"""The way of averaging in which A keeps its first values."""
MOVED_BASE = ("exact", "flora")
"""Ways of averaging that move the base too, so that the adapters alone do not describe the trained model."""
_VIRTUAL_TOKENS = 20
"""More than 20 bring little: Lester et al. 2021, section 3.2."""

LayerChoice = Callable[["nn.Module", Mapping[str, Any]], dict[str, Any]]
"""(model, options of ``[model.peft]``) -> arguments of PEFT's configuration.

It raises :class:`ModelError` where the model has no such layer.
"""


def _linear_layers(method: str) -> LayerChoice:
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


def _ia3_layers(model: nn.Module, options: Mapping[str, Any]) -> dict[str, Any]:
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


@dataclass(frozen=True)
class PeftOption:
    """An option of a method.

    Attributes:
        allowed: What to give, for messages.
        fits: Whether a value may be given.
    """

    allowed: str
    fits: Callable[[Any], bool]


@dataclass(frozen=True)
class PeftMethod:
    """A method of ``[model.peft]``.

    Attributes:
        options: What it takes, by PEFT's names; ``averaging``, ``averaging_gap`` and ``ranks`` are the federation's.
        config: Name of PEFT's class of its configuration.
        layers: Returns the configuration's arguments of the layers to adapt; None for a method that adapts none.
        adapt: (model, options, PEFT's name of the task, paths of the modules trained as a whole) -> the model, for a
            method that adapts no layers.
    """

    options: Mapping[str, PeftOption]
    config: str = ""
    layers: LayerChoice | None = None
    adapt: Callable[[nn.Module, Mapping[str, Any], str | None, list[str]], nn.Module] | None = None


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 1


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)


def _one_of(values: Collection[str]) -> PeftOption:
    return PeftOption(f"one of {', '.join(values)}", lambda value: value in values)


_COUNT = PeftOption("a whole number from 1", _whole)
_SCALE = PeftOption("a number above 0", _positive)
_SWITCH = PeftOption("true or false", lambda value: type(value) is bool)
_DROPOUT = PeftOption("a number in [0, 1)", lambda value: type(value) in (int, float) and 0 <= value < 1)
_LAYERS = PeftOption(
    'names of layers, or "all-linear"',
    lambda value: value is None or isinstance(value, str) or (_names(value) and bool(value)),
)


def _with_prompt(
    model: nn.Module, options: Mapping[str, Any], kind: str | None, whole: list[str]
) -> nn.Module:
    from fednlp.models.prompt_tuning import with_prompt

    return with_prompt(model, {"num_virtual_tokens": _VIRTUAL_TOKENS, **options}, kind, whole)


METHODS: Mapping[str, PeftMethod] = {
    "lora": PeftMethod(
        options={
            "r": _COUNT,
            "lora_alpha": _SCALE,
            "lora_dropout": _DROPOUT,
            "use_dora": _SWITCH,
            "target_modules": _LAYERS,
            **dict.fromkeys(AVERAGED_BY, PeftOption("", lambda value: True)),
        },
        config="LoraConfig",
        layers=_linear_layers("LORA"),
    ),
    "loha": PeftMethod(
        options={"r": _COUNT, "alpha": _SCALE, "target_modules": _LAYERS},
        config="LoHaConfig",
        layers=_linear_layers("LOHA"),
    ),
    "ia3": PeftMethod(
        options={
            "target_modules": _LAYERS,
            "feedforward_modules": PeftOption(
                "names of layers that target_modules holds too, or [] for none",
                lambda value: value is None or _names(value),
            ),
        },
        config="IA3Config",
        layers=_ia3_layers,
    ),
    "prompt-tuning": PeftMethod(
        options={
            "num_virtual_tokens": _COUNT,
            "prompt_tuning_init": PeftOption(
                '"RANDOM"; it cannot begin as a text here', lambda value: value == "RANDOM"
            ),
        },
        adapt=_with_prompt,
    ),
}
"""By the names that are typed. A new method that PEFT puts on layers is one more entry."""


def method_of(options: Mapping[str, Any]) -> str:
    """Return the method of ``[model.peft]``.

    >>> method_of({"r": 8})
    'lora'
    """
    return str(options.get("method", "lora"))


def check_peft(options: Mapping[str, Any]) -> None:
    """Check the options of ``[model.peft]``.

    Raises:
        ModelError: There is no such method, it has no such option, or a value is out of its range.
    """
    name = method_of(options)
    method = METHODS.get(name)
    if method is None:
        raise ModelError(f'[model.peft] method = "{name}": there is {", ".join(METHODS)}')
    unknown = [key for key in options if key != "method" and key not in method.options]
    if unknown:
        raise ModelError(
            f'[model.peft] {", ".join(unknown)}: method = "{name}" has {", ".join(method.options)}'
        )
    for key, option in method.options.items():
        if key in options and not option.fits(options[key]):
            raise ModelError(f"[model.peft] {key} = {options[key]!r}: give {option.allowed}")


def virtual_tokens(options: Mapping[str, Any] | None) -> int:
    """Return how many positions of a model its prompt takes; 0 for a method without a prompt.

    >>> virtual_tokens({"method": "prompt-tuning", "num_virtual_tokens": 8}), virtual_tokens({"r": 4})
    (8, 0)
    """
    method = METHODS.get(method_of(options or {}))
    if options is None or method is None or "num_virtual_tokens" not in method.options:
        return 0
    return int(options.get("num_virtual_tokens", _VIRTUAL_TOKENS))
