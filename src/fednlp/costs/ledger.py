"""What a round sent and how long it would have taken: pure functions of counts and prices.

A client's part in a round (FeS, section 4.1: measured times put into an emulation) takes

    latency + bytes_down / bandwidth_down + examples * seconds per example of training
            + labelled * seconds per example of inference + bytes_up / bandwidth_up

and a synchronous round takes as long as the slowest client of its cohort. The energy of a round is that of all its
clients, each its watts times these seconds; latency takes none. A part without a price counts nothing.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fednlp.costs.devices import load_profile
from fednlp.costs.plans import Plan, seconds_per_example

COUNTED = ("bytes_up", "bytes_down", "tensors_up", "tensors_down", "parameters_up")
"""What is counted in every round, as whole numbers over the cohort."""

_SECONDS = "simulated_seconds"
_JOULES = "energy_joules"
_LABELLED = "labelled"


@dataclass(frozen=True)
class Spent:
    """What one client sent, received and trained in one round.

    Attributes:
        bytes_up: Length of its message to the server; 0 of one that was dropped.
        bytes_down: Length of the server's message to it.
        tensors_up: Tensors in its message.
        tensors_down: Tensors in the server's message.
        parameters_up: Values of the tensors that it sent, before the transforms.
        examples: Examples of its local steps, once per epoch.
        labelled: Examples that it ran the model over to label them, forwards only.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    tensors_up: int = 0
    tensors_down: int = 0
    parameters_up: int = 0
    examples: int = 0
    labelled: int = 0


def both(one: Spent, other: Spent) -> Spent:
    """Return what a client spent that did two things in a round, on one message of the server.

    >>> both(Spent(bytes_up=5, bytes_down=9, examples=2), Spent(bytes_down=9, labelled=7))
    Spent(bytes_up=5, bytes_down=9, tensors_up=0, tensors_down=0, parameters_up=0, examples=2, labelled=7)
    """
    down = max((one.bytes_down, one.tensors_down), (other.bytes_down, other.tensors_down))
    return Spent(
        bytes_up=one.bytes_up + other.bytes_up,
        bytes_down=down[0],
        tensors_up=one.tensors_up + other.tensors_up,
        tensors_down=down[1],
        parameters_up=one.parameters_up + other.parameters_up,
        examples=one.examples + other.examples,
        labelled=one.labelled + other.labelled,
    )


@dataclass(frozen=True)
class Prices:
    """What bytes and examples take; None for what is not priced.

    Attributes:
        bandwidth_up: Bytes a second from a client to the server.
        bandwidth_down: Bytes a second from the server to a client.
        training: Seconds an example of a local step.
        latency: Seconds a client and round.
        inference: Seconds an example that is labelled.
        watts_computing: Power while a client trains or labels.
        watts_sending: Power while it sends or receives.
    """

    bandwidth_up: float | None = None
    bandwidth_down: float | None = None
    training: float | None = None
    latency: float | None = None
    inference: float | None = None
    watts_computing: float | None = None
    watts_sending: float | None = None


def prices(
    bandwidth_up: float | None,
    bandwidth_down: float | None,
    device: str | None,
    *,
    model: str,
    parameters: int,
    plan: Plan | None = None,
) -> Prices | None:
    """Return the prices of a ``[costs]`` section, None where it prices nothing.

    Args:
        bandwidth_up: From a client to the server, in MB/s (10^6 bytes a second).
        bandwidth_down: From the server to a client, in MB/s.
        device: Name or path of a device's profile.
        model: The model's name or folder, as the profile may name it.
        parameters: Parameters of the whole model, trained or not.
        plan: How deep it is trained; None for the whole of it.

    Raises:
        ConfigError: The profile cannot be read, or does not fit the plan.

    >>> prices(1.0, 2.0, None, model="bert-tiny", parameters=4_386_178).bandwidth_down
    2000000.0
    """
    found = Prices(
        None if bandwidth_up is None else 1e6 * bandwidth_up,
        None if bandwidth_down is None else 1e6 * bandwidth_down,
    )
    if device is not None:
        profile = load_profile(device)
        found = replace(
            found,
            training=seconds_per_example(profile, model, parameters, plan, training=True),
            inference=seconds_per_example(profile, model, parameters, plan, training=False),
            latency=profile.latency,
        )
        if found != Prices():  # power without a time is no energy
            found = replace(
                found, watts_computing=profile.watts_computing, watts_sending=profile.watts_sending
            )
    return None if found == Prices() else found


def client_seconds(bytes_down: int, bytes_up: int, examples: int, prices: Prices, labelled: int = 0) -> float:
    """Return how long one client's part in a round takes, in seconds.

    >>> client_seconds(10_000_000, 5_000_000, 100, Prices(1e6, 2e6, training=0.5, latency=0.25))
    60.25
    >>> client_seconds(10_000_000, 5_000_000, 100, Prices(bandwidth_up=1e6))
    5.0
    """
    latency = prices.latency or 0.0
    computing = _computing(examples, labelled, prices)
    return latency + _sending(bytes_down, bytes_up, prices) + computing


def _computing(examples: int, labelled: int, prices: Prices) -> float:
    return examples * (prices.training or 0.0) + labelled * (prices.inference or 0.0)


def _sending(bytes_down: int, bytes_up: int, prices: Prices) -> float:
    down, up = prices.bandwidth_down, prices.bandwidth_up
    return (0.0 if down is None else bytes_down / down) + (0.0 if up is None else bytes_up / up)


def client_joules(spent: Spent, prices: Prices) -> float | None:
    """Return the energy of one client's part in a round, None where no watts are known.

    Source: Cai et al. 2023 (FeS), Figure 12; 75.9 s of training at 12 W are the 910.8 J of its introduction.

    >>> round(client_joules(Spent(examples=1), Prices(training=75.9, watts_computing=12.0)), 3)
    910.8
    """
    computing, sending = prices.watts_computing, prices.watts_sending
    if computing is None and sending is None:
        return None
    return (computing or 0.0) * _computing(spent.examples, spent.labelled, prices) + (
        sending or 0.0
    ) * _sending(spent.bytes_down, spent.bytes_up, prices)


def round_seconds(clients: Iterable[Spent], prices: Prices) -> float:
    """Return how long a synchronous round takes: as long as the slowest of its clients."""
    taken = (client_seconds(c.bytes_down, c.bytes_up, c.examples, prices, c.labelled) for c in clients)
    return max(taken, default=0.0)


def round_line(clients: Iterable[Spent], prices: Prices | None = None) -> dict[str, Any]:
    """Return what a round's line of ``rounds.jsonl`` says of its costs.

    Args:
        clients: One a client of the cohort, dropped ones too: these were sent the model.
        prices: What to price it with; nothing is priced without.

    >>> cohort = [Spent(bytes_up=90, bytes_down=100, tensors_up=2, tensors_down=2, parameters_up=20)] * 3
    >>> round_line(cohort, Prices(bandwidth_up=10))
    {'bytes_up': 270, 'bytes_down': 300, 'tensors_up': 6, 'tensors_down': 6, 'parameters_up': 60, \
'simulated_seconds': 9.0}
    """
    clients = list(clients)
    line: dict[str, Any] = {key: sum(getattr(client, key) for client in clients) for key in COUNTED}
    labelled = sum(client.labelled for client in clients)
    if labelled:
        line[_LABELLED] = labelled
    if prices is not None:
        line[_SECONDS] = round(round_seconds(clients, prices), 6)
        if client_joules(Spent(), prices) is not None:
            line[_JOULES] = round(math.fsum(client_joules(client, prices) or 0.0 for client in clients), 6)
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
