"""FedOpt: Reddi et al. 2021, "Adaptive Federated Optimization"; and its names for one server optimiser each."""

from dataclasses import replace
from typing import Unpack

from fednlp.federated.algorithm import Algorithm, RoundOptions
from fednlp.federated.algorithms import method
from fednlp.federated.algorithms.fedprox import Mu, proximal_client
from fednlp.federated.cohort import uniform_cohort
from fednlp.federated.server import ServerOptimizer, default_server


@method("FedOpt")
def fedopt(
    clients_per_round: int,
    server: ServerOptimizer = ServerOptimizer("sgd", 1.0, momentum=0.9),
    mu: Mu = 0.0,
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return FedOpt (Algorithm 1): any client optimiser with any server optimiser.

    Args:
        clients_per_round: The size of the cohort.
        server: The server optimiser on the pseudo-gradient; by default SGD with momentum 0.9, as in FedNLP.
        mu: FedProx's pull towards the global model; 0 for none.
        common: What every method takes: :class:`~fednlp.federated.algorithm.RoundOptions`.
    """
    return Algorithm(
        "fedopt",
        uniform_cohort(clients_per_round),
        client=proximal_client(mu),
        server=server,
        **common,
    )


@method("FedAdagrad", fixed_server=True)
def fedadagrad(
    clients_per_round: int,
    server: ServerOptimizer = default_server("adagrad"),
    mu: Mu = 0.0,
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return FedOpt with Adagrad as the server optimiser (Algorithm 2); the arguments are those of :func:`fedopt`."""
    return replace(fedopt(clients_per_round, server, mu, **common), name="fedadagrad")


@method("FedAdam", fixed_server=True)
def fedadam(
    clients_per_round: int,
    server: ServerOptimizer = default_server("adam"),
    mu: Mu = 0.0,
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return FedOpt with Adam as the server optimiser (Algorithm 2); the arguments are those of :func:`fedopt`."""
    return replace(fedopt(clients_per_round, server, mu, **common), name="fedadam")


@method("FedYogi", fixed_server=True)
def fedyogi(
    clients_per_round: int,
    server: ServerOptimizer = default_server("yogi"),
    mu: Mu = 0.0,
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return FedOpt with Yogi as the server optimiser (Algorithm 2); the arguments are those of :func:`fedopt`."""
    return replace(fedopt(clients_per_round, server, mu, **common), name="fedyogi")


@method("FedAvgM", fixed_server=True)
def fedavgm(
    clients_per_round: int,
    server: ServerOptimizer = ServerOptimizer("sgd", 1.0, momentum=0.9),
    **common: Unpack[RoundOptions],
) -> Algorithm:
    """Return FedAvg with momentum at the server: v <- beta v + mean(y - x), x <- x + v.

    Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
    section 4.3. The arguments are those of :func:`fedopt`.
    """
    return replace(fedopt(clients_per_round, server, **common), name="fedavgm")
