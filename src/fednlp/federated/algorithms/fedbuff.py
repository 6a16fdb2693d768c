"""FedBuff: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation" (arXiv:2106.06639)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from fednlp.federated.aggregators.base import AggregatedUpdate, Mean
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.algorithms import method
from fednlp.federated.client import ClientResult
from fednlp.federated.cohort import Cohort, Population, RoundPlan, WeightFunction, by_examples
from fednlp.federated.flushes import FlushSchedule, Schedule, too_large
from fednlp.federated.schedules import RateSchedule
from fednlp.federated.server import ServerOptimizer, ServerUpdate

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.params import Layout
    from fednlp.federated.state import State
    from fednlp.federated.sums import ExactSum

_VERSION = "version."


def _refuses(options: Mapping[str, Any], experiment: Any) -> list[str]:
    """Return what contradicts the options."""
    found, size = [], options.get("buffer_size", 10)
    clients = experiment.partition.clients
    if clients is not None and size > clients:
        found.append(too_large(size, clients))
    if experiment.min_clients > size:
        found.append(
            f"min_clients = {experiment.min_clients} is more than algorithm.buffer_size = {size}, the clients in a "
            "step: lower it"
        )
    if options.get("staleness") == "constant" and options.get("staleness_exponent", 0.5) != 0.5:
        found.append(
            'algorithm.staleness_exponent is for algorithm.staleness = "polynomial": leave one of them out'
        )
    return found


@method(
    "FedBuff",
    refuses=_refuses,
    needs={
        "clock": "needs the time that each client takes",
        "same_tensors": "divides by the whole buffer",
        "updates": "adds updates to newer models than they were made of",
        "all_drawn": "has clients that train across rounds",
    },
    breaks={
        "waits": "waits for no client",
        "open_population": "draws who trains among the sites of the beginning",
    },
)
def fedbuff(
    clients_per_round: int,
    buffer_size: Annotated[int, Field(ge=1)] = 10,
    staleness: Literal["polynomial", "constant"] = "polynomial",
    staleness_exponent: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5,
    server: ServerOptimizer = ServerOptimizer(),
    *,
    weight: WeightFunction = by_examples,
    min_clients: int = 1,
    client_rate: RateSchedule = RateSchedule(),
) -> Algorithm:
    """Return FedBuff (Algorithm 1): clients train at their own pace, and every K updates the server takes a step.

    A round is a flush of the buffer.

    Args:
        clients_per_round: M, how many clients train at any time.
        buffer_size: K, how many updates a step is made of.
        staleness: How an update that is tau flushes late counts: ``"polynomial"``, (1 + tau)^-a; ``"constant"``, 1.
        weight: A client's weight, from its number of examples; :func:`~fednlp.federated.cohort.equally` in the
            paper.
        min_clients: A flush with fewer clients stops the run.
        client_rate: The clients' learning rate over the flushes.
    """
    exponent = staleness_exponent if staleness == "polynomial" else 0.0
    schedule = FlushSchedule(clients_per_round, buffer_size)
    return Algorithm(
        "fedbuff",
        FlushCohorts(schedule, exponent),
        weight,
        aggregator=BufferedMean(),
        server=FedBuffServer(server, schedule),
        min_clients=min_clients,
        client_rate=client_rate,
    )


@dataclass(frozen=True)
class FlushCohorts:
    """The cohort of a round: whose updates are in the flush, with their staleness weights s(tau) = (1 + tau)^-a.

    Attributes:
        schedule: Says who is in which flush.
        exponent: a; 0 counts all updates alike.
    """

    schedule: Schedule
    exponent: float

    def __call__(self, population: Population, round_number: int) -> Cohort:
        """Return the cohort of a flush."""
        cohort = self.schedule.flush(population, round_number).cohort
        return replace(cohort, scale=[(1.0 + late) ** -self.exponent for late in cohort.staleness])


class BufferedMean(WeightedMean):
    """sum s(tau_i) p_i update_i / sum p_i: staleness makes an update smaller, and no other one larger."""

    def finish(
        self, total: Mapping[str, "ExactSum"], plan: RoundPlan, results: Sequence[ClientResult]
    ) -> AggregatedUpdate:
        """Return the sums over the weights of the buffer's clients, whatever their staleness."""
        sizes, weight = plan.population.sizes, plan.weight
        whole = sum(weight(int(sizes[result.client])) for result in results)
        vectors = {name: Mean(*one.mean(whole / plan.unit)) for name, one in total.items()}
        return replace(super().finish({}, plan, results), vectors=vectors)


@dataclass(frozen=True)
class FedBuffServer(ServerUpdate):
    """Moves the model by a server optimiser, and keeps the older models on which clients still train.

    Attributes:
        schedule: Says which models are still needed.
    """

    server: ServerOptimizer
    schedule: Schedule

    def init(self, layout: "Layout") -> "dict[str, Tensor]":
        """Return the optimiser's vectors before the first flush."""
        return self.server.init(layout)

    def step(self, state: "State", update: AggregatedUpdate) -> None:
        """Move the model; keep the one before under ``version.<flushes>`` if a client trains on it."""
        needed = self.schedule.flush(update.plan.population, update.plan.number).needed
        for name in [name for name in state.vectors if name.startswith(_VERSION)]:
            if int(name.removeprefix(_VERSION)) not in needed:
                del state.vectors[name]
        if state.round in needed:
            state.vectors[f"{_VERSION}{state.round}"] = state.params.clone()
        self.server.step(state, update)

    def model(self, state: "State", staleness: int) -> "Tensor":
        """Return the model of ``staleness`` flushes ago."""
        return state.vectors[f"{_VERSION}{state.round - staleness}"] if staleness else state.params


def on_schedule(algorithm: Algorithm, schedule: Schedule) -> Algorithm:
    """Return FedBuff with other flushes than those of the simulated clock.

    Args:
        algorithm: From :func:`fedbuff`.
        schedule: Says who is in which flush.
    """
    cohorts, server = algorithm.sample, algorithm.server
    assert isinstance(cohorts, FlushCohorts)
    assert isinstance(server, FedBuffServer)
    return replace(
        algorithm,
        sample=replace(cohorts, schedule=schedule),
        server=replace(server, schedule=schedule),
    )
