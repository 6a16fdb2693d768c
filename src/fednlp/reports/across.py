"""Several experiments beside each other, a row each, as in the benchmark paper's Table 2."""

from collections.abc import Mapping, Sequence
from typing import Literal

from fednlp.formatting.units import is_share, metric_title, plural
from fednlp.reports.groups import Groups, metric_of
from fednlp.reports.read import Run, lookup
from fednlp.reports.table import Column, Row, Stat, Table, stat_of
from fednlp.reports.words import partition_words

Part = Literal["global", "personal", "finetuned"]
BASELINE = "baseline"


def across_table(experiments: Mapping[str, Groups], part: Part = "global") -> Table:
    """Compare methods over experiments, each in the metric that stands for its task.

    Args:
        experiments: For each experiment its groups of runs, by the title of the method.
        part: The whole test set, or the clients' own; ``"finetuned"``: the same after ``client.finetune_steps``.

    Shares are shown in percent. The baseline needs no training: see the experiments' pages.
    """
    titles = list(dict.fromkeys(title for groups in experiments.values() for title in groups))
    columns = [Column(title, title, "points") for title in titles]
    rows = []
    for name, groups in experiments.items():
        metric = metric_of(groups)
        scale = 100.0 if is_share(metric) else 1.0
        cells = {title: _scaled(groups.get(title), f"evaluation.{part}.{metric}", scale) for title in titles}
        if part == "global":
            everyone = [run for runs in groups.values() for run in runs]
            cells[BASELINE] = _scaled(everyone[:1], f"baseline.{metric}", scale)
        seeds = max(len(runs) for runs in groups.values())
        rows.append(Row(f"{name}, {metric_title(metric)}", None, seeds, cells))
    if part == "global":
        columns.append(Column(BASELINE, "Baseline", "points"))
    notes = tuple(_described(name, next(iter(groups.values()))[0]) for name, groups in experiments.items())
    own = "Clients' own test sets, mean by test examples"
    what = {
        "global": "The whole test set",
        "personal": own,
        "finetuned": f"{own}, each client after its finetune_steps",
    }[part]
    caption = f"{what}, after the last round, mean ± standard deviation over seeds; shares in %."
    return Table(tuple(columns), tuple(rows), caption, notes, head="Experiment")


def _scaled(runs: Sequence[Run] | None, key: str, scale: float) -> Stat | None:
    found = stat_of(runs, lambda run: lookup(run.summary or {}, key)) if runs else None
    return found and Stat(tuple(scale * value for value in found.values))


def _described(name: str, run: Run) -> str:
    summary = run.summary or {}
    baseline = lookup(summary, "baseline.name")
    data = lookup(summary, "data.name", "unknown data")
    said = f"{name}: {summary.get('task', 'text-classification')} on {data}, {summary.get('model')}"
    said += f"; {partition_words(run.config)}; {plural(len(run.rounds), 'round')}"
    return said + (f"; baseline: {baseline}" if baseline else "")
