"""Errors on their way from a process for jobs to the one that started it, as JSON values."""

import traceback
from collections.abc import Mapping
from typing import Any

from fednlp import errors
from fednlp.errors import ConfigError, DamagedError, FednlpError
from fednlp.plugins import ELSEWHERE, place_of


class Fault(Exception):
    """An error in another process that fednlp does not foresee.

    Its class has the name of the other's, and :func:`fednlp.plugins.place_of` finds where it was raised.
    """


def as_message(error: FednlpError) -> dict[str, Any]:
    """Return an error of fednlp as a JSON value, with the names of its class and of those that this derives from.

    >>> as_message(ConfigError("no such key", ["a", "b"]))
    {'kinds': ['ConfigError', 'FednlpError'], 'text': 'no such key', 'problems': ['a', 'b'], 'what': ''}
    """
    kinds = [one.__name__ for one in type(error).__mro__ if issubclass(one, FednlpError)]
    problems = error.problems if isinstance(error, ConfigError) else []
    what = error.what if isinstance(error, DamagedError) else ""
    return {"kinds": kinds, "text": str(error), "problems": problems, "what": what}


def as_error(message: Mapping[str, Any]) -> FednlpError:
    """Return the error that :func:`as_message` made a message of.

    >>> as_error({"kinds": ["DataError"], "text": "no rows", "problems": [], "what": ""})
    DataError('no rows')
    """
    kind = next(getattr(errors, name) for name in message["kinds"] if hasattr(errors, name))
    if kind is ConfigError:
        return ConfigError(message["text"], message["problems"])
    error: FednlpError = kind(message["text"])
    if isinstance(error, DamagedError):
        error.what = message["what"]
    return error


def as_fault(error: Exception) -> dict[str, Any]:
    """Return an error that fednlp does not foresee as a JSON value, with its place in the user's own code."""
    come = "".join(traceback.format_exception(error))
    return {"kind": type(error).__name__, "text": str(error), "place": place_of(error), "traceback": come}


def as_exception(message: Mapping[str, Any]) -> Fault:
    """Return the error that :func:`as_fault` made a message of.

    >>> as_exception({"kind": "ValueError", "text": "too short", "place": "mine.py, line 3", "traceback": ""})
    ValueError('too short')
    """
    error: Fault = type(message["kind"], (Fault,), {})(message["text"])
    setattr(error, ELSEWHERE, message["place"])
    error.add_note(message["traceback"])
    return error
