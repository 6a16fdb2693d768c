"""Adds the differential privacy of ``[privacy]`` and the secure aggregation of ``[secure]`` to an algorithm."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fednlp.config import Experiment
from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.cohort import Population, uniform_cohort
from fednlp.formatting.units import plural
from fednlp.partition import Partition
from fednlp.privacy.dp import DPMechanism
from fednlp.privacy.noise import sum_distance
from fednlp.training.model_layout import layout_of
from fednlp.training.worker_spec import personal_names

if TYPE_CHECKING:
    from fednlp.secure.params import SecAggParams
    from fednlp.secure.session import SessionFactory


@dataclass(frozen=True)
class Protected:
    """An algorithm with differential privacy and secure aggregation.

    Attributes:
        promises: The privacy guarantees, a line each, for display.
        facts: Entries of ``summary.json``.
        mechanism: That of differential privacy; None without ``[privacy]``.
    """

    algorithm: Algorithm
    promises: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    mechanism: DPMechanism | None = None


def protect(
    algorithm: Algorithm,
    experiment: Experiment,
    partition: Partition,
    parameters: int,
    sessions: "SessionFactory | None" = None,
    tokens: NDArray[np.int64] | None = None,
) -> Protected:
    """Return an algorithm with the noise and the masks of an experiment.

    The server and all clients know the largest weight of any client, and no single client's weight.

    Args:
        experiment: Resolved.
        partition: The partition, whose sizes give the clients' weights.
        parameters: Number of elements of an update.
        sessions: Opens the sessions of secure aggregation; None for sessions in this process.
        tokens: Those of each client, where they give its weight.

    Raises:
        ConfigError: No parameters of the protocol meet its security requirements, ``privacy.epsilon`` cannot be kept,
            or the algorithm draws other cohorts.
    """
    population = Population(np.diff(partition.train_offsets), experiment.seed, tokens=tokens)
    _require_cohorts(algorithm, experiment, population)
    mechanism, promises = dp_mechanism(experiment, algorithm, population), []
    if mechanism is not None:
        algorithm = mechanism.apply_to(algorithm)
    if experiment.secure.protocol != "none":
        from fednlp.secure.aggregator import SecureMean

        noise = 0.0 if mechanism is None else mechanism.noise_multiplier
        largest = max(algorithm.weight(int(size)) for size in np.unique(population.counted))
        params = secagg_params(experiment, len(population), parameters, largest, noise)
        promises.append(str(params.plan))
        clip, denominator = (None, None) if mechanism is None else (mechanism.clip, float(mechanism.cohort))
        rule = SecureMean(params, clip, denominator, sum_reports=experiment.secure.sum_reports)
        algorithm = replace(
            algorithm, aggregator=rule if sessions is None else replace(rule, sessions=sessions)
        )
        if mechanism is not None:
            distance = sum_distance(params.noise_std, params.noise_clients, parameters)
            mechanism = replace(mechanism, distance=distance)
            target = experiment.privacy and experiment.privacy.epsilon
            if target and mechanism.epsilon() > target:
                raise ConfigError(
                    f"privacy.epsilon = {target} cannot be kept with so few steps of noise: raise secure.bits, or "
                    "leave it out"
                )
    if mechanism is None:
        return Protected(algorithm, promises)
    facts = {"privacy": mechanism.facts()}
    return Protected(algorithm, [*promises, mechanism.statement], facts, mechanism)


def _require_cohorts(algorithm: Algorithm, experiment: Experiment, population: Population) -> None:
    """Check that an algorithm draws the cohorts that the numbers of a protection are worked out for.

    Raises:
        ConfigError: Its cohorts have another size than ``clients_per_round``, or are not drawn uniformly.
    """
    privacy, size = experiment.privacy, min(experiment.clients_per_round, len(population))
    unprotected = privacy is None and experiment.secure.protocol == "none"
    # With Poisson sampling the mechanism draws the cohorts.
    if unprotected or (privacy is not None and privacy.sampling == "poisson"):
        return
    drawn = algorithm.sample(population, 1)
    if len(drawn.clients) != size:
        raise ConfigError(
            f"the cohorts of {algorithm.name} have {plural(len(drawn.clients), 'client')}, and [privacy] and [secure] "
            f"go by clients_per_round = {size}: make the two the same"
        )
    if privacy is not None and drawn != uniform_cohort(size)(population, 1):
        raise ConfigError(
            f"[privacy] counts on cohorts that are drawn uniformly, and {algorithm.name} draws them otherwise: leave "
            "[privacy] out"
        )


def dp_mechanism(experiment: Experiment, algorithm: Algorithm, population: Population) -> DPMechanism | None:
    """Return the mechanism of ``[privacy]``; None without the section.

    Args:
        algorithm: The method, whose cohorts are counted.

    Raises:
        ConfigError: No noise multiplier reaches ``privacy.epsilon``.
    """
    privacy, clients = experiment.privacy, len(population)
    if privacy is None:
        return None
    central, cohort = experiment.secure.protocol == "none", min(experiment.clients_per_round, clients)
    mechanism = DPMechanism(
        clip=privacy.clip,
        noise_multiplier=privacy.noise or 0.0,
        central=central,
        sampling=privacy.sampling,
        # Sites know the seed that cohorts are drawn by, so that being drawn hides nothing from them.
        clients=cohort if experiment.data.at_sites else clients,
        cohort=cohort,
        rounds=experiment.num_rounds,
        delta=privacy.delta,
        seed=experiment.seed,
        distance=None if central else 0.0,
        most_rounds=0 if central else _most_rounds(experiment, algorithm, population),
    )
    return mechanism if privacy.epsilon is None else mechanism.calibrated(privacy.epsilon)


def check_noise(
    experiment: Experiment,
    algorithm: Algorithm,
    partition: Partition,
    model: nn.Module,
    log: Callable[[str], None],
) -> None:
    """Check before the first round that the noise of ``[privacy]`` leaves something of the clients' updates.

    Raises:
        ConfigError: The ratio of the noise to the largest mean update is above ``privacy.max_noise_ratio``.
    """
    mechanism = dp_mechanism(
        experiment, algorithm, Population(np.diff(partition.train_offsets), experiment.seed)
    )
    if mechanism is None or experiment.privacy is None:
        return
    personal = personal_names(model, experiment.model.train, True, experiment.model.peft)
    told = mechanism.check_noise(layout_of(model, personal, ()).numel, experiment.privacy.max_noise_ratio)
    if told is not None:
        log(told)


def secagg_params(
    experiment: Experiment, clients: int, parameters: int, largest_weight: float, noise_multiplier: float
) -> "SecAggParams":
    """Return the parameters of the protocol of ``[secure]``.

    Args:
        experiment: The experiment, with a protocol.
        clients: Number of clients of the run.
        parameters: Number of elements of an update.
        largest_weight: Upper bound of all clients' weights.
        noise_multiplier: Standard deviation of the noise on the sum, over ``privacy.clip``; 0 for none.

    Raises:
        ConfigError: No parameters of the protocol meet its security requirements, or the sum would overflow.
    """
    from fednlp.secure.params import make_params

    secure, privacy = experiment.secure, experiment.privacy
    return make_params(
        secure.protocol,
        min(experiment.clients_per_round, clients),
        parameters,
        largest_weight,
        experiment.seed,
        clip=secure.clip if privacy is None else privacy.clip,
        dropout=secure.dropout,
        max_colluding=secure.max_colluding,
        malicious_server=secure.malicious_server,
        bits=secure.bits,
        stochastic=secure.stochastic,
        noise_multiplier=noise_multiplier,
        simulated_dropout=secure.simulated_dropout,
    )


def _most_rounds(experiment: Experiment, algorithm: Algorithm, population: Population) -> int:
    """Return the largest number of rounds for which any client is drawn.

    Dropouts count, and so do rounds without a sum, which may be refused after they were unmasked.
    """
    drawn: Counter[int] = Counter()
    for round_number in range(1, experiment.num_rounds + 1):
        drawn.update(algorithm.sample(population, round_number).clients)
    return max(drawn.values())
