"""The section "Bytes and time" of a report: what a quality cost, and what was sent in all."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fednlp.costs.accounting import PARTS
from fednlp.errors import RunError
from fednlp.federated.cohort import failures
from fednlp.formatting.places import named
from fednlp.formatting.units import (
    DASH,
    capital,
    digits,
    human_bytes,
    human_joules,
    human_seconds,
    is_correlation,
    is_share,
    metric_title,
    metric_value,
)
from fednlp.reports import plots
from fednlp.reports.charts import Chart, draw
from fednlp.reports.document import Block, Grid, Picture, Text
from fednlp.reports.groups import Groups, group_baseline, metric_of
from fednlp.reports.plots import shown_parts
from fednlp.reports.read import Run, curve, running_total
from fednlp.reports.render import cell_text
from fednlp.reports.table import Stat, TableColumn, client_memory, stat_of

SHARES = (0.5, 0.8, 0.9, 0.95)
"""Which shares of the best final figure are asked for where no target is given."""

_MOST_DROPPED = 20
_SIMULATED = "simulated_seconds"
_MEMORY = "memory"


def cost_blocks(groups: Groups, target: float | None = None) -> Iterator[Block]:
    """Yield the section's figures and tables.

    Raises:
        RunError: The metric cannot be ``target``.
    """
    metric = metric_of(groups)
    _check_target(metric, target)
    yield from _pictures(groups, metric)
    yield from _totals(groups)
    yield from _reached_blocks(groups, metric, target)
    yield from _dropped(groups)
    yield from _staleness(groups)


@dataclass(frozen=True)
class Reached:
    """What a run had spent by the evaluation at which it first reached a quality."""

    rounds: int
    bytes: float
    simulated_seconds: float | None


def first_reached(run: Run, metric: str, target: float) -> Reached | None:
    """Return what a run had spent when it first reached a quality, None where it never did.

    Args:
        metric: As for :func:`fednlp.reports.curve`, e.g. ``"global.accuracy"``.
        target: A value of the metric.

    Source: Li et al. 2022, *FedSplitBERT*, Table VI and Figure 6.
    """
    number = next((int(n) for n, value in zip(*curve(run, metric), strict=True) if value >= target), None)
    if number is None:
        return None
    seconds = running_total(run, _SIMULATED)[number] if run.counted(_SIMULATED) else None
    return Reached(number, running_total(run, "bytes_up", "bytes_down")[number], seconds)


def targets(groups: Groups, metric: str) -> list[float]:
    """Return :data:`SHARES` of the best algorithm's final figure, its mean over seeds; none without one."""
    finals = [
        stat_of(runs, lambda run: _final(run, metric)) for runs in groups.values() if not group_baseline(runs)
    ]
    best = max((stat.mean for stat in finals if stat and math.isfinite(stat.mean)), default=0.0)
    return [share * best for share in SHARES] if best > 0 else []


def _final(run: Run, metric: str) -> float | None:
    values = curve(run, metric)[1]
    return float(values[-1]) if len(values) else None


def _check_target(metric: str, target: float | None) -> None:
    if target is None:
        return
    bounded = is_share(metric) or is_correlation(metric)
    if not math.isfinite(target) or (bounded and not 0 < target <= 1):
        hint = f"; write {target / 100:g} for {target:g} %" if is_share(metric) and 1 < target <= 100 else ""
        raise RunError(f"--target {target:g}: {metric_title(metric)} cannot be that{hint}")


def _pictures(groups: Groups, metric: str) -> Iterator[Block]:
    sent = any(run.total("bytes_up") + run.total("bytes_down") for runs in groups.values() for run in runs)
    title = capital(metric_title(metric))
    drawn: list[tuple[str, str, Callable[[Groups, str], Chart | None]]] = [
        ("cost-simulated", "the time that the rounds would have taken", plots.against_simulated_seconds),
        ("cost-time", "the time spent", plots.against_seconds),
    ]
    if sent:
        drawn.insert(0, ("cost-bytes", "what went over the wire", plots.against_bytes))
    for file, against, chart_of in drawn:
        for part, where in shown_parts(groups, metric).items():
            chart = chart_of(groups, f"{part}.{metric}")
            if chart is not None:
                name = file if part == "global" else f"{file}-{part}"
                yield Picture(name, f"{title} {where}, against {against}.", draw(chart), chart)


