"""The sections of an experiment that say what is sent, and what the server learns of it."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fednlp.config.sections.base import Section
from fednlp.option_types import Decay, Fraction, NonNegativeFloat, PositiveFloat

LARGEST_CLIP = 1024.0
"""Of an element of an update in a secure sum."""


class Exchange(Section):
    """What is done to tensors on their way to the server (``up``) and from it (``down``), in this order.

    With ``error_feedback`` a client adds what the way up lost of an update to its next one. With ``send = "weights"``
    clients send their weights and not what these changed by, and the server goes on from the model that it sent.
    """

    up: list[str] = []
    down: list[str] = []
    error_feedback: bool = False
    send: Literal["updates", "weights"] = "updates"

    @field_validator("up", "down", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class Pull(Section):
    """Which of the shared tensors a client sends in a round, by how far they moved since its last one.

    With ``embeddings = "apart"`` these are always sent, and not counted in ``share``.
    """

    rule: Literal["all", "low", "high", "random"] = "all"
    share: Fraction = 0.5
    of: Literal["tensors", "parameters"] = "tensors"
    push: Literal["all", "selected"] = "all"
    norm: Literal["l2", "l1"] = "l2"
    embeddings: Literal["chosen", "apart"] = "chosen"


class Secure(Section):
    """Secure aggregation: the server learns the sum of the clients' weighted updates, and no one's.

    ``dropout`` and ``max_colluding`` are the largest fractions of a cohort that may drop out, or collude with the
    server; the protocol's thresholds follow from them. An update's elements are cut at ``clip`` and rounded to
    ``bits`` bits. ``malicious_server`` is for a server that may lie: clients sign what they were shown.
    ``simulated_dropout`` makes each client drop out with that probability, in a phase drawn at random. With
    ``sum_reports`` the training loss, the examples seen and the local steps of each client are summed with its update.
    """

    protocol: Literal["none", "secagg", "secagg+", "lightsecagg"] = "none"
    dropout: Decay = 0.1
    max_colluding: Decay = 0.1
    clip: Annotated[float, Field(gt=0, le=LARGEST_CLIP)] = 1.0
    bits: Annotated[int, Field(ge=2, le=31)] | None = None
    stochastic: bool = False
    malicious_server: bool = False
    simulated_dropout: Decay = 0.0
    sum_reports: bool = False


class Privacy(Section):
    """Differential privacy of clients: the norm that an update is cut to, and noise on the sum.

    ``noise`` is the standard deviation of the sum's noise over ``clip``; or say which ``epsilon`` the whole run may
    cost at ``delta``, and the noise follows. With secure aggregation the clients add the noise, and ``epsilon`` is
    against the server, which knows the cohorts; else the server adds it, against whoever sees the models.
    ``max_noise_ratio`` is the largest norm of a round's noise, over that of the mean update, with which a run begins.
    """

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
