"""Differential privacy of a run: how much noise, who adds it, and what it comes to."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fednlp.config import Experiment
from fednlp.federated.algorithm import Algorithm, poisson_cohort
from fednlp.privacy.accountant import (
    Sampling,
    epsilon,
    epsilon_of_known_cohorts,
    noise_multiplier_for,
    statement,
)
from fednlp.seeds import generator
from fednlp.simulation.build import algorithm_of

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Guard:
    """What a run promises its clients.

    Attributes:
        clip: The norm that an update is cut to.
        multiplier: Standard deviation of the sum's noise, over the clip.
        central: Whether the server adds it; else the clients do, under secure aggregation.
        sampling: How cohorts are drawn.
        clients: All of them.
        cohort: How many take part in a round, on average.
        rounds: Of the run.
        delta: Of the promise.
        seed: Of the experiment.
        distance: How far the clients' noise adds up to something else than one discrete Gaussian; None for the
            server's, which is real-valued.
        most_rounds: Of the clients' noise: how many rounds draw the client that is drawn most often.
    """

    clip: float
    multiplier: float
    central: bool
    sampling: Sampling
    clients: int
    cohort: int
    rounds: int
    delta: float
    seed: int
    distance: float | None = None
    most_rounds: int = 0

    def over(self, algorithm: Algorithm) -> Algorithm:
        """Return the algorithm with the sampling, the fixed divisor and the noise that the promise rests on."""
        guarded = replace(
            algorithm, divisor=float(self.cohort), noise=self._noise() if self.central else None
        )
        if self.sampling == "poisson":
            return replace(guarded, sample=poisson_cohort(self.cohort), min_clients=0)
        return guarded

    def _noise(self) -> Callable[[Tensor, int], None]:
        deviation = self.multiplier * self.clip / self.cohort

        def add(mean: Tensor, round_number: int) -> None:
            rng = generator(self.seed, "privacy", round_number)
            for start in range(0, mean.numel(), _CHUNK):
                part = mean[start : start + _CHUNK]
                part += torch.from_numpy(deviation * rng.standard_normal(part.numel())).float()

        return add

    @property
    def statement(self) -> str:
        """What is promised, as a line for people."""
        return statement(*self._drawn(), distance=self.distance, most_rounds=self.most_rounds)

    def epsilon(self) -> float:
        """Return what the whole run may cost, towards those whom the noise is for.

        The clients' noise is against the server, which knows the cohorts; the server's is against whoever sees the
        models.
        """
        return self.models_epsilon() if self.central else self.server_epsilon()

    def models_epsilon(self) -> float:
        """Return what the run may cost towards those who see the models and do not know who took part."""
        return epsilon(*self._drawn(), distance=self.distance)

    def server_epsilon(self) -> float:
        """Return what the run may cost the client that is drawn most often, towards those who know who took part."""
        return epsilon_of_known_cohorts(
            self.multiplier, self.sampling, self.most_rounds, self.delta, distance=self.distance
        )

    def _drawn(self) -> tuple[float, Sampling, int, int, int, float]:
        return self.multiplier, self.sampling, self.clients, self.cohort, self.rounds, self.delta

    def facts(self) -> dict[str, Any]:
        """Return what is promised, for the run's summary."""
        found = {"epsilon": self.epsilon(), "epsilon_models": self.models_epsilon()}
        if not self.central:
            found["epsilon_server"] = self.server_epsilon()
        return {
            **{name: value if math.isfinite(value) else None for name, value in found.items()},
            **({} if self.central else {"most_rounds": self.most_rounds}),
            "delta": self.delta,
            "noise": self.multiplier,
            "clip": self.clip,
            "where": "server" if self.central else "clients",
            "statement": self.statement,
        }


def guard_of(experiment: Experiment, clients: int) -> Guard | None:
    """Return what ``[privacy]`` promises; None without it."""
    privacy = experiment.privacy
    if privacy is None:
        return None
    central = experiment.secure.protocol == "none"
    guard = Guard(
        clip=privacy.clip,
        multiplier=privacy.noise or 0.0,
        central=central,
        sampling=privacy.sampling,
        clients=clients,
        cohort=min(experiment.clients_per_round, clients),
        rounds=experiment.num_rounds,
        delta=privacy.delta,
        seed=experiment.seed,
        distance=None if central else 0.0,
        most_rounds=0 if central else _most_rounds(experiment, clients),
    )
    if privacy.epsilon is None:
        return guard
    return replace(guard, multiplier=_multiplier_for(privacy.epsilon, guard))


def _multiplier_for(target: float, guard: Guard) -> float:
    """Return the noise that keeps an epsilon towards those whom it is for."""
    clients, rounds = guard.clients, guard.rounds
    if not guard.central:  # the server knows the cohorts: as if all clients were drawn, in so many rounds
        clients, rounds = guard.cohort, guard.most_rounds
    return noise_multiplier_for(
        target, guard.sampling, clients, guard.cohort, rounds, guard.delta, distance=guard.distance
    )


def _most_rounds(experiment: Experiment, clients: int) -> int:
    """Return how many rounds draw the client that is drawn most often, whatever becomes of the rounds.

    A client that drops out is counted, and so is a round without a sum: it may be refused after it was opened.
    """
    sample = algorithm_of(experiment).sample
    drawn: Counter[int] = Counter()
    for round_number in range(1, experiment.num_rounds + 1):
        drawn.update(sample(experiment.seed, round_number, clients))
    return max(drawn.values())
