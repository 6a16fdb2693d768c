"""Experiments from and to TOML, with overrides; and how two of them differ."""

import tomllib
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from glob import has_magic
from pathlib import Path
from typing import Any

import tomli_w

from fednlp.config.error_messages import report
from fednlp.config.experiment_paths import data_hint, name_of, near_experiments, shipped
from fednlp.config.method_options import own_keys
from fednlp.config.round_schedules import CONSTANT, WITHOUT_ROUNDS
from fednlp.config.schema import Experiment
from fednlp.config.sections import BASELINES, Server
from fednlp.errors import ConfigError
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.partition.methods import ALIASES, METHODS
from fednlp.plugins import is_own

_OWN_FILE = ("path", "test_path", "text", "label", "columns", "delimiter")
"""Keys of ``[data]`` that speak of the user's own file."""


def with_algorithm(experiment: Experiment, name: str, seed: int) -> Experiment:
    """Return the experiment with another algorithm and seed, as ``fednlp compare`` runs it.

    The server's options are kept for the algorithm that they were written for, and a method's options for every method
    that takes them.

    Raises:
        ConfigError: The algorithm is unknown.
    """
    same, options = name == experiment.algorithm.name, experiment.algorithm.function_options
    if same:
        algorithm = experiment.algorithm.model_dump()
    else:
        algorithm = {"name": name, "weighting": experiment.algorithm.weighting}
        algorithm |= {key: value for key, value in options.items() if key in _options_of(name)}
    server = experiment.server if same else Server()
    update = {"algorithm": algorithm, "server": server.model_dump(), "seed": seed}
    if name in BASELINES:  # nothing is exchanged
        update |= {"exchange": {}, "pull": {}, "secure": {}, "privacy": None, "fewshot": None}
        update |= {"aggregator": None, "attack": None}
        update["evaluation"] = {**experiment.evaluation.model_dump(), "federated": False}
    if name in WITHOUT_ROUNDS:
        update["client"] = {**experiment.client.model_dump(), **CONSTANT}
    return _checked(_document(experiment) | update, experiment.name)


def _options_of(name: str) -> Collection[str]:
    """Return the options of a method that comes with fednlp; none for others."""
    return ALGORITHMS.find(name).options().model_fields if name in ALGORITHMS.names() else ()


def with_method(experiment: Experiment, name: str, seed: int) -> Experiment:
    """Return the experiment with one of its variants, or else with another algorithm, and a seed.

    Raises:
        ConfigError: There is no such variant or algorithm, or the variant does not fit.
    """
    changes = experiment.variants.get(name)
    if changes is None:
        return with_algorithm(experiment, name, seed)
    algorithm = changes.get("algorithm")
    chosen = algorithm.get("name") if isinstance(algorithm, dict) else None
    base = with_algorithm(experiment, str(chosen or experiment.algorithm.name), seed)
    document = _document(base)
    for section in ("aggregator", "attack"):
        table = changes.get(section)
        if isinstance(table, dict) and "name" in table:
            _drop_options(document, section)
    return _checked(_over(document, changes | {"variant": name}), f"variant {name} of {experiment.name}")


