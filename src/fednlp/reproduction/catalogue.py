"""The papers that come with fednlp, and manifests of the user's own."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import chain
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fednlp.disk import regular
from fednlp.errors import ConfigError
from fednlp.formatting.safe_text import clean
from fednlp.formatting.suggestions import did_you_mean
from fednlp.reproduction.agreement import Claim
from fednlp.reproduction.manifest import Cell, Column, Entry, Paper, Partitioned, Row, Runs


def shipped() -> list[Paper]:
    """Return the papers that come with fednlp, by number."""
    folder = files("fednlp.reproduction").joinpath("papers")
    found = [
        _parse(place.read_text(encoding="utf-8"), place.name)
        for place in folder.iterdir()
        if place.name.endswith(".toml")
    ]
    return sorted(found, key=lambda paper: paper.number)


def find_papers(names: Sequence[str]) -> dict[str, Paper]:
    """Return papers by the word that stands for each on the command line: its number, or its manifest's path.

    Args:
        names: Numbers, names, paths of manifests (``.toml``), or ``all`` for those that are shipped.

    Raises:
        ConfigError: There is no such paper, a manifest is not valid, or two papers have the same name.
    """
    known = {paper.number: paper for paper in shipped()}
    found: dict[str, Paper] = {}
    for name in names:
        found |= {name: read_paper(Path(name))} if name.endswith(".toml") else _fitting(name, known)
    _require_own_names(found, known)
    words = {paper.name: word for word, paper in reversed(found.items())}
    return {word: paper for word, paper in found.items() if words[paper.name] == word}


def read_paper(path: Path) -> Paper:
    """Read and check a manifest.

    Raises:
        ConfigError: It cannot be read, or says something wrong.
    """
    try:
        text = regular(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"there is no manifest {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return _parse(text, str(path)).read_from(path.parent)


def _fitting(name: str, known: Mapping[str, Paper]) -> dict[str, Paper]:
    fitting = {number: paper for number, paper in known.items() if name in ("all", number, paper.name)}
    if not fitting:
        choices = ", ".join(f"{number} ({paper.name})" for number, paper in known.items())
        hint = did_you_mean(name, [paper.name for paper in known.values()])
        raise ConfigError(f"there is no paper {name}: {hint}choose from {choices}, all")
    return fitting


def _require_own_names(found: Mapping[str, Paper], known: Mapping[str, Paper]) -> None:
    """Check that no manifest has the name or the number of another paper, which it would replace."""
    for word, paper in found.items():
        for other_word, other in chain(known.items(), found.items()):
            same_number = bool(paper.number) and paper.number == other.number
            key = "name" if paper.name == other.name else "number" if same_number else ""
            if key and paper != other:
                raise ConfigError(
                    f'{word}: {key} = "{getattr(paper, key)}" is that of paper {other_word}: give it one of its own'
                )


def _parse(text: str, where: str) -> Paper:
    try:
        return Paper.model_validate(tomllib.loads(text))
    except ValidationError as error:
        problems = [
            clean(f"{'.'.join(map(str, detail['loc'])) or 'the manifest'}: {_said(detail)}")
            for detail in error.errors(include_url=False)
        ]
        raise ConfigError(f"{where}: {'; '.join(problems[:5])}", problems) from None
    except (ValueError, RecursionError) as error:  # a number of too many digits among them
        raise ConfigError(f"{where} is not readable as TOML: {error}") from None


def _said(detail: ErrorDetails) -> str:
    """Return what is wrong at a place of a manifest."""
    if detail["type"] == "extra_forbidden":
        tables = (Paper, Runs, Partitioned, Entry, Row, Cell, Column, Claim)
        known = (field.alias or name for table in tables for name, field in table.model_fields.items())
        hint = did_you_mean(str(detail["loc"][-1]), known).rstrip()
        return f"there is no such key; {hint}" if hint else "there is no such key"
    return detail["msg"].removeprefix("Value error, ")
