"""Successive halving: many trials for a few rounds, the better half of them for twice as many, and so on.

Jamieson & Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter Optimization".
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fednlp.errors import ConfigError
from fednlp.formatting.units import plural


@dataclass(frozen=True)
class Stage:
    """One stage: ``trials`` of them go on until they have done ``rounds`` rounds, and are compared."""

    trials: int
    rounds: int


def stages(trials: int, rounds: int, least: int | None = None) -> tuple[Stage, ...]:
    """Return the stages of a search, from all trials down to two, or to more where ``least`` leaves out stages.

    Args:
        trials: The number of trials, at least 2.
        rounds: The most rounds of a trial. The last stage has as many, or the next lower number that can be halved
            often enough.
        least: The fewest rounds after which trials are compared, as many as ``rounds`` if no trial is to end before the
            others; None for as few as halving down to two trials needs.

    Raises:
        ConfigError: There are fewer than two trials, or too few rounds to halve, or for ``least``.

    >>> [(stage.trials, stage.rounds) for stage in stages(6, 10)]
    [(6, 2), (3, 4), (2, 8)]
    >>> [(stage.trials, stage.rounds) for stage in stages(6, 10, least=5)]
    [(6, 5), (3, 10)]
    >>> [(stage.trials, stage.rounds) for stage in stages(6, 10, least=10)]
    [(6, 10)]
    """
    if trials < 2:
        raise ConfigError("one trial leaves nothing to choose: give at least two values of a setting")
    sizes = [trials]
    while sizes[-1] > 2:
        sizes.append(-(-sizes[-1] // 2))
    if least is not None and rounds > 0:
        if not 1 <= least <= rounds:
            raise ConfigError(
                f"trials of {plural(rounds, 'round')} cannot be compared after round {least} for the first time: let "
                f"--tune-from, or least, be a number from 1 to {rounds}"
            )
        while rounds >> (len(sizes) - 1) < least:
            sizes.pop()
    first = max(rounds, 0) >> (len(sizes) - 1)
    if not first:
        raise ConfigError(
            f"{plural(rounds, 'round')} cannot be halved for {trials} trials: "
            f"give at least {plural(1 << (len(sizes) - 1), 'round')}, or fewer trials, or train each in full "
            f"(--tune-from {max(rounds, 1)})"
        )
    return tuple(Stage(size, first << number) for number, size in enumerate(sizes))


def total_rounds(plan: tuple[Stage, ...]) -> int:
    """Return the rounds of a whole search: a trial goes on from the stage before.

    >>> total_rounds(stages(6, 10))
    26
    """
    before = [0, *(stage.rounds for stage in plan)]
    return sum(stage.trials * (stage.rounds - done) for stage, done in zip(plan, before, strict=False))


def best(results: Mapping[int, tuple[float, float] | None], keep: int) -> list[int]:
    """Return the trials with the highest scores, in order.

    Of equal scores the one with the lower training loss comes first, then the earlier trial. Failed trials come last.

    Args:
        results: Score and training loss by the number of the trial; None for one that failed.

    >>> best({0: (0.5, 2.0), 1: None, 2: (0.7, 3.0), 3: (0.5, 1.0)}, 2)
    [2, 3]
    """

    def rank(trial: int) -> tuple[bool, float, float, int]:
        score, loss = results[trial] or (0.0, 0.0)
        return (results[trial] is None, -score, loss, trial)

    return sorted(results, key=rank)[:keep]
