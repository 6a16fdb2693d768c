"""The comparison of algorithms (benchmark paper, Table 2): mean and spread over seeds, of one experiment or several."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from fednlp.config.sections import WITHOUT_MODEL
from fednlp.config.tables import lookup
from fednlp.formatting.units import capital, is_share, metric_title, plural
from fednlp.reports.checks import checks_of
from fednlp.reports.client_tensors import own_models
from fednlp.reports.describe import describe_partition, with_noun
from fednlp.reports.groups import Groups, group_baseline, metric_of
from fednlp.reports.read import Run, trivial_baseline
from fednlp.tasks.intervals import of_mean

_FEWEST_PAIRS = 3
MARK = "(!)"
"""Stands by a run whose records speak against its result."""
ColumnKind = Literal["share", "plain", "points", "bytes", "seconds", "joules", "count", "size"]


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
class TableColumn:
    """What a column shows, and how its numbers are to be read."""

    key: str
    heading: str
    kind: ColumnKind


@dataclass(frozen=True)
class TableRow:
    """One algorithm or baseline; a cell is None where no run measured it.

    Attributes:
        baseline: Which baseline it is; None for none.
        seeds: Number of runs.
        kind: How its numbers are to be read; None for as the columns say.
        marked: Something speaks against the result of one of its runs, which the notes say.
    """

    label: str
    baseline: str | None
    seeds: int
    cells: Mapping[str, Stat | None]
    kind: ColumnKind | None = None
    marked: bool = False


@dataclass(frozen=True)
class Table:
    """Rows in the order given, what the numbers are, and remarks to be put under them."""

    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    caption: str
    notes: tuple[str, ...]
    head: str = "Algorithm"


_MEMORY = "Memory: what a client requires at its peak, predicted."
_COSTS = "Simulated time and energy: of the devices and links of [costs]; time: of the machine that ran it."
_FEDERATED = "Summed test: the global model on the clients' own test examples, from sums over the clients."
_CLIENT_MEAN = "Mean of clients: of the same scores, in which every client counts the same."
_FINETUNED = (
    "After own steps: the personal test when each client has taken finetune_steps more steps by itself."
)


def compare_table(runs: Groups, *, metric: str | None = None) -> Table:
    """Compare algorithms and baselines over seeds, by the last evaluation of every run.

    Args:
        runs: For each algorithm or baseline, in the order to show, its runs (one a seed).
        metric: The metric of the evaluation to compare; by default the one that stands for the runs' task.

    Raises:
        RunError: The runs are of tasks with different metrics.
    """
    metric = metric or metric_of(runs)
    everyone = [run for group in runs.values() for run in group]
    absent = {
        **{
            key: not any(run.counted(key) for run in everyone)
            for key in ("simulated_seconds", "energy_joules")
        },
        "federated": not any(run.scores("federated") for run in everyone),
        "personal_client_mean": not any(_states_client_mean(run, metric) for run in everyone),
        "finetuned": not any(run.scores("finetuned") for run in everyone),
        "memory": not _shows_memory(everyone),
    }
    measures = [(column, measure) for column, measure in _measures(metric) if not absent.get(column.key)]
    rows = [
        TableRow(
            label,
            group_baseline(group),
            len(group),
            {column.key: stat_of(group, measure) for column, measure in measures},
            marked=any(checks_of(run) for run in group),
        )
        for label, group in runs.items()
    ]
    caption = [
        _caption(metric),
        *([] if absent["federated"] else [_FEDERATED]),
        *([] if absent["personal_client_mean"] else [_CLIENT_MEAN]),
        *([] if absent["finetuned"] else [_FINETUNED]),
        *([] if absent["simulated_seconds"] else [_COSTS]),
        *([] if absent["memory"] else [_MEMORY]),
    ]
    notes = (*_notes(runs), *_paired(runs, metric))
    return Table(tuple(column for column, _ in measures), tuple(rows), " ".join(caption), notes)


def client_memory(run: Run) -> int | None:
    """Return the bytes that a client was predicted to require at its peak; None where the run does not record it."""
    found = (run.summary or {}).get("client_memory_bytes")
    return found if isinstance(found, int) else None


def _states_client_mean(run: Run, metric: str) -> bool:
    """Return whether a run's clients have models of their own, and the plain mean of their scores is recorded."""
    return own_models(run) and run.scores("personal").get(f"{metric}_client_mean") is not None


