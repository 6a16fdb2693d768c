"""The devices of all clients, and the simulated time of a round on each."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fednlp.costs.cost_model import CostModel, device_cost_model
from fednlp.costs.devices import load_profile
from fednlp.costs.training_time import TrainingDepth
from fednlp.errors import ConfigError
from fednlp.partition.draws import largest_remainder
from fednlp.partition.index import FloatArray, IntArray
from fednlp.seeds import generator

_DeviceMix = Mapping[str, float]
"""Shares of the clients by device: a profile's name or path. They are above 0 and sum to 1."""

_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Fleet:
    """The devices of all clients.

    Attributes:
        models: Cost model of each kind of device.
        kinds: int64 (clients,), the kind of each client's device as a position in ``models``.
    """

    models: tuple[CostModel, ...]
    kinds: IntArray

    def of(self, client: int) -> CostModel:
        """Return the cost model of a client's device."""
        return self.models[int(self.kinds[client])]

    @property
    def knows_power(self) -> bool:
        """True if the watts of every kind of device are known, and with them the energy of a round."""
        return all(model.knows_power for model in self.models)

    def mean_training(self) -> float | None:
        """Return the mean seconds per example of a local step over all clients; None where not known."""
        return self._mean([model.training for model in self.models])

    def mean_inference(self) -> float | None:
        """Return the mean seconds per labelled example over all clients; None where not known."""
        return self._mean([model.inference for model in self.models])

    def _mean(self, seconds: list[float | None]) -> float | None:
        known = [one for one in seconds if one is not None]
        if len(known) < len(seconds):
            return None
        if len(known) == 1:
            return known[0]
        counts = np.bincount(self.kinds, minlength=len(known)).tolist()
        return math.fsum(count * one for count, one in zip(counts, known, strict=True)) / len(self.kinds)


def uniform_fleet(model: CostModel, num_clients: int) -> Fleet:
    """Return a fleet in which all clients have the same device."""
    return Fleet((model,), np.zeros(num_clients, dtype=np.int64))


def make_fleet(
    bandwidth_up: float | None,
    bandwidth_down: float | None,
    device: str | _DeviceMix | None,
    *,
    model: str,
    parameters: int,
    num_clients: int,
    seed: int,
    depth: TrainingDepth | None = None,
) -> Fleet | None:
    """Return the devices of all clients as a ``[costs]`` section configures them, None where it has no figures.

    Args:
        bandwidth_up: Bandwidth from every client to the server, in MB/s (10^6 bytes a second).
        bandwidth_down: Bandwidth from the server to every client, in MB/s.
        device: Name or path of a profile for all clients, or a mix: shares of the clients by name or path.
        model: Name or folder of the model, which is looked up in the profiles.
        parameters: Number of parameters of the whole model, trained or not.
        num_clients: Number of clients.
        seed: The experiment's seed, which assigns the devices of a mix to clients.
        depth: The trained layers; None for the whole model.

    Raises:
        ConfigError: As for :func:`device_cost_model`; the shares are not valid; or only some profiles of a mix state
            the seconds of the model, so that they cannot be compared.
    """

    def of(name: str | None) -> CostModel | None:
        return device_cost_model(
            bandwidth_up, bandwidth_down, name, model=model, parameters=parameters, depth=depth
        )

    if device is None or isinstance(device, str):
        only = of(device)
        return None if only is None else uniform_fleet(only, num_clients)
    check_mix(device)
    names = sorted(device, key=lambda name: (load_profile(name).name, device[name], name))
    models = tuple(of(name) or CostModel() for name in names)
    _require_comparable(dict(zip(names, models, strict=True)), model)
    if all(one == CostModel() for one in models):
        return None
    return Fleet(models, assign_kinds([device[name] for name in names], num_clients, seed))


