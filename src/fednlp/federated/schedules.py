"""A learning rate over the rounds: of the clients, or of the server."""

import math
from dataclasses import dataclass
from typing import Literal

ScheduleName = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class RateSchedule:
    """The factor of a learning rate in each round.

    After ``warmup`` rounds in which it rises in equal steps, the factor stays 1 (``constant``), or falls towards
    ``minimum`` in equal steps (``linear``) or along half a cosine (``cosine``). It would reach the minimum in the round
    after the last one, so that the last round still trains where the minimum is 0. The fall is that of Hugging Face's
    schedules over the rounds, whose step t - 1 is round t. Their rise begins at 0, and this one above it, so that the
    first round trains too.

    Attributes:
        name: ``"constant"``, ``"linear"`` or ``"cosine"``.
        warmup: Rounds in which the factor rises.
        minimum: What the factor falls towards, in [0, 1].
    """

    name: ScheduleName = "constant"
    rounds: int = 1
    warmup: int = 0
    minimum: float = 0.0

    @property
    def is_constant(self) -> bool:
        """Whether the factor is 1 in every round."""
        return self.name == "constant" and not self.warmup

    def factor(self, round_number: int) -> float:
        """Return the factor of a round, by its number from 1.

        >>> [RateSchedule("linear", rounds=4).factor(n) for n in (1, 2, 3, 4)]
        [1.0, 0.75, 0.5, 0.25]
        >>> [RateSchedule("constant", rounds=4, warmup=2).factor(n) for n in (1, 2, 3, 4)]
        [0.3333333333333333, 0.6666666666666666, 1.0, 1.0]
        """
        if round_number <= self.warmup:
            return round_number / (self.warmup + 1)
        if self.name == "constant":
            return 1.0
        done = min(1.0, (round_number - self.warmup - 1) / max(1, self.rounds - self.warmup))
        left = 1.0 - done if self.name == "linear" else (1.0 + math.cos(math.pi * done)) / 2
        return self.minimum + (1.0 - self.minimum) * left
