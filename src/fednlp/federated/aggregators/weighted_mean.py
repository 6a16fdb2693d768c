"""The weighted mean of the updates, exact: the sum does not depend on the order of arrival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fednlp.federated.aggregators.base import AggregatedUpdate, Aggregator, Mean, Room, mean_metrics
from fednlp.federated.client import ClientResult, TrainRequest

if TYPE_CHECKING:
    from fednlp.federated.client import AnyUpdate
    from fednlp.federated.cohort import RoundPlan
    from fednlp.federated.params import Layout
    from fednlp.federated.sums import ExactSum


class WeightedMean(Aggregator):
    """sum p_i update_i / sum p_i over the clients that came through.

    Where clients choose which tensors they send, a tensor's mean is over those who sent it.
    """

    def init(self, layout: Layout, sends: Sequence[str], room: Room) -> dict[str, ExactSum]:
        """Return an empty sum for each vector: 12 bytes a parameter."""
        import torch

        from fednlp.federated.pages import LeanRoom
        from fednlp.federated.sums import ExactSum

        rows = layout.table_shape[0]
        return {
            name: ExactSum(
                layout,
                room.tensor(f"sum-{name}", layout.numel, torch.int64),
                room.tensor(f"rows-{name}", rows, torch.bool),
                isinstance(room, LeanRoom),
            )
            for name in sends
        }

    def add(
        self, total: Mapping[str, ExactSum], request: TrainRequest, update: Mapping[str, AnyUpdate]
    ) -> None:
        """Add a client's weighted update.

        Raises:
            NonFiniteUpdate: It holds NaN, infinity or a huge number; nothing was added.
        """
        for part in list(update.values())[
            1:
        ]:  # each sum checks its own vector: here, that none is added alone
            part.check_finite()
        for name, part in update.items():
            part.add_to(total[name], request.weight)

    def merge(self, total: Mapping[str, ExactSum], other: Mapping[str, ExactSum]) -> None:
        """Add another worker's sums."""
        for name, one in total.items():
            one.merge(other[name])

    def finish(
        self, total: Mapping[str, ExactSum], plan: RoundPlan, results: Sequence[ClientResult]
    ) -> AggregatedUpdate:
        """Return the weighted means."""
        share = sum(result.weight for result in results)
        vectors = {}
        for name, one in total.items():
            layout = one.layout
            parts = _shares(layout, results) if name == "model" else share
            delta, rows = one.mean(parts)
            vectors[name] = Mean(delta, rows, _unsent(layout, results))
        return AggregatedUpdate(vectors, share * plan.unit, len(results), mean_metrics(results), plan)

    def clear(self, total: Mapping[str, ExactSum]) -> None:
        """Empty the sums."""
        for one in total.values():
            one.clear()


def sent_entries(layout: Layout, result: ClientResult) -> Sequence[int]:
    """Return the numbers of the entries that a client sent."""
    if result.entries is not None:
        return result.entries
    return [number for number in range(len(layout.entries)) if number not in layout.derived]


def _shares(layout: Layout, results: Sequence[ClientResult]) -> float | list[float]:
    """Return the sum of the weights of those who sent, for each entry where not all sent everything."""
    everyone = sum(result.weight for result in results)
    if all(result.entries is None for result in results):
        return everyone
    shares = [everyone if number in layout.derived else 0.0 for number in range(len(layout.entries))]
    for result in results:
        for number in sent_entries(layout, result):
            shares[number] += result.weight
    return shares


def _unsent(layout: Layout, results: Sequence[ClientResult]) -> list[slice]:
    """Return the places of the entries that no client sent, or that are not for the server's optimiser to move."""
    if not layout.derived and any(result.entries is None for result in results):
        return []
    sent = {number for result in results for number in sent_entries(layout, result)} - layout.derived
    return [slice(e.start, e.stop) for number, e in enumerate(layout.entries) if number not in sent]
