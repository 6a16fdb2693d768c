"""APFL: Deng, Kamani and Mahdavi 2020, "Adaptive Personalized Federated Learning"."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from pydantic import Field

from fednlp.federated.algorithm import Algorithm, RoundOptions
from fednlp.federated.algorithms import method
from fednlp.federated.client import ClientFunction, Local, Result
from fednlp.federated.cohort import uniform_cohort
from fednlp.federated.server import ServerOptimizer

if TYPE_CHECKING:
    from torch import Tensor


@method("APFL")
def apfl(
    clients_per_round: int,
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5,
    *,
    server: ServerOptimizer = ServerOptimizer(),
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return APFL (Algorithm 1): FedAvg, and beside it models whose mixtures with it fit the clients.

    Args:
        clients_per_round: The size of the cohort.
        alpha: The share of a client's own model v in its personal one, alpha v + (1 - alpha) w.
        server: The server optimiser of the global model.
        common: What every method takes: :class:`~fednlp.federated.algorithm.RoundOptions`.
    """
    return Algorithm(
        "apfl",
        uniform_cohort(clients_per_round),
        client=apfl_client(alpha),
        server=server,
        keeps=("own", "mixture"),
        personal_model="mixture",
        local_trainings=2,
        **common,
    )


def apfl_client(alpha: float) -> ClientFunction:
    """Return the client of APFL: w takes FedAvg's steps, and v a step before each, on the same examples.

    The step of v: v <- v - eta grad_v f(alpha v + (1 - alpha) w; batch),    where grad_v f = alpha grad f
    """

    def client(
        local: Local, x: "Tensor", server: Mapping[str, "Tensor"], own: Mapping[str, "Tensor"]
    ) -> Result:
        v = local.another(own.get("own", x))

        def step(batch: Any, w: "Tensor") -> None:
            v.step(local.gradient(w.mul_(1 - alpha).add_(v.flat(), alpha=alpha), batch).mul_(alpha))

        y = local.steps(x, before_step=step)
        mixture = alpha * v.flat() + (1 - alpha) * y.flat()
        return Result(update={"model": y - x}, keep={"own": v.flat(), "mixture": mixture})

    return client
