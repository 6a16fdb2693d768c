"""Which settings are a method's own: it may take one that would add a part of another method to it."""

from fednlp.config import Experiment
from fednlp.config.values import server_optimizer
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.federated.server import ServerOptimizer

_SERVER = "FedOpt's server optimiser"
_PARTS = {
    "algorithm.mu": "FedProx's proximal term",
    "server.optimizer": _SERVER,
    "server.momentum": _SERVER,
}
"""The parts of methods that other methods can be given, by the settings that begin them."""


def added_part(experiment: Experiment, key: str) -> str | None:
    """Return which part of another method a setting would add to an experiment's method; None if it adds none.

    What the method has by default, or as it is configured, is its own.

    Args:
        experiment: One whose algorithm takes the setting.
        key: Dotted, such as ``"algorithm.mu"``.

    >>> from fednlp.config import parse
    >>> fedopt = parse({"data": {"name": "20news"}, "algorithm": {"name": "fedopt"}})
    >>> added_part(fedopt, "algorithm.mu")
    "FedProx's proximal term"
    >>> added_part(fedopt, "server.momentum")
    """
    if key not in _PARTS:
        return None
    own = _is_proximal(experiment) if key == "algorithm.mu" else _has_server_optimizer(experiment)
    return None if own else _PARTS[key]


def _is_proximal(experiment: Experiment) -> bool:
    """Whether FedProx's term is in the clients' loss, by default or as configured."""
    options = ALGORITHMS.find(experiment.algorithm.name).options()
    return bool(options.model_fields["mu"].default or experiment.algorithm.function_options.get("mu"))


def _has_server_optimizer(experiment: Experiment) -> bool:
    """Whether the server does more than a step along the mean update, by default or as configured."""
    begun = ALGORITHMS.find(experiment.algorithm.name).server or ServerOptimizer()
    return any(one.name != "sgd" or one.momentum > 0 for one in (begun, server_optimizer(experiment)))