def _shows_memory(runs: Sequence[Run]) -> bool:
    """Return whether memory has a column: where it is known, and small devices are what the runs are about."""
    asked = any(run.setting("costs.device") or run.setting("fewshot") for run in runs)
    return asked and any(client_memory(run) is not None for run in runs)


def _measures(metric: str) -> list[tuple[TableColumn, Callable[[Run], Any]]]:
    kind: ColumnKind = "share" if is_share(metric) else "plain"

    def evaluated(part: str, key: str) -> Callable[[Run], Any]:
        return lambda run: run.scores(part).get(key)

    return [
        (TableColumn("global", "Global test", kind), evaluated("global", metric)),
        (TableColumn("federated", "Summed test", kind), evaluated("federated", metric)),
        (TableColumn("personal", "Personal test", kind), evaluated("personal", metric)),
        (
            TableColumn("personal_client_mean", "Mean of clients", kind),
            evaluated("personal", f"{metric}_client_mean"),
        ),
        (
            TableColumn("personal_worst_decile", "Worst decile", kind),
            evaluated("personal", f"{metric}_worst_decile"),
        ),
        (TableColumn("personal_spread", "Client spread", kind), evaluated("personal", f"{metric}_std")),
        (TableColumn("finetuned", "After own steps", kind), evaluated("finetuned", metric)),
        (TableColumn("bytes", "Sent", "bytes"), lambda run: run.total("bytes_up") + run.total("bytes_down")),
        (TableColumn("simulated_seconds", "Simulated time", "seconds"), _counted("simulated_seconds")),
        (TableColumn("energy_joules", "Energy", "joules"), _counted("energy_joules")),
        (TableColumn("seconds", "Time", "seconds"), lambda run: run.total("seconds")),
        (TableColumn("memory", "Memory", "bytes"), client_memory),
        # Local training has none: its rounds are clients one after the other. Nor has what trains nothing.
        (
            TableColumn("rounds", "Rounds", "count"),
            lambda run: None if run.baseline in WITHOUT_MODEL else len(run.rounds),
        ),
    ]


def _counted(key: str) -> Callable[[Run], float | None]:
    return lambda run: run.total(key) if run.counted(key) else None


def _caption(metric: str) -> str:
    unit = " in %" if is_share(metric) else ""
    return (
        f"{capital(metric_title(metric))}{unit} after the last round, mean ± standard deviation over seeds. "
        "Personal test: every client on its own test examples, weighted mean; worst decile: mean of the worst "
        "10 % of the clients; client spread: standard deviation over them. Sent: up and down."
    )


def stat_of(group: Sequence[Run], measure: Callable[[Run], Any]) -> Stat | None:
    """Return one measure of the runs of a group, None where none has it."""
    values = [measure(run) for run in group]
    known = tuple(float(value) for value in values if isinstance(value, int | float))
    return Stat(known) if known else None


def stated_notes(runs: Groups) -> list[str]:
    """Return what runs state of themselves, such as that hidden labels were read; each once a method."""
    notes = (f"{label}: {note}" for label, group in runs.items() for run in group for note in _stated(run))
    return list(dict.fromkeys(notes))


def _notes(runs: Groups) -> Iterator[str]:
    seen = set()
    for label, group in runs.items():
        for run in group:
            for note in _run_notes(run):
                if (label, note) not in seen:
                    seen.add((label, note))
                    yield f"{label}: {note}"


def _stated(run: Run) -> Iterator[str]:
    if run.summary and run.summary.get("note"):
        yield str(run.summary["note"])


def _run_notes(run: Run) -> Iterator[str]:
    yield from _stated(run)
    for check in checks_of(run):
        yield f"{MARK} seed {run.seed}: {check.sentence}"
    if own_models(run) and run.scores("global"):
        alone = not run.setting("evaluation.server_model", False)
        what = "the mean of the models of some clients" if alone else "that of the server's model"
        yield f"clients have models of their own; the global test is {what}"
    if run.summary and run.summary.get("stopped"):
        yield f"seed {run.seed} stopped after round {len(run.rounds)}: {run.summary['stopped']}"
    elif not run.finished:
        asked = with_noun(run.setting("num_rounds", "?"), "round")
        yield f"seed {run.seed} is unfinished, {len(run.rounds)} of {asked}"


