"""FedAdagrad: FedOpt with Adagrad on the server (Reddi et al. 2021, Algorithm 2)."""

from dataclasses import replace
from typing import Any

from fednlp.federated.algorithm import Algorithm
from fednlp.federated.algorithms import method
from fednlp.federated.algorithms.fedopt import fedopt
from fednlp.federated.algorithms.fedprox import Mu
from fednlp.federated.server import ServerOptimizer, default_server


@method("FedAdagrad", fixed_server=True)
def fedadagrad(
    clients_per_round: int,
    server: ServerOptimizer = default_server("adagrad"),
    mu: Mu = 0.0,
    **common: Any,
) -> Algorithm:
    """Return FedOpt with Adagrad as the server optimiser.

    Args:
        clients_per_round: The size of the cohort.
        server: The server optimiser.
        mu: FedProx's pull towards the global model; 0 for none.
        common: As for :func:`fednlp.federated.algorithms.fedopt.fedopt`.
    """
    return replace(fedopt(clients_per_round, server, mu, **common), name="fedadagrad")
