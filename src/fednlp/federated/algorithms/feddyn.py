"""FedDyn: Acar et al. 2021, "Federated Learning Based on Dynamic Regularization"."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from pydantic import Field

from fednlp.federated.algorithm import Algorithm, RoundOptions
from fednlp.federated.algorithms import method
from fednlp.federated.client import ClientFunction, Local, Result
from fednlp.federated.cohort import uniform_cohort
from fednlp.federated.server import ServerUpdate

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.aggregators.base import AggregatedUpdate
    from fednlp.federated.params import Layout
    from fednlp.federated.state import State


def _refuses(options: Mapping[str, Any], experiment: Any) -> list[str]:
    if experiment.client.optimizer == "sgd":
        return []
    return ['feddyn corrects the steps of plain SGD: say client.optimizer = "sgd"']


@method(
    "FedDyn",
    refuses=_refuses,
    needs={
        "same_tensors": "counts on the share of all clients",
        "fixed_labels": "corrects steps by what a client learnt from in earlier rounds",
    },
)
def feddyn(
    clients_per_round: int,
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1,
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return FedDyn (Algorithm 1), whose fixed point is the optimum of all clients together.

    Args:
        clients_per_round: The size of the cohort.
        alpha: The strength of the dynamic regulariser.
        common: What every method takes: :class:`~fednlp.federated.algorithm.RoundOptions`. In the paper ``weight`` is
            :func:`~fednlp.federated.cohort.equally`; |S|/m becomes the cohort's share of all clients' weight.
    """
    return Algorithm(
        "feddyn",
        uniform_cohort(clients_per_round),
        client=feddyn_client(alpha),
        keeps=("gradient",),
        server=FedDynServer(alpha),
        **common,
    )


def feddyn_client(alpha: float) -> ClientFunction:
    """Return the client of FedDyn: it minimises F_i(y) - <h_i, y> + (alpha/2)||y - x||^2, and keeps h_i.

    Args:
        alpha: The strength of the regulariser.
    """

    def pull(g: "Tensor", y: "Tensor", x: "Tensor", h: "Tensor") -> "Tensor":
        return g.sub_(h).add_(y - x, alpha=alpha)

    def client(
        local: Local, x: "Tensor", server: Mapping[str, "Tensor"], own: Mapping[str, "Tensor"]
    ) -> Result:
        h = own.get("gradient", x.new_zeros(x.shape))
        y = local.steps(x, pull, x, h)
        return Result(update={"model": y - x}, keep={"gradient": h - alpha * (y - x).flat()})

    return client


@dataclass(frozen=True)
class FedDynServer(ServerUpdate):
    """h <- h - alpha |S|/m mean(y - x);  x <- mean(y) - h / alpha."""

    alpha: float

    def init(self, layout: "Layout") -> "dict[str, Tensor]":
        """Return h, zeros."""
        return {"h": layout.zeros()}

    def step(self, state: "State", update: "AggregatedUpdate") -> None:
        """Move the model and h; statistics, such as a batch norm's, are averaged."""
        h, mean, buffers = state.vectors["h"], update.model, state.layout.buffers
        h.sub_(mean.delta, alpha=self.alpha * update.fraction)
        h[buffers] = 0
        state.params.add_(mean.delta).sub_(h, alpha=1 / self.alpha)
