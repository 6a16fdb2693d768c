"""A method's change of the gradient before each local step, and what is said where it does not fit."""

import inspect
from typing import Any

from torch import Tensor

from fednlp.errors import ConfigError
from fednlp.federated.client import Gradient
from fednlp.plugins import described


def changed_gradient(change: Gradient, g: Tensor, y: Tensor, *vectors: Tensor) -> Tensor:
    """Return what a method makes of the gradient of one stretch of the model.

    Args:
        change: The function that the method gives to ``local.steps``.
        g: The loss's gradient; may be overwritten.
        y: The weights, of the same shape.
        vectors: What else was passed to ``local.steps``, cut to the same stretch.

    Raises:
        ConfigError: The function takes other vectors than were passed, uses one that was not passed, or returns
            something of another shape.
    """
    try:
        made = change(g, y, *vectors)
    except (RuntimeError, TypeError) as error:
        reason = _misfit(change, len(vectors), g, error)
        if reason is None:
            raise
        raise ConfigError(f"the gradient function {described(change)} {reason}") from error
    if not isinstance(made, Tensor) or made.shape != g.shape:
        what = f"a tensor of shape {tuple(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        raise ConfigError(
            f"the gradient function {described(change)} returned {what}: return the gradient, {tuple(g.shape)} as it "
            "came"
        )
    return made


def _misfit(change: Gradient, vectors: int, g: Tensor, error: Exception) -> str | None:
    """Return how the function does not fit what was passed; None where that is not why it failed."""
    try:
        inspect.signature(change).bind(*range(2 + vectors))
    except TypeError:
        given = "no vector was" if not vectors else f"{vectors} vector{'s were' if vectors > 1 else ' was'}"
        return (
            f"takes {', '.join(inspect.signature(change).parameters) or 'nothing'}, and {given} passed beside g and y: "
            "say local.steps(start, gradient, *vectors) with one vector for each parameter after g and y"
        )
    names = [
        name for name, value in _captured(change).items() if _is_vector(value) and value.shape != g.shape
    ]
    if isinstance(error, TypeError) or not names:
        return None
    listed = ", ".join(names)
    return (
        f"uses {listed} from outside, whole, and it is called with one stretch of the model at a time: say "
        f"local.steps(start, gradient, ..., {listed}), and let it take {listed} as the last of its parameters ({error})"
    )


def _captured(change: Gradient) -> dict[str, Any]:
    """Return what a function uses from outside by name; nothing for other callables."""
    if not inspect.isfunction(change):
        return {}
    used = inspect.getclosurevars(change)
    return {**used.globals, **used.nonlocals}


def _is_vector(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 1 and value.numel() > 1
