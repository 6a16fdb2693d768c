"""The advice of errors in the words of Python, for who called a function and typed no command."""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

from fednlp.errors import FednlpError

_RUN = re.compile(r"fednlp run (?P<first>\S+) --out (?P<second>\S+)")
_RESUME = re.compile(r"fednlp run --resume (?P<first>\S+)")
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
    """
    text = _RUN.sub(lambda found: f"fednlp.run({found['first']!r}, {found['second']!r})", text)
    text = _RESUME.sub(lambda found: f"fednlp.resume({found['first']!r})", text)

    def given(found: re.Match[str]) -> str:
        word, name, value = found.groups()
        value = value if value.isdecimal() else repr(value.strip(_QUOTE))
        return f"{word} {name}={value}" if arguments is None or name in arguments else found[0]

    text = _VALUE.sub(given, text)

    def renamed(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        return f"{name}=" if arguments is None or name in arguments else found[0]

    return _OPTION.sub(renamed, text)


def advising_in_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose errors advise its caller in the words of Python."""
    arguments = frozenset(inspect.signature(function).parameters)

    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except FednlpError as error:
            error.args = tuple(
                advice_in_python(one, arguments) if isinstance(one, str) else one for one in error.args
            )
            raise

    return called
