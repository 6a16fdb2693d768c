"""The methods of ``[model.peft]``, one entry each: what PEFT calls it, its options, and the layers that it adapts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fednlp.models.peft_layers import LayerChoice, ia3_layers, linear_layers

if TYPE_CHECKING:
    from torch import nn

AVERAGING = ("plain", "ffa", "exact")
VIRTUAL_TOKENS = 20
"""More than 20 bring little: Lester et al. 2021, section 3.2."""


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
        options: What it takes, by PEFT's names. ``averaging`` is the server's, and PEFT is not given it.
        config: Name of PEFT's class of its configuration.
        layers: Returns the configuration's arguments of the layers to adapt; None for a method that adapts none.
        adapt: (model, options, PEFT's name of the task, paths of the modules trained as a whole) -> the model, for a
            method that adapts no layers.
        refuses: Returns what is wrong with options together; empty where nothing is.
    """

    options: Mapping[str, PeftOption]
    config: str = ""
    layers: LayerChoice | None = None
    adapt: Callable[[nn.Module, Mapping[str, Any], str | None, list[str]], nn.Module] | None = None
    refuses: Callable[[Mapping[str, Any]], str] = lambda options: ""


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


def _lora_refuses(options: Mapping[str, Any]) -> str:
    if options.get("use_dora") and options.get("averaging") == "exact":
        return (
            'averaging = "exact" adds products of the factors to the weights, which use_dora = true scales besides: '
            'say averaging = "plain" or "ffa", or leave use_dora out'
        )
    return ""


def _with_prompt(
    model: nn.Module, options: Mapping[str, Any], kind: str | None, whole: list[str]
) -> nn.Module:
    from fednlp.models.prompt_tuning import with_prompt

    return with_prompt(model, {"num_virtual_tokens": VIRTUAL_TOKENS, **options}, kind, whole)


METHODS: Mapping[str, PeftMethod] = {
    "lora": PeftMethod(
        options={
            "r": _COUNT,
            "lora_alpha": _SCALE,
            "lora_dropout": _DROPOUT,
            "use_dora": _SWITCH,
            "target_modules": _LAYERS,
            "averaging": _one_of(AVERAGING),
        },
        config="LoraConfig",
        layers=linear_layers("LORA"),
        refuses=_lora_refuses,
    ),
    "loha": PeftMethod(
        options={"r": _COUNT, "alpha": _SCALE, "target_modules": _LAYERS},
        config="LoHaConfig",
        layers=linear_layers("LOHA"),
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
        layers=ia3_layers,
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