def _totals(groups: Groups) -> Iterator[Block]:
    """Yield a table with a row a run; what no run counted has no column."""
    everyone = [run for runs in groups.values() for run in runs]
    columns = [
        (head, say) for head, key, say in _COLUMNS if key is None or any(_knows(run, key) for run in everyone)
    ]
    rows = [
        [label, str(run.seed), *(say(run) for _, say in columns)]
        for label, runs in groups.items()
        for run in runs
    ]
    notes = [note] if (note := _cost_model_note(everyone)) else []
    if any(_knows(run, _MEMORY) for run in everyone):
        notes.append("Memory: what a client requires at its peak, predicted; the libraries come on top.")
    folders = [run.folder for run in everyone]
    yield Grid(["Algorithm", "Seed", *(head for head, _ in columns)], rows, notes, folders=folders)


def _knows(run: Run, key: str) -> bool:
    return client_memory(run) is not None if key == _MEMORY else run.counted(key)


def _memory(run: Run) -> str:
    taken = client_memory(run)
    return DASH if taken is None else human_bytes(taken)


def _count(key: str) -> Callable[[Run], str]:
    return lambda run: f"{run.total(key):,.0f}" if run.counted(key) else DASH


def _a_round(run: Run) -> str:
    return human_seconds(run.total("seconds") / len(run.rounds)) if run.rounds else DASH


def _simulated(run: Run) -> str:
    return human_seconds(run.total(_SIMULATED)) if run.counted(_SIMULATED) else DASH


def _parts(unit: str, text: Callable[[float], str]) -> Callable[[Run], str]:
    """Return what writes a run's training, labelling and sending, in this order."""
    keys = [f"{unit}_{part}" for part in PARTS]
    return lambda run: " + ".join(text(run.total(key)) for key in keys) if run.counted(keys[0]) else DASH


_COLUMNS: tuple[tuple[str, str | None, Callable[[Run], str]], ...] = (
    ("Rounds", None, lambda run: str(len(run.rounds))),
    ("Local steps", None, lambda run: f"{sum(line.get('steps') or 0 for line in run.rounds):,}"),
    ("Examples", None, lambda run: f"{sum(line.get('examples') or 0 for line in run.rounds):,}"),
    ("Sent up", None, lambda run: human_bytes(run.total("bytes_up"))),
    ("Sent down", None, lambda run: human_bytes(run.total("bytes_down"))),
    ("Tensors up", "tensors_up", _count("tensors_up")),
    ("Tensors down", "tensors_down", _count("tensors_down")),
    ("Parameters up", "parameters_up", _count("parameters_up")),
    ("Labelled", "labelled", _count("labelled")),
    ("Sent to label", "bytes_labelling", lambda run: human_bytes(run.total("bytes_labelling"))),
    ("Simulated time", _SIMULATED, _simulated),
    ("Training + labelling + sending", "seconds_training", _parts("seconds", human_seconds)),
    ("Energy", "energy_joules", lambda run: human_joules(run.total("energy_joules"))),
    ("Energy of these", "joules_training", _parts("joules", human_joules)),
    ("Memory", _MEMORY, _memory),
    ("Time", None, lambda run: human_seconds(run.total("seconds"))),
    ("A round", None, _a_round),
)


def _cost_model_note(runs: Sequence[Run]) -> str:
    """Return the rates behind the simulated time, where all runs agree on them."""
    rates = {
        (run.setting("costs.bandwidth_up"), run.setting("costs.bandwidth_down"), _devices(run))
        for run in runs
        if run.counted(_SIMULATED)
    }
    if len(rates) != 1:
        return ""
    up, down, device = rates.pop()
    parts = [f"{rate:g} MB/s {way}" for rate, way in ((up, "up"), (down, "down")) if rate is not None]
    parts += [device] if device else []
    if not parts:
        return ""
    return f"Simulated time: every synchronous round as long as its slowest client; {', '.join(parts)}."


def _devices(run: Run) -> str:
    """Return the device or the mix of devices of a run, empty where none was named.

    A mix names its devices by falling share.
    """
    device = named(run.setting("costs.device"))
    if not isinstance(device, Mapping):
        return f"device {device}" if device else ""
    shares = sorted(device.items(), key=lambda item: (-item[1], item[0]))
    return "devices " + " and ".join(f"{name} ({100 * share:.3g} %)" for name, share in shares)


