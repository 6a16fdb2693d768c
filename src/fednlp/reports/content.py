"""What a report of one or several runs says, in which order."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fednlp.config.tables import flatten
from fednlp.federated.adapters import GAP
from fednlp.formatting.places import named, named_in
from fednlp.formatting.units import (
    DASH,
    capital,
    human_number,
    is_share,
    metric_title,
    metric_value,
    plural,
)
from fednlp.reports import plots
from fednlp.reports.charts import draw
from fednlp.reports.checks import checks_of
from fednlp.reports.client_tensors import own_models
from fednlp.reports.describe import (
    describe_method,
    describe_partition,
    environment_facts,
    format_count,
)
from fednlp.reports.document import Block, Code, Document, Fold, Grid, KeyValues, Picture, ReportSection, Text
from fednlp.reports.groups import Groups, differing, group_runs, metric_of, settings, without_seeds
from fednlp.reports.headline import headline_blocks
from fednlp.reports.plots import shown_parts
from fednlp.reports.read import COUNTS, Run, trivial_baseline
from fednlp.reports.render import best_cells, cell_text, grid
from fednlp.reports.sections.clients import client_blocks
from fednlp.reports.sections.communication import communication_blocks
from fednlp.reports.sections.costs import cost_blocks
from fednlp.reports.sections.cross_client import cross_client_blocks
from fednlp.reports.sections.data import data_blocks, data_fact, one_of, other_texts, partition_blocks
from fednlp.reports.sections.labels import label_blocks
from fednlp.reports.sections.sweep import sweep_blocks
from fednlp.reports.sections.time import time_blocks
from fednlp.reports.table import Stat, Table, TableColumn, TableRow, compare_table

_TILES = {
    "global": "Global test {metric}",
    "federated": "Summed test {metric}",
    "personal": "Personal test {metric}",
    "personal_worst_decile": "Worst decile of the clients{unit}",
    "bytes": "Sent, up and down",
    "simulated_seconds": "Simulated time",
    "energy_joules": "Energy of the devices",
    "seconds": "Time",
    "rounds": "Rounds",
}
_PARTS = {
    "global": "Global test",
    "federated": "Summed test",
    "personal": "Personal test",
    "finetuned": "Personal test after own steps,",
}


def build(runs: Sequence[Run], target: float | None = None, tuning: Table | None = None) -> Document:
    """Put together the report of one or several runs; see :func:`fednlp.reports.write_report` for the arguments."""
    groups = group_runs(runs)
    runs = [run for group in groups.values() for run in group]
    table = compare_table(groups)
    best, why = _best_row(groups, table)
    sections = [
        ReportSection("Who gains", headline_blocks(groups, best.label)),
        ReportSection("Results", list(_results(groups, table))),
        ReportSection("Learning curves", list(_learning(groups))),
        ReportSection("Labels", list(label_blocks(groups))),
        ReportSection("Clients", list(client_blocks(groups))),
        ReportSection("Bytes and time", list(cost_blocks(groups, target))),
        ReportSection("What was sent", list(communication_blocks(groups))),
        ReportSection("Where the time went", list(time_blocks(groups))),
        ReportSection("Data and model", list(data_blocks(runs))),
        ReportSection("Partition", list(partition_blocks(runs))),
        ReportSection("Choice of settings", [] if tuning is None else [_tuning(tuning)]),
        ReportSection("Configuration", list(_configuration(groups))),
        ReportSection("Reproduce", list(_reproduce(runs))),
        ReportSection("Environment", [Fold("Versions and machine", [_environment(runs)])]),
    ]
    title = ", ".join(dict.fromkeys(run.name for run in runs))
    shown = [section for section in sections if section.blocks]
    return Document(title, _lead(groups), why, _tiles(groups, best, table), shown)


def _lead(groups: Groups) -> str:
    runs = [run for group in groups.values() for run in group]
    first = runs[0]
    data = one_of(
        runs,
        lambda run: data_fact(run, "name") or run.setting("data.name") or named(run.setting("data.path")),
    )
    model = one_of(
        runs, lambda run: named((run.summary or {}).get("model") or run.setting("model.name_or_path"))
    )
    what = f"{model} on {data}; partition: {one_of(runs, lambda run: describe_partition(run.config))}."
    if len(groups) == 1:
        return f"{what} {describe_method(first.config, first.baseline, len(first.clients) or None)}"
    return f"{what} Compared: {', '.join(groups)}."


def _tiles(groups: Groups, best: TableRow, table: Table) -> list[tuple[str, str]]:
    """Return the main figures of the run, or of the best method of a comparison."""
    metric = metric_of(groups)
    unit = " (%)" if is_share(metric) else ""
    named = {
        key: title.format(metric=metric_title(metric) + unit, unit=unit) for key, title in _TILES.items()
    }
    if "personal" not in shown_parts({best.label: groups[best.label]}, metric):
        del named["personal"]
    if best.cells.get("simulated_seconds"):
        named["seconds"] = "Time on this machine"
    tiles = [
        (named[column.key], cell_text(column, best.cells[column.key]))
        for column in table.columns
        if column.key in named and best.cells[column.key]
    ]
    clients = dict.fromkeys(format_count(_clients_of(run)) for run in groups[best.label])
    return [*tiles, ("Clients", "; ".join(clients)), ("Seeds", str(best.seeds))]


def _clients_of(run: Run) -> int | None:
    known = (run.summary or {}).get("clients") or len(run.clients) or run.setting("partition.clients")
    return int(known) if known else None


def _results(groups: Groups, table: Table) -> Iterator[Block]:
    heads, rows = grid(table)
    runs = [run for group in groups.values() for run in group]
    rows += _baseline_row(table, runs[0])
    yield Grid(heads, rows, [table.caption, *table.notes, *other_texts(runs)], best=best_cells(table))
    checks = [
        [f"{label}, seed {run.seed}", check.sentence, check.advice]
        for label, group in groups.items()
        for run in group
        for check in checks_of(run)
    ]
    if checks:
        yield Grid(["What speaks against it", "Found", "To try"], checks, words=True)
    if len(groups) == 1:
        yield Fold("Every metric of the last evaluation", list(_all_metrics(next(iter(groups.values())))))
    yield from cross_client_blocks(groups)
    yield from sweep_blocks(groups)


def _baseline_row(table: Table, run: Run) -> list[list[str]]:
    """Return the row of a prediction without a model; none where no run says what it scores, or a method is one."""
    baseline = trivial_baseline(run.summary)
    score = baseline.get(run.metric)
    if not isinstance(score, int | float) or any(row.baseline == "majority" for row in table.rows):
        return []
    part = "federated" if run.setting("data.name") == "sites" else "global"
    cells = [
        cell_text(column, Stat((float(score),)) if column.key == part else None) for column in table.columns
    ]
    return [[f"Without a model ({baseline['name']})", *cells, ""]]


def _tuning(table: Table) -> Grid:
    heads, rows = grid(table)
    return Grid(heads[:-1], [row[:-1] for row in rows], [table.caption, *table.notes])


def _all_metrics(runs: Sequence[Run]) -> Iterator[Block]:
    """Every metric of the last evaluation, and the best round, a column for each seed."""
    heads = ["Last evaluation", *(f"Seed {run.seed}" for run in runs)]
    rows = []
    for part, title in _PARTS.items():
        for key in dict.fromkeys(key for run in runs for key in run.scores(part)):
            values = [run.scores(part).get(key) for run in runs]
            shown = [str(v) if key in COUNTS else metric_value(key, v) for v in values]
            rows.append([f"{title} {metric_title(key)}", *shown])
    between = [(run.summary or {}).get("interval") or {} for run in runs]
    if any(between):
        examples = next(one["examples"] for one in between if one)
        name = next(one["metric"] for one in between if one)
        cells = [
            f"{metric_value(name, one['low'])} to {metric_value(name, one['high'])}" if one else DASH
            for one in between
        ]
        rows.append([f"95 % interval of {metric_title(name)}, by {plural(examples, 'test example')}", *cells])
    best = [(run.summary or {}).get("best") or {} for run in runs]
    if any(best):
        cells = [
            f"{metric_value(run.metric, b.get(run.metric))} (round {b.get('round')})" if b else DASH
            for run, b in zip(runs, best, strict=True)
        ]
        own = own_models(runs[0]) or (runs[0].summary or {}).get("personalised")
        of = "personal" if own else "global"
        rows.append([f"Best {of} test {metric_title(runs[0].metric)} of all rounds", *cells])
    baselines = [trivial_baseline(run.summary) for run in runs]
    if any(baselines):
        cells = [metric_value(run.metric, b.get(run.metric)) for run, b in zip(runs, baselines, strict=True)]
        baseline = next(b["name"] for b in baselines if b)
        rows.append([f"Without a model ({baseline}), {metric_title(runs[0].metric)}", *cells])
    if rows:
        yield Grid(heads, rows)


def _learning(groups: Groups) -> Iterator[Block]:
    seeds = max(len(runs) for runs in groups.values())
    how = " Mean over the seeds; the band is one standard deviation." if seeds > 1 else ""
    name = metric_of(groups)
    title = capital(metric_title(name))
    charts = [
        (f"{part}.{name}", f"curve-{part}", f"{title} after each round, {where}.")
        for part, where in shown_parts(groups, name).items()
    ]
    loss = ("train_loss", "curve-loss", "Mean training loss of the clients of each round.")
    right = "Fraction of the pseudo labels that are right, by the true labels, which only a simulation knows."
    precision = ("hidden_truth.precision", "curve-pseudo-labels", right)
    left_out = (
        "What averaging A and B of the adapters apart leaves out, over the mean of the clients' products."
    )
    gap = (GAP, "curve-averaging-gap", left_out)
    for metric, file, caption in (*charts, loss, precision, gap, *_own_metrics(groups)):
        chart = plots.learning_curves(groups, metric)
        if chart is not None:
            yield Picture(file, caption + how, draw(chart), chart)


def _own_metrics(groups: Groups) -> Iterator[tuple[str, str, str]]:
    """Yield the numbers that a method's clients report: key, file and caption of each."""
    lines = [line for runs in groups.values() for run in runs for line in run.rounds]
    names = dict.fromkeys(name for line in lines for name in line.get("client_metrics", {}))
    for number, name in enumerate(names, 1):
        caption = f"What the clients of each round report as {name}, mean over their examples."
        yield f"client_metrics.{name}", f"curve-client-{number}", caption


