"""q-FedAvg: Li et al. 2020, "Fair Resource Allocation in Federated Learning"."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Unpack

from pydantic import Field

from fednlp.federated.algorithm import Algorithm, RoundOptions
from fednlp.federated.algorithms import method
from fednlp.federated.client import ClientFunction, Local, Result
from fednlp.federated.cohort import uniform_cohort
from fednlp.federated.server import ServerUpdate

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.aggregators.base import AggregatedUpdate
    from fednlp.federated.state import State

_LEAST = 1e-10
"""A loss counts as so much at least, as in the authors' code: F^(q-1) must be finite."""


@method("q-FedAvg", needs={"same_tensors": "divides all of an update by what the cohort reports"})
def qfedavg(
    clients_per_round: int,
    q: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0,
    lipschitz: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None,
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return q-FedAvg (Algorithm 2): clients with a larger loss count more, so that losses become alike.

    Args:
        clients_per_round: The size of the cohort.
        q: How much more; 0 is FedAvg.
        lipschitz: L, the constant that steps are sized by; None for 1 / the client's learning rate.
        common: What every method takes: :class:`~fednlp.federated.algorithm.RoundOptions`.
    """
    return Algorithm(
        "qfedavg",
        uniform_cohort(clients_per_round),
        client=qfedavg_client(q, lipschitz),
        server=QFedAvgServer(),
        reports=("h",),
        local_losses=1 if q else 0,
        **common,
    )


def qfedavg_client(q: float, lipschitz: float | None) -> ClientFunction:
    """Return the client: with F its loss at x, it sends F^q (y - x), and reports h = F^q + q F^(q-1) L ||y - x||^2.

    Both are the paper's over L, which cancels out at the server.

    Args:
        q: As for :func:`qfedavg`.
    """

    def client(
        local: Local, x: "Tensor", server: Mapping[str, "Tensor"], own: Mapping[str, "Tensor"]
    ) -> Result:
        loss = max(local.loss(x), _LEAST) if q else 1.0
        y = local.steps(x)
        size = lipschitz or local.num_steps / max(local.rate_sum, _LEAST)
        h = loss**q + (q * loss ** (q - 1) * size * float((y - x).flat().square().sum()) if q else 0.0)
        return Result(update={"model": (y - x) / loss**-q}, metrics={"h": h})

    return client


@dataclass(frozen=True)
class QFedAvgServer(ServerUpdate):
    """x <- x + sum p_i F_i^q (y_i - x) / sum p_i h_i."""

    def step(self, state: "State", update: "AggregatedUpdate") -> None:
        """Move the model; statistics, such as a batch norm's, move by the same mean."""
        h = update.metrics.get("h", 0.0)
        if h:  # none where the clients weigh nothing
            state.params.add_(update.model.delta.div_(h))
