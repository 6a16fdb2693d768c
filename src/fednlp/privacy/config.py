"""The section ``[privacy]`` of an experiment."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from fednlp.option_types import Fraction, NonNegativeFloat, PositiveFloat
from fednlp.section import IN_ROUNDS, Feature, Section


class Privacy(Section):
    """Differential privacy of clients: the norm that an update is cut to, and noise on the sum.

    ``noise`` is the standard deviation of the sum's noise over ``clip``; or say which ``epsilon`` the whole run may
    cost at ``delta``, and the noise follows. With secure aggregation the clients add the noise, and ``epsilon`` is
    against the server, which knows the cohorts; else the server adds it, against whoever sees the models.
    ``max_noise_ratio`` is the largest norm of a round's noise, over that of the mean update, with which a run begins.
    """

    traits: ClassVar[tuple[Feature, ...]] = (
        Feature(
            "[privacy]",
            {
                **IN_ROUNDS,
                "one_vector": "clips and noises the model's update alone",
                "no_reports": "noises nothing else than updates",
                "weighted_mean": "has an aggregator of its own",
                "additive": "bounds how much one client changes a sum",
                "equal_weights": "bounds what one client can change, whatever its number of examples",
                "same_tensors": "does not hide which tensors of a client moved far",
                "updates": "bounds updates",
                "bounded_update": "cuts each round's update once, by privacy.clip",
                "noised_sums": "has a guarantee that covers nothing exact",
                "all_drawn": "counts on cohorts drawn among all clients",
                "foreseen": "counts on cohorts that are drawn without a look at the clients",
                "all_counted": "counts on one client changing one update",
                "honest_server": "counts on a server that sums the updates, and their noise, of all who stay",
            },
            {"open_population": "states its guarantee for a number of sites"},
        ),
        Feature('privacy.sampling = "poisson"', breaks={"one_size": "draws cohorts that vary in size"}),
    )

    clip: PositiveFloat
    noise: NonNegativeFloat | None = None
    epsilon: PositiveFloat | None = None
    delta: Fraction = 1e-5
    sampling: Literal["fixed", "poisson"] = "fixed"
    max_noise_ratio: PositiveFloat = 100.0

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.noise is None) == (self.epsilon is None):
            raise ValueError("say either noise = 1.0 (over clip) or epsilon = 8.0 (of the whole run)")
        return self