def with_settings(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """Return the experiment with other values of some settings.

    Args:
        experiment: One without a variant that is still to be chosen: these settings are laid over all others.
        changes: Values by dotted keys, such as ``{"client.learning_rate": 1e-3}``.

    Raises:
        ConfigError: A key is unknown, or a value does not fit.

    >>> experiment = parse({"data": {"name": "20news"}})
    >>> with_settings(experiment, {"client.learning_rate": 0.5}).client.learning_rate
    0.5
    """
    nested: dict[str, Any] = {}
    for key, value in changes.items():
        *sections, last = key.split(".")
        table = nested
        for section in sections:
            table = table.setdefault(section, {})
        table[last] = value
    return _checked(_over(_document(experiment), nested), experiment.name)


def _document(experiment: Experiment) -> dict[str, Any]:
    """Return the sections of an experiment, without a size of the cohort that was not given."""
    document = experiment.model_dump(exclude_none=True)
    if "clients_per_round" not in experiment.model_fields_set:
        del document["clients_per_round"]
    return document


def load(path: str | Path, overrides: Iterable[str] = (), full: bool = False) -> Experiment:
    """Read an experiment file and apply ``a.b=c`` overrides.

    Args:
        path: A TOML file, or the name of an experiment that comes with fednlp, e.g. ``"quickstart"``.
        overrides: Texts such as ``"client.learning_rate=3e-4"``; the value is read as TOML, else as text. One
            that replaces the partition method, or the algorithm, drops the file's options of the old one.
        full: Take the file's full size: what its ``[full]`` says goes over the rest, before the overrides.

    Raises:
        ConfigError: The file cannot be read, or says something wrong; every mistake is listed.
    """
    path = shipped(Path(path))
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no experiment file {path}{near_experiments(path)}") from None
    except (ValueError, RecursionError, OSError) as error:  # a number of too many digits among them
        raise ConfigError(f"{path} is not readable as TOML: {error}{data_hint(path)}") from None
    document.setdefault("name", name_of(path))
    larger = document.pop("full", None)
    if full and not isinstance(larger, dict):
        raise ConfigError(f"{path} has one size only: leave --full out, or add a [full] section")
    if full:
        document = _over(document, larger | {"name": f"{document['name']}-full"})
    overrides = list(overrides)
    _make_way(
        document,
        {key.strip(): _value(text.strip()) for key, _, text in (o.partition("=") for o in overrides)},
    )
    return parse(document, str(path), overrides)


def as_experiment(given: Experiment | Mapping[str, Any] | str | Path) -> Experiment:
    """Return an experiment from a value, its sections as a dictionary, or the path of its file.

    Raises:
        ConfigError: It says something wrong; every mistake is listed.
    """
    if isinstance(given, Experiment):
        return given
    return load(given) if isinstance(given, (str, Path)) else parse(given)


def _over(document: dict[str, Any], larger: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables with those of another laid over them.

    >>> _over({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4}})
    {'a': 1, 'b': {'c': 4, 'd': 3}}
    """
    merged = dict(document)
    for key, value in larger.items():
        old = merged.get(key)
        merged[key] = _over(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _make_way(document: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Drop options of the file that belong to what overrides replace: a data set, a partition method, an algorithm."""
    data, partition = (document.get(name) for name in ("data", "partition"))
    if isinstance(data, dict) and changes.get("data.name", data.get("name")) != data.get("name"):
        for key in _OWN_FILE:
            data.pop(key, None)
    elif isinstance(data, dict) and _is_own(changes.get("data.path", "")):
        data.pop("name", None)
    if isinstance(partition, dict):
        given = str(partition.get("method"))
        old, new = (ALIASES.get(name, name) for name in (given, str(changes.get("partition.method", given))))
        if old != new and (new in METHODS.names() or is_own(new)):
            needs = ("clients",) if is_own(new) else METHODS.find(new).needs
            for option in set(partition) - {"method", "seed", *needs}:
                del partition[option]
    for section in ("algorithm", "aggregator", "attack"):
        table = document.get(section)
        name = table.get("name") if isinstance(table, dict) else None
        if changes.get(f"{section}.name", name) != name:
            if section == "algorithm":
                document.pop("server", None)
            _drop_options(document, section)


def _drop_options(document: dict[str, Any], section: str) -> None:
    """Drop the options of the function that a section names, which is about to be replaced by another."""
    table = document.get(section)
    if isinstance(table, dict):
        document[section] = {
            key: value for key, value in table.items() if key in own_keys(section) - {"options"}
        }


def _is_own(path: Any) -> bool:
    """Say whether a path cannot be the folder of a known data set's published files."""
    return isinstance(path, list) or has_magic(str(path)) or Path(str(path)).is_file()


def parse(
    document: Mapping[str, Any], where: str = "the experiment", overrides: Iterable[str] = ()
) -> Experiment:
    """Check a nested mapping and its variants, and return the experiment.

    Args:
        document: Sections and keys.
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
    experiment = _checked(document, where, overrides)
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


def _checked(document: Mapping[str, Any], where: str, overrides: Iterable[str] = ()) -> Experiment:
    """Check a nested mapping as it is used without its variants (see :func:`parse`)."""
    changed = deepcopy(dict(document))
    found = [problem for override in overrides if (problem := _apply(changed, override))]
    try:
        experiment = Experiment(**changed)
    except ConfigError as error:
        found += error.problems
    if found:
        raise ConfigError(report(where, found), found)
    return experiment


def dump(experiment: Experiment) -> str:
    """Return the experiment as TOML; :func:`parse` reads it back to an equal value."""
    return tomli_w.dumps(experiment.model_dump(exclude_none=True))


_LATER = (
    ("evaluation", "federated", False),
    ("evaluation", "server_model", False),
    ("exchange", "send", "updates"),
    ("partition", "test_sets", "assigned"),
    ("pull", "norm", "l2"),
    ("pull", "embeddings", "chosen"),
    ("runtime", "clients_at_once", 1),
    ("runtime", "onednn", False),
    ("secure", "sum_reports", False),
)
"""Keys that came later, and their defaults: runs from before there was the key go by the same name."""


def canonical(experiment: Experiment) -> dict[str, Any]:
    """Return what decides a run's result: not its name, its engine and workers, or what is kept."""
    document = experiment.model_dump(exclude_none=True)
    for key in ("name", "report", "rounds", "variant", "variants"):
        document.pop(key, None)
    if experiment.rounds.over_selection != 1:
        document["rounds"] = {"over_selection": experiment.rounds.over_selection}
    for key in ("engine", "address", "workers", "workers_per_gpu", "gpu_mapping"):
        document["runtime"].pop(key, None)
    document["evaluation"].pop("keep_client_models")
    for section, key, usual in _LATER:
        if document[section][key] == usual:
            document[section].pop(key)
    return document


def differences(one: Experiment, other: Experiment) -> list[str]:
    """List the settings in which two experiments differ, as ``key: 1 -> 2``.

    A precision that is left to the machine in one of them, and decided in the other, is no difference.
    """
    a, b = (dict(_flatten(canonical(e))) for e in (one, other))
    return [
        f"{key}: {a.get(key)} -> {b.get(key)}"
        for key in sorted(a | b)
        if a.get(key) != b.get(key) and not _decided(key, a.get(key), b.get(key))
    ]


def _decided(key: str, *values: Any) -> bool:
    """Return whether one value is ``"auto"`` of a precision."""
    return key in ("client.bf16", "evaluation.bf16_full_eval") and "auto" in values


def _flatten(document: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _apply(document: dict[str, Any], override: str) -> str | None:
    """Set one ``a.b=c`` in a nested mapping; return what is wrong with it, if anything."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        return f"--set {override}: write key=value, for example --set client.learning_rate=3e-4"
    table = document
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return f"--set {override}: {part} is a value, not a section"
    table[parts[-1]] = _value(text.strip())
    return None


def _value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return str(value) if not isinstance(value, (bool, int, float, str, list, dict)) else value
