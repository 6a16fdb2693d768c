"""A weighted mean for each of the server's models, over the clients whose updates belong to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fednlp.federated.aggregators.base import AggregatedUpdate, Room
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.client import ClientResult

if TYPE_CHECKING:
    from fednlp.federated.cohort import RoundPlan
    from fednlp.federated.params import Layout
    from fednlp.federated.sums import ExactSum


@dataclass(frozen=True)
class MeanByModel(WeightedMean):
    """sum p_i update_i / sum p_i over the clients of each model; a model that no client chose has no mean.

    Attributes:
        models: Names of the server's models after the first, as in ``Algorithm.models``.
    """

    models: tuple[str, ...]

    def init(self, layout: Layout, sends: Sequence[str], room: Room) -> dict[str, ExactSum]:
        """Return an empty sum for each model."""
        return super().init(layout, (*sends, *self.models), room)

    def finish(
        self, total: Mapping[str, ExactSum], plan: RoundPlan, results: Sequence[ClientResult]
    ) -> AggregatedUpdate:
        """Return the weighted means of the models that clients chose."""
        vectors = {}
        for name, one in total.items():
            own = [result for result in results if result.model == name]
            if own:
                vectors[name] = super().finish({name: one}, plan, own).vectors[name]
        return replace(super().finish({}, plan, results), vectors=vectors)