def _configuration(groups: Groups) -> Iterator[Block]:
    flats = [without_seeds(settings(runs[0])) for runs in groups.values()]
    unlike = differing(flats)
    if unlike:
        configs = [runs[0].config for runs in groups.values()]
        rows = [[named_in(key, configs), *(_value(flat.get(key)) for flat in flats)] for key in unlike]
        yield Grid(["What differs", *groups], rows, words=True)
    first = next(iter(groups.values()))[0]
    seeds = sorted({run.seed for runs in groups.values() for run in runs})
    varied = differing([dict(flatten(run.config)) for runs in groups.values() for run in runs])
    rest = [
        (named_in(key, [first.config]), _value(value))
        for key, value in flatten(first.config)
        if key not in ("seed", *varied)
    ]
    yield Fold("All settings", [KeyValues([("seed", ", ".join(map(str, seeds))), *rest])])


def _reproduce(runs: Sequence[Run]) -> Iterator[Block]:
    where = ", typed where the run directories lie" if any(run.folder.is_absolute() for run in runs) else ""
    yield Text(f"Each run again, from its own resolved configuration{where}:")
    yield Code("\n".join(_command(run) for run in runs), "sh")
    text = (runs[0].folder / "resolved.toml").read_text(encoding="utf-8")
    text = named_in(text, [runs[0].config])
    yield Fold(f"resolved.toml of {runs[0].folder.resolve().name}", [Code(text, "toml")])


