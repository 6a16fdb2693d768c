"""How far a score on a few examples can be from the score on many."""

import math

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
