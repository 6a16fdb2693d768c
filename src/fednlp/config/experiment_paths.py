"""Where experiment files lie: those that come with fednlp are found by their names."""

import difflib
import fnmatch
import json
import re
from collections.abc import Iterable
from glob import has_magic
from pathlib import Path

from fednlp.errors import ConfigError

_NAMED = 5
"""Maximum number of files that a message names."""
_FOLDER = Path(__file__).parent.parent / "experiments"


def name_of(path: Path) -> str:
    """Return the name of an experiment that states none.

    >>> name_of(Path("my exp.toml"))
    'my-exp'
    """
    return plain_name(path.stem) or "experiment"


def plain_name(text: str) -> str:
    """Return a text as a name of an experiment, with ``-`` in place of other characters; maybe an empty one.

    >>> plain_name("mein Fall: Süd")
    'mein-Fall-S-d'
    """
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-._+")[:80]


def shipped(path: Path) -> Path:
    """Return the file of an experiment that comes with fednlp, unless there is a file of that path."""
    inside = _FOLDER / f"{path.stem}.toml"
    is_name = path in {Path(path.stem), Path("experiments") / inside.name}
    return inside if is_name and not path.is_file() and inside.is_file() else path


def matching(names: Iterable[str]) -> list[str]:
    """Return names of experiments, with those in place of a pattern that it fits; each once.

    Args:
        names: Paths, names of experiments that come with fednlp, or patterns of such names.

    Raises:
        ConfigError: A pattern fits none.

    >>> matching(["small", "fednlp-figure[57]"])
    ['small', 'fednlp-figure5', 'fednlp-figure7']
    """
    known = sorted(path.stem for path in _FOLDER.glob("*.toml"))
    found: list[str] = []
    for name in names:
        fitting = fnmatch.filter(known, name) if has_magic(name) and not Path(name).exists() else [name]
        if not fitting:
            raise ConfigError(
                f"no experiment that comes with fednlp fits {name}: give a name, a path or another pattern"
            )
        found += [one for one in fitting if one not in found or one == name]
    return found


def data_hint(path: Path) -> str:
    """Return what to do with data that were given in place of an experiment."""
    if path.suffix.lower() == ".toml":
        return ""
    return (
        f"; if it is your data, say [data] path = {json.dumps(str(path), ensure_ascii=False)} in a TOML file"
    )


def near_experiments(path: Path) -> str:
    """Return what else could be meant by the path of a file that is not there."""
    there = sorted(p.stem for p in path.parent.glob("*.toml"))
    beside = difflib.get_close_matches(path.stem, there, n=1)
    if beside:
        return f"; did you mean {path.parent / beside[0]}.toml?"
    shipped = sorted(p.stem for p in _FOLDER.glob("*.toml"))
    near = difflib.get_close_matches(path.stem, shipped, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    named = f"its folder has {', '.join(f'{stem}.toml' for stem in there[:_NAMED])}, and " if there else ""
    return (
        f"; {named}fednlp comes with quickstart, small and {len(shipped) - 2} more: see docs/experiments.md"
    )
