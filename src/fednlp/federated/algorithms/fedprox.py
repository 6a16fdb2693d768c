"""FedProx: Li et al. 2020, "Federated Optimization in Heterogeneous Networks"."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Unpack

from pydantic import Field

from fednlp.federated.algorithm import Algorithm, RoundOptions
from fednlp.federated.algorithms import method
from fednlp.federated.client import ClientFunction, Local, Result
from fednlp.federated.cohort import uniform_cohort

if TYPE_CHECKING:
    from torch import Tensor

Mu = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""The weight of the proximal term: a finite number, 0 or more."""


@method("FedProx")
def fedprox(
    clients_per_round: int,
    mu: Mu = 0.01,
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return FedProx (Algorithm 2): FedAvg with (mu/2)||y - x||^2 added to each client's loss.

    Args:
        clients_per_round: The size of the cohort.
        mu: The strength of the pull towards the global model x.
        common: What every method takes: :class:`~fednlp.federated.algorithm.RoundOptions`.
    """
    return Algorithm(
        "fedprox",
        uniform_cohort(clients_per_round),
        client=proximal_client(mu),
        **common,
    )


def proximal_client(mu: float) -> ClientFunction:
    """Return the client of FedProx; with ``mu`` = 0 it is FedAvg's.

    Args:
        mu: The strength of the pull.
    """

    def pull(g: "Tensor", y: "Tensor", x: "Tensor") -> "Tensor":
        return g.add_(y - x, alpha=mu)

    def client(
        local: Local, x: "Tensor", server: Mapping[str, "Tensor"], own: Mapping[str, "Tensor"]
    ) -> Result:
        y = local.steps(x, pull, x, sparse=True) if mu else local.steps(x)
        return Result(update={"model": y - x})

    return client