def _paired(runs: Groups, metric: str) -> Iterator[str]:
    """Yield how each method differs from the first that is no baseline, seed by seed, where three seeds have both."""
    first = next((label for label, group in runs.items() if group_baseline(group) is None), None)
    for label, group in runs.items():
        if first is None or label == first:
            continue
        for part, what in (("global", "global test"), ("personal", "personal test")):
            one, other = (
                {run.seed: score for run in of if (score := run.scores(part).get(metric)) is not None}
                for of in (group, runs[first])
            )
            seeds = sorted(one.keys() & other.keys())
            if len(seeds) >= _FEWEST_PAIRS:
                mean, half = of_mean([one[seed] - other[seed] for seed in seeds])
                assert half is not None
                scale, unit = (100, " points") if is_share(metric) else (1, "")
                low, high = (scale * (mean - half), scale * (mean + half))
                yield (
                    f"{label} against {first}, {what}: {scale * mean:+.3g}{unit}, 95 % interval {low:+.3g} to "
                    f"{high:+.3g} (paired by {len(seeds)} seeds, Student's t)"
                )
                break


EvaluationPart = Literal["global", "personal", "finetuned"]
_TRIVIAL = "trivial_baseline"


def across_table(experiments: Mapping[str, Groups], part: EvaluationPart = "global") -> Table:
    """Compare methods over experiments, each in the metric that stands for its task.

    Args:
        experiments: For each experiment its groups of runs, by the title of the method.
        part: The whole test set, or the clients' own; ``"finetuned"``: the same after ``client.finetune_steps``.

    Shares are shown in percent. What is possible without a model needs no training: see the experiments' pages.
    """
    titles = list(dict.fromkeys(title for groups in experiments.values() for title in groups))
    columns = [TableColumn(title, title, "points") for title in titles]
    rows = []
    for name, groups in experiments.items():
        metric = metric_of(groups)
        scale = 100.0 if is_share(metric) else 1.0
        kind: ColumnKind | None = None if is_share(metric) else "plain"
        score = partial(_in_summary, f"evaluation.{part}.{metric}")
        cells = {title: _scaled(groups.get(title), score, scale) for title in titles}
        if part == "global":
            everyone = [run for runs in groups.values() for run in runs]
            cells[_TRIVIAL] = _scaled(everyone[:1], partial(_trivial, metric), scale)
        seeds = max(len(runs) for runs in groups.values())
        rows.append(TableRow(f"{name}, {metric_title(metric)}", None, seeds, cells, kind))
    if part == "global":
        columns.append(TableColumn(_TRIVIAL, "Without a model", "points"))
    notes = tuple(_described(name, next(iter(groups.values()))[0]) for name, groups in experiments.items())
    own = "Clients' own test sets, mean by test examples"
    what = {
        "global": "The whole test set",
        "personal": own,
        "finetuned": f"{own}, each client after its finetune_steps",
    }[part]
    caption = f"{what}, after the last round, mean ± standard deviation over seeds; shares in %."
    return Table(tuple(columns), tuple(rows), caption, notes, head="Experiment")


def _in_summary(key: str, run: Run) -> Any:
    return lookup(run.summary or {}, key)


def _trivial(metric: str, run: Run) -> Any:
    return trivial_baseline(run.summary).get(metric)


def _scaled(runs: Sequence[Run] | None, measure: Callable[[Run], Any], scale: float) -> Stat | None:
    found = stat_of(runs, measure) if runs else None
    return found and Stat(tuple(scale * value for value in found.values))


def _described(name: str, run: Run) -> str:
    summary = run.summary or {}
    baseline = trivial_baseline(summary).get("name")
    data = lookup(summary, "data.name", "unknown data")
    text = f"{name}: {summary.get('task', 'text-classification')} on {data}, {summary.get('model')}"
    text += f"; {describe_partition(run.config)}; {plural(len(run.rounds), 'round')}"
    return text + (f"; baseline: {baseline}" if baseline else "")
