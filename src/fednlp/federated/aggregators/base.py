"""What an aggregator is: ``init``, ``add``, ``merge``, ``finish``.

Updates are added wherever they arrive: each worker has a total of its own, and the totals are merged at the end of the
round. An *additive* rule is a sum, so that a total takes the room of one model, whatever the size of the cohort, and
may be summed under masks. A rule that is not additive sees single updates, and states what room it needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.cohort import RoundPlan
from fednlp.plugins import require_methods

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fednlp.federated.params import Layout
    from fednlp.federated.runtime import Runtime


class Room(Protocol):
    """Where a total lies: in the memory of one process, or shared with others."""

    def tensor(self, name: str, numel: int, dtype: torch.dtype) -> Tensor:
        """Return the tensor of that name; zeros at first."""

    def file(self, name: str) -> FileIO:
        """Return the file of that name, on disk, open for reading and writing; it is empty at first.

        Nothing of it is left once it is closed by all who share it, however they end.
        """


@dataclass(frozen=True)
class Mean:
    """One aggregated vector.

    Attributes:
        delta: Flat float32; zero in the table outside ``rows``. It holds until the total is cleared.
        rows: int64, the rows of the table that any client touched.
        unsent: Stretches of ``delta`` that no client sent, or that the server computes itself.
    """

    delta: Tensor
    rows: Tensor
    unsent: Sequence[slice] = ()


@dataclass(frozen=True)
class AggregatedUpdate:
    """What came out of a cohort's updates.

    Attributes:
        vectors: By the names in ``Algorithm.sends``; ``"model"`` is the model's update.
        weight: Sum of p_i over the clients that are in it.
        metrics: Weighted means of the clients' metrics.
        plan: Of the round.
    """

    vectors: Mapping[str, Mean]
    weight: float
    clients: int
    metrics: Mapping[str, float]
    plan: RoundPlan

    @property
    def model(self) -> Mean:
        """The model's update."""
        return self.vectors["model"]

    @property
    def fraction(self) -> float:
        """The share of all clients' weight that is in the update: |S|/N for equal weights."""
        return self.weight / self.plan.total_weight


@dataclass(frozen=True)
class Reported:
    """What a cohort's clients report of their training, summed.

    Attributes:
        loss: Sum over the examples seen.
        examples: Examples seen.
    """

    loss: float
    examples: int
    steps: int


@dataclass(frozen=True)
class Outcome:
    """How a cohort's round ended on the server's side.

    Attributes:
        results: One for each client of the cohort.
        update: None where there is none: the round then changes nothing.
        aborted: Why there is none.
        facts: What the round's line says of it: JSON values.
        reported: What the clients report, where the server knows the sums alone; None where it has each client's.
    """

    results: Sequence[ClientResult]
    update: AggregatedUpdate | None
    aborted: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    reported: Reported | None = None


class Collection(Protocol):
    """One round's collection of updates."""

    def requests(self) -> list[TrainRequest]:
        """Return what the clients are told, those with most examples first."""

    def finish(self, runtime: Runtime, results: Sequence[ClientResult]) -> Outcome:
        """Turn the runtime's total into one update."""


class Aggregator(ABC):
    """A rule that makes one update of many."""

    additive: ClassVar[bool] = True
    """Whether it is a weighted sum, which masks and noise may be added to."""

    weighs: ClassVar[bool] = True
    """Whether clients count by their weights; where they do not, each counts once."""

    needs_clients: ClassVar[bool] = True
    """Whether a round of which no client is drawn changes nothing."""

    binds_model: ClassVar[bool] = False
    """Whether a round's collection is bound to the model that clients start from, which is then published first."""

    def require_fits(self) -> None:
        """Check a rule of the user's own before a run begins.

        Raises:
            ConfigError: One of its methods takes something else than it will be called with.
        """
        require_methods(self)

    @property
    def masked_extra(self) -> int:
        """How many residues a masked update has between the update and its weight."""
        return 0

    @abstractmethod
    def init(self, layout: Layout, sends: Sequence[str], room: Room) -> Any:
        """Return an empty total.

        Args:
            sends: Names of the vectors that clients send.
            room: Where it lies.
        """

    @abstractmethod
    def add(self, total: Any, request: TrainRequest, update: Any) -> None:
        """Add a client's update to a total.

        Args:
            request: What the client was told: who it is, and its weight.
            update: Its vectors by name; the masked update for a rule that sums under masks.

        Raises:
            NonFiniteUpdate: It holds NaN, infinity or a huge number; nothing was added.
        """

    @abstractmethod
    def merge(self, total: Any, other: Any) -> None:
        """Add another worker's total to one."""

    @abstractmethod
    def finish(self, total: Any, plan: RoundPlan, results: Sequence[ClientResult]) -> AggregatedUpdate:
        """Return the aggregated update.

        Args:
            plan: Of the round.
            results: Of the clients whose updates are in the total, in the order of their ids.
        """

    @abstractmethod
    def clear(self, total: Any) -> None:
        """Empty a total for the next round."""

    def open(self, plan: RoundPlan, layout: Layout) -> Collection:
        """Begin to collect a round's updates."""
        return PlainCollection(self, plan)


@dataclass(frozen=True)
class PlainCollection:
    """The collection of updates that the server may see."""

    aggregator: Aggregator
    plan: RoundPlan

    def requests(self) -> list[TrainRequest]:
        """Return what the clients are told, those with most examples first."""
        return requests_of(self.plan)

    def finish(self, runtime: Runtime, results: Sequence[ClientResult]) -> Outcome:
        """Turn the runtime's total into one update."""
        cohort = self.plan.cohort
        if not cohort.clients and (cohort.reason or self.aggregator.needs_clients):
            allowed = "no client was drawn" if self.plan.min_clients == 0 else None
            return Outcome(results, None, cohort.reason or allowed)
        kept = [result for result in results if result.error is None]
        return Outcome(results, self.aggregator.finish(runtime.total, self.plan, kept))


def requests_of(plan: RoundPlan) -> list[TrainRequest]:
    """Return a request for each client of a cohort, those with most examples first."""
    staleness = plan.cohort.staleness or [0] * len(plan.cohort.clients)
    sizes, number = plan.population.sizes, plan.number
    requests = [
        TrainRequest(client, number, plan.weights[client] / plan.unit, late, plan.rate.factor(number - late))
        for client, late in zip(plan.cohort.clients, staleness, strict=True)
    ]
    return sorted(requests, key=lambda request: (-sizes[request.client], request.client))


def mean_metrics(results: Sequence[ClientResult]) -> dict[str, float]:
    """Return the weighted means of what clients report.

    >>> mean_metrics([ClientResult(0, 0.25, metrics={"tau": 4.0}), ClientResult(1, 0.75, metrics={"tau": 8.0})])
    {'tau': 7.0}
    """
    total = sum(result.weight for result in results)
    names = results[0].metrics if results and total else {}
    return {name: sum(r.weight * r.metrics[name] for r in results) / total for name in names}
