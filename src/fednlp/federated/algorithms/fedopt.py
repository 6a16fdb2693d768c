"""FedOpt: Reddi et al. 2021, "Adaptive Federated Optimization"."""

from fednlp.federated.algorithm import Algorithm
from fednlp.federated.algorithms import method
from fednlp.federated.algorithms.fedprox import Mu, proximal_client
from fednlp.federated.cohort import WeightFunction, by_examples, uniform_cohort
from fednlp.federated.schedules import RateSchedule
from fednlp.federated.server import ServerOptimizer


@method("FedOpt")
def fedopt(
    clients_per_round: int,
    server: ServerOptimizer = ServerOptimizer("sgd", 1.0, momentum=0.9),
    mu: Mu = 0.0,
    *,
    weight: WeightFunction = by_examples,
    min_clients: int = 1,
    client_rate: RateSchedule = RateSchedule(),
) -> Algorithm:
    """Return FedOpt (Algorithm 1): any client optimiser with any server optimiser.

    Args:
        clients_per_round: The size of the cohort.
        server: The server optimiser on the pseudo-gradient; by default SGD with momentum 0.9, as in FedNLP.
        mu: FedProx's pull towards the global model; 0 for none.
        weight: A client's weight, from its number of examples.
        min_clients: A round with fewer clients stops the run.
        client_rate: The clients' learning rate over the rounds.
    """
    return Algorithm(
        "fedopt",
        uniform_cohort(clients_per_round),
        weight,
        client=proximal_client(mu),
        server=server,
        min_clients=min_clients,
        client_rate=client_rate,
    )
