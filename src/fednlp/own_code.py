"""Code of the user's own, which an experiment names ``"module:attribute"``.

Tasks, algorithms, partitioners and transforms can be named so.
"""

import importlib
import re
from pathlib import Path
from typing import Any

from fednlp.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_own(name: str) -> bool:
    """Return whether a name has the form ``"module:attribute"``.

    >>> is_own("my_methods:cyclic"), is_own("fedavg"), is_own("topk:0.01")
    (True, False, False)
    """
    return _NAME.fullmatch(name) is not None


def load(name: str, key: str) -> Any:
    """Import what the user's own name stands for.

    Args:
        name: ``"module:attribute"``; the module is found as by ``import`` (``PYTHONPATH``).
        key: The setting that holds it, for messages.

    Raises:
        ConfigError: The form is another, there is no such module or attribute, or its import failed.

    >>> load("math:pi", "algorithm.name")
    3.141592653589793
    >>> load("math:tau2", "algorithm.name")
    Traceback (most recent call last):
        ...
    fednlp.errors.ConfigError: algorithm.name = "math:tau2": module math has no tau2
    """
    said = f'{key} = "{name}"'
    if not is_own(name):
        raise ConfigError(f'{said} is not "module:name", for example "my_methods:cyclic"')
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{said}: {_not_found(error.name or module, module)}") from None
    except Exception as error:
        raise ConfigError(f"{said}: importing {module} failed: {type(error).__name__}: {error}") from error
    if hasattr(found, attribute):
        return getattr(found, attribute)
    if module == "__main__":
        raise ConfigError(
            f"{said}: what a notebook or a script defines lies in its own process alone: write it into a file, "
            "or say runtime.workers = 1"
        )
    raise ConfigError(f"{said}: module {module} has no {attribute}")


def _not_found(missing: str, module: str) -> str:
    """Say which module is missing, and what to type where its file lies in the working directory."""
    if missing != module.partition(".")[0]:
        return f"importing {module} failed: there is no module {missing}"
    here = Path(f"{missing}.py").is_file() or Path(missing, "__init__.py").is_file()
    hint = (
        "it lies in this folder: put PYTHONPATH=. before the command"
        if here
        else "set PYTHONPATH to its folder"
    )
    return f"there is no module {missing}; {hint}"