def assign_kinds(shares: ArrayLike, num_clients: int, seed: int) -> IntArray:
    """Return the kind of each client's device: counts by largest remainder, clients by a random permutation.

    Args:
        shares: Share of each kind, above 0.
        num_clients: Number of clients.

    >>> assign_kinds([0.5, 0.25, 0.25], 8, seed=0).tolist()
    [0, 2, 0, 1, 2, 1, 0, 0]
    """
    counts = largest_remainder(shares, num_clients)
    kinds = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return generator(seed, "devices").permutation(kinds)


def check_mix(mix: _DeviceMix) -> None:
    """Check that shares are above 0 and sum to 1 within a millionth.

    Raises:
        ConfigError: They do not.
    """
    wrong = next((name for name, share in mix.items() if not 0 < share <= 1 + _TOLERANCE), None)
    if wrong is not None:
        raise ConfigError(f"{wrong!r:.80} has the share {mix[wrong]:g}: give a share above 0 and at most 1")
    total = math.fsum(mix.values())
    if abs(total - 1) > _TOLERANCE:
        raise ConfigError(f"the shares of the devices sum to {total:.6g}: make them sum to 1")


def _require_comparable(models: Mapping[str, CostModel], model: str) -> None:
    """Refuse a mix in which a device without a figure would count as the fastest."""
    for kind in ("training", "inference"):
        missing = [name for name, one in models.items() if getattr(one, kind) is None]
        if missing and len(missing) < len(models):
            raise ConfigError(
                f"costs.device: the profile {missing[0]} does not say how long {model} takes in {kind}, and others of "
                "the mix do: choose another, or measure one with fednlp device measure"
            )


def local_examples(sizes: ArrayLike, *, epochs: int, batch_size: int, max_steps: int = -1) -> IntArray:
    """Return the number of examples of each client's local steps in a round.

    Args:
        sizes: Number of training examples of each client.
        epochs: Number of local epochs.
        batch_size: Number of examples of a step.
        max_steps: Number of local steps, which replaces the epochs if positive. Where the steps end within an epoch,
            its smaller batch is assumed to be the last; the order of a client's batches may change the number by less
            than a batch.

    >>> local_examples([10, 3], epochs=2, batch_size=4).tolist()
    [20, 6]
    >>> local_examples([10, 3, 0], epochs=1, batch_size=4, max_steps=5).tolist()
    [18, 15, 0]
    """
    own = np.asarray(sizes, dtype=np.int64)
    if max_steps <= 0:
        return own * epochs
    whole, left = np.divmod(max_steps, np.maximum(-(-own // batch_size), 1))
    examples: IntArray = whole * own + left * batch_size
    return examples


def client_seconds(
    fleet: Fleet, examples: ArrayLike, bytes_down: ArrayLike, bytes_up: ArrayLike
) -> FloatArray:
    """Return the simulated seconds of one round of local training for each client of the fleet.

    The time includes the server's message, local training, and the client's message, on the client's own device. It
    does not depend on the other clients, and so applies to synchronous and asynchronous rounds.

    Args:
        fleet: The devices of all clients.
        examples: Examples of the local steps, one number for all clients or one a client; :func:`local_examples` gives
            them by the sizes of the clients.
        bytes_down: Length of the server's message in bytes, in the same form.
        bytes_up: Length of the client's message in bytes, in the same form.

    Returns:
        float64 (clients,), bit for bit the results of :meth:`CostModel.seconds`.

    >>> mixed = Fleet((CostModel(1e6, 1e6, training=0.5), CostModel(1e6, 1e6, training=2.0)), np.array([0, 1, 0]))
    >>> client_seconds(mixed, [10, 10, 20], bytes_down=2_000_000, bytes_up=1_000_000).tolist()
    [8.0, 23.0, 13.0]
    """
    clients = len(fleet.kinds)
    given = (np.asarray(one, dtype=np.float64) for one in (bytes_down, bytes_up, examples))
    down, up, steps = (np.broadcast_to(one, (clients,)) for one in given)
    seconds = np.empty(clients, dtype=np.float64)
    for kind, model in enumerate(fleet.models):
        own = fleet.kinds == kind
        seconds[own] = model.seconds(down[own], up[own], steps[own])
    return seconds
