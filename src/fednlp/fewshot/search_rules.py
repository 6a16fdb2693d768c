"""The rules of a search for a pace, and the lists of paces to evaluate (FeS, Cai et al. 2023, section 3.1)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fednlp.errors import ConfigError
from fednlp.fewshot.pacing import Pace

LONGEST = 1000
"""Maximum number of paces in a list."""

_GRID = (1, 2, 4)
_FURTHER = (Pace(5, 2, 1), Pace(1, 5, 5), Pace(1, 4, 8), Pace(1, 8, 2), Pace(1, 8, 4))
_LAPTOP = (Pace(1, 1, 1), Pace(2, 4, 4), Pace(1, 4, 2), Pace(1, 5, 5), Pace(1, 4, 8), Pace(1, 8, 4))


@dataclass(frozen=True)
class PaceSearchRules:
    """The rules of a search for a pace.

    Attributes:
        trial_rounds: r: number of rounds of each trial; from 2, since labels are trained on a round later.
        candidates: t: number of best paces that are kept for a later search.
        threshold: s: a new search begins where AUG-E falls below.
        window: Number of rounds over which AUG-E is computed between searches.
        theta: Weight of training against labelling in AUG-E.
        max_searches: Maximum number of searches after the first.
        rounds: Number of rounds of the whole run, trials included; a search that would not end before is not begun.
            None where it is not known.
        round_seconds: Seconds of a round without labelling, which AUG-E counts as a cost of each pace.

    Raises:
        ConfigError: A number is out of its range.
    """

    trial_rounds: int = 5
    candidates: int = 8
    threshold: float = 0.0
    window: int = 5
    theta: float = 1.0
    eta: float = 1.0
    max_searches: int = 2
    rounds: int | None = None
    round_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        low = {"trial_rounds": 2, "candidates": 1, "window": 1, "max_searches": 0, "rounds": 1}
        for name, least in low.items():
            number = getattr(self, name)
            if (name, number) != ("rounds", None) and (type(number) is not int or number < least):
                raise ConfigError(f"{name} = {number!r:.80}: give a whole number from {least}")
        for name in ("threshold", "theta", "round_seconds", "eta"):
            number = getattr(self, name)
            if type(number) not in (int, float) or not math.isfinite(number):
                raise ConfigError(f"{name} = {number!r:.80}: give a number")
            if name in ("theta", "eta") and number <= 0:
                raise ConfigError(f"{name} = {number!r:.80}: give a number above 0")
            if name == "round_seconds" and number < 0:
                raise ConfigError(f"{name} = {number!r:.80}: give a number from 0")


def initial_list(clients: int) -> list[Pace]:
    """Return the 32 paces of the first search: f, n, k of 1, 2, 4 (the authors' grid), and five further ones.

    Args:
        clients: Number of clients, which limits n; below 8 clients some paces coincide.

    >>> len(initial_list(100)), initial_list(100)[:2]
    (32, [Pace(f=1, n=1, k=1), Pace(f=1, n=1, k=2)])
    """
    grid = [Pace(f, n, k) for f in _GRID for n in _GRID for k in _GRID]
    return _within(clients, [*grid, *_FURTHER])


def laptop_list(clients: int) -> list[Pace]:
    """Return six of the 32 paces, from the slowest to fast ones, for a run of few rounds and clients of few texts.

    >>> laptop_list(3)[2]
    Pace(f=1, n=3, k=2)
    """
    return _within(clients, _LAPTOP)


def _within(clients: int, paces: Sequence[Pace]) -> list[Pace]:
    if clients < 1:
        raise ConfigError(f"{clients} clients: a pace needs one client at least")
    return list(dict.fromkeys(replace(pace, n=min(pace.n, clients)) for pace in paces))
