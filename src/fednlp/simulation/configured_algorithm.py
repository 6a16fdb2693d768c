"""The algorithm that an experiment configures: the method, what travels, the aggregator, the attackers."""

from dataclasses import replace
from typing import Any

from fednlp.config import Experiment
from fednlp.config.sections import BASELINES, Client, Server
from fednlp.errors import ConfigError
from fednlp.federated.aggregators import AGGREGATORS
from fednlp.federated.aggregators.base import Aggregator
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.federated.attacks import ATTACKS, draw_attackers, with_attackers
from fednlp.federated.cohort import by_examples, equally
from fednlp.federated.communication import Downlink, Uplink
from fednlp.federated.pulling import Pull
from fednlp.federated.schedules import RateSchedule
from fednlp.federated.server import ServerOptimizer
from fednlp.federated.transform_spec import parse_chain
from fednlp.federated.transforms import make_chain


def build_algorithm(experiment: Experiment, given: Algorithm | None = None) -> Algorithm:
    """Return the experiment's algorithm, with the compression and tensor selection of ``[exchange]`` and ``[pull]``.

    Baselines exchange nothing. They get FedAvg, and do not use it.

    Args:
        experiment: Resolved.
        given: A method as a value, which replaces the one that the experiment names.

    Raises:
        ConfigError: The method or the rule does not take its options, or cannot be imported; or the method has an
            aggregator of its own, and ``[aggregator]`` names another.
    """
    configured, exchange = experiment.algorithm, experiment.exchange
    if given is None:
        weight = by_examples if configured.weighting == "examples" else equally
        common: dict[str, Any] = {
            "weight": weight,
            "min_clients": experiment.min_clients,
            "client_rate": rate_schedule(experiment.client, experiment.num_rounds),
        }
        method = ALGORITHMS.find("fedavg" if configured.name in BASELINES else configured.name)
        if method.server is not None:
            common["server"] = server_optimizer(experiment)
        made = method.make(experiment.clients_per_round, common, configured.function_options)
        given = replace(
            made, client_rate=common["client_rate"]
        )  # the run's, whether the method takes it or not
    pull = Pull(**experiment.pull.model_dump())
    uplink = Uplink(make_chain(parse_chain(exchange.up, "up")), exchange.error_feedback, pull)
    downlink = Downlink(make_chain(parse_chain(exchange.down, "down"), nearest=True))
    return replace(given, uplink=uplink, downlink=downlink, aggregator=_aggregator(experiment, given))


def _aggregator(experiment: Experiment, algorithm: Algorithm) -> Aggregator:
    """Return the aggregator that ``[aggregator]`` names; the algorithm's own without the section."""
    section, own = experiment.aggregator, algorithm.aggregator
    if section is None:
        return own
    if type(own) is not WeightedMean:
        raise ConfigError(
            f"{algorithm.name} has an aggregator of its own ({type(own).__name__}): leave [aggregator] out"
        )
    return AGGREGATORS.find(section.name).make(section.function_options)


def attackers_of(experiment: Experiment, clients: int) -> list[int]:
    """Return the ids of the clients that ``[attack]`` makes attackers; none without the section.

    Args:
        experiment: Resolved.
        clients: How many clients the partition has.
    """
    attack = experiment.attack
    return [] if attack is None else draw_attackers(clients, attack.fraction, experiment.seed)


def attacked(algorithm: Algorithm, experiment: Experiment, clients: int) -> Algorithm:
    """Return an algorithm with the attackers of ``[attack]`` among the clients; the same without the section.

    Args:
        algorithm: The method.
        experiment: Resolved.
        clients: How many clients the partition has.
    """
    section = experiment.attack
    if section is None:
        return algorithm
    attack = ATTACKS.find(section.name).make(section.function_options)
    return with_attackers(algorithm, attack, attackers_of(experiment, clients))


def rate_schedule(section: Client | Server, rounds: int) -> RateSchedule:
    """Return a learning rate over the rounds, as a section configures it.

    Args:
        section: ``[client]`` or ``[server]``.
        rounds: Number of rounds of the run.
    """
    return RateSchedule(section.round_schedule, rounds, section.warmup_rounds, section.minimum_rate)


def server_optimizer(experiment: Experiment) -> ServerOptimizer:
    """Return the server optimiser of a resolved experiment."""
    section = experiment.server
    assert section.optimizer is not None
    numbers = section.model_dump(
        exclude_none=True, include={"learning_rate", "momentum", "beta1", "beta2", "tau"}
    )
    return ServerOptimizer(section.optimizer, **numbers, rate=rate_schedule(section, experiment.num_rounds))
