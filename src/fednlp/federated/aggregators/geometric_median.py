"""The geometric median: Pillutla, Kakade and Harchaoui 2022, "Robust Aggregation for Federated Learning"."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fednlp.federated.aggregators import aggregator
from fednlp.federated.aggregators.base import Aggregator
from fednlp.federated.aggregators.whole_updates import Numbers, WholeUpdates
from fednlp.option_types import PositiveInt


@dataclass(frozen=True)
class GeometricMedian(WholeUpdates):
    """The point with the least sum of p_i times its distances to the updates (RFA, Algorithm 2).

    Attributes:
        smoothing: nu: a distance counts as so much at least.
        iterations: R: of the smoothed Weiszfeld algorithm, at most.
    """

    smoothing: float
    iterations: int

    weighs: ClassVar[bool] = True

    def weights(self, products: Numbers, shares: Numbers) -> Numbers:
        """Return beta with sum beta_i update_i the median: beta_i ~ p_i / max(nu, ||z - update_i||), from beta = p.

        All iterates are weighted sums of the updates, so that their distances follow from the inner products. They end
        when none of beta moves by more than 1e-12.
        """
        beta = shares
        for _ in range(self.iterations):
            squared = products.diagonal() - 2 * products @ beta + beta @ products @ beta
            nearer = shares / np.maximum(self.smoothing, np.sqrt(np.maximum(squared, 0.0)))
            before, beta = beta, nearer / nearer.sum()
            if np.abs(beta - before).max() <= 1e-12:
                break
        return np.asarray(beta)


@aggregator("Geometric median")
def geometric_median(
    smoothing: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-6, iterations: PositiveInt = 100
) -> Aggregator:
    """Return the geometric median, which clients with less than half of the weight cannot move at will.

    Args:
        smoothing: nu: a distance counts as so much at least, so that an update at the median does not weigh infinitely.
        iterations: R: how often the median is brought nearer, at most; the paper takes 3.
    """
    return GeometricMedian(smoothing, iterations)
