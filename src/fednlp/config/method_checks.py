"""Checks of the method, its aggregator, its server and the attack: their options, and what each refuses by itself."""

from typing import Any

from fednlp.config.compatibility import method_features, plugin_feature
from fednlp.config.fields import ExperimentFields
from fednlp.config.method_options import foreign_options, found_or_none, named_functions
from fednlp.config.round_schedules import CONSTANT
from fednlp.config.sections import BASELINES, GIVEN
from fednlp.config.values import SERVER_NUMBERS, aggregator_of, algorithm_of, attack_of
from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.federated.links import Downlink, Uplink
from fednlp.plugins import is_own
from fednlp.section import Feature

_SCHEDULE = ("round_schedule", "warmup_rounds", "minimum_rate")


def method_problems(experiment: ExperimentFields, given: Algorithm | None) -> tuple[list[str], list[Feature]]:
    """Return what is wrong with the method, the aggregator and the attack, and what they need and break.

    Their options come first; the rest is not looked at before these are right.

    Args:
        given: The algorithm that was given as a value, if it was.
    """
    named = [
        (section, registry, found_or_none(registry, section.name))
        for section, registry in named_functions(experiment)
        if section.name not in (*BASELINES, GIVEN)
    ]
    problems = [*_baseline_problems(experiment), *_server_problems(experiment)]
    for section, registry, plugin in named:
        problems += [] if plugin is None else foreign_options(section, registry, plugin)
    # Code that cannot be imported is reported already.
    if problems or any(plugin is None for *_, plugin in named):
        return problems, []
    features: list[Feature] = []
    for section, _, plugin in named:
        assert plugin is not None
        try:
            problems += plugin.refused(section.function_options, experiment)
            features.append(plugin_feature(plugin))
        except ConfigError as error:
            problems.append(str(error))
    name, attack = experiment.algorithm.name, experiment.attack
    if name in BASELINES or (name == GIVEN and given is None):
        return problems, features
    try:
        algorithm = given or algorithm_of(experiment)
        aggregator = aggregator_of(experiment, algorithm)
        if attack is not None:
            attack_of(attack)
        features += method_features(algorithm, aggregator, experiment)
    except ConfigError as error:
        return [*problems, str(error)], features
    return problems + _replaced_parts(algorithm, experiment), features


def _baseline_problems(experiment: ExperimentFields) -> list[str]:
    """Return the options of ``[algorithm]`` that a baseline does not have, and those of a baseline that others have."""
    name = experiment.algorithm.name
    problems = [
        f"algorithm.{key} is not supported by {name}: leave it out"
        for key in (experiment.algorithm.function_options if name in BASELINES else ())
    ]
    for option, baseline in (("order", "chained"), ("clients", "centralised")):
        if getattr(experiment.algorithm, option) is not None and name != baseline:
            problems.append(
                f'algorithm.{option} is for the baseline {baseline}: say algorithm.name = "{baseline}", or leave it out'
            )
    return problems


def _replaced_parts(algorithm: Algorithm, experiment: ExperimentFields) -> list[str]:
    """Return the parts of a method's value that settings replace, and settings that a value does not follow."""
    name, found = algorithm.name, []
    if algorithm.uplink != Uplink() or algorithm.downlink != Downlink():
        found.append(
            f"{name} says how updates or the model travel, which [exchange] and [pull] say in a run: leave uplink and "
            "downlink out of the Algorithm"
        )
    if (
        experiment.algorithm.name == GIVEN
        and experiment.min_clients > 1
        and algorithm.min_clients != experiment.min_clients
    ):
        found.append(
            f"min_clients = {experiment.min_clients} is not that of {name}, which was given as a value with "
            f"{algorithm.min_clients}: build it with min_clients={experiment.min_clients}"
        )
    return found


def _server_problems(experiment: ExperimentFields) -> list[str]:
    """Return what of ``[server]`` the method has no place for."""
    server, name = experiment.server, experiment.algorithm.name
    given = {
        key: value for key, value in server.model_dump(exclude_defaults=True).items() if value is not None
    }
    method = None if name in (*BASELINES, GIVEN) else found_or_none(ALGORITHMS, name)
    begun = None if method is None else method.server
    if name == GIVEN:
        given = {key: value for key, value in given.items() if key not in CONSTANT}
    if begun is None:
        plain = {"optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.0}
        return [_no_server(name, given)] if any(plain.get(k) != v for k, v in given.items()) else []
    found = []
    if method is not None and method.fixed_server and server.optimizer not in {None, begun.name}:
        found.append(
            f'{name} means server.optimizer = "{begun.name}", not "{server.optimizer}": '
            'say algorithm.name = "fedopt" to choose freely'
        )
    optimizer = server.optimizer or begun.name
    useful = {"optimizer", "learning_rate", *SERVER_NUMBERS[optimizer], *_SCHEDULE}
    return found + [
        f"server.{key} is not supported by the server optimiser {optimizer}: leave it out"
        for key in given
        if key not in useful
    ]


def _no_server(name: str, given: dict[str, Any]) -> str:
    what = f"({', '.join(given)} given): leave it out, or"
    if name == GIVEN:
        return f"[server] does not reach an algorithm that is given as a value {what} build the value with that server"
    if is_own(name):
        return (
            f"[server] is not supported by {name} {what} let the function take server by name "
            "(server=fednlp.ServerOptimizer())"
        )
    return f'[server] is not supported by {name} {what} say algorithm.name = "fedopt"'
