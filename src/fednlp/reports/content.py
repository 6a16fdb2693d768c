"""What a report of one or several runs says, in which order."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from fednlp.formatting.units import (
    DASH,
    capital,
    human_number,
    is_share,
    metric_title,
    metric_value,
)
from fednlp.reports import plots
from fednlp.reports.best import best_cells, best_row
from fednlp.reports.charts import draw
from fednlp.reports.clients import client_blocks
from fednlp.reports.costs import cost_blocks
from fednlp.reports.cross_client import cross_client_blocks
from fednlp.reports.data import data_blocks, data_fact, one_of
from fednlp.reports.document import Block, Code, Document, Facts, Fold, Grid, Picture, Section, Text
from fednlp.reports.groups import Groups, differing, flatten, group_runs, metric_of, settings, without_seeds
from fednlp.reports.labels import label_blocks
from fednlp.reports.partitions import partition_blocks
from fednlp.reports.parts import shown_parts
from fednlp.reports.pulled import pulled_blocks
from fednlp.reports.read import Run
from fednlp.reports.render import cell_text, grid
from fednlp.reports.sweep import sweep_blocks
from fednlp.reports.table import Row, Table, compare_table
from fednlp.reports.travel import own_models
from fednlp.reports.words import count_words, environment_facts, method_words, partition_words

_TILES = {
    "global": "Global test {metric}",
    "personal": "Personal test {metric}",
    "personal_worst_decile": "Worst decile of the clients{unit}",
    "bytes": "Sent, up and down",
    "seconds": "Time",
    "rounds": "Rounds",
}
_PARTS = {"global": "Global test", "personal": "Personal test", "finetuned": "Personal test after own steps,"}


def build(runs: Sequence[Run], target: float | None = None) -> Document:
    """Put together the report of one or several runs; see :func:`fednlp.reports.write_report` for the target."""
    groups = group_runs(runs)
    runs = [run for group in groups.values() for run in group]
    table = compare_table(groups)
    best, why = best_row(groups, table)
    sections = [
        Section("Results", list(_results(groups, table))),
        Section("Learning curves", list(_learning(groups))),
        Section("Labels", list(label_blocks(groups))),
        Section("Clients", list(client_blocks(groups))),
        Section("Bytes and time", list(cost_blocks(groups, target))),
        Section("What was sent", list(pulled_blocks(groups))),
        Section("Data and model", list(data_blocks(runs))),
        Section("Partition", list(partition_blocks(runs))),
        Section("Configuration", list(_configuration(groups))),
        Section("Reproduce", list(_reproduce(runs))),
        Section("Environment", [Fold("Versions and machine", [_environment(runs)])]),
    ]
    title = ", ".join(dict.fromkeys(run.name for run in runs))
    shown = [section for section in sections if section.blocks]
    return Document(title, _lead(groups), why, _tiles(groups, best, table), shown)


def _lead(groups: Groups) -> str:
    runs = [run for group in groups.values() for run in group]
    first = runs[0]
    data = one_of(
        runs, lambda run: data_fact(run, "name") or run.setting("data.name") or run.setting("data.path")
    )
    model = one_of(runs, lambda run: (run.summary or {}).get("model") or run.setting("model.name_or_path"))
    what = f"{model} on {data}; partition: {one_of(runs, lambda run: partition_words(run.config))}."
    if len(groups) == 1:
        return f"{what} {method_words(first.config, first.reference, len(first.clients) or None)}"
    return f"{what} Compared: {', '.join(groups)}."


def _tiles(groups: Groups, best: Row, table: Table) -> list[tuple[str, str]]:
    """Return the main figures of the run, or of the best method of a comparison."""
    metric = metric_of(groups)
    unit = " (%)" if is_share(metric) else ""
    named = {key: said.format(metric=metric_title(metric) + unit, unit=unit) for key, said in _TILES.items()}
    if "personal" not in shown_parts({best.label: groups[best.label]}, metric):
        del named["personal"]
    tiles = [
        (named[column.key], cell_text(column, best.cells[column.key]))
        for column in table.columns
        if column.key in named and best.cells[column.key]
    ]
    clients = dict.fromkeys(count_words(_clients_of(run)) for run in groups[best.label])
    return [*tiles, ("Clients", "; ".join(clients)), ("Seeds", str(best.seeds))]


def _clients_of(run: Run) -> int | None:
    known = (run.summary or {}).get("clients") or len(run.clients) or run.setting("partition.clients")
    return int(known) if known else None


def _results(groups: Groups, table: Table) -> Iterator[Block]:
    heads, rows = grid(table)
    yield Grid(heads, rows, [table.caption, *table.notes], best=best_cells(table))
    if len(groups) == 1:
        yield Fold("Every metric of the last evaluation", list(_all_metrics(next(iter(groups.values())))))
    yield from cross_client_blocks(groups)
    yield from sweep_blocks(groups)


def _all_metrics(runs: Sequence[Run]) -> Iterator[Block]:
    """Every metric of the last evaluation, and the best round, a column for each seed."""
    heads = ["Last evaluation", *(f"Seed {run.seed}" for run in runs)]
    rows = []
    for part, said in _PARTS.items():
        for key in dict.fromkeys(key for run in runs for key in run.scores(part)):
            values = [run.scores(part).get(key) for run in runs]
            shown = [str(v) if key == "clients" else metric_value(key, v) for v in values]
            rows.append([f"{said} {metric_title(key)}", *shown])
    best = [(run.summary or {}).get("best") or {} for run in runs]
    if any(best):
        told = [
            f"{metric_value(run.metric, b.get(run.metric))} (round {b.get('round')})" if b else DASH
            for run, b in zip(runs, best, strict=True)
        ]
        of = "personal" if own_models(runs[0]) else "global"
        rows.append([f"Best {of} test {metric_title(runs[0].metric)} of all rounds", *told])
    baselines = [(run.summary or {}).get("baseline") or {} for run in runs]
    if any(baselines):
        told = [metric_value(run.metric, b.get(run.metric)) for run, b in zip(runs, baselines, strict=True)]
        said = next(b["name"] for b in baselines if b)
        rows.append([f"Without a model ({said}), {metric_title(runs[0].metric)}", *told])
    if rows:
        yield Grid(heads, rows)


def _learning(groups: Groups) -> Iterator[Block]:
    seeds = max(len(runs) for runs in groups.values())
    how = " Mean over the seeds; the band is one standard deviation." if seeds > 1 else ""
    name = metric_of(groups)
    said = capital(metric_title(name))
    charts = [
        (f"{part}.{name}", f"curve-{part}", f"{said} after each round, {where}.")
        for part, where in shown_parts(groups, name).items()
    ]
    loss = ("train_loss", "curve-loss", "Mean training loss of the clients of each round.")
    for metric, file, caption in (*charts, loss):
        chart = plots.learning_curves(groups, metric)
        if chart is not None:
            yield Picture(file, caption + how, draw(chart), chart)


def _configuration(groups: Groups) -> Iterator[Block]:
    flats = [without_seeds(settings(runs[0])) for runs in groups.values()]
    unlike = differing(flats)
    if unlike:
        rows = [[key, *(_value(flat.get(key)) for flat in flats)] for key in unlike]
        yield Grid(["What differs", *groups], rows, words=True)
    first = next(iter(groups.values()))[0]
    seeds = sorted({run.seed for runs in groups.values() for run in runs})
    varied = differing([dict(flatten(run.config)) for runs in groups.values() for run in runs])
    rest = [(key, _value(value)) for key, value in flatten(first.config) if key not in ("seed", *varied)]
    yield Fold("All settings", [Facts([("seed", ", ".join(map(str, seeds))), *rest])])


def _reproduce(runs: Sequence[Run]) -> Iterator[Block]:
    yield Text("Each run again, from its own resolved configuration:")
    yield Code("\n".join(_command(run) for run in runs), "sh")
    text = (runs[0].folder / "resolved.toml").read_text(encoding="utf-8")
    yield Fold(f"resolved.toml of {runs[0].folder.resolve().name}", [Code(text, "toml")])


def _command(run: Run) -> str:
    folder = run.folder if run.folder.name not in ("", "..") else run.folder.resolve()
    return shlex.join(["fednlp", "run", str(folder / "resolved.toml"), "--out", f"{folder}-again"])


def _environment(runs: Sequence[Run]) -> Block:
    known = [environment_facts(run.environment) for run in runs]
    keys = dict.fromkeys(key for facts in known for key in facts)
    return Facts([(key, "; ".join(dict.fromkeys(facts.get(key, DASH) for facts in known))) for key in keys])


def _value(value: Any) -> str:
    return ", ".join(map(human_number, value)) or DASH if isinstance(value, list) else human_number(value)
