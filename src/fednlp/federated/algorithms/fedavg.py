"""FedAvg: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data"."""

from typing import Unpack

from fednlp.federated.algorithm import Algorithm, RoundOptions
from fednlp.federated.algorithms import method
from fednlp.federated.cohort import uniform_cohort


@method("FedAvg")
def fedavg(clients_per_round: int, **common: Unpack[RoundOptions]) -> Algorithm:
    """Return federated averaging (Algorithm 1): the server takes the weighted mean of the clients' models.

    Args:
        clients_per_round: The size of the cohort.
        common: What every method takes: :class:`~fednlp.federated.algorithm.RoundOptions`.
    """
    return Algorithm("fedavg", uniform_cohort(clients_per_round), **common)
