"""Accounting of a round's traffic and simulated time: pure functions of counts and the clients' devices.

A synchronous round takes as long as the slowest client of its cohort, each on its own device
(:meth:`fednlp.costs.cost_model.CostModel.seconds`). The energy of a round is that of all its clients.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fednlp.costs.cost_model import CostModel
from fednlp.costs.fleet import Fleet

COUNTED = ("bytes_up", "bytes_down", "tensors_up", "tensors_down", "parameters_up")
"""Keys of the integers that are summed over the cohort in every round."""

_SECONDS = "simulated_seconds"
_JOULES = "energy_joules"
_LABELLED = "labelled"
_BYTES = "bytes_labelling"
PARTS = ("training", "labelling", "sending")
"""The parts of a round's time and energy: ``seconds_training``, ``joules_training`` and so on."""
_SIMULATED = (_SECONDS, _JOULES, *(f"{unit}_{part}" for unit in ("seconds", "joules") for part in PARTS))
"""Keys of a round's simulated time and energy, and of their parts."""


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
        asked: Number of examples that it ran the model over before the cohort was drawn, to answer with its loss.
        first_trained: Number of examples whose frozen layers it ran for the first time, to train.
        embedded: Number of texts that it embedded, to filter them.
        bytes_labelling: Bytes of its messages that it needed for labelling alone.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    tensors_up: int = 0
    tensors_down: int = 0
    parameters_up: int = 0
    examples: int = 0
    labelled: int = 0
    asked: int = 0
    first_trained: int = 0
    first_labelled: int = 0
    embedded: int = 0
    bytes_labelling: int = 0


def merge(one: ClientCost, other: ClientCost) -> ClientCost:
    """Return the cost of a client that trained and labelled in a round, with one message from the server.

    >>> both = merge(ClientCost(bytes_up=5, bytes_down=9, examples=2), ClientCost(bytes_down=9, labelled=7))
    >>> both == ClientCost(bytes_up=5, bytes_down=9, examples=2, labelled=7)
    True
    """
    down = max((one.bytes_down, one.tensors_down), (other.bytes_down, other.tensors_down))
    sums = {name: getattr(one, name) + getattr(other, name) for name in ClientCost.__dataclass_fields__}
    return ClientCost(**(sums | {"bytes_down": down[0], "tensors_down": down[1]}))


def round_seconds(costs: Mapping[int, ClientCost], fleet: Fleet) -> float:
    """Return the seconds of a synchronous round: those of the slowest of its clients, 0 without clients.

    Args:
        costs: Costs by client, of the cohort.
        fleet: The devices of all clients.
    """
    return max((_seconds(cost, fleet, client) for client, cost in costs.items()), default=0.0)


def _seconds(cost: ClientCost, fleet: Fleet, client: int) -> float:
    model = fleet.of(client)
    return model.seconds(cost.bytes_down, cost.bytes_up, cost.examples, cost.labelled + cost.asked) + sum(
        _once(cost, model)
    )


def _once(cost: ClientCost, model: CostModel) -> tuple[float, float]:
    """Return the seconds of what a client does once for each text: in training, and in labelling."""
    first = model.first_pass or 0.0
    labelling = cost.first_labelled * first + cost.embedded * (model.embedding or 0.0)
    return cost.first_trained * first, labelling


def _client_parts(cost: ClientCost, model: CostModel) -> tuple[float, float, float]:
    """Return the seconds of a client's training, labelling and sending in a round; latency counts as sending.

    Args:
        model: The cost model of its device.

    >>> device = CostModel(bandwidth_up=10, training=2.0, inference=1.0, first_pass=0.5, embedding=0.25)
    >>> _client_parts(ClientCost(bytes_up=90, examples=3, labelled=4, first_labelled=4, embedded=8), device)
    (6.0, 8.0, 9.0)
    """
    training, labelling = _once(cost, model)
    training += cost.examples * (model.training or 0.0) + cost.asked * (model.inference or 0.0)
    labelling += cost.labelled * (model.inference or 0.0)
    return training, labelling, model.seconds(float(cost.bytes_down), float(cost.bytes_up), 0.0)


def _joules(cost: ClientCost, model: CostModel) -> float:
    once = (model.watts_computing or 0.0) * sum(_once(cost, model))
    forward = cost.labelled + cost.asked
    return (model.joules(cost.bytes_down, cost.bytes_up, cost.examples, forward) or 0.0) + once


