"""The trimmed mean: Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from fednlp.errors import TooFewClients
from fednlp.federated.aggregators import aggregator
from fednlp.federated.aggregators.base import AggregatedUpdate, Aggregator
from fednlp.federated.aggregators.coordinate_wise import CoordinateWise
from fednlp.federated.aggregators.kept_updates import UpdateFile, Values
from fednlp.formatting.units import plural

if TYPE_CHECKING:
    from fednlp.federated.client import ClientResult
    from fednlp.federated.cohort import RoundPlan

DEFAULT = 0.1
"""The fraction that is cut on each side where none is given."""


@dataclass(frozen=True)
class TrimmedMean(CoordinateWise):
    """The mean of each coordinate without the smallest and the largest values (Definition 2 of the paper).

    Attributes:
        fraction: beta: the fraction of the clients that is cut on each side, in [0, 1/2).
    """

    fraction: float

    def combine(self, values: Values) -> Values:
        """Return the trimmed means."""
        values.sort(axis=0)
        cut = cut_of(self.fraction, len(values))
        return np.asarray(values[cut : len(values) - cut].mean(axis=0, dtype=np.float64), dtype=np.float32)

    def finish(self, total: UpdateFile, plan: RoundPlan, results: Sequence[ClientResult]) -> AggregatedUpdate:
        """Return the trimmed means.

        Raises:
            TooFewClients: So many clients dropped out that none would be cut: the mean is no defence.
        """
        if (
            results
            and cut_of(self.fraction, len(plan.cohort.clients))
            and not cut_of(self.fraction, len(results))
        ):
            raise TooFewClients(
                f"round {plan.number}: {plural(len(results), 'client')} answered, of which trimmed-mean with fraction "
                f"= {self.fraction} cuts none: raise clients_per_round or aggregator.fraction"
            )
        return super().finish(total, plan, results)


def cut_of(fraction: float, clients: int) -> int:
    """Return how many of the clients' values are cut on each side: the fraction, rounded down; never all of them.

    >>> cut_of(0.29, 100), cut_of(0.2, 9), cut_of(0.4, 2), cut_of(0.4999999999999, 4)
    (29, 1, 0, 1)
    """
    return min(int(round(fraction * clients, 9)), (clients - 1) // 2)  # 0.29 * 100 is a little less than 29


def _refuses(options: Mapping[str, Any], experiment: Any) -> list[str]:
    fraction, clients = options.get("fraction", DEFAULT), experiment.clients_per_round
    if cut_of(fraction, clients):
        return []
    return [
        f"aggregator.fraction = {fraction} of clients_per_round = {clients} cuts no client: raise one of the two"
    ]


@aggregator("Trimmed mean", refuses=_refuses)
def trimmed_mean(
    fraction: Annotated[float, Field(gt=0, lt=0.5, allow_inf_nan=False)] = DEFAULT,
) -> Aggregator:
    """Return the coordinate-wise trimmed mean (Algorithm 1, option II).

    Args:
        fraction: beta: the fraction of the clients whose values are cut on each side, at least that of the attackers.
    """
    return TrimmedMean(fraction)
