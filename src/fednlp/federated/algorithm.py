"""An algorithm is a value: what one round does differently, built by a function named after its paper."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from fednlp.federated.params import Layout
from fednlp.federated.server import ServerOptimizer
from fednlp.seeds import generator

Sample = Callable[[int, int, int], list[int]]
"""(seed, round, number of clients) -> the cohort's client ids."""
Weigh = Callable[[int], float]
"""Number of a client's training examples -> its weight p_i."""

Derive = Callable[[Layout, Tensor, Tensor], None]
Noise = Callable[[Tensor, int], None]


@dataclass(frozen=True)
class Algorithm:
    """What a method changes in the round: who trains, towards what, with which weight, and the server's step.

    Attributes:
        name: For people.
        sample: Draws the cohort.
        weigh: p_i of a client, from its number of examples.
        server: The server optimiser on the pseudo-gradient.
        mu: FedProx's pull (mu/2)||x - x_t||^2 in the local objective; 0 for none.
        min_clients: A round with fewer replies stops the run.
        derive: Sets the derived tensors, if there are any, from the model after the server's step and the mean
            update: ``derive(layout, x, mean)``.
        fixed_denominator: What the weighted sum is divided by where that must not depend on who answered; None for the
            weight of those who did.
        noise: Adds to the mean update what differential privacy asks for: ``noise(mean, round)``.
    """

    name: str
    sample: Sample
    weigh: Weigh = float
    server: ServerOptimizer = field(default_factory=ServerOptimizer)
    mu: float = 0.0
    min_clients: int = 1
    derive: Derive | None = None
    fixed_denominator: float | None = None
    noise: Noise | None = None


def uniform_cohort(size: int) -> Sample:
    """Draw ``size`` distinct clients uniformly each round (all of them if there are fewer), in id order."""

    def sample(seed: int, round_number: int, clients: int) -> list[int]:
        rng = generator(seed, "cohort", round_number)
        return [int(c) for c in np.sort(rng.choice(clients, size=min(size, clients), replace=False))]

    return sample


def poisson_cohort(size: int) -> Sample:
    """Draw each client by itself with probability ``size`` / clients, so that a cohort may have any size."""

    def sample(seed: int, round_number: int, clients: int) -> list[int]:
        rng = generator(seed, "cohort", round_number)
        return np.flatnonzero(rng.random(clients) < size / clients).tolist()

    return sample


def by_examples(examples: int) -> float:
    """Weigh a client by its number of examples, the default of FedAvg."""
    return float(examples)


def equally(examples: int) -> float:
    """Weigh every client that has examples alike."""
    return float(examples > 0)


def fedavg(clients_per_round: int, *, weigh: Weigh = by_examples, min_clients: int = 1) -> Algorithm:
    """Federated averaging (McMahan et al. 2017, Algorithm 1): the server takes the mean of the clients' models."""
    return Algorithm("fedavg", uniform_cohort(clients_per_round), weigh, ServerOptimizer(), 0.0, min_clients)


def fedprox(
    clients_per_round: int, mu: float = 0.01, *, weigh: Weigh = by_examples, min_clients: int = 1
) -> Algorithm:
    """FedProx (Li et al. 2020): FedAvg with (mu/2)||x - x_t||^2 added to each client's loss."""
    return Algorithm("fedprox", uniform_cohort(clients_per_round), weigh, ServerOptimizer(), mu, min_clients)


def fedopt(
    clients_per_round: int,
    server: ServerOptimizer | None = None,
    mu: float = 0.0,
    *,
    weigh: Weigh = by_examples,
    min_clients: int = 1,
) -> Algorithm:
    """FedOpt (Reddi et al. 2021): any client optimiser with any server optimiser.

    The server's default is SGD with learning rate 1 and momentum 0.9, as in FedNLP.
    """
    server = server or ServerOptimizer("sgd", 1.0, momentum=0.9)
    return Algorithm("fedopt", uniform_cohort(clients_per_round), weigh, server, mu, min_clients)
