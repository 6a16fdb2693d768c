"""The comparison of algorithms (benchmark paper, Table 2): mean and spread over seeds."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fednlp.formatting.units import capital, is_share, metric_title
from fednlp.reports.groups import Groups, group_reference, metric_of
from fednlp.reports.read import Run
from fednlp.reports.travel import own_models

Kind = Literal["share", "plain", "points", "bytes", "seconds", "count"]


@dataclass(frozen=True)
class Stat:
    """One number measured once a seed.

    >>> Stat((0.5, 0.7)).mean
    0.6
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """The sample standard deviation over the seeds (n - 1), None for one seed."""
        if len(self.values) < 2:
            return None
        with np.errstate(all="ignore"):
            return float(np.std(self.values, ddof=1))


@dataclass(frozen=True)
class Column:
    """What a column shows, and how its numbers are to be read."""

    key: str
    heading: str
    kind: Kind


@dataclass(frozen=True)
class Row:
    """One algorithm or reference; a cell is None where no run measured it."""

    label: str
    reference: str | None
    seeds: int
    cells: Mapping[str, Stat | None]


@dataclass(frozen=True)
class Table:
    """Rows in the order given, what the numbers are, and remarks to be put under them."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str
    notes: tuple[str, ...]
    head: str = "Algorithm"


_MEMORY = "Memory: what a client takes at its peak, predicted."
_FINETUNED = (
    "After own steps: the personal test when each client has taken finetune_steps more steps by itself."
)


def compare_table(runs: Groups, *, metric: str | None = None) -> Table:
    """Compare algorithms and references over seeds, by the last evaluation of every run.

    Args:
        runs: For each algorithm or reference, in the order to show, its runs (one a seed).
        metric: The metric of the evaluation to compare; by default the one that stands for the runs' task.

    Raises:
        RunError: The runs are of tasks with different metrics.
    """
    metric = metric or metric_of(runs)
    everyone = [run for group in runs.values() for run in group]
    absent = {
        "simulated_seconds": not any(run.counted("simulated_seconds") for run in everyone),
        "finetuned": not any(run.scores("finetuned") for run in everyone),
        "memory": not _shows_memory(everyone),
    }
    measures = [(column, measure) for column, measure in _measures(metric) if not absent.get(column.key)]
    rows = [
        Row(
            label,
            group_reference(group),
            len(group),
            {column.key: stat_of(group, measure) for column, measure in measures},
        )
        for label, group in runs.items()
    ]
    said = [
        _caption(metric),
        *([] if absent["finetuned"] else [_FINETUNED]),
        *([] if absent["memory"] else [_MEMORY]),
    ]
    return Table(tuple(column for column, _ in measures), tuple(rows), " ".join(said), tuple(_notes(runs)))


def client_memory(run: Run) -> int | None:
    """Return the bytes that a client was predicted to take at its peak; None where the run does not say."""
    found = (run.summary or {}).get("client_memory_bytes")
    return found if isinstance(found, int) else None


def _shows_memory(runs: Sequence[Run]) -> bool:
    """Say whether memory has a column: where it is known, and small devices are what the runs are about."""
    asked = any(run.setting("costs.device") or run.setting("fewshot") for run in runs)
    return asked and any(client_memory(run) is not None for run in runs)


def _measures(metric: str) -> list[tuple[Column, Callable[[Run], Any]]]:
    kind: Kind = "share" if is_share(metric) else "plain"

    def evaluated(part: str, key: str) -> Callable[[Run], Any]:
        return lambda run: run.scores(part).get(key)

    return [
        (Column("global", "Global test", kind), evaluated("global", metric)),
        (Column("personal", "Personal test", kind), evaluated("personal", metric)),
        (
            Column("personal_worst_decile", "Worst decile", kind),
            evaluated("personal", f"{metric}_worst_decile"),
        ),
        (Column("personal_spread", "Client spread", kind), evaluated("personal", f"{metric}_std")),
        (Column("finetuned", "After own steps", kind), evaluated("finetuned", metric)),
        (Column("bytes", "Sent", "bytes"), lambda run: run.total("bytes_up") + run.total("bytes_down")),
        (Column("seconds", "Time", "seconds"), lambda run: run.total("seconds")),
        (
            Column("simulated_seconds", "Simulated time", "seconds"),
            lambda run: run.total("simulated_seconds") if run.counted("simulated_seconds") else None,
        ),
        (Column("memory", "Memory", "bytes"), client_memory),
        # Local training has none: its rounds are clients one after the other.
        (
            Column("rounds", "Rounds", "count"),
            lambda run: None if run.reference == "local" else len(run.rounds),
        ),
    ]


def _caption(metric: str) -> str:
    unit = " in %" if is_share(metric) else ""
    return (
        f"{capital(metric_title(metric))}{unit} after the last round, mean ± standard deviation over seeds. "
        "Personal test: every client on its own test examples, weighted mean; worst decile: mean of the worst "
        "tenth of the clients; client spread: standard deviation over them. Sent: up and down."
    )


def stat_of(group: Sequence[Run], measure: Callable[[Run], Any]) -> Stat | None:
    """Return one measure of the runs of a group, None where none has it."""
    values = [measure(run) for run in group]
    known = tuple(float(value) for value in values if isinstance(value, int | float))
    return Stat(known) if known else None


def _notes(runs: Groups) -> Iterator[str]:
    said = set()
    for label, group in runs.items():
        for run in group:
            for note in _run_notes(run):
                if (label, note) not in said:
                    said.add((label, note))
                    yield f"{label}: {note}"


def _run_notes(run: Run) -> Iterator[str]:
    if run.summary and run.summary.get("note"):
        yield str(run.summary["note"])
    if own_models(run) and run.scores("global"):
        yield "clients have models of their own; the global test is the mean of the models of some clients"
    if run.summary and run.summary.get("stopped"):
        yield f"seed {run.seed} stopped after round {len(run.rounds)}: {run.summary['stopped']}"
    elif not run.finished:
        yield f"seed {run.seed} is unfinished, {len(run.rounds)} of {run.setting('num_rounds', '?')} rounds"
