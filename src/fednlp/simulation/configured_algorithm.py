"""The algorithm that an experiment configures: the method, what travels, the aggregator, the attackers."""

from dataclasses import replace

from fednlp.config import Experiment
from fednlp.config.values import aggregator_of, algorithm_of, attack_of
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.attacks import draw_attackers, with_attackers
from fednlp.federated.cohort import fastest
from fednlp.federated.links import Downlink, Uplink
from fednlp.federated.pulling import Pull
from fednlp.federated.transform_spec import parse_chain
from fednlp.federated.transforms import make_chain


def build_algorithm(experiment: Experiment, given: Algorithm | None = None) -> Algorithm:
    """Return the experiment's algorithm, with the compression and tensor selection of ``[exchange]`` and ``[pull]``.

    Args:
        experiment: Resolved.
        given: A method as a value, which replaces the one that the experiment names.

    Raises:
        ConfigError: The method or the rule does not take its options, or cannot be imported.
    """
    exchange = experiment.exchange
    value = given or algorithm_of(experiment)
    if experiment.rounds.over_selection > 1 and not experiment.data.at_sites:  # sites are as fast as they are
        value = replace(value, sample=fastest(value.sample, experiment.clients_per_round))
    pull = Pull(**experiment.pull.model_dump())
    chain = make_chain(parse_chain(exchange.up, "up"), nearest=exchange.send == "weights")
    uplink = Uplink(chain, exchange.error_feedback, pull, weights=exchange.send == "weights")
    downlink = Downlink(make_chain(parse_chain(exchange.down, "down"), nearest=True))
    return replace(value, uplink=uplink, downlink=downlink, aggregator=aggregator_of(experiment, value))


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
        experiment: Resolved.
        clients: How many clients the partition has.
    """
    section = experiment.attack
    if section is None:
        return algorithm
    return with_attackers(algorithm, attack_of(section), attackers_of(experiment, clients))
