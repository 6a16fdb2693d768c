"""The sections "Data and model" and "Partition" of a report."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fednlp.config.tables import lookup
from fednlp.data.profiling.statistics import Spread, columns_text, scripts_text
from fednlp.errors import PartitionError, RunError
from fednlp.formatting.places import data_source, named
from fednlp.partition import Partition
from fednlp.reports.describe import describe_partition, format_count, told_count
from fednlp.reports.document import Block, Grid, KeyValues, Picture
from fednlp.reports.groups import settings, without_seeds
from fednlp.reports.read import Run, read_file, read_labels
from fednlp.reports.style import drawing


def data_blocks(runs: Sequence[Run]) -> Iterator[Block]:
    """Yield the facts on data and model, and what is odd about the data, where the runs have found anything."""
    looks = [look for run in runs if (look := read_file(run.folder / "data.json"))]
    yield KeyValues([*_summary(runs), *_reading(looks)])
    oddities: dict[str, list[str]] = {}
    for oddity in (oddity for look in looks for oddity in look.get("oddities", ())):
        oddities.setdefault(oddity["kind"], [oddity["said"], oddity["remedy"]])
    if oddities:
        rows = list(oddities.values())
        yield Grid(["Odd about the data", "What follows"], rows, words=True)


def one_of(things: Iterable[Any], describe: Callable[[Any], Any]) -> str:
    """Return a description of several things, each different one once."""
    return "; ".join(dict.fromkeys(str(text) for thing in things if (text := describe(thing))))


def _summary(runs: Sequence[Run]) -> list[tuple[str, str]]:
    def count(key: str) -> str:
        return one_of(runs, lambda run: told_count(_data_facts(run), key))

    return [
        (
            "Data set",
            one_of(runs, lambda run: data_fact(run, "name") or run.setting("data.name") or "own files"),
        ),
        (
            "Source",
            one_of(runs, lambda run: data_source(_source(run), run.config)),
        ),
        ("Training examples", count("train")),
        ("Test examples", count("test")),
        ("Task", one_of(runs, lambda run: data_fact(run, "task") or "text-classification")),
        ("Labels", count("labels")),
        ("Model", one_of(runs, lambda run: named(run.setting("model.name_or_path", "unknown")))),
        ("Parameters", one_of(runs, lambda run: format_count((run.summary or {}).get("parameters")))),
    ]


def _source(run: Run) -> str:
    known = data_fact(run, "source") or run.setting("data.path") or "unknown"
    return known if isinstance(known, str) else " and ".join(known)


def _reading(looks: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return how the data were read, without what no run looked at."""
    facts = [
        ("Columns", one_of(looks, lambda look: columns_text(look.get("columns", {})))),
        ("Rows left out", one_of(looks, lambda look: f"{look['dropped']:,}" if look.get("dropped") else "")),
        ("Tokens read of an example", one_of(looks, lambda look: _spread(look.get("tokens")))),
        ("Scripts", one_of(looks, lambda look: scripts_text(look["scripts"]) if look.get("scripts") else "")),
    ]
    names = dict.fromkeys(name for look in looks for name in look.get("words", {}))
    facts += [(f"Words of {name}", one_of(looks, partial(_words, name))) for name in names]
    return [(name, value) for name, value in facts if value]


def _words(name: str, look: Mapping[str, Any]) -> str:
    return _spread(look.get("words", {}).get(name))


def _spread(numbers: Mapping[str, int] | None) -> str:
    return str(Spread(numbers["median"], numbers["p95"], numbers["longest"])) if numbers else ""


def data_fact(run: Run, key: str) -> Any:
    """Return one of the things that a run knows of its data."""
    return _data_facts(run).get(key)


def _data_facts(run: Run) -> Mapping[str, Any]:
    """Return what a run knows of its data."""
    return (run.summary or {}).get("data") or run.environment.get("data") or {}


def other_texts(runs: Sequence[Run]) -> list[str]:
    """Return what to say of runs whose settings name the data of an earlier one, and whose texts were others."""
    first: dict[str, Run] = {}
    said = []
    for run in runs:
        content = lookup(run.environment, "data.content")
        if not content:
            continue
        files = json.dumps([run.setting("data"), run.setting("task.name")], sort_keys=True, default=str)
        other = first.setdefault(files, run)
        if content != lookup(other.environment, "data.content"):
            said.append(
                f"{run.folder} has other texts than {other.folder}, under the same settings of the data: "
                "their scores are not comparable."
            )
    return said


def partition_blocks(runs: Sequence[Run]) -> Iterator[Block]:
    """Show each different partition once, as its first run drew it."""
    different: dict[str, Run] = {}
    for run in runs:
        shared = {
            k: v for k, v in without_seeds(settings(run)).items() if k.split(".")[0] in ("data", "partition")
        }
        different.setdefault(str(sorted(shared.items())), run)
    rows = [_sizes_row(run) for run in different.values() if (run.folder / "partition.npz").is_file()]
    if rows:
        heads = ["Partition", "Clients"]
        heads += [
            f"{split}, {what}" for split in ("Training", "Test") for what in ("least", "median", "most")
        ]
        yield Grid(heads, rows, ["Examples of a client in its training and test set."])
    for number, run in enumerate(different.values()):
        yield from _pictures(run, f"partition-{number}" if len(different) > 1 else "partition")


def _sizes_row(run: Run) -> list[str]:
    cells, path = [_description(run)], run.folder / "partition.npz"
    try:
        partition = Partition.load(path)
    except PartitionError as error:
        raise RunError(f"{path} is damaged: run the experiment again") from error
    for i, offsets in enumerate((partition.train_offsets, partition.test_offsets)):
        sizes = np.diff(offsets)
        cells += [f"{len(sizes):,}"] if i == 0 else []
        cells += [f"{value:,.0f}" for value in (sizes.min(), np.median(sizes), sizes.max())]
    return cells


def _pictures(run: Run, name: str) -> Iterator[Block]:
    labels = read_labels(run) if (run.folder / "partition.npz").is_file() else None
    if labels is None:
        return
    from fednlp.partition.plot_data import overview_of_counts
    from fednlp.partition.plots import figures

    named = len(run.clients) == len(labels.train) and any(run.clients.names)
    try:
        view = overview_of_counts(labels.train, labels.names, run.clients.names if named else None)
    except PartitionError as error:
        raise RunError(
            f"{run.folder / 'labels.json'} is damaged ({error}); run the experiment again"
        ) from error
    with drawing():
        drawn = figures(view)
    for kind, figure in drawn.items():
        if kind.endswith("density") and len(labels.train) < _FEWEST_OF_A_DENSITY:
            continue
        yield Picture(
            f"{name}-{kind.replace('_', '-')}", f"{_CAPTIONS.get(kind, kind)} {_description(run)}", figure
        )


_FEWEST_OF_A_DENSITY = 10
"""Clients; the sizes and divergences of fewer are told by the tables."""
_CAPTIONS = {
    "divergence_matrix": "How unlike the clients' labels are: 0 is alike, 1 nothing in common.",
    "label_heatmap": "Which labels each client holds.",
    "divergence_density": "How often which divergence occurs.",
    "size_density": "How many training examples the clients hold.",
}


def _description(run: Run) -> str:
    return f"Seed {run.setting('partition.seed', run.seed)}, {describe_partition(run.config)}."
