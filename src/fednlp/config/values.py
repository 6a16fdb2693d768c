"""The values that an experiment's sections stand for: its method, its aggregator, its attack, its server
optimiser.

Nothing here needs torch: a value is built when the experiment is checked, and looked at
(:mod:`fednlp.config.compatibility`).
"""

import math
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

from fednlp.config.fields import ExperimentFields
from fednlp.config.sections import BASELINES, GIVEN, Client, Server
from fednlp.config.sections import Algorithm as AlgorithmSection
from fednlp.config.sections import Attack as AttackSection
from fednlp.errors import ConfigError
from fednlp.federated.aggregators import AGGREGATORS
from fednlp.federated.aggregators.base import Aggregator
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.federated.attacks import ATTACKS, Attack
from fednlp.federated.cohort import Selection, WeightFunction, by_examples, by_examples_up_to, equally
from fednlp.federated.cohorts import COHORTS
from fednlp.federated.schedules import RateSchedule
from fednlp.federated.server import ServerOptimizer, default_server

SERVER_NUMBERS = {
    "sgd": ("momentum",),
    "adagrad": ("beta1", "tau"),
    "adam": ("beta1", "beta2", "tau"),
    "yogi": ("beta1", "beta2", "tau"),
}
"""What a server optimiser takes beside its learning rate."""


def algorithm_of(experiment: ExperimentFields) -> Algorithm:
    """Return the method that an experiment names, without compression, pulling and the rule of ``[aggregator]``.

    Baselines exchange nothing. They get FedAvg, and do not use it.

    Args:
        experiment: One that names its method.

    Raises:
        ConfigError: The method does not take its options, raises an error, or cannot be imported.
    """
    section = experiment.algorithm
    common: dict[str, Any] = {
        "weight": _weight_function(section),
        "min_clients": experiment.min_clients,
        "client_rate": rate_schedule(experiment.client, experiment.num_rounds),
    }
    if section.name == GIVEN:
        raise ConfigError(
            f'algorithm.name = "{GIVEN}" stands for a value that only Python can give: name a method, or call '
            "fednlp.run(experiment, algorithm=...)"
        )
    method = ALGORITHMS.find("fedavg" if section.name in BASELINES else section.name)
    if method.server is not None:
        common["server"] = server_optimizer(experiment)
    made = method.make(num_drawn(experiment), common, section.function_options)
    made = replace(made, client_rate=common["client_rate"])  # whether the method takes it or not
    return made if experiment.cohort is None else _with_cohorts(made, experiment)


def _with_cohorts(algorithm: Algorithm, experiment: ExperimentFields) -> Algorithm:
    """Return the method with the cohorts of ``[cohort]``."""
    assert experiment.cohort is not None
    rule = COHORTS.find(experiment.cohort.name)
    made = rule.make(num_drawn(experiment), algorithm.weight, experiment.cohort.function_options)
    if isinstance(made, Selection):
        return replace(algorithm, selection=made)
    return replace(algorithm, sample=made, selection=None)


def num_drawn(experiment: ExperimentFields) -> int:
    """Return how many clients a round draws: ``rounds.over_selection`` times ``clients_per_round``, rounded up.

    >>> from fednlp.config import parse
    >>> num_drawn(parse({"data": {"name": "20news"}, "rounds": {"over_selection": 1.1}}))
    11
    """
    return math.ceil(Fraction(repr(experiment.rounds.over_selection)) * experiment.clients_per_round)


def _weight_function(section: AlgorithmSection) -> WeightFunction:
    if section.weighting == "uniform":
        return equally
    return by_examples if section.most_examples is None else by_examples_up_to(section.most_examples)


def aggregator_of(experiment: ExperimentFields, algorithm: Algorithm) -> Aggregator:
    """Return the aggregator that ``[aggregator]`` names; the algorithm's own without the section.

    Raises:
        ConfigError: The rule does not take its options, raises an error, does not fit, or cannot be imported.
    """
    section = experiment.aggregator
    if section is None:
        return algorithm.aggregator
    made: Aggregator = AGGREGATORS.find(section.name).call(**section.function_options)
    made.require_fits()
    return made


def attack_of(section: AttackSection) -> Attack:
    """Return the attack that ``[attack]`` names.

    Raises:
        ConfigError: The attack does not take its options, raises an error, or cannot be imported.
    """
    made: Attack = ATTACKS.find(section.name).call(**section.function_options)
    return made


def server_defaults(algorithm: str, server: Server) -> Server:
    """Fill in what the algorithm stands for, or the defaults of the server optimiser that is configured."""
    known = algorithm not in BASELINES and algorithm != GIVEN
    begun = (ALGORITHMS.find(algorithm).server if known else None) or ServerOptimizer()
    name = server.optimizer or begun.name
    defaults = asdict(begun if name == begun.name else default_server(name))
    useful = {"learning_rate", *SERVER_NUMBERS[name]}
    filled = {key: value for key, value in defaults.items() if key in useful}
    return Server(**{"optimizer": name, **filled, **server.model_dump(exclude_none=True)})


def server_optimizer(experiment: ExperimentFields) -> ServerOptimizer:
    """Return the server optimiser of an experiment."""
    section = server_defaults(experiment.algorithm.name, experiment.server)
    assert section.optimizer is not None
    numbers = section.model_dump(
        exclude_none=True, include={"learning_rate", "momentum", "beta1", "beta2", "tau"}
    )
    return ServerOptimizer(section.optimizer, **numbers, rate=rate_schedule(section, experiment.num_rounds))


def rate_schedule(section: Client | Server, rounds: int) -> RateSchedule:
    """Return a learning rate over the rounds, as a section configures it.

    Args:
        section: ``[client]`` or ``[server]``.
        rounds: Number of rounds of the run.
    """
    return RateSchedule(section.round_schedule, rounds, section.warmup_rounds, section.minimum_rate)