def _command(run: Run) -> str:
    folder = run.folder if run.folder.name not in ("", "..") else run.folder.resolve()
    if folder.is_absolute():
        folder = Path(folder.name)
    return shlex.join(["fednlp", "run", str(folder / "resolved.toml"), "--out", f"{folder}-again"])


def _environment(runs: Sequence[Run]) -> Block:
    known = [environment_facts(run.environment) for run in runs]
    keys = dict.fromkeys(key for facts in known for key in facts)
    return KeyValues(
        [(key, "; ".join(dict.fromkeys(facts.get(key, DASH) for facts in known))) for key in keys]
    )


def _value(value: Any) -> str:
    value = named(value)
    return ", ".join(map(human_number, value)) or DASH if isinstance(value, list) else human_number(value)


def _best_row(groups: Groups, table: Table) -> tuple[TableRow, str]:
    """Return the row of the best method, and in words why it is: by which score, among how many.

    Baselines count only where nothing else was measured. Clients' own models are compared on their own tests.
    """
    personal = any(own_models(run) for runs in groups.values() for run in runs)
    parts = ("personal", "global", "federated") if personal else ("global", "federated")
    part = next((part for part in parts if any(row.cells.get(part) for row in table.rows)), "global")
    scored = [row for row in table.rows if row.cells[part]]
    rivals = [row for row in scored if not row.baseline] or scored or list(table.rows)
    best = max(rivals, key=lambda row: _mean(row, part))
    if len(table.rows) == 1:
        return best, ""
    if len(rivals) == 1:
        return best, f"{best.label}: the only method of this comparison that is not a baseline."
    return best, _why(best, rivals, part, metric_of(groups))


def _why(best: TableRow, rivals: Sequence[TableRow], part: str, metric: str) -> str:
    score = TableColumn(part, "", "share" if is_share(metric) else "plain")
    shown = [cell_text(score, Stat((_mean(row, part),))) for row in rivals]
    level = [row.label for row, text in zip(rivals, shown, strict=True) if text == shown[rivals.index(best)]]
    others = ", ".join(label for label in level if label != best.label)
    seeds = f", mean over {best.seeds} seeds" if best.seeds > 1 else ""
    of = f"best of {len(rivals)} methods by {part} test {metric_title(metric)} after the last round{seeds}"
    return f"{best.label}: {of}{f'; level with it: {others}' if others else ''}."


def _mean(row: TableRow, part: str) -> float:
    stat = row.cells[part]
    return stat.mean if stat else -1.0