def _joules_parts(cost: ClientCost, model: CostModel) -> tuple[float, float, float]:
    """Return the energy of a client's training, labelling and sending in joules; latency draws none."""
    training, labelling, sending = _client_parts(cost, model)
    computing, radio = model.watts_computing or 0.0, model.watts_sending or 0.0
    return computing * training, computing * labelling, radio * (sending - (model.latency or 0.0))


def _stages(costs: Mapping[int, ClientCost]) -> list[dict[int, ClientCost]]:
    """Return the stages of a round, each of which waits for the slowest: answers with losses, then the rest."""
    asked = {
        client: ClientCost(bytes_down=cost.bytes_down, asked=cost.asked)
        for client, cost in costs.items()
        if cost.asked
    }
    rest = {
        client: replace(cost, bytes_down=0, asked=0) if client in asked else cost
        for client, cost in costs.items()
        if client not in asked or replace(cost, bytes_down=0, tensors_down=0, asked=0) != ClientCost()
    }
    return [asked, rest] if asked else [rest]


def round_line(costs: Mapping[int, ClientCost], fleet: Fleet | None = None) -> dict[str, Any]:
    """Return the costs in a round's line of ``rounds.jsonl``.

    Args:
        costs: Costs by client, of the cohort with its dropped clients, which received the model.
        fleet: The devices of all clients; without it the line has no seconds and no energy.

    >>> from fednlp.costs import CostModel, uniform_fleet
    >>> cost = ClientCost(bytes_up=90, bytes_down=100, tensors_up=2, tensors_down=2, parameters_up=20)
    >>> round_line({0: cost, 4: cost, 7: cost}, uniform_fleet(CostModel(bandwidth_up=10), num_clients=8))
    {'bytes_up': 270, 'bytes_down': 300, 'tensors_up': 6, 'tensors_down': 6, 'parameters_up': 60, \
'simulated_seconds': 9.0, 'seconds_training': 0.0, 'seconds_labelling': 0.0, 'seconds_sending': 9.0}
    """
    line: dict[str, Any] = {key: sum(getattr(cost, key) for cost in costs.values()) for key in COUNTED}
    labelled = sum(cost.labelled for cost in costs.values())
    if labelled:
        line[_LABELLED] = labelled
        line[_BYTES] = sum(cost.bytes_labelling for cost in costs.values())
    if fleet is not None:
        stages = _stages(costs)
        line[_SECONDS] = round(sum(round_seconds(stage, fleet) for stage in stages), 6)
        times = [_slowest_parts(stage, fleet) for stage in stages]
        line |= {
            f"seconds_{part}": round(sum(one), 6)
            for part, one in zip(PARTS, zip(*times, strict=True), strict=True)
        }
        if fleet.knows_power:
            owners = [(cost, fleet.of(client)) for client, cost in costs.items()]
            line[_JOULES] = round(math.fsum(_joules(*one) for one in owners), 6)
            energies = [_joules_parts(*one) for one in owners]
            for number, part in enumerate(PARTS):
                line[f"joules_{part}"] = round(math.fsum(energy[number] for energy in energies), 6)
    return line


def _slowest_parts(costs: Mapping[int, ClientCost], fleet: Fleet) -> tuple[float, float, float]:
    """Return the seconds of training, labelling and sending of the slowest client; zeros without clients."""
    slowest = max(costs, key=lambda client: _seconds(costs[client], fleet, client), default=None)
    return (0.0, 0.0, 0.0) if slowest is None else _client_parts(costs[slowest], fleet.of(slowest))


def totals(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the totals of a run's lines, as its summary states them; a key that no line has is left out.

    >>> totals([{"bytes_up": 1, "bytes_down": 2}, {"bytes_up": 3, "bytes_down": 4}])
    {'bytes_up': 4, 'bytes_down': 6}
    """
    lines = list(lines)
    whole: dict[str, Any] = {
        key: sum(int(line.get(key, 0)) for line in lines)
        for key in (*COUNTED, _LABELLED, _BYTES)
        if any(key in line for line in lines)
    }
    for key in _SIMULATED:
        known = [line[key] for line in lines if key in line]
        if known:
            whole[key] = round(math.fsum(known), 6)
    return whole
