"""What a user writes after ``--tune``: settings and the values to choose from."""

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from fednlp.errors import ConfigError

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|.', re.DOTALL)
"""A quoted text, or one character."""
_KEY = re.compile(r"\s*(?:[^=]+:)?[A-Za-z_]+(?:\.[\w-]+)+\s*")
"""A dotted key, with or without a method before it."""


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values to choose from, by dotted key.

    Args:
        texts: Such as ``"client.learning_rate=1e-4,1e-3"``, or ``"fedprox:algorithm.mu=0.01,0.1"`` for one method. In
            a text, a comma and a dotted key with ``=`` begin the next setting. Values are read as TOML, else as text.

    Raises:
        ConfigError: A text has no key or no value, or a key is given twice.

    >>> parse_grid(["client.optimizer=sgd,adamw,server.learning_rate=0.1,1", "fedprox:algorithm.mu=0.01,0.1"])
    {'client.optimizer': ['sgd', 'adamw'], 'server.learning_rate': [0.1, 1], 'fedprox:algorithm.mu': [0.01, 0.1]}
    """
    given: dict[str, str] = {}
    for text in (one for option in texts for one in _settings(option)):
        key, _, values = (part.strip() for part in text.partition("="))
        if not all(key.split(":")) or not values:
            raise ConfigError(
                f"--tune {text}: write key=value,value, for example --tune client.learning_rate=1e-4,1e-3"
            )
        if key in given:
            raise ConfigError(
                f"--tune {key} is given twice: say it once, --tune {key}={given[key]},{values}, or leave one out"
            )
        given[key] = values
    return {
        key: [_value(one.strip()) for one in _pieces(values) if one.strip()] for key, values in given.items()
    }


def _settings(option: str) -> list[str]:
    """Return the settings of an option, each with its values.

    >>> _settings("client.learning_rate=1e-3,3e-3,model.train=[1,2],'a,b.c=d',fedprox:algorithm.mu=0.1,1")
    ['client.learning_rate=1e-3,3e-3', "model.train=[1,2],'a,b.c=d'", 'fedprox:algorithm.mu=0.1,1']
    """
    first, *others = _pieces(option)
    found = [first]
    for piece in others:
        key, equals, _ = piece.partition("=")
        if equals and _KEY.fullmatch(key):
            found.append(piece)
        else:
            found[-1] += f",{piece}"
    return found


def _pieces(text: str) -> list[str]:
    """Return what stands between the commas that are neither in quotes nor in brackets."""
    pieces, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in ("[", "{")) - (token in ("]", "}"))
        if token == "," and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += token
    return pieces


def _value(text: str) -> Any:
    """Return a value as TOML reads it, or else as text.

    >>> _value("1e-3"), _value("[1, 2]"), _value("sgd")
    (0.001, [1, 2], 'sgd')
    """
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # a number of too many digits among them
        return text
    return found["value"] if {*found} == {"value"} else text  # it may go on with a key of its own