def _reached_blocks(groups: Groups, metric: str, target: float | None) -> Iterator[Block]:
    federated = {label: runs for label, runs in groups.items() if not group_baseline(runs)}
    for part, where in shown_parts(federated, metric).items() if federated else ():
        yield from _reached(federated, f"{part}.{metric}", where, target)


def _reached(federated: Groups, key: str, where: str, target: float | None) -> Iterator[Block]:
    """Yield what each algorithm had sent when it first reached a quality (FedSplitBERT, Table VI)."""
    metric = key.split(".")[-1]
    measured = {
        label: runs for label, runs in federated.items() if any(_final(run, key) is not None for run in runs)
    }
    shares = [f" ({100 * share:g} % of the best)" for share in SHARES]
    goals = dict(zip(targets(measured, key), shares, strict=False)) if target is None else {target: ""}
    if not measured or not goals:
        return
    timed = any(run.counted(_SIMULATED) for runs in measured.values() for run in runs)
    rows = [row for value, of in goals.items() for row in _target_rows(measured, key, value, of, timed)]
    gain = ["Gain"] if len(measured) > 1 else []
    heads = ["Algorithm", f"{capital(metric_title(metric))} reached", "Seeds", "Sent", *gain, "Rounds"]
    which = (
        "that share of the best algorithm's final figure" if target is None else "the target that was given"
    )
    notes = [
        f"{capital(metric_title(metric))} {where}: bytes up and down, rounds and time by the evaluation that "
        f"first reached {which}; mean ± standard deviation over the seeds that reached it, rounds as a range.",
    ]
    if gain:
        notes.append("Gain: the bytes of the algorithm that sent most for it, over these.")
    yield Grid(heads + ["Simulated time"] * timed, rows, notes)


def _target_rows(groups: Groups, key: str, target: float, of: str, timed: bool) -> Iterator[list[str]]:
    found = {label: [first_reached(run, key, target) for run in runs] for label, runs in groups.items()}
    there = {label: [one for one in every if one] for label, every in found.items()}
    sent = {label: _stat([one.bytes for one in ones]) for label, ones in there.items()}
    most = max((stat.mean for stat in sent.values() if stat), default=0.0)
    for label, ones in there.items():
        stat = sent[label]
        seconds = [one.simulated_seconds for one in ones if one.simulated_seconds is not None]
        cells = [
            label,
            metric_value(key.split(".")[-1], target) + of,
            f"{len(ones)} of {len(found[label])}",
            cell_text(TableColumn("sent", "", "bytes"), stat),
            *([digits(most / stat.mean) if stat and stat.mean else DASH] if len(groups) > 1 else []),
            cell_text(TableColumn("rounds", "", "count"), _stat([float(one.rounds) for one in ones])),
        ]
        yield cells + [cell_text(TableColumn("simulated", "", "seconds"), _stat(seconds))] * timed


def _stat(values: Sequence[float]) -> Stat | None:
    return Stat(tuple(values)) if values else None


def _staleness(groups: Groups) -> Iterator[Block]:
    """Yield how late the updates of asynchronous methods were."""
    for label, runs in groups.items():
        late = [run.summary["staleness"] for run in runs if run.summary and "staleness" in run.summary]
        if late:
            mean, largest = sum(one["mean"] for one in late) / len(late), max(one["largest"] for one in late)
            yield Text(
                f"Staleness of {label}: updates were {mean:.2f} flushes late on average, {largest} at most."
            )


def _dropped(groups: Groups) -> Iterator[Block]:
    rows = [
        [label, str(run.seed), str(line["round"]), str(drop.get("client")), str(drop.get("reason"))]
        for label, runs in groups.items()
        for run in runs
        for line in run.rounds
        for drop in failures(line)
    ]
    if rows:
        more = len(rows) - _MOST_DROPPED
        notes = [f"and {more:,} more, in rounds.jsonl"] if more > 0 else []
        yield Text(f"Clients dropped from a round because they failed: {len(rows):,}.")
        yield Grid(
            ["Algorithm", "Seed", "Round", "Client", "Reason"], rows[:_MOST_DROPPED], notes, words=True
        )
