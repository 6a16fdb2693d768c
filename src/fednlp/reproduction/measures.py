"""The figures of a table's cells, from finished runs and partitions."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from fednlp.formatting.units import is_correlation, is_share
from fednlp.partition.plot_data import Overview
from fednlp.reports.hub_metadata import task_of
from fednlp.reports.read import Run, curve
from fednlp.reports.sections.costs import first_reached
from fednlp.reports.sections.cross_client import mean_of, read_cross_client
from fednlp.reports.table import client_memory
from fednlp.reproduction.agreement import Values, standard_error
from fednlp.reproduction.jobs import Work
from fednlp.reproduction.manifest import OF_PARTITIONS, TO_TARGET, Column, Measure, Row
from fednlp.reproduction.outcomes import Outcomes, Partitioning, examples_of
from fednlp.studies.compare import Planned

_COUNTED: Mapping[Measure, str] = {
    "simulated time": "simulated_seconds",
    "training time": "seconds_training",
    "labelling time": "seconds_labelling",
    "sending time": "seconds_sending",
    "energy": "energy_joules",
    "training energy": "joules_training",
    "labelling energy": "joules_labelling",
    "sending energy": "joules_sending",
}
"""Measures that are a count of a run's lines, which has them only where they are priced."""

_SHARES_OF_EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "text-classification": ("accuracy",),
    "prompt-classification": ("accuracy",),
    "question-answering": ("exact_match",),
}
"""Metrics that are the share of test examples with a right answer, by task."""


def cells(work: Work, outcomes: Outcomes, column: Column) -> dict[str, Values]:
    """Return the figures of an entry's column, by row and seed; rows without any are left out."""
    measure = column.measure or work.entry.measure
    if measure in OF_PARTITIONS:
        found = {row.name: _partition_cell(work, outcomes, column, row, measure) for row in work.entry.rows}
    else:
        runs = {key: finished_runs(work, outcomes, key) for key in work.entry.runs}
        found = {row.name: _run_cell(work, runs, column, row, measure) for row in work.entry.rows}
    return {name: values for name, values in found.items() if values}


def errors(work: Work, outcomes: Outcomes, column: Column) -> dict[str, float]:
    """Return the standard errors of a column's accuracies on their test examples, by row, in points.

    Of several seeds the largest counts. Rows whose figures are no shares of right answers are left out, and so are
    those of a single client's engine.
    """
    measure = column.measure or work.entry.measure
    runs = {key: finished_runs(work, outcomes, key) for key in work.entry.runs}
    found = {}
    for row in work.entry.rows:
        key, method = work.entry.source_of(row, column)
        every = [] if row.engine and measure == "personal" else runs.get(key, {}).get(method, [])
        known = [error for run in every if (error := _error(run, measure)) is not None]
        if known:
            found[row.name] = max(known)
    return found


def _error(run: Run, measure: Measure) -> float | None:
    """Return the standard error of a run's score, in points; None where it is no share of right answers."""
    shares = _SHARES_OF_EXAMPLES.get(task_of(run.summary or {}), ())
    if measure not in ("score", "first score", "personal") or run.metric not in shares:
        return None
    if measure == "first score":
        accuracy = next(iter(_curve(run, f"global.{run.metric}")), None)
    else:
        accuracy = _scores(run, measure).get(run.metric)
    examples = examples_of(run, "test")
    return 100 * standard_error(accuracy, examples) if accuracy is not None and examples else None


def finished_runs(work: Work, outcomes: Outcomes, key: str = "") -> dict[str, list[Run]]:
    """Return the finished runs of an entry by method, of one key of its runs or of all."""
    groups: dict[str, list[Run]] = {}
    for name, jobs in work.jobs.items():
        for job in jobs if key in ("", name) else []:
            if isinstance(job.work, Planned) and job.name in outcomes.runs:
                label = job.work.method if key or len(work.entry.runs) == 1 else f"{name}: {job.work.method}"
                groups.setdefault(label, []).append(outcomes.runs[job.name])
    return groups


def _run_cell(
    work: Work, runs: Mapping[str, Mapping[str, list[Run]]], column: Column, row: Row, measure: Measure
) -> dict[int, float]:
    part = "personal" if work.entry.measure == "personal" else "global"
    key, method = work.entry.source_of(row, column)
    targets = _targets(work, runs, column, key, part)
    values = {
        run.seed: _value(run, measure, column, row, part, targets.get(run.seed))
        for run in runs.get(key, {}).get(method, [])
    }
    return {seed: value for seed, value in values.items() if value is not None and math.isfinite(value)}


