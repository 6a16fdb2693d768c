"""What an algorithm, its aggregator, its server and an attack do not go with."""

from typing import Any

from fednlp.config.compatibility import conflicts
from fednlp.config.fields import ExperimentFields
from fednlp.config.method_options import foreign_options, found_or_none, named_functions
from fednlp.config.round_schedules import CONSTANT
from fednlp.config.sections import BASELINES, GIVEN
from fednlp.config.values import SERVER_NUMBERS, aggregator_of, algorithm_of, attack_of
from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.plugins import is_own

_SCHEDULE = ("round_schedule", "warmup_rounds", "minimum_rate")


def method_problems(experiment: ExperimentFields, given: Algorithm | None) -> list[str]:
    """Return what is wrong with the method, the aggregator and the attack: their options, then what they refuse."""
    named = [
        (section, registry, found_or_none(registry, section.name))
        for section, registry in named_functions(experiment)
        if section.name not in (*BASELINES, GIVEN)
    ]
    found = [*_baseline_problems(experiment), *_server_problems(experiment)]
    for option, baseline in (("order", "chained"), ("clients", "centralised")):
        if getattr(experiment.algorithm, option) is not None and experiment.algorithm.name != baseline:
            found.append(
                f'algorithm.{option} is for the baseline {baseline}: say algorithm.name = "{baseline}", or leave it out'
            )
    if experiment.cohort is not None and experiment.algorithm.name == GIVEN:
        found.append(
            "[cohort] does not reach an algorithm that is given as a value: leave it out, and let the value draw its "
            "cohorts"
        )
    for section, registry, plugin in named:
        found += [] if plugin is None else foreign_options(section, registry, plugin)
    # Code that cannot be imported is reported already.
    if found or any(plugin is None for *_, plugin in named):
        return found
    for section, _, plugin in named:
        try:
            found += [] if plugin is None else plugin.refused(section.function_options, experiment)
        except ConfigError as error:
            found.append(str(error))
    return found + _value_problems(experiment, given)


def _baseline_problems(experiment: ExperimentFields) -> list[str]:
    """Return the options and sections that a baseline does not have."""
    name = experiment.algorithm.name
    if name not in BASELINES:
        return []
    found = [
        f"algorithm.{key} is not supported by {name}: leave it out"
        for key in experiment.algorithm.function_options
    ]
    for section, why in (
        ("aggregator", "nothing is aggregated"),
        ("attack", "no client sends anything"),
        ("cohort", "no cohort is drawn"),
    ):
        if getattr(experiment, section) is not None:
            found.append(f"[{section}] is not supported by {name}, where {why}: leave it out")
    return found


def _value_problems(experiment: ExperimentFields, given: Algorithm | None) -> list[str]:
    """Return what the values that the names stand for do not go with."""
    name, attack = experiment.algorithm.name, experiment.attack
    if name in BASELINES or (name == GIVEN and given is None):
        return []
    try:
        algorithm = given or algorithm_of(experiment)
        aggregator = aggregator_of(experiment, algorithm)
        if attack is not None:
            attack_of(attack)
    except ConfigError as error:
        return [str(error)]
    return conflicts(algorithm, aggregator, experiment)


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
