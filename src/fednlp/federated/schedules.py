"""A learning rate over the rounds: of the clients, or of the server."""

import math
from dataclasses import dataclass
from typing import Literal

ScheduleName = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class RateSchedule:
    """The factor of a learning rate in each round.

    After ``warmup`` rounds in which it rises in equal steps, the factor stays 1 (``constant``), or falls to
    ``minimum`` in the last round, in equal steps (``linear``) or along half a cosine (``cosine``).

    Attributes:
        name: ``"constant"``, ``"linear"`` or ``"cosine"``.
        rounds: Of the whole run.
        warmup: Rounds in which the factor rises.
        minimum: The factor of the last round, in [0, 1].
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

        >>> [RateSchedule("linear", rounds=5, minimum=0.5).factor(n) for n in (1, 3, 5)]
        [1.0, 0.75, 0.5]
        >>> [RateSchedule("constant", rounds=4, warmup=2).factor(n) for n in (1, 2, 3, 4)]
        [0.3333333333333333, 0.6666666666666666, 1.0, 1.0]
        """
        if round_number <= self.warmup:
            return round_number / (self.warmup + 1)
        if self.name == "constant":
            return 1.0
        falling = self.rounds - self.warmup - 1
        done = min(1.0, (round_number - self.warmup - 1) / falling) if falling > 0 else 0.0
        left = 1.0 - done if self.name == "linear" else (1.0 + math.cos(math.pi * done)) / 2
        return self.minimum + (1.0 - self.minimum) * left
