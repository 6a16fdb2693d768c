"""Differential privacy of a run: how much noise, who adds it, and what it comes to."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fednlp.config import Experiment
from fednlp.federated.algorithm import Algorithm, poisson_cohort
from fednlp.privacy.accountant import Sampling, epsilon, noise_multiplier_for, statement
from fednlp.seeds import generator

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
        return statement(*self._promise(), distance=self.distance)

    def epsilon(self) -> float:
        """Return what the whole run may cost."""
        return epsilon(*self._promise(), distance=self.distance)

    def _promise(self) -> tuple[float, Sampling, int, int, int, float]:
        return self.multiplier, self.sampling, self.clients, self.cohort, self.rounds, self.delta

    def facts(self) -> dict[str, Any]:
        """Return what is promised, for the run's summary."""
        found = self.epsilon()
        return {
            "epsilon": found if math.isfinite(found) else None,
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
    cohort, rounds = min(experiment.clients_per_round, clients), experiment.num_rounds
    central = experiment.secure.protocol == "none"
    distance = None if central else 0.0
    multiplier = privacy.noise
    if multiplier is None:
        assert privacy.epsilon is not None
        how = privacy.sampling, clients, cohort, rounds, privacy.delta
        multiplier = noise_multiplier_for(privacy.epsilon, *how, distance=distance)
    return Guard(
        privacy.clip,
        multiplier,
        central,
        privacy.sampling,
        clients,
        cohort,
        rounds,
        privacy.delta,
        experiment.seed,
        distance,
    )
