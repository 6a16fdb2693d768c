"""The charts of a comparison: learning curves, cost, and the scores of the clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fednlp.config.sections import WITHOUT_MODEL
from fednlp.formatting.units import bytes_unit, capital, is_share, metric_title, metric_value, time_unit
from fednlp.reports.charts import Chart, Line
from fednlp.reports.client_tensors import own_models
from fednlp.reports.groups import Groups, group_baseline
from fednlp.reports.read import Run, curve, running_total
from fednlp.reports.style import INK, PAPER, SERIES, drawing, legend, looks, new_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_QUANTILES = np.linspace(0, 1, 201)


@dataclass(frozen=True)
class Band:
    """A curve over the rounds that every seed measured: mean, and spread (None for one seed)."""

    rounds: NDArray[np.int64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64] | None


def band(runs: Sequence[Run], metric: str) -> Band | None:
    """Return mean and sample standard deviation over seeds of a metric, None where no run measured it."""
    curves = [dict(zip(*(part.tolist() for part in curve(run, metric)), strict=True)) for run in runs]
    curves = [points for points in curves if points]
    if not curves:
        return None
    rounds = sorted(set(curves[0]).intersection(*curves[1:]))
    if not rounds:
        return None
    values = np.array([[points[number] for number in rounds] for points in curves])
    with np.errstate(all="ignore"):
        std = values.std(axis=0, ddof=1) if len(curves) > 1 else None
        return Band(np.array(rounds, dtype=np.int64), values.mean(axis=0), std)


def learning_curves(groups: Groups, metric: str) -> Chart | None:
    """Return a metric over the rounds, mean line and band over seeds; None where nothing was measured."""
    return _curves(groups, metric, "Round", lambda _runs, rounds: rounds.astype(np.float64), whole=True)


def against_bytes(groups: Groups, metric: str) -> Chart | None:
    """Return a metric against the bytes sent so far, up and down; what sends nothing is a level line."""
    unit, size = bytes_unit(_largest(groups, "bytes_up", "bytes_down"))
    return _curves(
        groups, metric, f"Sent so far, up and down ({unit})", _spent(size, "bytes_up", "bytes_down")
    )


def against_seconds(groups: Groups, metric: str) -> Chart | None:
    """Return a metric against the time spent so far."""
    unit, size = time_unit(_largest(groups, "seconds"))
    return _curves(groups, metric, f"Time so far ({unit})", _spent(size, "seconds"))


def against_simulated_seconds(groups: Groups, metric: str) -> Chart | None:
    """Return a metric against the time that the rounds would have taken on the priced devices and network.

    A baseline, which has no such time, is a level line; None where no algorithm has it.
    """
    key = "simulated_seconds"
    priced = {label for label, runs in groups.items() if all(run.counted(key) for run in runs)}
    shown = {label: runs for label, runs in groups.items() if label in priced or group_baseline(runs)}
    if not priced:
        return None
    unit, size = time_unit(_largest(groups, key))
    return _curves(shown, metric, f"Simulated time so far ({unit})", _spent(size, key), among=groups)


def client_curves(groups: Groups, metric: str) -> Chart | None:
    """Return, for each group, the clients from worst to best: share of the clients against their own score."""
    known = {label: found for label, runs in groups.items() if (found := _client_quantiles(runs)) is not None}
    if not known:
        return None
    scale, drawn = (100.0 if is_share(metric) else 1.0), looks(groups)
    places = (100 * _QUANTILES).tolist()
    lines = [
        Line(label, drawn[label], (scale * found).tolist(), places, places) for label, found in known.items()
    ]
    return Chart(
        f"Test {metric_title(metric)} of the clients, worst to best{_percent(metric)}",
        "Clients (%)",
        lines,
        unit=" %" if is_share(metric) else "",
        step="Clients (%)",
        x_range=(0, 100),
        y_range=(0, 100) if _is_whole(metric, list(known.values())) else (None, None),
    )


def client_histogram(runs: Sequence[Run], metric: str) -> "Figure | None":
    """Draw how many clients reach which score on their own tests, over the seeds of one group."""
    values = np.concatenate([_scores(run) for run in runs]) if runs else np.empty(0)
    if not len(values):
        return None
    with drawing():
        scale, name = (100.0 if is_share(metric) else 1.0), metric_title(metric)
        figure, axes = new_axes(
            f"Clients by their own test {name}", f"Test {name}{_percent(metric)}", (7.2, 3.4)
        )
        span = (0.0, 100.0) if _is_whole(metric, [values]) else None
        axes.hist(scale * values, bins=20, range=span, color=SERIES[0], edgecolor=PAPER, linewidth=1)
        decile = float(np.quantile(values, 0.1))
        marks = (("mean over clients", float(values.mean()), "-"), ("worst decile ends here", decile, ":"))
        for name, value, style in marks:
            axes.axvline(
                scale * value,
                color=INK,
                linestyle=style,
                linewidth=1.4,
                label=f"{name}, {metric_value(metric, value)}",
            )
        _bounded(axes.set_xlim, [values], metric)
        axes.locator_params(axis="y", integer=True)
        legend(figure, axes)
    return figure


_Abscissa = Callable[[Sequence[Run], NDArray[np.int64]], NDArray[np.float64]]


def _curves(
    groups: Groups,
    metric: str,
    xlabel: str,
    where: _Abscissa,
    whole: bool = False,
    among: Groups | None = None,
) -> Chart | None:
    """Return the groups' lines, each with the look that it has ``among`` those of the other charts."""
    bands = {label: found for label, runs in groups.items() if (found := _band_shown(runs, metric))}
    if not bands:
        return None
    share = "." in metric and is_share(metric.split(".")[-1])
    scale, drawn = (100.0 if share else 1.0), looks(among or groups)
    lines = [
        _line(where(groups[label], points.rounds), points, scale, label, drawn[label])
        for label, points in bands.items()
    ]
    floor = 0 if share and all(points.mean.min() >= 0 for points in bands.values()) else None
    unit = " %" if share else ""
    return Chart(_title(metric), xlabel, lines, unit=unit, whole=whole, y_range=(floor, None))


