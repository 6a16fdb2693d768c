"""Oort: Lai et al. 2021, "Oort: Efficient Federated Learning via Guided Participant Selection" (OSDI)."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from fednlp.federated.cohort import Ask, Cohort, Population, Selection
from fednlp.federated.cohorts import cohort
from fednlp.option_types import PositiveFloat
from fednlp.seeds import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fednlp.federated.state import State

_CLIPPED = 95
"""The percentile at which utilities are clipped, and the percentage of the last chosen one's that is enough."""


def _refuses(options: Mapping[str, Any], experiment: Any) -> list[str]:
    if options.get("seconds") is None or experiment.costs.device is not None:
        return []
    return [
        "cohort.seconds compares the time that clients take for a round, which is not known: set costs.device, or "
        "leave cohort.seconds out"
    ]


@cohort("Oort", refuses=_refuses)
def oort(
    clients_per_round: int,
    exploration: Annotated[float, Field(ge=0, le=1)] = 0.9,
    exploration_decay: Annotated[float, Field(gt=0, le=1)] = 0.98,
    least_exploration: Annotated[float, Field(ge=0, le=1)] = 0.2,
    seconds: PositiveFloat | None = None,
    penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0,
) -> Selection:
    """Return Oort's choice (Algorithm 1): clients that were useful and fast, and some that were never tried.

    Args:
        clients_per_round: K, the size of the cohort.
        exploration: epsilon, the share of a cohort that has never trained, in the first round.
        exploration_decay: What this share is multiplied by in each round.
        least_exploration: Where it stays.
        seconds: T, the time of a round that is preferred, by the simulated clock; None for no preference.
        penalty: alpha: a client that takes longer, t_i, counts (T / t_i)^alpha.
    """

    def draw(population: Population, state: "State", ask: Ask) -> Cohort:
        number, rng = state.round + 1, generator(population.seed, "cohort", state.round + 1)
        last = state.vectors["clients.round"].double().numpy()
        able = population.sizes > 0
        tried, new = np.flatnonzero(able & (last > 0)), np.flatnonzero(able & (last == 0))
        share = max(least_exploration, exploration * exploration_decay ** (number - 1))
        exploited = min(len(tried), clients_per_round - min(len(new), round(share * clients_per_round)))
        explored = min(len(new), clients_per_round - exploited)
        utility = scores(
            statistical_utility(state, tried),
            last[tried],
            number,
            None if seconds is None or population.seconds is None else seconds / population.seconds[tried],
            penalty,
        )
        chosen = [
            *tried[exploit(utility, exploited, rng)],
            *rng.choice(new, explored, replace=False),
        ]
        return Cohort(sorted(map(int, chosen)))

    return Selection(draw, remembers=("round", "examples", "loss"))


def statistical_utility(state: "State", clients: "NDArray[np.int64]") -> "NDArray[np.float64]":
    """Return |B_i| sqrt(mean loss^2) of clients that have trained, from the mean of their last losses: float64."""
    examples, loss = (
        state.vectors[f"clients.{name}"].double().numpy()[clients] for name in ("examples", "loss")
    )
    return np.asarray(examples * np.abs(loss))


def scores(
    utility: "NDArray[np.float64]",
    last: "NDArray[np.float64]",
    number: int,
    speed: "NDArray[np.float64] | None",
    penalty: float,
) -> "NDArray[np.float64]":
    """Return what clients are chosen by: utility over the largest, plus the bonus for those not seen for long.

    Args:
        utility: Of each, clipped here at its 95th percentile.
        last: R_i, the round in which each has trained last.
        number: R, of this round.
        speed: T / t_i; None without a clock.

    >>> scores(np.array([4.0, 2.0]), np.array([1.0, 1.0]), 1, np.array([0.5, 2.0]), 2.0).round(3).tolist()
    [0.25, 0.513]
    """
    if not len(utility):
        return utility
    clipped = np.minimum(utility, np.percentile(utility, _CLIPPED))
    found = clipped / (clipped.max() or 1.0) + np.sqrt(0.1 * math.log(number) / last)
    return np.asarray(found if speed is None else found * np.minimum(1.0, speed) ** penalty)


def exploit(utility: "NDArray[np.float64]", count: int, rng: np.random.Generator) -> "NDArray[np.int64]":
    """Draw clients with probability by their scores, among those with 95 % of the score of the last of the best."""
    if not count:
        return np.array([], dtype=np.int64)
    least = np.sort(utility)[-count] * _CLIPPED / 100
    near = np.flatnonzero(utility >= least)
    weights = utility[near] + 1e-9  # so that those without utility can be drawn where there are no others
    return np.asarray(rng.choice(near, count, replace=False, p=weights / weights.sum()))
