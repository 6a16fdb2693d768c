"""Files and folders in what is handed on: by their bare names, since the rest is of one machine and its people."""

import os
import re
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import PurePath
from typing import Any

from fednlp.formatting.safe_text import bare_names

_PATH = re.compile(r"(?:~|/)[^\n{}]*/[^\n{}]*|~[^\n{}]*")
_FILES = ("path", "test_path", "validation_path")


def data_source(source: str, config: Mapping[str, Any]) -> str:
    """Return where data are from with the bare names of files.

    Args:
        source: In words, with paths as they were read.
        config: Of the run, which tells where a path with blanks begins and ends.

    >>> data_source("/home/A B/x.csv and /tmp/y.csv", {"data": {"path": "/home/A B/x.csv"}})
    'x.csv and y.csv'
    """
    data = config.get("data") or {}
    given = (data.get(key) or () for key in _FILES)
    for path in chain.from_iterable([one] if isinstance(one, str) else one for one in given):
        above = os.path.dirname(os.path.abspath(os.path.expanduser(path)))
        source = source.replace(f"{above}/", "")
    return bare_names(source)


def named(value: Any) -> Any:
    """Return a setting with the bare name of each path from the root or from a home folder.

    The model of a run is named after the run.

    >>> named(["/home/me/a.csv", "silos/*.csv", "~/b.csv"]), named({"/home/me/board.toml": 0.5}), named(3)
    (['a.csv', 'silos/*.csv', 'b.csv'], {'board.toml': 0.5}, 3)
    >>> named("/home/me/runs/first/model"), named("/{text}")
    ('first/model', '/{text}')
    """
    if isinstance(value, str) and _PATH.fullmatch(value):
        path = PurePath(value)
        return f"{path.parent.name}/{path.name}" if path.name == "model" else path.name
    if isinstance(value, list | tuple):
        return [named(one) for one in value]
    if isinstance(value, Mapping):
        return {named(key): named(one) for key, one in value.items()}
    return value


def named_in(text: str, settings: Iterable[Any]) -> str:
    """Return a text in which the paths of settings are their bare names."""
    paths = {one for value in settings for one in _strings(value) if named(one) != one}
    for path in sorted(paths, key=len, reverse=True):
        text = text.replace(path, named(path))
    return text


def _strings(value: Any) -> Iterable[str]:
    """Yield the strings in a setting."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | Mapping):
        for one in value:
            yield from _strings(one)
        if isinstance(value, Mapping):
            for one in value.values():
                yield from _strings(one)
