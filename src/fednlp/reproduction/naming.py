"""Names of runs and partitions in ``results.json``: the same on every machine, and in every paper that has the run.

A name says all that the manifest says of a run: its experiment, the settings over it, its method and seed.
"""

import hashlib
import json
from typing import Any

from fednlp.reproduction.manifest import Column, Entry, Paper, Partitioned, Row, Runs

_SEED = "-seed"
_OF_ENGINE = ("of its own client",)
"""Tells the personal score of an engine from the mean over the clients, which such a cell showed before."""


def folder_name(experiment: str, settings: list[str]) -> str:
    """Return a word for an experiment's runs; what the manifest sets tells those of one experiment apart."""
    return f"{experiment}-{digest(settings)}" if settings else experiment


def group(runs: Runs, method: str) -> str:
    """Return what the names of a method's runs begin with."""
    return f"{folder_name(runs.experiment, runs.set)}/{method}"


def run_name(runs: Runs, method: str, seed: int) -> str:
    """Return the name of a run.

    Args:
        runs: The paper's runs of one key.
        seed: Its seed, as in its settings.
    """
    return name_of(group(runs, method), seed)


def name_of(group: str, seed: int) -> str:
    """Return the name of a run of a group."""
    return f"{group}{_SEED}{seed}"


def partition_name(made: Partitioned, seed: int = 0) -> str:
    """Return the name of a partition that is drawn with a seed; the first seed is not in it."""
    name = f"{made.dataset}-{digest(made.model_dump(exclude={'seeds'}))}"
    return name_of(name, seed) if seed else name


def group_of(name: str) -> str:
    """Return what the name of a run or partition has in common with those of its other seeds.

    >>> group_of("fes-table4/FeS-seed42")
    'fes-table4/FeS'
    """
    return name.rpartition(_SEED)[0] or name


def seed_of(name: str) -> int:
    """Return the seed in the name of a run or partition; 0 for a partition that is drawn with its first.

    >>> seed_of("fes-table4/FeS-seed42"), seed_of("agnews-0f3c")
    (42, 0)
    """
    seed = name.rpartition(_SEED)[2]
    return int(seed) if seed.isdecimal() and len(seed) < 20 else 0


def groups_of_part(paper: Paper, entry: Entry, part: str) -> list[str]:
    """Return the groups of a key of an entry's runs, or that of a row's partition."""
    if entry.partitions:
        return [group_of(partition_name(entry.partitions[part]))]
    runs = paper.runs[part]
    return [group(runs, method) for method in (*runs.methods, *runs.baselines)]


def groups_of(paper: Paper, entry: Entry) -> set[str]:
    """Return the groups of all runs or partitions of an entry, those that give a first model among them."""
    keys = paper.runs_of(entry)
    first = {paper.runs[key].model_of for key in keys} - {""}
    parts = {*entry.partitions, *keys, *first}
    return {one for part in parts for one in groups_of_part(paper, entry, part)}


def group_of_cell(paper: Paper, entry: Entry, row: Row, column: Column) -> str:
    """Return the group of the runs or the partition of a cell; empty where nothing here corresponds."""
    if entry.partitions:
        made = entry.partitions.get(entry.partition_of(row))
        return group_of(partition_name(made)) if made else ""
    key, method = entry.source_of(row, column)
    return group(paper.runs[key], method) if key and method else ""


def group_of_target(paper: Paper, entry: Entry, row: Row, column: Column) -> str:
    """Return the group of the runs whose last score a cell is about reaching; empty where there are none."""
    target = paper.target_of(entry, entry.source_of(row, column)[0], column)
    return group(paper.runs[target[0]], target[1]) if target else ""


def name_of_cell(paper: Paper, entry: Entry, row: Row, column: Column, seed: int) -> str:
    """Return the name of the run or partition of a cell with a seed; empty where nothing here corresponds."""
    group = group_of_cell(paper, entry, row, column)
    return group if entry.partitions and not seed else name_of(group, seed) if group else ""


def cells_of(paper: Paper, entry: Entry, column: Column) -> dict[str, str]:
    """Return eight hex digits by row that say of what a column's cells are, and how they are measured."""
    shows = column.measure or entry.measure
    measure = [shows, entry.measure == "personal", column.client, column.target]
    cells = {
        row.name: (group_of_cell(paper, entry, row, column), group_of_target(paper, entry, row, column), row)
        for row in entry.rows
    }
    return {
        name: digest([of, to, row.engine, *measure, *_OF_ENGINE * (shows == "personal" and bool(row.engine))])
        for name, (of, to, row) in cells.items()
        if of
    }


def digest(value: Any) -> str:
    """Return a few characters that tell JSON values apart."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
