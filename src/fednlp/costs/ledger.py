"""What a round sent and how long it would have taken: pure functions of counts and prices.

A client's part in a round (FeS, section 4.1: measured times put into an emulation) takes

    latency + bytes_down / bandwidth_down + examples * seconds per example + bytes_up / bandwidth_up

and a synchronous round takes as long as the slowest client of its cohort. A part without a price counts nothing.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fednlp.costs.devices import load_profile

COUNTED = ("bytes_up", "bytes_down", "tensors_up", "tensors_down", "parameters_up")
"""What is counted in every round, as whole numbers over the cohort."""

_SECONDS = "simulated_seconds"


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
    """

    bytes_up: int = 0
    bytes_down: int = 0
    tensors_up: int = 0
    tensors_down: int = 0
    parameters_up: int = 0
    examples: int = 0


@dataclass(frozen=True)
class Prices:
    """What bytes and examples take: bytes a second each way, seconds an example, seconds a client and round."""

    bandwidth_up: float | None = None
    bandwidth_down: float | None = None
    training: float | None = None
    latency: float | None = None


def prices(
    bandwidth_up: float | None,
    bandwidth_down: float | None,
    device: str | None,
    *,
    model: str,
    parameters: int,
) -> Prices | None:
    """Return the prices of a ``[costs]`` section, None where it prices nothing.

    Args:
        bandwidth_up: From a client to the server, in MB/s (10^6 bytes a second).
        bandwidth_down: From the server to a client, in MB/s.
        device: Name or path of a device's profile.
        model: The model's name or folder, as the profile may name it.
        parameters: Parameters of the whole model, trained or not.

    Raises:
        ConfigError: The profile cannot be read.

    >>> prices(1.0, 2.0, None, model="bert-tiny", parameters=4_386_178)
    Prices(bandwidth_up=1000000.0, bandwidth_down=2000000.0, training=None, latency=None)
    """
    profile = None if device is None else load_profile(device)
    found = Prices(
        None if bandwidth_up is None else 1e6 * bandwidth_up,
        None if bandwidth_down is None else 1e6 * bandwidth_down,
        None if profile is None else profile.training.seconds(model, parameters),
        None if profile is None else profile.latency,
    )
    return None if found == Prices() else found


def client_seconds(bytes_down: int, bytes_up: int, examples: int, prices: Prices) -> float:
    """Return how long one client's part in a round takes, in seconds.

    >>> client_seconds(10_000_000, 5_000_000, 100, Prices(1e6, 2e6, training=0.5, latency=0.25))
    60.25
    >>> client_seconds(10_000_000, 5_000_000, 100, Prices(bandwidth_up=1e6))
    5.0
    """
    seconds = prices.latency or 0.0
    if prices.bandwidth_down is not None:
        seconds += bytes_down / prices.bandwidth_down
    if prices.training is not None:
        seconds += examples * prices.training
    if prices.bandwidth_up is not None:
        seconds += bytes_up / prices.bandwidth_up
    return seconds


def round_seconds(clients: Iterable[Spent], prices: Prices) -> float:
    """Return how long a synchronous round takes: as long as the slowest of its clients."""
    taken = (client_seconds(c.bytes_down, c.bytes_up, c.examples, prices) for c in clients)
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
    if prices is not None:
        line[_SECONDS] = round(round_seconds(clients, prices), 6)
    return line


def totals(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the totals of a run's lines, as its summary states them; a key that no line has is left out.

    >>> totals([{"bytes_up": 1, "bytes_down": 2}, {"bytes_up": 3, "bytes_down": 4}])
    {'bytes_up': 4, 'bytes_down': 6}
    """
    lines = list(lines)
    whole: dict[str, Any] = {
        key: sum(int(line.get(key, 0)) for line in lines)
        for key in COUNTED
        if any(key in line for line in lines)
    }
    seconds = [line[_SECONDS] for line in lines if _SECONDS in line]
    return whole | ({_SECONDS: round(math.fsum(seconds), 6)} if seconds else {})
