"""The median: Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates"."""

import numpy as np

from fednlp.federated.aggregators import aggregator
from fednlp.federated.aggregators.base import Aggregator
from fednlp.federated.aggregators.coordinate_wise import CoordinateWise
from fednlp.federated.aggregators.kept_updates import Values


class Median(CoordinateWise):
    """The median of each coordinate (Definition 1 of the paper); of an even number, the mean of the middle two."""

    def combine(self, values: Values) -> Values:
        """Return the medians."""
        values.sort(axis=0)
        clients = len(values)
        middle = values[(clients - 1) // 2 : clients // 2 + 1]
        return np.asarray(middle.mean(axis=0, dtype=np.float64), dtype=np.float32)


@aggregator("Coordinate-wise median")
def median() -> Aggregator:
    """Return the coordinate-wise median (Algorithm 1, option I), which half of the clients decide, not a few."""
    return Median()
