"""FedNova: Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization"."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm, RoundOptions
from fednlp.federated.algorithms import method
from fednlp.federated.client import Local, Result
from fednlp.federated.cohort import uniform_cohort
from fednlp.federated.server import ServerOptimizer, ServerUpdate

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.aggregators.base import AggregatedUpdate
    from fednlp.federated.params import Layout
    from fednlp.federated.state import State


def refuses(options: Mapping[str, Any], experiment: Any) -> list[str]:
    """Return what FedNova cannot go with in an experiment."""
    client, found = experiment.client, []
    if client.optimizer != "sgd":
        found.append(
            f"fednova divides a client's change by how often each gradient counts in it, which {client.optimizer} does "
            'not fix: say client.optimizer = "sgd"'
        )
    if client.max_grad_norm:
        found.append(
            "fednova divides a client's change by how often each gradient counts in it, and client.max_grad_norm has "
            "some count less: leave it out"
        )
    if client.lr_scheduler_type != "constant":
        found.append(
            "fednova counts on one learning rate in all steps of a round: leave client.lr_scheduler_type out "
            "(client.round_schedule changes it from round to round)"
        )
    if client.keep_optimizer and client.momentum:
        found.append(
            "fednova counts on a momentum that begins afresh each round: leave client.keep_optimizer out"
        )
    return found


@method(
    "FedNova",
    refuses=refuses,
    needs={"same_tensors": "multiplies each tensor by the mean number of steps of all that sent"},
)
def fednova(
    clients_per_round: int,
    server: ServerOptimizer = ServerOptimizer(),
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return FedNova: the mean of normalised updates, times the mean number of steps (section 5).

    Args:
        clients_per_round: The size of the cohort.
        server: The server optimiser; with SGD at learning rate 1 it is the paper's.
        common: What every method takes: :class:`~fednlp.federated.algorithm.RoundOptions`.
    """
    return Algorithm(
        "fednova",
        uniform_cohort(clients_per_round),
        client=normalised_client,
        server=FedNovaServer(server),
        reports=("tau",),
        **common,
    )


def normalised_client(
    local: Local, x: "Tensor", server: Mapping[str, "Tensor"], own: Mapping[str, "Tensor"]
) -> Result:
    """Take the local steps, and send their change over how often gradients count in it."""
    y = local.steps(x)
    a = gradient_count(local.num_steps, local.momentum)
    return Result(update={"model": (y - x) / a}, metrics={"tau": a})


def gradient_count(steps: int, momentum: float = 0.0) -> float:
    """Return ||a_i||_1: how often gradients count in the change of some steps of SGD, at one learning rate.

    With momentum rho a gradient moves the weights in its own step and, rho times as far each time, in all that follow:
    a_i = [1 - rho^tau, ..., 1 - rho^2, 1 - rho] / (1 - rho).

    >>> gradient_count(7), gradient_count(2, 0.5)  # 1.5 times the first gradient and once the second
    (7.0, 2.5)
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


@dataclass(frozen=True)
class FedNovaServer(ServerUpdate):
    """The server of FedNova.

    Attributes:
        optimizer: Moves the model by tau_eff times the mean.
    """

    optimizer: ServerOptimizer = field(default_factory=ServerOptimizer)

    def init(self, layout: "Layout") -> "dict[str, Tensor]":
        """Return the optimiser's vectors.

        Raises:
            ConfigError: The model has statistics, such as a batch norm's: they are no sum of gradients.
        """
        if layout.buffers != slice(0, 0):
            raise ConfigError(
                "fednova divides what clients change by their steps, and this model has statistics that no gradient "
                'changes (a batch norm\'s, say): say algorithm.name = "fedavg"'
            )
        return self.optimizer.init(layout)

    def step(self, state: "State", update: "AggregatedUpdate") -> None:
        """x <- x + tau_eff sum p_i (y_i - x) / a_i, where tau_eff = sum p_i a_i."""
        tau_eff = update.metrics.get("tau", 0.0)  # none where the clients weigh nothing
        update.model.delta.mul_(tau_eff)
        self.optimizer.step(state, update)
