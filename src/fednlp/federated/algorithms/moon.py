"""MOON: Li, He and Song 2021, "Model-Contrastive Federated Learning"."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from pydantic import Field

from fednlp.federated.algorithm import Algorithm, RoundOptions
from fednlp.federated.algorithms import method
from fednlp.federated.algorithms.fedprox import Mu
from fednlp.federated.client import ClientFunction, Local, Outputs, Result
from fednlp.federated.cohort import uniform_cohort

if TYPE_CHECKING:
    from torch import Tensor

_PREVIOUS = "previous"
"""The client's model at the end of its last round, in its record."""


@method("MOON")
def moon(
    clients_per_round: int,
    mu: Mu = 1.0,
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5,
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return MOON (Algorithm 1): FedAvg whose clients keep their features near the global model's.

    Args:
        clients_per_round: The size of the cohort.
        mu: The weight of the contrastive loss.
        common: What every method takes: :class:`~fednlp.federated.algorithm.RoundOptions`.
    """
    return Algorithm(
        "moon",
        uniform_cohort(clients_per_round),
        client=moon_client(mu, temperature),
        keeps=(_PREVIOUS,),
        teachers=2 if mu else 0,
        **common,
    )


def moon_client(mu: float, temperature: float) -> ClientFunction:
    """Return the client of MOON; in a client's first round its previous model is the global one.

    Args:
        mu: The weight of the contrastive loss; with 0 the client is FedAvg's.
    """

    def client(
        local: Local, x: "Tensor", server: Mapping[str, "Tensor"], own: Mapping[str, "Tensor"]
    ) -> Result:
        previous = own.get(_PREVIOUS, x)

        def objective(
            loss: "Tensor", out: Outputs, batch: Any, at: Callable[["Tensor"], Outputs]
        ) -> "Tensor":
            return loss + mu * contrast(out.features, at(x).features, at(previous).features, temperature)

        y = local.steps(x, objective=objective) if mu else local.steps(x)
        return Result(update={"model": y - x}, keep={_PREVIOUS: y.flat()})

    return client


def contrast(z: "Tensor", z_global: "Tensor", z_previous: "Tensor", temperature: float) -> "Tensor":
    """Return the model-contrastive loss (equation 3), the mean over the texts; sim is the cosine.

        -log exp(sim(z, z_global) / tau) / (exp(sim(z, z_global) / tau) + exp(sim(z, z_previous) / tau))

    Args:
        z: Features of the model in training, (texts, width).
        z_global: Those of the global model.
        z_previous: Those of the client's previous model.
    """
    from torch.nn.functional import cosine_similarity, softplus

    return softplus((cosine_similarity(z, z_previous) - cosine_similarity(z, z_global)) / temperature).mean()
