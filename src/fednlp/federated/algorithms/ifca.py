"""IFCA: Ghosh et al. 2020, "An Efficient Framework for Clustered Federated Learning"."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Unpack

from pydantic import Field

from fednlp.federated.aggregators.mean_by_model import MeanByModel
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.algorithm import Algorithm, RoundOptions
from fednlp.federated.algorithms import method
from fednlp.federated.client import ClientFunction, Local, Result, nearest_model
from fednlp.federated.cohort import uniform_cohort
from fednlp.federated.runtime import MODEL
from fednlp.federated.server import ServerOptimizer, ServerUpdate
from fednlp.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.aggregators.base import AggregatedUpdate
    from fednlp.federated.params import Layout
    from fednlp.federated.state import State


@method("IFCA")
def ifca(
    clients_per_round: int,
    clusters: Annotated[int, Field(ge=1, le=100)] = 2,
    spread: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1,
    *,
    server: ServerOptimizer = ServerOptimizer(),
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return IFCA (Algorithm 1, model averaging): the server has k models, and each client trains the one it fits.

    Args:
        clients_per_round: The size of the cohort.
        clusters: k, how many models the server has; 1 is FedAvg.
        spread: How far the models lie from the first at the start: the standard deviation of the noise on each of its
            tensors, over that of the tensor.
        server: The server optimiser of each model.
        common: What every method takes: :class:`~fednlp.federated.algorithm.RoundOptions`.
    """
    models = tuple(f"model.{number}" for number in range(1, clusters))
    return Algorithm(
        "ifca",
        uniform_cohort(clients_per_round),
        client=ifca_client(models),
        aggregator=MeanByModel(models) if models else WeightedMean(),
        server=IfcaServer(server, models, spread) if models else server,
        receives=models,
        models=models,
        local_losses=len(models) and clusters,
        **common,
    )


def ifca_client(models: tuple[str, ...]) -> ClientFunction:
    """Return the client: it trains the model of the least loss on its own data.

    Args:
        models: Names of the server's models after the first.
    """

    def client(
        local: Local, x: "Tensor", server: Mapping[str, "Tensor"], own: Mapping[str, "Tensor"]
    ) -> Result:
        best = nearest_model(local, x, server, models)
        if best == MODEL:
            y = local.steps(x)
            return Result(update={"model": y - x})
        start = server[best]
        return Result(update={"model": local.steps(start).flat() - start}, model=best)

    return client


@dataclass(frozen=True)
class IfcaServer(ServerUpdate):
    """Moves each model by the mean of the updates that belong to it.

    Attributes:
        optimizer: Moves a model; each has vectors of its own.
        models: Names of the models after the first.
        spread: How far they lie from it at the start.
    """

    optimizer: ServerOptimizer = field(default_factory=ServerOptimizer)
    models: tuple[str, ...] = ()
    spread: float = 0.1

    def init(self, layout: "Layout") -> "dict[str, Tensor]":
        """Return each model's vectors of the optimiser."""
        vectors = self.optimizer.init(layout)
        for name in self.models:
            vectors |= {f"{name}.{own}": one for own, one in self.optimizer.init(layout).items()}
        return vectors

    def first_models(self, layout: "Layout", x: "Tensor", seed: int) -> "dict[str, Tensor]":
        """Return the models after the first: x and noise, of each tensor's own size."""
        import torch

        found = {}
        for number, name in enumerate(self.models, start=1):
            rng, found[name] = generator(seed, "models", number), x.clone()
            for entry, view in zip(layout.entries, layout.views(found[name]).values(), strict=True):
                if entry.kind == "parameter" and entry.numel > 1:
                    noise = torch.from_numpy(rng.standard_normal(entry.shape, dtype="float32"))
                    view.add_(noise, alpha=self.spread * float(view.double().std()))
        return found

    def step(self, state: "State", update: "AggregatedUpdate") -> None:
        """x_j <- ServerOpt(x_j, mean of the updates of those who chose j), for each j that anybody chose."""
        for name, mean in update.vectors.items():
            first = name == MODEL
            params = state.params if first else state.vectors[name]
            own = {one: state.vectors[one if first else f"{name}.{one}"] for one in self.optimizer.vectors}
            self.optimizer.move(state.layout, params, mean, own, state.round + 1)
