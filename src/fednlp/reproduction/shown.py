"""Figures of a reproduction as people read them."""

from collections.abc import Callable

from fednlp.formatting.units import human_bytes, human_seconds
from fednlp.reproduction.agreement import Values
from fednlp.reproduction.manifest import Measure
from fednlp.reproduction.results import Finding
from fednlp.tasks.intervals import of_mean

_BYTES: tuple[Measure, ...] = ("sent", "sent a round", "sent to target", "memory")


def text_of(measure: Measure, values: Values) -> str:
    """Return a figure for people: the mean over seeds ± half of its 95 % interval.

    >>> text_of("score", {0: 50.0, 1: 52.0}), text_of("sent", {0: 2e9, 1: 2e9})
    ('51.0 ± 12.7', '2 GB')
    """
    mean, half = of_mean(list(values.values()))
    show = _format(measure)
    return f"{show(mean)} ± {show(half)}" if half else show(mean)


def _format(measure: Measure) -> Callable[[float], str]:
    if measure in _BYTES:
        return human_bytes
    if "time" in measure:
        return human_seconds
    if measure in ("training loss", "divergence", "size spread"):
        return "{:.3f}".format
    if "energy" in measure or measure == "rounds to target":
        return "{:,.0f}".format
    return "{:.1f}".format


def published(entry: Finding, name: str) -> dict[str, str]:
    """Return a published column by row, all of it with the same number of decimals."""
    values = {row.name: row.published[name] for row in entry.rows if name in row.published}
    decimals = max(len(f"{value:.10f}".rstrip("0").partition(".")[2]) for value in values.values())
    return {row: f"{value:,.{decimals}f}" for row, value in values.items()}
