"""``[model.peft]``: which methods there are, what each takes, and in which range."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from fednlp.errors import ModelError

METHODS: dict[str, tuple[str, ...]] = {
    "lora": ("r", "lora_alpha", "lora_dropout", "target_modules", "averaging"),
    "ia3": ("target_modules", "feedforward_modules"),
    "prompt-tuning": ("num_virtual_tokens", "prompt_tuning_init"),
}
AVERAGING = ("plain", "ffa", "exact")
VIRTUAL_TOKENS = 20
"""More than 20 bring little: Lester et al. 2021, section 3.2."""


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 1


def _are_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)


_RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "r": ("a whole number from 1", _is_whole),
    "lora_alpha": (
        "a number above 0",
        lambda value: type(value) in (int, float) and 0 < value < math.inf,
    ),
    "lora_dropout": ("a number in [0, 1)", lambda value: type(value) in (int, float) and 0 <= value < 1),
    "target_modules": (
        'names of layers, or "all-linear"',
        lambda value: value is None or isinstance(value, str) or (_are_names(value) and bool(value)),
    ),
    "averaging": (f"one of {', '.join(AVERAGING)}", lambda value: value in AVERAGING),
    "feedforward_modules": (
        "names of layers that target_modules holds too, or [] for none",
        lambda value: value is None or _are_names(value),
    ),
    "num_virtual_tokens": ("a whole number from 1", _is_whole),
    "prompt_tuning_init": (
        '"RANDOM"; it cannot begin as a text here',
        lambda value: value == "RANDOM",
    ),
}


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
    method = method_of(options)
    if method not in METHODS:
        raise ModelError(f'[model.peft] method = "{method}": there is {", ".join(METHODS)}')
    there = METHODS[method]
    unknown = [key for key in options if key != "method" and key not in there]
    if unknown:
        raise ModelError(f'[model.peft] {", ".join(unknown)}: method = "{method}" has {", ".join(there)}')
    for key in there:
        allowed, fits = _RANGES[key]
        if key in options and not fits(options[key]):
            raise ModelError(f"[model.peft] {key} = {options[key]!r}: give {allowed}")


def averaging_of(options: Mapping[str, Any] | None) -> str:
    """Return how the server averages adapters: one of :data:`AVERAGING`.

    >>> averaging_of({"method": "lora", "averaging": "exact"}), averaging_of(None)
    ('exact', 'plain')
    """
    return str((options or {}).get("averaging", "plain"))


def virtual_tokens(options: Mapping[str, Any] | None) -> int:
    """Return how many positions of a model its prompt takes; 0 without prompt tuning.

    >>> virtual_tokens({"method": "prompt-tuning", "num_virtual_tokens": 8}), virtual_tokens({"r": 4})
    (8, 0)
    """
    if options is None or method_of(options) != "prompt-tuning":
        return 0
    return int(options.get("num_virtual_tokens", VIRTUAL_TOKENS))
