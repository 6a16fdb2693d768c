"""Server optimisers on the pseudo-gradient: FedOpt of Reddi et al. 2021, Algorithm 2.

The mean update ``delta`` is minus the pseudo-gradient. With learning rate eta:

    sgd      m <- momentum m + delta                               x <- x + eta m
    adagrad  m <- beta1 m + (1 - beta1) delta,  v <- v + delta^2    x <- x + eta m / (sqrt(v) + tau)
    adam     ...  v <- beta2 v + (1 - beta2) delta^2
    yogi     ...  v <- v - (1 - beta2) delta^2 sign(v - delta^2)

As in the paper there is no bias correction, and v starts at tau^2. What a step needs from one round
to the next lies in *slots*: named flat tensors that are part of the state, and of its checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fednlp.federated.params import Layout


@dataclass(frozen=True)
class ServerOptimizer:
    """Which server optimiser, with its numbers. SGD with lr 1 and no momentum is plain averaging."""

    name: str = "sgd"
    learning_rate: float = 1.0
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if self.name not in {"sgd", "adagrad", "adam", "yogi"}:
            raise ValueError(f"unknown server optimiser {self.name}: choose sgd, adagrad, adam or yogi")

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the flat tensors that it keeps."""
        if self.name == "sgd":
            return ("momentum",) if self.momentum else ()
        return ("first", "second")

    def init(self, layout: Layout) -> dict[str, Tensor]:
        """Return the slots before the first round."""
        slots = {name: torch.zeros(layout.numel) for name in self.slots}
        if "second" in slots:
            slots["second"].fill_(self.tau**2)
        return slots


def server_step(
    optimizer: ServerOptimizer,
    layout: Layout,
    x: Tensor,
    delta: Tensor,
    slots: dict[str, Tensor],
    rows: Tensor,
    unsent: Sequence[slice] = (),
) -> None:
    """Move ``x`` by one server step, in place; ``slots`` are updated in place too.

    Args:
        optimizer: Which step.
        layout: What lies where in the flat tensors.
        x: The global model, flat.
        delta: The mean update, flat; zero in the table outside ``rows``.
        slots: From :meth:`ServerOptimizer.init`.
        rows: The rows of the table that anybody touched.
        unsent: Stretches that nobody sent: they stay as they are, and so does the memory of them.

    Buffers are averaged, never optimised: they move by ``delta`` itself.
    """
    kept = [(tensor[place], tensor[place].clone()) for tensor in (x, *slots.values()) for place in unsent]
    buffers = x[layout.buffers] + delta[layout.buffers]
    if optimizer.name == "sgd" and not optimizer.momentum:
        x[: layout.dense].add_(delta[: layout.dense], alpha=optimizer.learning_rate)
        if len(rows):
            step = layout.rows(delta)[rows]
            layout.rows(x).index_add_(0, rows, step, alpha=optimizer.learning_rate)
    elif optimizer.name == "sgd":
        momentum = slots["momentum"].mul_(optimizer.momentum).add_(delta)
        x.add_(momentum, alpha=optimizer.learning_rate)
    else:
        _adaptive(optimizer, x, delta, slots)
    x[layout.buffers] = buffers
    for there, before in kept:
        there.copy_(before)


def _adaptive(optimizer: ServerOptimizer, x: Tensor, delta: Tensor, slots: dict[str, Tensor]) -> None:
    first = slots["first"].mul_(optimizer.beta1).add_(delta, alpha=1 - optimizer.beta1)
    second = slots["second"]
    if optimizer.name == "adagrad":
        second.addcmul_(delta, delta)
    elif optimizer.name == "adam":
        second.mul_(optimizer.beta2).addcmul_(delta, delta, value=1 - optimizer.beta2)
    else:
        square = delta * delta
        second.addcmul_(square, torch.sign(second - square), value=-(1 - optimizer.beta2))
    x.addcdiv_(first, second.sqrt().add_(optimizer.tau), value=optimizer.learning_rate)
