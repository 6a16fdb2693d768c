"""Which tables and figures fit into a budget of time, cheapest first."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fednlp.errors import ConfigError

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_LONGEST = 366 * 24 * 3600.0


@dataclass(frozen=True)
class Step:
    """One seed of a table or figure.

    Attributes:
        entry: The paper's name and the entry's id.
        seed: Number of the seed, from 0.
        jobs: For each of its runs that is not finished, the expected seconds; several steps may share a run.
    """

    entry: tuple[str, str]
    seed: int
    jobs: tuple[tuple[str, float], ...]


def parse_budget(text: str) -> float:
    """Return a budget in seconds.

    Raises:
        ConfigError: It is no time.

    >>> parse_budget("90m"), parse_budget("1h30m"), parse_budget("0s")
    (5400.0, 5400.0, 0.0)
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text.strip())
    whole = "".join(f"{number}{unit}" for number, unit in parts)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not whole or whole != text.strip() or seconds > _LONGEST:
        raise ConfigError(f"--budget {text}: write a time such as 90m, 2h, 1h30m or 3600s")
    return seconds


def choose(steps: Sequence[Step], seconds: float) -> list[Step]:
    """Return the steps that fit into the time left, in the order in which to take them.

    First seeds come before second ones, and then the cheapest comes first; what is alike keeps its order. A run that a
    chosen step does costs the later ones nothing.

    Args:
        steps: Steps that are not finished.
        seconds: Time left.
    """
    chosen: list[Step] = []
    taken: set[str] = set()
    waiting = list(enumerate(steps))
    while True:
        costs = [(step.seed, _cost(step, taken), place, step) for place, step in waiting]
        fitting = [one for one in costs if one[1] <= seconds]
        if not fitting:
            return chosen
        _, cost, place, step = min(fitting, key=lambda one: one[:3])
        chosen.append(step)
        seconds -= cost
        taken |= {name for name, _ in step.jobs}
        waiting = [one for one in waiting if one[0] != place]


def _cost(step: Step, taken: set[str]) -> float:
    return sum(seconds for name, seconds in step.jobs if name not in taken)
