"""Experiments made of others: with another method and seed, as one of the variants, or with other settings."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from fednlp.config.fields import section_types
from fednlp.config.overrides import checked, drop_options, make_way
from fednlp.config.round_schedules import CONSTANT, WITHOUT_ROUNDS
from fednlp.config.schema import Experiment
from fednlp.config.sections import BASELINES, Server
from fednlp.config.tables import merged_over
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.section import Section


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
        algorithm = experiment.algorithm.model_dump(include={"weighting", "most_examples"}) | {"name": name}
        algorithm |= {key: value for key, value in options.items() if key in _options_of(name)}
    server = experiment.server if same else Server()
    update = {"algorithm": algorithm, "server": server.model_dump(), "seed": seed}
    if name in BASELINES:  # nothing is exchanged
        update |= {section: None if default is None else {} for section, default in _of_rounds()}
        update["evaluation"] = {**experiment.evaluation.model_dump(), "federated": False}
    if name in WITHOUT_ROUNDS:
        update["client"] = {**experiment.client.model_dump(), **CONSTANT}
    return checked(_document(experiment) | update, experiment.name)


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
    for section in ("aggregator", "attack", "cohort"):
        table = changes.get(section)
        if isinstance(table, dict) and "name" in table:
            drop_options(document, section)
    return checked(merged_over(document, changes | {"variant": name}), f"variant {name} of {experiment.name}")


def with_settings(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """Return the experiment with other values of some settings.

    Args:
        experiment: One without a variant that is still to be chosen: these settings are laid over all others.
        changes: Values by dotted keys, such as ``{"client.learning_rate": 1e-3}``.

    Raises:
        ConfigError: A key is unknown, or a value does not fit.

    >>> from fednlp.config import parse
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
    return checked(merged_over(_document(experiment), nested), experiment.name)


def with_overrides(experiment: Experiment, overrides: Iterable[str]) -> Experiment:
    """Return the experiment with ``"a.b=c"`` settings over it, as :func:`fednlp.config.load` lays them over a file.

    Raises:
        ConfigError: Every mistake, one a line.
    """
    document, overrides = _document(experiment), list(overrides)
    make_way(document, overrides)
    return checked(document, experiment.name, overrides)


def _document(experiment: Experiment) -> dict[str, Any]:
    """Return the sections of an experiment, without a size of the cohort that was not given."""
    document = experiment.model_dump(exclude_none=True)
    if "clients_per_round" not in experiment.model_fields_set:
        del document["clients_per_round"]
    return document


def _of_rounds() -> Iterator[tuple[str, Section | None]]:
    """Yield the sections that need federated rounds as a whole, each with its default."""
    for name, section in section_types():
        if any(one.name == f"[{name}]" and "federated_rounds" in one.needs for one in section.traits):
            yield name, Experiment.model_fields[name].default


def _options_of(name: str) -> Collection[str]:
    """Return the options of a method that comes with fednlp; none for others."""
    return ALGORITHMS.find(name).options().model_fields if name in ALGORITHMS.names() else ()
