"""Accounting of a round's traffic and simulated time: pure functions of counts and the clients' devices.

A synchronous round takes as long as the slowest client of its cohort, each on its own device
(:meth:`fednlp.costs.cost_model.CostModel.seconds`). The energy of a round is that of all its clients.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fednlp.costs.fleet import Fleet

COUNTED = ("bytes_up", "bytes_down", "tensors_up", "tensors_down", "parameters_up")
"""Keys of the integers that are summed over the cohort in every round."""

_SECONDS = "simulated_seconds"
_JOULES = "energy_joules"
_LABELLED = "labelled"


@dataclass(frozen=True)
class ClientCost:
    """The work and traffic of one client in one round.

    Attributes:
        bytes_up: Length of the client's message in bytes; 0 for a dropped client.
        bytes_down: Length of the server's message in bytes.
        tensors_up: Number of tensors in the client's message.
        tensors_down: Number of tensors in the server's message.
        parameters_up: Number of elements of the sent tensors, before compression.
        examples: Number of examples of its local steps, once per epoch, and of other gradients that it computed.
        labelled: Number of examples that it ran the model over to label them, without a backward pass.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    tensors_up: int = 0
    tensors_down: int = 0
    parameters_up: int = 0
    examples: int = 0
    labelled: int = 0


def merge(one: ClientCost, other: ClientCost) -> ClientCost:
    """Return the cost of a client that trained and labelled in a round, with one message from the server.

    >>> merge(ClientCost(bytes_up=5, bytes_down=9, examples=2), ClientCost(bytes_down=9, labelled=7))
    ClientCost(bytes_up=5, bytes_down=9, tensors_up=0, tensors_down=0, parameters_up=0, examples=2, labelled=7)
    """
    down = max((one.bytes_down, one.tensors_down), (other.bytes_down, other.tensors_down))
    return ClientCost(
        bytes_up=one.bytes_up + other.bytes_up,
        bytes_down=down[0],
        tensors_up=one.tensors_up + other.tensors_up,
        tensors_down=down[1],
        parameters_up=one.parameters_up + other.parameters_up,
        examples=one.examples + other.examples,
        labelled=one.labelled + other.labelled,
    )


def round_seconds(costs: Mapping[int, ClientCost], fleet: Fleet) -> float:
    """Return the seconds of a synchronous round: those of the slowest of its clients, 0 without clients.

    Args:
        costs: Costs by client, of the cohort.
        fleet: The devices of all clients.
    """
    return max((_seconds(cost, fleet, client) for client, cost in costs.items()), default=0.0)


def _seconds(cost: ClientCost, fleet: Fleet, client: int) -> float:
    return fleet.of(client).seconds(cost.bytes_down, cost.bytes_up, cost.examples, cost.labelled)


def _joules(cost: ClientCost, fleet: Fleet, client: int) -> float:
    return fleet.of(client).joules(cost.bytes_down, cost.bytes_up, cost.examples, cost.labelled) or 0.0


def round_line(costs: Mapping[int, ClientCost], fleet: Fleet | None = None) -> dict[str, Any]:
    """Return the costs in a round's line of ``rounds.jsonl``.

    Args:
        costs: Costs by client, of the cohort with its dropped clients, which received the model.
        fleet: The devices of all clients; without it the line has no seconds and no energy.

    >>> from fednlp.costs import CostModel, uniform_fleet
    >>> cost = ClientCost(bytes_up=90, bytes_down=100, tensors_up=2, tensors_down=2, parameters_up=20)
    >>> round_line({0: cost, 4: cost, 7: cost}, uniform_fleet(CostModel(bandwidth_up=10), num_clients=8))
    {'bytes_up': 270, 'bytes_down': 300, 'tensors_up': 6, 'tensors_down': 6, 'parameters_up': 60, \
'simulated_seconds': 9.0}
    """
    line: dict[str, Any] = {key: sum(getattr(cost, key) for cost in costs.values()) for key in COUNTED}
    labelled = sum(cost.labelled for cost in costs.values())
    if labelled:
        line[_LABELLED] = labelled
    if fleet is not None:
        line[_SECONDS] = round(round_seconds(costs, fleet), 6)
        if fleet.knows_power:
            line[_JOULES] = round(
                math.fsum(_joules(cost, fleet, client) for client, cost in costs.items()), 6
            )
    return line


def totals(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the totals of a run's lines, as its summary states them; a key that no line has is left out.

    >>> totals([{"bytes_up": 1, "bytes_down": 2}, {"bytes_up": 3, "bytes_down": 4}])
    {'bytes_up': 4, 'bytes_down': 6}
    """
    lines = list(lines)
    whole: dict[str, Any] = {
        key: sum(int(line.get(key, 0)) for line in lines)
        for key in (*COUNTED, _LABELLED)
        if any(key in line for line in lines)
    }
    for key in (_SECONDS, _JOULES):
        known = [line[key] for line in lines if key in line]
        if known:
            whole[key] = round(math.fsum(known), 6)
    return whole
