"""The weighted mean of the updates, exact: the sum does not depend on the order of arrival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fednlp.federated.aggregators.base import AggregatedUpdate, Aggregator, Mean, Room, mean_metrics
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.sent import Sent

if TYPE_CHECKING:
    from fednlp.federated.cohort import RoundPlan
    from fednlp.federated.params import Layout
    from fednlp.federated.sums import ExactSum
    from fednlp.federated.update import AnyUpdate


class WeightedMean(Aggregator):
    """sum p_i update_i / sum p_i over the clients that came through.

    Where clients choose what they send, an element's mean is over those who sent it.
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
            parts = _shares(layout, results) if name == "model" else None
            delta, rows = one.mean(share if parts is None else parts)
            vectors[name] = Mean(delta, rows, _unsent(layout, results))
        return AggregatedUpdate(vectors, share * plan.unit, len(results), mean_metrics(results), plan)

    def clear(self, total: Mapping[str, ExactSum]) -> None:
        """Empty the sums."""
        for one in total.values():
            one.clear()


def _shares(layout: Layout, results: Sequence[ClientResult]) -> list[tuple[int, int, float]] | None:
    """Return stretches, each with the sum of the weights of those who sent it; None where all sent everything."""
    everyone = sum(result.weight for result in results)
    if all(result.entries is None for result in results):
        return None
    sent = _sent(layout, results)
    borders = _borders(layout, sent)
    shares = np.zeros(len(borders) - 1)
    places = {border: place for place, border in enumerate(borders)}
    for result, stretches in zip(results, sent, strict=True):
        for start, stop in stretches:
            shares[places[start] : places[stop]] += result.weight
    for number in layout.derived:
        entry = layout.entries[number]
        shares[places[entry.start] : places[entry.stop]] = everyone
    return list(zip(borders, borders[1:], shares.tolist(), strict=False))


def _unsent(layout: Layout, results: Sequence[ClientResult]) -> list[slice]:
    """Return the stretches that no client sent, or that are not for the server's optimiser to move."""
    if not layout.derived and any(result.entries is None for result in results):
        return []
    found, stop = [], 0
    for first, last in sorted({stretch for sent in _sent(layout, results) for stretch in sent}):
        if first > stop:
            found.append(slice(stop, first))
        stop = max(stop, last)
    return found + ([slice(stop, layout.numel)] if stop < layout.numel else [])


def _sent(layout: Layout, results: Sequence[ClientResult]) -> list[list[tuple[int, int]]]:
    """Return the stretches that each client sent."""
    whole = Sent.marked([number not in layout.derived for number in range(len(layout.entries))])
    everything = whole.stretches(layout)
    return [everything if one.sent is None else one.sent.stretches(layout) for one in results]


def _borders(layout: Layout, sent: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """Return where the vector's entries and the stretches that were sent begin and end, rising."""
    ends = {border for stretches in sent for stretch in stretches for border in stretch}
    return sorted(ends | {border for entry in layout.entries for border in (entry.start, entry.stop)})
