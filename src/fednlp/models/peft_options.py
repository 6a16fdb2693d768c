"""``[model.peft]`` as it is typed: its checks, and what other sections ask of it."""

from collections.abc import Mapping
from typing import Any

from fednlp.errors import ModelError
from fednlp.models.peft_methods import METHODS, VIRTUAL_TOKENS


def method_of(options: Mapping[str, Any]) -> str:
    """Return the method of ``[model.peft]``.

    >>> method_of({"r": 8})
    'lora'
    """
    return str(options.get("method", "lora"))


def check_peft(options: Mapping[str, Any]) -> None:
    """Check the options of ``[model.peft]``.

    Raises:
        ModelError: There is no such method, it has no such option, a value is out of its range, or two options do not
            go together.
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
    problem = method.refuses(options)
    if problem:
        raise ModelError(f"[model.peft] {problem}")


def averaging_of(options: Mapping[str, Any] | None) -> str:
    """Return how the server averages adapters: one of :data:`fednlp.models.peft_methods.AVERAGING`.

    >>> averaging_of({"method": "lora", "averaging": "exact"}), averaging_of(None)
    ('exact', 'plain')
    """
    return str((options or {}).get("averaging", "plain"))


def virtual_tokens(options: Mapping[str, Any] | None) -> int:
    """Return how many positions of a model its prompt takes; 0 for a method without a prompt.

    >>> virtual_tokens({"method": "prompt-tuning", "num_virtual_tokens": 8}), virtual_tokens({"r": 4})
    (8, 0)
    """
    method = METHODS.get(method_of(options or {}))
    if options is None or method is None or "num_virtual_tokens" not in method.options:
        return 0
    return int(options.get("num_virtual_tokens", VIRTUAL_TOKENS))
