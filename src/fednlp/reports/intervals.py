"""How far a score on a few examples can be from the score on many."""

import math
import statistics
from collections.abc import Sequence

_LEVEL = 0.95
_Z = 1.959964
"""The normal distribution's quantile for 95 %."""


def wilson(share: float, examples: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of examples (E. B. Wilson, 1927).

    >>> [round(end, 3) for end in wilson(1.0, 1)], [round(end, 3) for end in wilson(0.5, 100)]
    ([0.207, 1.0], [0.404, 0.596])
    """
    spread = _Z * _Z / examples
    middle = share + spread / 2
    half = _Z * math.sqrt(share * (1 - share) / examples + spread / (4 * examples))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))


def difference(one: float, examples: int, other: float, others: int) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two shares (R. G. Newcombe, 1998, method 10).

    It takes the examples of the two for different ones. For two models on the same examples it is wider than needed.

    >>> [round(end, 3) for end in difference(56 / 70, 70, 48 / 80, 80)]
    [0.052, 0.334]
    """
    (low, high), (other_low, other_high) = wilson(one, examples), wilson(other, others)
    gap = one - other
    return (
        gap - math.hypot(one - low, other_high - other),
        gap + math.hypot(high - one, other - other_low),
    )


def of_mean(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean, and half the width of its 95 % interval (Student's t); None for one value.

    >>> [round(number, 4) for number in of_mean([1.0, 2.0, 3.0])]
    [2.0, 2.4841]
    """
    from scipy.stats import t

    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    width = t.ppf((1 + _LEVEL) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, float(width)
