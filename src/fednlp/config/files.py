"""Experiments from and to TOML, with overrides."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fednlp.checked_json import LONGEST_TOML
from fednlp.config.derived import with_method
from fednlp.config.error_messages import report
from fednlp.config.experiment_paths import data_hint, name_of, near_experiments, shipped
from fednlp.config.overrides import checked, make_way
from fednlp.config.schema import Experiment
from fednlp.config.tables import merged_over
from fednlp.disk import read_whole
from fednlp.errors import ConfigError


def load(path: str | Path, overrides: Iterable[str] = (), full: bool = False) -> Experiment:
    """Read an experiment file and apply ``a.b=c`` overrides.

    Args:
        path: A TOML file, or the name of an experiment that comes with fednlp, e.g. ``"quickstart"``.
        overrides: Texts such as ``"client.learning_rate=3e-4"``; the value is read as TOML, else as text. One
            that replaces the partition method, or the algorithm, drops the file's options of the old one.
        full: Take the file's full size: what its ``[full]`` says goes over the rest, before the overrides. If it names
            another model, ``[model.config]`` of the smaller one is dropped.

    Raises:
        ConfigError: The file cannot be read, or says something wrong; every mistake is listed.
    """
    path = shipped(Path(path))
    try:
        document = tomllib.loads(read_whole(path, LONGEST_TOML).decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"there is no experiment file {path}{near_experiments(path)}") from None
    except (ValueError, RecursionError, OSError) as error:  # a number of too many digits among them
        raise ConfigError(f"{path} is not readable as TOML: {error}{data_hint(path)}") from None
    document.setdefault("name", name_of(path))
    larger = document.pop("full", None)
    if full and not isinstance(larger, dict):
        raise ConfigError(f"{path} has one size only: leave --full out, or add a [full] section")
    if full:
        document = _in_full(document, larger) | {"name": f"{document['name']}-full"}
    overrides = list(overrides)
    make_way(document, overrides)
    return parse(document, str(path), overrides)


def _in_full(document: dict[str, Any], larger: dict[str, Any]) -> dict[str, Any]:
    """Return a document with its full size over it; another model keeps no settings of the smaller one's."""
    small, own = (one.get("model") for one in (document, larger))
    if isinstance(small, dict) and isinstance(own, dict):
        name = small.get("name_or_path")
        if own.get("name_or_path", name) != name:
            document = document | {"model": {key: value for key, value in small.items() if key != "config"}}
    return merged_over(document, larger)


def as_experiment(given: Experiment | Mapping[str, Any] | str | Path) -> Experiment:
    """Return an experiment from a value, its sections as a dictionary, or the path of its file.

    Raises:
        ConfigError: It says something wrong; every mistake is listed.
    """
    if isinstance(given, Experiment):
        return given
    return load(given) if isinstance(given, (str, Path)) else parse(given)


def parse(
    document: Mapping[str, Any], where: str = "the experiment", overrides: Iterable[str] = ()
) -> Experiment:
    """Check a nested mapping and its variants, and return the experiment.

    Args:
        where: What it is called in messages.
        overrides: ``"a.b=c"`` settings over it, as for :func:`load`.

    Raises:
        ConfigError: Every mistake, one a line.

    >>> parse({"data": {"name": "20news"}, "num_rounds": 3}).num_rounds
    3
    >>> parse({"data": {"name": "20news"}, "num_round": 3})
    Traceback (most recent call last):
        ...
    fednlp.errors.ConfigError: the experiment: unknown key num_round; did you mean num_rounds?
    >>> parse({"data": {"name": "20news"}, "variants": {"other": {"sed": 1}}})
    Traceback (most recent call last):
        ...
    fednlp.errors.ConfigError: the experiment: variant other: unknown key sed; did you mean seed?
    """
    experiment = checked(document, where, overrides)
    found = [problem for name in experiment.variants for problem in _variant_problems(experiment, name)]
    if found:
        raise ConfigError(report(where, found), found)
    return experiment


def _variant_problems(experiment: Experiment, name: str) -> list[str]:
    try:
        with_method(experiment, name, experiment.seed)
    except ConfigError as error:
        return [f"variant {name}: {problem}" for problem in error.problems]
    return []


def dump(experiment: Experiment) -> str:
    """Return the experiment as TOML; :func:`parse` reads it back to an equal value."""
    return tomli_w.dumps(experiment.model_dump(exclude_none=True))
