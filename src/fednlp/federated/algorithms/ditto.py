"""Ditto: Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization"."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Unpack

from pydantic import Field

from fednlp.federated.algorithm import Algorithm, RoundOptions
from fednlp.federated.algorithms import method
from fednlp.federated.client import ClientFunction, Local, Result
from fednlp.federated.cohort import uniform_cohort
from fednlp.federated.server import ServerOptimizer

if TYPE_CHECKING:
    from torch import Tensor

PERSONAL = "personal"
"""The client's own model, in its record."""


@method("Ditto")
def ditto(
    clients_per_round: int,
    lam: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0,
    *,
    server: ServerOptimizer = ServerOptimizer(),
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return Ditto (Algorithm 1): FedAvg, and beside it a personal model of each client, held near the global one.

    Args:
        clients_per_round: The size of the cohort.
        lam: The paper's lambda: a client's personal model v minimises F_i(v) + (lam/2)||v - x||^2.
        server: The server optimiser of the global model.
        common: What every method takes: :class:`~fednlp.federated.algorithm.RoundOptions`.
    """
    return Algorithm(
        "ditto",
        uniform_cohort(clients_per_round),
        client=ditto_client(lam),
        server=server,
        keeps=(PERSONAL,),
        personal_model=PERSONAL,
        local_trainings=2,
        **common,
    )


def ditto_client(lam: float) -> ClientFunction:
    """Return the client of Ditto, whose global model is FedAvg's, whatever ``lam`` is.

    Args:
        lam: The strength of the pull towards the global model; with 0 the personal models are trained alone.
    """

    def pull(g: "Tensor", v: "Tensor", x: "Tensor") -> "Tensor":
        return g.add_(v - x, alpha=lam)

    def client(
        local: Local, x: "Tensor", server: Mapping[str, "Tensor"], own: Mapping[str, "Tensor"]
    ) -> Result:
        y = local.steps(x)
        start = own.get(PERSONAL, x)
        v = local.steps(start, pull, x, sparse=start is x) if lam else local.steps(start)
        return Result(update={"model": y - x}, keep={PERSONAL: v.flat()})

    return client
