"""The clients that settings name: ``algorithm.clients`` and ``algorithm.order``, checked before a run begins."""

from collections.abc import Sequence
from math import factorial

from fednlp.config import Experiment
from fednlp.errors import ConfigError
from fednlp.partition import Partition

_MOST_SHOWN = 20
_MOST_EXHAUSTIVE = 4
"""Clients whose orders are all tried: their number is a factorial."""


def names_of_clients(partition: Partition) -> list[str]:
    """Return the names of the clients; their numbers as text where they have none."""
    return list(partition.client_names or map(str, range(partition.num_clients)))


def clients_named(partition: Partition, named: Sequence[str]) -> list[int]:
    """Return the numbers of clients by their names."""
    number_of = {name: number for number, name in enumerate(names_of_clients(partition))}
    return [number_of[name] for name in named]


def require_named_clients(experiment: Experiment, partition: Partition) -> None:
    """Check the clients that an experiment names.

    Args:
        experiment: Resolved.

    Raises:
        ConfigError: A name is no client's or is there twice, or ``algorithm.order`` leaves a client out or asks for
            too many orders.
    """
    names = names_of_clients(partition)
    clients, order = experiment.algorithm.clients, experiment.algorithm.order
    _require_clients("algorithm.clients", clients or (), names)
    if order == "exhaustive" and len(names) > _MOST_EXHAUSTIVE:
        raise ConfigError(
            f'algorithm.order = "exhaustive": {len(names)} clients have {factorial(len(names)):,} orders, and at '
            f'most {_MOST_EXHAUSTIVE} clients are tried in all of theirs; say "greedy"'
        )
    if order is None or isinstance(order, str):
        return
    _require_clients("algorithm.order", order, names)
    missing = next((name for name in names if name not in order), None)
    if missing is not None:
        raise ConfigError(f"algorithm.order: {missing!r} is not there: name every client: {_shown(names)}")


def _require_clients(key: str, named: Sequence[str], names: Sequence[str]) -> None:
    """Check that names are of clients, and each there once."""
    for place, name in enumerate(named):
        if name not in names or name in named[:place]:
            what = "there twice" if name in names else "no client"
            raise ConfigError(f"{key}: {name!r} is {what}: name clients, each once: {_shown(names)}")


def _shown(names: Sequence[str]) -> str:
    """Return clients' names for a message: the first of them."""
    return ", ".join(names[:_MOST_SHOWN]) + (", ..." if len(names) > _MOST_SHOWN else "")
