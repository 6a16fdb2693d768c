"""How far a score on a few examples can be from the score on many."""

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np

_LEVEL = 0.95
_Z = 1.959964
"""The normal distribution's quantile for 95 %."""
_RESAMPLES = 1000
_MOST_COUNTS = 20_000_000
"""Over very many examples fewer samples are drawn; there the interval is narrow."""
_FEWEST_RESAMPLES = 100
_DIGITS = 9
"""Of the ends of a bootstrap's interval: the last ones of a sum depend on where its examples lie."""


def wilson(share: float, examples: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of examples (E. B. Wilson, 1927).

    >>> [round(end, 3) for end in wilson(1.0, 1)], [round(end, 3) for end in wilson(0.5, 100)]
    ([0.207, 1.0], [0.404, 0.596])
    """
    spread = _Z * _Z / examples
    middle = share + spread / 2
    half = _Z * math.sqrt(share * (1 - share) / examples + spread / (4 * examples))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))


def of_examples(rows: np.ndarray, score: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float] | None:
    """Return the 95 % interval of a score, for other test examples of the same kind.

    A share of examples has Wilson's. Any other score has the percentiles of a bootstrap over the examples (B. Efron,
    1979), the same in every call.

    Args:
        rows: What each example adds to the score, float64 (examples, k).
        score: Of summed rows, (..., k) to (...).

    Returns:
        Both ends; None without examples, or where few samples define the score.

    >>> right = np.array([[1.0, 1.0]] * 3 + [[0.0, 1.0]])
    >>> [round(end, 3) for end in of_examples(right, lambda sums: sums[..., 0] / sums[..., 1])]
    [0.301, 0.954]
    """
    if not len(rows):
        return None
    kinds, counts = np.unique(rows, axis=0, return_counts=True)
    counted = kinds[kinds.any(1)]  # an example that adds nothing is none
    if (
        kinds.shape[1] == 2
        and len(counted)
        and (counted[:, 1] == 1).all()
        and np.isin(counted[:, 0], (0, 1)).all()
    ):
        examples = int(rows[:, 1].sum())
        return wilson(float(rows[:, 0].sum()) / examples, examples)
    draw = np.random.default_rng(0)
    samples = max(_FEWEST_RESAMPLES, min(_RESAMPLES, _MOST_COUNTS // len(kinds)))
    drawn = (draw.multinomial(len(rows), counts / len(rows)) @ kinds for _ in range(samples))
    found = score(np.stack(list(drawn)))
    found = found[np.isfinite(found)]
    if len(found) < _FEWEST_RESAMPLES:
        return None
    low, high = np.quantile(found, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(f"{low:.{_DIGITS}g}"), float(f"{high:.{_DIGITS}g}")


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
