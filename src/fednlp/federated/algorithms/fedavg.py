"""FedAvg: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data"."""

from fednlp.federated.algorithm import Algorithm
from fednlp.federated.algorithms import method
from fednlp.federated.cohort import WeightFunction, by_examples, uniform_cohort
from fednlp.federated.schedules import RateSchedule


@method("FedAvg")
def fedavg(
    clients_per_round: int,
    *,
    weight: WeightFunction = by_examples,
    min_clients: int = 1,
    client_rate: RateSchedule = RateSchedule(),
) -> Algorithm:
    """Return federated averaging (Algorithm 1): the server takes the weighted mean of the clients' models.

    Args:
        clients_per_round: The size of the cohort.
        weight: A client's weight, from its number of examples.
        min_clients: A round with fewer clients stops the run.
        client_rate: The clients' learning rate over the rounds.
    """
    return Algorithm(
        "fedavg",
        uniform_cohort(clients_per_round),
        weight,
        min_clients=min_clients,
        client_rate=client_rate,
    )