def _band_shown(runs: Sequence[Run], metric: str) -> Band | None:
    """Return a band, of local training its end alone: its rounds are clients one after the other."""
    found = band(runs, metric)
    if found is None or group_baseline(runs) != "local":
        return found
    std = None if found.std is None else found.std[-1:]
    return Band(found.rounds[-1:], found.mean[-1:], std) if "." in metric else None


def _line(x: NDArray[np.float64], points: Band, scale: float, label: str, look: dict[str, Any]) -> Line:
    """Return one group; a baseline that stands at one place only (no rounds, no bytes) is a level line."""
    mean = (scale * points.mean).tolist()
    if "marker" not in look and not np.ptp(x):
        return Line(label, look, mean[-1:])
    spread = None if points.std is None else (scale * points.std).tolist()
    return Line(label, look, mean, x.tolist(), points.rounds.tolist(), spread)


def _title(metric: str) -> str:
    part, _, name = metric.rpartition(".")
    titles = {
        "global": "Global test",
        "federated": "Summed test",
        "personal": "Personal test",
        "client_metrics": "Reported",
        "hidden_truth": "Pseudo labels:",
    }
    if not part:
        return capital(metric_title(metric).replace("train ", "training "))
    return f"{titles.get(part, part)} {metric_title(name)}{_percent(name)}"


def _spent(size: float, *keys: str) -> _Abscissa:
    def where(runs: Sequence[Run], rounds: NDArray[np.int64]) -> NDArray[np.float64]:
        totals = [running_total(run, *keys) for run in runs]
        spent = [[total[int(r)] for r in rounds] for total in totals if all(int(r) in total for r in rounds)]
        return np.asarray(np.mean(spent, axis=0) / size, dtype=np.float64)

    return where


def _largest(groups: Groups, *keys: str) -> float:
    totals = [running_total(run, *keys) for runs in groups.values() for run in runs]
    return max((value for total in totals for value in total.values()), default=0.0)


def _scores(run: Run) -> NDArray[np.float64]:
    return run.clients.scores[np.isfinite(run.clients.scores)]


def _percent(metric: str) -> str:
    return " (%)" if is_share(metric) else ""


def _is_whole(metric: str, values: Sequence[NDArray[np.float64]]) -> bool:
    """Return whether an axis goes from 0 to 100 %: not for what may be negative, or is no share."""
    return is_share(metric) and all(part.min() >= 0 for part in values)


def _bounded(
    set_limits: Callable[[float, float], Any], values: Sequence[NDArray[np.float64]], metric: str
) -> None:
    if _is_whole(metric, values):
        set_limits(0, 100)


def _client_quantiles(runs: Sequence[Run]) -> NDArray[np.float64] | None:
    """Return the mean over seeds of each run's quantiles over its clients."""
    known = [values for run in runs if len(values := _scores(run))]
    return np.mean([np.quantile(values, _QUANTILES) for values in known], axis=0) if known else None


_GLOBAL, _PERSONAL = "on the whole test set", "on the clients' own tests"
_FEDERATED = "on the clients' own tests, from sums over the clients"
_MEASURED = ("global", "federated", "personal")
_SAME = 1e-9


def shown_parts(groups: Groups, metric: str) -> dict[str, str]:
    """Return the parts of an evaluation to show, ``"global"``, ``"personal"`` or both, each with where it is measured.

    Where there is no test set but the clients' own, ``"federated"`` takes the place of ``"global"``.

    Where every test example belongs to a client, a common model has the same score on both, and one is enough.
    The same holds next to clients with models of their own: their global score is one number, which tables have.
    """
    runs = [run for group in groups.values() for run in group]
    measured = {part for part in _MEASURED if any(len(curve(run, f"{part}.{metric}")[0]) for run in runs)}
    whole = {"global": _GLOBAL}
    if "federated" in measured and "global" not in measured:
        whole = {"federated": _FEDERATED}
    if "personal" not in measured:
        return whole
    if all(_coincide(run, metric) for run in runs):
        return {"global": f"{_GLOBAL}, which is also the weighted mean over the clients' own tests"}
    if all(_coincide(run, metric) or _alone(run, metric) for run in runs):
        common = any(_coincide(run, metric) for run in runs)
        return {"personal": _PERSONAL + ", which for a common model is the whole test set" * common}
    return whole | {"personal": _PERSONAL}


def _coincide(run: Run, metric: str) -> bool:
    (rounds, whole), (others, own) = (curve(run, f"{part}.{metric}") for part in ("global", "personal"))
    return np.array_equal(rounds, others) and bool(
        np.allclose(whole, own, rtol=0, atol=_SAME, equal_nan=True)
    )


def _alone(run: Run, metric: str) -> bool:
    """Return whether the clients have models of their own, tried on their own tests."""
    own = run.baseline in WITHOUT_MODEL or own_models(run)
    return own and len(curve(run, f"personal.{metric}")[0]) > 0
