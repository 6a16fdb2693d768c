"""What a client keeps between rounds, in its record (:mod:`fednlp.federated.store`), and what it has by it.

* ``personal``: its personal parameters;
* ``residual``: what compression lost of its updates so far (error feedback);
* ``model`` and ``sent``: its own model at the end of its last round and what of it was sent, for dynamic pulling: a
  mark for each tensor, or the bounds of what was sent of each;
* ``optimizer.*``: its optimiser's state;
* ``method.*``: the vectors that the algorithm's client keeps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fednlp.federated.algorithm import Algorithm
from fednlp.federated.params import Layout
from fednlp.federated.pulling import Pull
from fednlp.federated.sent import Sent
from fednlp.training.local_training import LocalTraining
from fednlp.training.optimizers import memory_sizes
from fednlp.training.replica import Replica

Record = Mapping[str, Tensor]
OPTIMIZER, METHOD = "optimizer.", "method."
_BOUNDS = 4
"""Places of a record for the bounds of what is sent of a tensor: two 64-bit numbers among 32-bit ones."""


@dataclass(frozen=True)
class ClientInit:
    """What a client has of its own when a round begins.

    Attributes:
        personal: Its personal parameters, flat; None for the first ones.
        shared: Its own version of the shared parameters, flat; None for the global model.
        optimizer: The memory of its optimiser.
        method: The vectors that the algorithm's client kept.
    """

    personal: Tensor | None = None
    shared: Tensor | None = None
    optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    method: Mapping[str, Tensor] = field(default_factory=dict)


def record_fields(replica: Replica, options: LocalTraining, algorithm: Algorithm) -> dict[str, int]:
    """Return what a client's record holds: names and sizes; nothing for a method whose clients keep nothing."""
    fields, shared = {}, replica.layout.numel
    if replica.personal.numel:
        fields["personal"] = replica.personal.numel
    if algorithm.uplink.error_feedback:
        fields["residual"] = shared
    pull = algorithm.uplink.pull
    if pull.rule != "all":
        marks = _BOUNDS if pull.of == "parameters" else 1
        fields |= {"model": shared, "sent": marks * len(replica.layout.entries)}
    if options.keep_optimizer:
        fields |= {OPTIMIZER + name: size for name, size in memory_sizes(options, replica.groups).items()}
    return fields | {METHOD + name: shared for name in algorithm.keeps}


def init_of(record: Record, algorithm: Algorithm, layout: Layout, x: Tensor) -> ClientInit:
    """Return what a client has after a broadcast, by its record.

    Args:
        record: Empty where it has not taken part yet.
        x: The global model, flat.
    """
    personal, optimizer, method = record.get("personal"), _under(record, OPTIMIZER), _under(record, METHOD)
    if algorithm.uplink.pull.push == "all" or "sent" not in record:
        return ClientInit(personal, None, optimizer, method)
    mixed = record["model"].clone()
    for start, stop in last_sent(record, algorithm.uplink.pull, layout).stretches(layout):
        mixed[start:stop] = x[start:stop]
    return ClientInit(personal, mixed, optimizer, method)


def model_of(init: ClientInit, algorithm: Algorithm, x: Tensor) -> Tensor:
    """Return the shared parameters of the model that a client uses for itself.

    Args:
        init: What it has of its own.
        algorithm: The method; its ``personal_model`` comes first.
        x: The global model, flat.
    """
    if algorithm.personal_model is not None:
        return init.method.get(algorithm.personal_model, x)
    return x if init.shared is None else init.shared


def last_sent(record: Record, pull: Pull, layout: Layout) -> Sent:
    """Return what a client sent last, by its record."""
    if pull.of == "tensors":
        return Sent.marked(record["sent"].numpy() > 0)
    return Sent.bounded(record["sent"].numpy().view(np.int64).reshape(-1, 2), layout)


def recorded(sent: Sent, pull: Pull, layout: Layout) -> Tensor:
    """Return what a client sends as its record keeps it."""
    bounds = sent.bounds(layout)
    if pull.of == "tensors":
        return torch.from_numpy(bounds[:, 1] > 0).float()
    return torch.from_numpy(bounds.reshape(-1).view(np.float32))


def _under(record: Record, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in record.items() if name.startswith(prefix)}
