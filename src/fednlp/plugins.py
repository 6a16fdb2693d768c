"""Users' own code, which an experiment names ``"module:attribute"``.

Tasks, algorithms, partitioners and transforms can be named in this form. Code that only a run directory names is
never imported (:func:`require_typed`).
"""

import difflib
import importlib
import inspect
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fednlp.errors import ConfigError, RunError

_LIBRARIES = (
    str(Path(__file__).parent),
    *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""Where code lies that is not the user's own."""
ELSEWHERE = "fednlp_place"
"""The attribute in which an error of another process has its place."""
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_own(name: str) -> bool:
    """Return whether a name has the form ``"module:attribute"``.

    >>> is_own("my_methods:cyclic"), is_own("fedavg"), is_own("topk:0.01")
    (True, False, False)
    """
    return _NAME.fullmatch(name) is not None


def with_colon(name: str) -> str:
    """Return a dotted name in the form of the user's own, or nothing where it is no dotted name.

    >>> with_colon("my_methods.cyclic"), with_colon("fedavg")
    ('my_methods:cyclic', '')
    """
    colon = ":".join(name.rsplit(".", 1))
    return colon if colon != name and is_own(colon) else ""


def load(name: str, key: str) -> Any:
    """Import the object that a user's own name refers to.

    Args:
        name: ``"module:attribute"``; the module is found as by ``import`` (``PYTHONPATH``).
        key: The setting with this name, for messages.

    Raises:
        ConfigError: The name has another form, there is no such module or attribute, or its import failed.

    >>> load("math:pi", "algorithm.name")
    3.141592653589793
    >>> load("math:tau2", "algorithm.name")
    Traceback (most recent call last):
        ...
    fednlp.errors.ConfigError: algorithm.name = "math:tau2": module math has no tau2; did you mean math:tau?
    """
    setting = f'{key} = "{name}"'
    if not is_own(name):
        raise ConfigError(f'{setting} is not "module:name", for example "my_methods:cyclic"')
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{setting}: {_not_found(error.name or module, name)}") from None
    except Exception as error:
        raise ConfigError(f"{setting}: importing {module} failed: {type(error).__name__}: {error}") from error
    if hasattr(found, attribute):
        return getattr(found, attribute)
    if module == "__main__":
        raise ConfigError(
            f"{setting}: what a notebook or a script defines lies in its own process alone: write it into a file, "
            "or say runtime.workers = 1"
        )
    near = difflib.get_close_matches(attribute, [one for one in vars(found) if not one.startswith("_")], n=1)
    hint = f"; did you mean {module}:{near[0]}?" if near else ""
    raise ConfigError(f"{setting}: module {module} has no {attribute}{hint}")


def name_of(value: Any, key: str) -> str:
    """Return the ``"module:attribute"`` of a function or class that a caller gives.

    Args:
        key: Name of the argument, for messages.

    Raises:
        ConfigError: It cannot be imported by name, for example because it is a lambda.

    >>> from math import sqrt
    >>> name_of(sqrt, "algorithm")
    'math:sqrt'
    """
    name = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"
    if not is_own(name) or load(name, key) is not value:
        raise ConfigError(
            f"{key} is {value!r}, which has no name to find it by: define it at the top of a module, or give the "
            "value that it returns"
        )
    return name


def place_of(error: BaseException) -> str | None:
    """Return where in the user's own code an exception was raised: a file's name and a line.

    Args:
        error: An exception that was caught.

    Returns:
        The place that is nearest to the error; None where none of the user's own code was running. An error of another
        process has its place with it.
    """
    known: str | None = getattr(error, ELSEWHERE, None)
    if known is not None:
        return known
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not _is_of_a_library(frame.filename):
            return f"{Path(frame.filename).name}, line {frame.lineno}"
    return None


def _is_of_a_library(file: str) -> bool:
    return file.startswith(("<", *(f"{folder}{os.sep}" for folder in _LIBRARIES)))


def is_shipped(value: object) -> bool:
    """Return whether a value's class comes with fednlp.

    >>> is_shipped(ValueError()), is_shipped(RunError())
    (False, True)
    """
    return type(value).__module__.partition(".")[0] == "fednlp"


def described(function: Callable[..., Any]) -> str:
    """Return a function's name, with the file and the line that define it where it is the user's own.

    >>> described(len), described(load)
    ('len', 'load')
    """
    function = inspect.unwrap(function)
    name = getattr(function, "__qualname__", type(function).__qualname__).replace(".<locals>", "")
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if code is None or _is_of_a_library(code.co_filename):
        return name
    return f"{name} ({Path(code.co_filename).name}, line {code.co_firstlineno})"


def kind_of(value: object) -> str:
    """Return what a value is: its type, and the type and the shape of an array's or a tensor's numbers.

    >>> import numpy as np
    >>> kind_of([1.0]), kind_of(np.float32(1)), kind_of(np.zeros((2, 1)))
    ('list', 'float32', 'ndarray of float64, shape (2, 1)')
    """
    kind = type(value).__name__
    dtype = str(getattr(value, "dtype", kind)).removeprefix("torch.")
    return kind if dtype == kind else f"{kind} of {dtype}, shape {tuple(getattr(value, 'shape', ()))}"


def require_takes(function: Callable[..., Any], what: str, *given: str) -> None:
    """Check that a function takes the arguments that it will be called with.

    Args:
        what: Its part in the user's own code, for messages.
        given: The arguments' names, in their order.

    Raises:
        ConfigError: It does not, or is no function.

    >>> require_takes(lambda population: None, "mine: sample", "population", "round_number")
    Traceback (most recent call last):
        ...
    fednlp.errors.ConfigError: mine: sample, your own <lambda>, takes population, and it is called with population, \
round_number: let it take these
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # it is written in C
        return
    except TypeError:
        raise ConfigError(f"{what} is {kind_of(function)}: give a function of {', '.join(given)}") from None
    try:
        signature.bind(*given)
    except TypeError:
        raise ConfigError(
            f"{what}, your own {described(function)}, takes {', '.join(signature.parameters) or 'nothing'}, and it is "
            f"called with {', '.join(given)}: let it take these"
        ) from None


def require_methods(value: object) -> None:
    """Check that the methods of a user's own class take what those of fednlp's classes take that they replace.

    Raises:
        ConfigError: One does not.
    """
    own = type(value)
    if is_shipped(value):
        return
    for name, method in inspect.getmembers(own, callable):
        shipped = (vars(base).get(name) for base in own.__mro__ if base.__module__.startswith("fednlp."))
        replaced = next((one for one in shipped if inspect.isfunction(one)), None)
        if name.startswith("_") or replaced is None or replaced is method:
            continue
        parameters = list(inspect.signature(replaced).parameters.values())[1:]
        if all(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in parameters):
            require_takes(getattr(value, name), f"{own.__name__}: {name}", *(one.name for one in parameters))


def raised(error: BaseException) -> str:
    """Return an exception as one line, with the place in the user's own code where it was raised, if it was.

    >>> raised(ValueError("too short\\nsee there"))
    'ValueError: too short'
    """
    lines, place = str(error).strip().splitlines(), place_of(error)
    said = f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
    return f"{said} ({place})" if place else said


def require_typed(folder: object, named: Iterable[tuple[str, str]], remedy: str) -> None:
    """Refuse code that only a run directory names: the directory may be from an untrusted source.

    Args:
        named: Settings, each with its name, that the user has not given as well.
        remedy: The command or argument that gives them, for the message.

    Raises:
        RunError: There is such a setting.

    >>> require_typed("run", [], "")
    >>> require_typed("run", [("algorithm.name", "theirs:f")], "type it")
    Traceback (most recent call last):
        ...
    fednlp.errors.RunError: run says algorithm.name = "theirs:f", and fednlp runs no code that only a run directory \
names: if you trust it, type it
    """
    for key, name in named:
        raise RunError(
            f'{folder} says {key} = "{name}", and fednlp runs no code that only a run directory names: '
            f"if you trust it, {remedy}"
        )


def _not_found(missing: str, name: str) -> str:
    """Return a message about the missing module, with advice where its file is in the working directory."""
    module, _, attribute = name.partition(":")
    if module.endswith(".py"):
        return f'a module is named without .py: write "{module.removesuffix(".py")}:{attribute}"'
    if missing != module.partition(".")[0]:
        return f"importing {module} failed: there is no module {missing}"
    here = Path(f"{missing}.py").is_file() or Path(missing, "__init__.py").is_file()
    hint = (
        "it lies in this folder: put PYTHONPATH=. before the command"
        if here
        else "set PYTHONPATH to its folder"
    )
    return f"there is no module {missing}; {hint}"
