"""The figures of a table's cells, read from run directories and partitions."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fednlp.checked_json import Number, Shape, damaged, parse_json
from fednlp.disk import regular
from fednlp.formatting.units import human_bytes, human_seconds, is_share
from fednlp.partition import Partition
from fednlp.reports.read import Run, curve, read_run
from fednlp.reports.sections.costs import first_reached
from fednlp.reports.sections.cross_client import mean_of, read_cross_client
from fednlp.reports.table import client_memory
from fednlp.reproduction.agreement import Values, interval
from fednlp.reproduction.jobs import FIGURES, Job, Work
from fednlp.reproduction.manifest import OF_PARTITIONS, Column, Entry, Measure, Row
from fednlp.simulation.compare import Planned

Cells = Mapping[str, Mapping[str, Values]]
"""Figures by column, row and seed."""

_BYTES: tuple[Measure, ...] = ("sent", "sent a round", "sent to target", "memory")
_COUNTED: Mapping[Measure, str] = {
    "simulated time": "simulated_seconds",
    "training time": "seconds_training",
    "labelling time": "seconds_labelling",
    "sending time": "seconds_sending",
    "energy": "energy_joules",
}
"""Measures that are a count of a run's lines, which has them only where they are priced."""


class Figures(Shape):
    """``figures.json`` of a partition."""

    mean_divergence: Number = 0.0


def cells(work: Work) -> dict[str, dict[str, dict[int, float]]]:
    """Return the figures of an entry's finished jobs, by column, row and seed."""
    runs = {key: finished_runs(work, key) for key in work.entry.runs}
    found: dict[str, dict[str, dict[int, float]]] = {}
    for column in work.entry.columns:
        measure = column.measure or work.entry.measure
        rows = {
            row.name: _partition_cell(work, row, measure)
            if measure in OF_PARTITIONS
            else _run_cell(runs, work.entry, column, row, measure)
            for row in work.entry.rows
        }
        found[column.name] = {name: values for name, values in rows.items() if values}
    return found


def finished_runs(work: Work, key: str = "") -> dict[str, list[Run]]:
    """Return the finished runs of an entry by method, of one key of its runs or of all."""
    groups: dict[str, list[Run]] = {}
    for name, jobs in work.jobs.items():
        for job in jobs if key in ("", name) else []:
            if isinstance(job.work, Planned) and job.done:
                label = job.work.method if key or len(work.jobs) == 1 else f"{name}: {job.work.method}"
                groups.setdefault(label, []).append(read_run(job.folder))
    return groups


def text_of(measure: Measure, values: Values) -> str:
    """Return a figure for people: the mean over seeds ± half of its 95 % interval.

    >>> text_of("score", {0: 50.0, 1: 52.0}), text_of("sent", {0: 2e9})
    ('51.0 ± 12.7', '2 GB')
    """
    mean, half = interval(list(values.values()))
    show = _format(measure)
    return show(mean) if half is None else f"{show(mean)} ± {show(half)}"


def _format(measure: Measure) -> Callable[[float], str]:
    if measure in _BYTES:
        return human_bytes
    if "time" in measure:
        return human_seconds
    if measure in ("training loss", *OF_PARTITIONS):
        return "{:.3f}".format
    if measure in ("energy", "rounds to target"):
        return "{:,.0f}".format
    return "{:.1f}".format


def _run_cell(
    runs: Mapping[str, Mapping[str, list[Run]]], entry: Entry, column: Column, row: Row, measure: Measure
) -> dict[int, float]:
    part = "personal" if entry.measure == "personal" else "global"
    key = row.run or column.run or (next(iter(runs)) if len(runs) == 1 else "")
    group = runs.get(key, {})
    target = _target(column, group, part)
    method = column.method.replace("{}", row.method) if column.method else row.method
    values = {run.seed: _value(run, measure, column, row, part, target) for run in group.get(method, [])}
    return {seed: value for seed, value in values.items() if value is not None}


def _target(column: Column, runs: Mapping[str, list[Run]], part: str) -> float | None:
    """Return the value that a column is about reaching: its own, or the mean of a method's last scores."""
    if not isinstance(column.target, str):
        return column.target
    return mean_of([_last(run, f"{part}.{run.metric}") for run in runs.get(column.target, [])])


def _last(run: Run, name: str) -> float | None:
    values = curve(run, name)[1]
    return float(values[-1]) if len(values) else None


def _value(
    run: Run, measure: Measure, column: Column, row: Row, part: str, target: float | None
) -> float | None:
    if measure in _COUNTED:
        key = _COUNTED[measure]
        return run.total(key) if run.counted(key) else None
    match measure:
        case "score" | "personal":
            return _points(run, run.scores("global" if measure == "score" else "personal").get(run.metric))
        case "sent":
            return run.total("bytes_up") + run.total("bytes_down")
        case "sent a round":
            return (run.total("bytes_up") + run.total("bytes_down")) / max(len(run.rounds), 1)
        case "memory":
            return client_memory(run)
        case "training loss":
            return _last(run, "train_loss")
        case "engine on client":
            return _on_client(run, row.engine, column.client)
        case _:
            return None if target is None else _to_target(run, measure, part, target)


def _points(run: Run, value: float | None) -> float | None:
    return None if value is None else (100 if is_share(run.metric) else 1) * float(value)


def _to_target(run: Run, measure: Measure, part: str, target: float) -> float | None:
    found = first_reached(run, f"{part}.{run.metric}", target)
    if found is None:
        return None
    of: dict[Measure, float | None] = {
        "sent to target": found.bytes,
        "simulated time to target": found.simulated_seconds,
        "rounds to target": float(found.rounds),
    }
    return of[measure]


def _on_client(run: Run, engine: str, client: str) -> float | None:
    """Return the score of an engine on one client's tests, or its mean over all of them."""
    found = read_cross_client(run)
    if found is None:
        return None
    scores = dict(found.rows).get(engine) if engine else found.method
    if scores is None or (client and client not in found.tests):
        return None
    return _points(run, scores[found.tests.index(client)] if client else mean_of(scores))


def _partition_cell(work: Work, row: Row, measure: Measure) -> dict[int, float]:
    jobs = work.jobs.get(row.name, [])
    return {job.seed: _of_partition(job, measure) for job in jobs if job.done}


def _of_partition(job: Job, measure: Measure) -> float:
    if measure == "divergence":
        return float(read_figures(job.folder).mean_divergence)
    sizes = np.diff(Partition.load(job.folder / "partition.npz").train_offsets)
    return float(sizes.std() / sizes.mean())


def read_figures(folder: Path) -> Figures:
    """Return a partition's figures as ``fednlp partition`` found them.

    Raises:
        RunError: The file is damaged.
    """
    path = folder / FIGURES
    try:
        return Figures.model_validate(parse_json(regular(path).read_bytes(), Figures))
    except (OSError, ValueError) as error:
        raise damaged(path, error, "remove the folder and run the command again") from error