def _targets(
    work: Work, runs: Mapping[str, Mapping[str, list[Run]]], column: Column, key: str, part: str
) -> dict[int, float]:
    """Return the value that a column is about reaching, by seed: its own, or a method's last score with this seed.

    Args:
        runs: Its finished runs by key and method.
        part: Which of their scores.
    """
    if not isinstance(column.target, str):
        every = (run.seed for group in runs.get(key, {}).values() for run in group)
        return dict.fromkeys(every, column.target) if column.target is not None else {}
    of = work.paper.target_of(work.entry, key, column)
    last = {run.seed: _last(run, f"{part}.{run.metric}") for run in runs[of[0]].get(of[1], [])} if of else {}
    return {seed: value for seed, value in last.items() if value is not None}


def _last(run: Run, name: str) -> float | None:
    return next(reversed(_curve(run, name)), None)


def unreached(work: Work, outcomes: Outcomes, column: Column) -> dict[str, list[int]]:
    """Return by row the seeds whose finished run never reached the column's target.

    Args:
        column: The column; of another measure than one to a target no run is meant.
    """
    if (column.measure or work.entry.measure) not in TO_TARGET:
        return {}
    runs = {key: finished_runs(work, outcomes, key) for key in work.entry.runs}
    part = "personal" if work.entry.measure == "personal" else "global"
    found = {}
    for row in work.entry.rows:
        key, method = work.entry.source_of(row, column)
        targets = _targets(work, runs, column, key, part)
        found[row.name] = [
            run.seed
            for run in runs.get(key, {}).get(method, [])
            if run.seed in targets and first_reached(run, f"{part}.{run.metric}", targets[run.seed]) is None
        ]
    return {name: seeds for name, seeds in found.items() if seeds}


def _value(
    run: Run, measure: Measure, column: Column, row: Row, part: str, target: float | None
) -> float | None:
    if measure in _COUNTED:
        key = _COUNTED[measure]
        return run.total(key) if run.counted(key) else None
    match measure:
        case "personal" if row.engine:
            return _on_client(run, row.engine, row.engine)
        case "score" | "personal":
            return _points(run, _scores(run, measure).get(run.metric))
        case "first score":
            return _points(run, next(iter(_curve(run, f"{part}.{run.metric}")), None))
        case "score falls":
            return _points(run, _falls(_curve(run, f"{part}.{run.metric}")))
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


def _curve(run: Run, name: str) -> list[float]:
    """Return the values of a metric of :func:`fednlp.reports.read.curve`, in the order of the rounds."""
    return [float(value) for value in curve(run, name)[1]]


def _falls(values: Sequence[float]) -> float | None:
    """Return the sum of the falls from each value to the next; None of a single value."""
    falls = [max(earlier - later, 0.0) for earlier, later in pairwise(values)]
    return math.fsum(falls) if falls else None


def _scores(run: Run, measure: Measure) -> Mapping[str, Any]:
    """Return the last scores of the model, or the clients' own, after fine-tuning where there is any."""
    if measure == "score":
        return run.scores("global")
    return run.scores("finetuned") or run.scores("personal")


def _points(run: Run, value: float | None) -> float | None:
    """Return a score as papers print it: shares and correlations times 100."""
    hundredfold = is_share(run.metric) or is_correlation(run.metric)
    return None if value is None else (100 if hundredfold else 1) * float(value)


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


def _partition_cell(
    work: Work, outcomes: Outcomes, column: Column, row: Row, measure: Measure
) -> dict[int, float]:
    jobs = work.jobs.get(work.entry.partition_of(row), [])
    found = {job.seed: made for job in jobs if (made := outcomes.partitions.get(job.name))}
    values = {seed: _of_partition(one, measure, row.name, column.name) for seed, one in found.items()}
    return {seed: value for seed, value in values.items() if value is not None}


def _of_partition(found: Partitioning, measure: Measure, client: str, label: str) -> float | None:
    match measure:
        case "divergence":
            return found.divergence
        case "size spread":
            return float(found.sizes.std() / found.sizes.mean())
        case _:
            return _label_share(found.view, client, label)


def _label_share(view: Overview, client: str, label: str) -> float | None:
    """Return the share of a client's training examples that have a label, in points; None without such a client."""
    if client not in view.names or label not in view.label_names:
        return None
    counts = view.counts[view.names.index(client)]
    return float(100 * counts[view.label_names.index(label)] / counts.sum())
