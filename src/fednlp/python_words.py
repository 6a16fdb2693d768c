"""The advice of errors in the words of Python, for who called a function and typed no command."""

import functools
import inspect
import re
import shlex
from collections.abc import Callable
from typing import Any

from fednlp.errors import FednlpError

_RUN = re.compile(r"fednlp run (?P<first>\S+) --out (?P<second>\S+)")
_RESUME = re.compile(r"fednlp run --resume (?P<folder>'[^']*'|\S+)(?P<settings>(?: --set (?:'[^']*'|\S+))*)")
_VALUE = re.compile(r"(with|add|than) --(client|task|limit) ('[^']*'|[^\s,;)]*[^\s,;:).])")
_QUOTE = "'"
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*)")


def advice_in_python(text: str, arguments: frozenset[str] | None = None) -> str:
    """Return an error's text with calls of fednlp for commands, and with names of arguments for options.

    Args:
        text: What the command line says.
        arguments: Those that the function has; options of other names stay. None for all.

    >>> advice_in_python("runs/a holds a run already: go on with: fednlp run --resume runs/a")
    "runs/a holds a run already: go on with: fednlp.resume('runs/a')"
    >>> advice_in_python("choose another --out", frozenset({"out"}))
    'choose another out='
    >>> advice_in_python("if you trust it, add --task own:Mine"), advice_in_python("more than --limit 3: raise it")
    ("if you trust it, add task='own:Mine'", 'more than limit=3: raise it')
    >>> advice_in_python("type fednlp run --resume 'my run' --set cohort.name=own:mine")
    "type fednlp.resume('my run', overrides=['cohort.name=own:mine'])"
    """
    text = _RUN.sub(lambda found: f"fednlp.run({found['first']!r}, {found['second']!r})", text)
    text = _RESUME.sub(_resumed, text)

    def given(found: re.Match[str]) -> str:
        word, name, value = found.groups()
        value = value if value.isdecimal() else repr(value.strip(_QUOTE))
        return f"{word} {name}={value}" if arguments is None or name in arguments else found[0]

    text = _VALUE.sub(given, text)

    def renamed(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        return f"{name}=" if arguments is None or name in arguments else found[0]

    return _OPTION.sub(renamed, text)


def _resumed(command: re.Match[str]) -> str:
    """Return the call that resumes a run as a command does."""
    folder, settings = command["folder"].strip(_QUOTE), shlex.split(command["settings"])[1::2]
    return f"fednlp.resume({folder!r}{f', overrides={settings}' if settings else ''})"


def advising_in_python(function: Callable[..., Any], default: Callable[[], Any]) -> Callable[..., Any]:
    """Return a function whose errors and messages advise its caller in the words of Python.

    Args:
        function: It may have an argument ``callback``, whose ``log`` takes its messages.
        default: Makes the callback where the caller gives none.
    """
    signature = inspect.signature(function)
    arguments = frozenset(signature.parameters)

    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        if "callback" in arguments:
            try:
                given = signature.bind(*args, **options)
            except TypeError:
                return function(*args, **options)  # which says what does not fit in its own words
            told = given.arguments.get("callback") or default()
            given.arguments["callback"] = _TellingInPython(told, arguments)
            args, options = given.args, given.kwargs
        try:
            return function(*args, **options)
        except FednlpError as error:
            error.args = tuple(
                advice_in_python(one, arguments) if isinstance(one, str) else one for one in error.args
            )
            raise

    return called


class _TellingInPython:
    """A callback that is told messages in the words of Python."""

    def __init__(self, callback: Any, arguments: frozenset[str]) -> None:
        self._callback, self._arguments = callback, arguments

    def log(self, text: str) -> None:
        """Report a message."""
        self._callback.log(advice_in_python(text, self._arguments))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._callback, name)
