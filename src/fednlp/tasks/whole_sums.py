"""Metrics from sums of whole numbers over clients, so that no client's own number is needed.

Whole numbers add exactly, in any order and under masks. A fraction is counted in steps of 2^-40, and a product of two
fractions in steps of 2^-80, both without rounding. So a correlation from such sums is exact in its sums.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fednlp.data.features import Features

STEP_BITS = 40
"""A fraction is counted in steps of 2^-40."""
LARGEST = 2.0**36
"""Fractions beyond it, such as the loss of a model that has diverged, count as this."""
SUM_BITS = 192
"""All sums, over all examples of all clients, lie within +-2^191."""


@runtime_checkable
class SummableTask(Protocol):
    """What a task has beside :class:`fednlp.tasks.base.Task` where its metrics are functions of sums over examples."""

    @property
    def num_sums(self) -> int:
        """How many sums there are."""

    def sums(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> list[int]:
        """Return the sums over some examples."""

    def metrics_of_sums(self, sums: Sequence[int]) -> dict[str, float]:
        """Return the metrics of all examples from their sums; NaN where these do not define one.

        ``metrics_of_sums(sums(...))`` equals ``metrics(...)``, without the metrics that are no function of sums.
        """


def steps(value: float) -> int:
    """Return a fraction in steps of 2^-40; what is no number counts as the largest.

    >>> steps(0.5) == 2**39, steps(math.inf) == steps(math.nan) == 2**76
    (True, True)
    """
    if math.isnan(value):
        value = LARGEST
    return round(max(-LARGEST, min(LARGEST, float(value))) * 2.0**STEP_BITS)


def total_steps(values: Sequence[float] | np.ndarray) -> int:
    """Return the sum of fractions in steps of 2^-40, each rounded by itself."""
    return sum(steps(value) for value in np.asarray(values, np.float64).tolist())


def fraction(total: int) -> float:
    """Return steps of 2^-40 as a fraction.

    >>> fraction(steps(0.75) + steps(0.5))
    1.25
    """
    return total / (1 << STEP_BITS)


def quotient(part: float, whole: float) -> float:
    """Return part / whole, and 0 where there is nothing.

    >>> quotient(1, 4), quotient(0, 0)
    (0.25, 0.0)
    """
    return part / whole if whole else 0.0


def moments(x: np.ndarray, y: np.ndarray) -> list[int]:
    """Return n, the sums of x, y, x^2, y^2 and xy; the first two in steps of 2^-40, the others of 2^-80."""
    ours, theirs = ([steps(value) for value in values.tolist()] for values in (x, y))
    return [
        len(ours),
        sum(ours),
        sum(theirs),
        sum(a * a for a in ours),
        sum(b * b for b in theirs),
        sum(a * b for a, b in zip(ours, theirs, strict=True)),
    ]


def correlation(sums: Sequence[int]) -> float:
    """Return Pearson's correlation from :func:`moments`; NaN where y does not vary, 0 where x does not."""
    n, x, y, xx, yy, xy = sums
    spread_x, spread_y = n * xx - x * x, n * yy - y * y
    if spread_y <= 0:
        return math.nan
    if spread_x <= 0:
        return 0.0
    return max(-1.0, min(1.0, (n * xy - x * y) / math.sqrt(spread_x) / math.sqrt(spread_y)))


def squared_error(sums: Sequence[int]) -> float:
    """Return the mean of (x - y)^2 from :func:`moments`; NaN where there is nothing."""
    n, _, _, xx, yy, xy = sums
    return (xx - 2 * xy + yy) / (n * 2 ** (2 * STEP_BITS)) if n else math.nan
