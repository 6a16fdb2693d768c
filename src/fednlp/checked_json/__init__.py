"""The files of a run directory as data: read, and checked against their shapes before use.

A run directory may be damaged, or from an untrusted source. Only numbers and words of known shapes are read from
it (:mod:`fednlp.checked_json.shapes`). A file that does not fit raises a :class:`RunError`.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fednlp.checked_json.shapes import SHAPES, Shape
from fednlp.disk import read_whole
from fednlp.errors import DamagedError, RunError

_DEEPEST = 32
_LARGEST = 2**63
_LONGEST_PLACE = 120
_LONGEST_JSON, LONGEST_TOML = 512 << 20, 16 << 20
"""Bytes of a file at most: the numbers of labels of a million clients have some 100 MB."""
_LONGEST_LINES = 2 << 30


def read_json(path: Path, remedy: str = "run the experiment again") -> dict[str, Any]:
    """Read one of :data:`fednlp.checked_json.shapes.SHAPES`.

    Args:
        path: The file.
        remedy: Advice for the end of an error message.

    Raises:
        RunError: The file is missing, cut short, or does not fit its shape.
    """
    try:
        return parse_json(read_whole(path, _LONGEST_JSON), SHAPES[path.name])
    except (OSError, ValueError) as error:
        raise damaged(path, error, remedy) from error


def read_lines(path: Path) -> bytes:
    """Return a file that grew line by line; empty where the run did not write it.

    Raises:
        RunError: It is no file, or longer than any run's.
    """
    try:
        return read_whole(path, _LONGEST_LINES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise damaged(path, error) from error


def parse_json(text: bytes | str, shape: type[Shape]) -> dict[str, Any]:
    """Return the JSON object of a text, unchanged.

    Raises:
        ValueError: The text is not a JSON object, or does not fit the shape; the message is one line.
    """
    try:
        value = json.loads(text if isinstance(text, str) else text.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    _require_plain(value)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    try:
        shape.model_validate(value)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ValueError: The file is not valid TOML; the message is one line.
        OSError: The file cannot be read.
    """
    try:
        document = tomllib.loads(read_whole(path, LONGEST_TOML).decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    _require_plain(document)
    return document


def damaged(path: Path, error: Exception, remedy: str = "run the experiment again") -> DamagedError:
    """Return the error for a file of a run directory that cannot be used.

    Args:
        path: The file.
        error: What is wrong with it.
        remedy: Advice for the end of the message.
    """
    what = f"{path} is damaged ({error})"
    found = DamagedError(f"{what}: {remedy}")
    found.what = what
    return found


def no_run_directory(folder: Path) -> RunError:
    """Return the error for a folder that is no run directory: it names one that lies in it, if there is any."""
    what = "it has no resolved.toml" if folder.is_dir() else "it does not exist"
    inside = min((path.parent for path in folder.glob("*/resolved.toml")), default=None)
    instead = (
        "the folder that fednlp run --out made" if inside is None else f"one that it holds, such as {inside}"
    )
    return RunError(f"{folder} is no run directory ({what}): give {instead}")


def first_problem(error: ValidationError) -> str:
    """Return the first validation error as text on one line: its place, and what is wrong there."""
    detail = error.errors(include_url=False, include_input=False)[0]
    place = " ".join(".".join(str(part) for part in detail["loc"]).split())
    if len(place) > _LONGEST_PLACE:
        place = f"{place[:_LONGEST_PLACE]}…"
    return f"{place}{': ' if place else ''}{detail['msg'][:1].lower()}{detail['msg'][1:]}"


def _require_plain(value: Any) -> None:
    """Refuse deep nesting and numbers beyond 64 bits, which no run writes and later steps may not support."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError("it is nested too deep")
        if any(isinstance(one, int) and not -_LARGEST <= one < _LARGEST for one in level):
            raise ValueError("it has a number beyond 64 bits")
        level = [
            inner
            for one in level
            if isinstance(one, Mapping | list)
            for inner in (one.values() if isinstance(one, Mapping) else one)
        ]
