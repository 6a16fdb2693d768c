"""The differential privacy mechanism of a run: clipping, fixed-size averaging, noise, and the guarantee that follows.

A client's update is clipped to a norm, the weighted sum is divided by a fixed denominator, and Gaussian noise is added:
by the server, or by the clients under secure aggregation.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Self

from fednlp.errors import ConfigError
from fednlp.federated.aggregators.noisy_mean import NoisyMean
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.cohort import poisson_cohort
from fednlp.formatting.units import plural
from fednlp.privacy.accountant import (
    Sampling,
    epsilon,
    epsilon_of_known_cohorts,
    noise_multiplier_for,
    statement,
)

_TOLERABLE = 10.0
"""Up to this ratio of a round's noise to its mean update many rounds average the noise out."""


@dataclass(frozen=True)
class DPMechanism:
    """How a run is differentially private, at the level of clients.

    Attributes:
        clip: The norm that an update is clipped to.
        noise_multiplier: Standard deviation of the noise on the sum, over ``clip``.
        central: Whether the server adds the noise; otherwise the clients do, under secure aggregation.
        clients: Number of clients.
        cohort: Clients in a round; with Poisson sampling on average.
        rounds: Rounds of the run.
        distance: How far the clients' summed noise is from one discrete Gaussian
            (:func:`fednlp.privacy.noise.sum_distance`); None for the server's noise, which is real-valued.
        most_rounds: With the clients' noise: the number of rounds of the client that is drawn most often.
    """

    clip: float
    noise_multiplier: float
    central: bool
    sampling: Sampling
    clients: int
    cohort: int
    rounds: int
    delta: float
    seed: int
    distance: float | None = None
    most_rounds: int = 0

    def calibrated(self, target: float) -> Self:
        """Return the mechanism with the least noise that keeps :meth:`epsilon` at or below a target.

        Raises:
            ConfigError: No noise reaches the target.
            MissingDependency: dp-accounting is not installed.
        """
        clients, rounds = self.clients, self.rounds
        # Against a server, which knows the cohorts, it is as if all clients were drawn, in most_rounds rounds.
        if not self.central:
            clients, rounds = self.cohort, self.most_rounds
        multiplier = noise_multiplier_for(
            target, self.sampling, clients, self.cohort, rounds, self.delta, distance=self.distance
        )
        return replace(self, noise_multiplier=multiplier)

    def apply_to(self, algorithm: Algorithm) -> Algorithm:
        """Return the algorithm with the sampling that the guarantee needs, and the server's noise if it adds any."""
        private = algorithm
        if self.central:
            deviation = self.noise_multiplier * self.clip / self.cohort
            noisy = NoisyMean(self.clip, float(self.cohort), deviation, self.seed)
            private = replace(algorithm, aggregator=noisy)
        if self.sampling == "poisson":
            return replace(private, sample=poisson_cohort(self.cohort), min_clients=0)
        return private

    @property
    def statement(self) -> str:
        """The guarantee, as a line for people."""
        return statement(*self._arguments(), distance=self.distance, most_rounds=self.most_rounds)

    def epsilon(self) -> float:
        """Return the epsilon of the whole run, against those whom the noise protects from.

        The clients' noise protects from the server, which knows the cohorts; the server's noise protects from whoever
        sees the models.
        """
        return self.models_epsilon() if self.central else self.server_epsilon()

    def models_epsilon(self) -> float:
        """Return the epsilon against those who see the models and do not know who took part."""
        return epsilon(*self._arguments(), distance=self.distance)

    def server_epsilon(self) -> float:
        """Return the epsilon of the client that is drawn most often, against those who know who took part."""
        return self.spent(self.most_rounds)

    def spent(self, rounds: int) -> float:
        """Return the epsilon of a client that took part in so many rounds; nothing is counted for sampling."""
        return epsilon_of_known_cohorts(
            self.noise_multiplier, self.sampling, rounds, self.delta, distance=self.distance
        )

    def _arguments(self) -> tuple[float, Sampling, int, int, int, float]:
        return self.noise_multiplier, self.sampling, self.clients, self.cohort, self.rounds, self.delta

    def noise_norm(self, parameters: int) -> float:
        """Return the norm of a round's noise on the mean of so many parameters, whose own is at most ``clip``."""
        return self.noise_multiplier * self.clip * math.sqrt(parameters) / self.cohort

    def check_noise(self, parameters: int, largest: float) -> str | None:
        """Return a warning where the noise of a round is far larger than any update; None where it is not.

        Args:
            parameters: Number of elements of an update.
            largest: The ratio of the two norms above which the run is refused.

        Raises:
            ConfigError: The ratio is above ``largest``.
        """
        noise = self.noise_norm(parameters)
        ratio = noise / self.clip
        if ratio <= min(_TOLERABLE, largest):
            return None
        needed = math.ceil(ratio * self.cohort / _TOLERABLE)
        drowns = (
            f"the noise of [privacy] has a norm of {noise:.3g} in each round, and the mean update of "
            f"{plural(self.cohort, 'client')} one of at most {self.clip:.3g}: {ratio:.3g} times as much"
        )
        remedy = f"about {needed:,} clients a round would be needed (or fewer parameters, by model.peft or model.train)"
        if ratio <= largest:
            return f"warning: {drowns}; {remedy}"
        raise ConfigError(
            f"the update drowns: {drowns}; {remedy}; to run it nonetheless: --set "
            f"privacy.max_noise_ratio={10 ** math.ceil(math.log10(ratio)):g}"
        )

    def facts(self) -> dict[str, Any]:
        """Return the guarantee for the run's summary; an infinite epsilon is None."""
        found = {"epsilon": self.epsilon(), "epsilon_models": self.models_epsilon()}
        if not self.central:
            found["epsilon_server"] = self.server_epsilon()
        return {
            **{name: value if math.isfinite(value) else None for name, value in found.items()},
            **({} if self.central else {"most_rounds": self.most_rounds}),
            "delta": self.delta,
            "noise": self.noise_multiplier,
            "clip": self.clip,
            "where": "server" if self.central else "clients",
            "statement": self.statement,
        }
