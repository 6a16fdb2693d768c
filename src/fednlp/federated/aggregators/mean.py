"""The weighted mean by its name in an experiment."""

from fednlp.federated.aggregators import aggregator
from fednlp.federated.aggregators.base import Aggregator
from fednlp.federated.aggregators.weighted_mean import WeightedMean


@aggregator("Weighted mean")
def mean() -> Aggregator:
    """Return the mean of the updates, weighted as ``algorithm.weighting`` says: FedAvg's rule."""
    return WeightedMean()
