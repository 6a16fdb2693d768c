"""Runs that differ only in their seeds, put together under one name."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from fednlp.config.tables import flatten
from fednlp.errors import RunError
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.formatting.places import named
from fednlp.formatting.safe_text import clean
from fednlp.reports.read import Run

Groups = Mapping[str, Sequence[Run]]

_BASELINES = {
    "centralised": "Centralised",
    "chained": "Sequential fine-tuning",
    "local": "Local only",
    "majority": "Most frequent label",
}
# What names a run or changes its speed, never its result.
_APART = ("name", "variant", "variants", "runtime", "report", "evaluation", "min_clients")
_EXPERIMENT = ("data", "partition", "model")
# Without a rule of pulling there is nothing for these to speak of.
_OF_PULLING = ("pull.share", "pull.of", "pull.push", "pull.norm", "pull.embeddings")
# The name that warm-up had in older runs, and its value for none.
_FORMER = ("client.warmup_ratio", 0.0)


def algorithm_title(name: str) -> str:
    """Return an algorithm's name as the papers write it.

    >>> algorithm_title("fedavg"), algorithm_title("my_methods:cyclic")
    ('FedAvg', 'cyclic')
    """
    if name in ALGORITHMS.names():
        return ALGORITHMS.find(name).title
    return _BASELINES.get(name) or clean(name.rpartition(":")[2])


def _method_title(run: Run) -> str:
    """Return the name of a run's method: of its variant, or of its algorithm."""
    return algorithm_title(str(run.config.get("variant") or run.algorithm))


def group_baseline(runs: Sequence[Run]) -> str | None:
    """Return which baseline these runs are, or None for an algorithm."""
    return runs[0].baseline if runs else None


def metric_of(groups: Groups) -> str:
    """Return the metric that stands for the task of all runs.

    Raises:
        RunError: They are of tasks with different metrics.
    """
    found = dict.fromkeys(run.metric for runs in groups.values() for run in runs)
    if len(found) > 1:
        raise RunError(
            f"these runs are of tasks with different metrics ({', '.join(found)}): report one task at a time"
        )
    return next(iter(found), "accuracy")


def group_runs(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group runs by everything but the seed, each group under the shortest name that tells it apart.

    A run is a function of its configuration and seed, so a second run of the same two adds nothing:
    only the one that got further is kept.
    """
    kept: dict[str, Run] = {}
    for run in runs:
        key = _key(settings(run))
        if key not in kept or _progress(run) > _progress(kept[key]):
            kept[key] = run
    groups: dict[str, list[Run]] = {}
    for run in kept.values():
        groups.setdefault(_key(without_seeds(settings(run))), []).append(run)
    ordered = [sorted(group, key=lambda run: run.seed) for group in groups.values()]
    return dict(zip(_labels([group[0] for group in ordered]), ordered, strict=True))


def settings(run: Run) -> dict[str, Any]:
    """Return what a run's result depends on, flat: ``{"algorithm.name": "fedopt", ...}``.

    An older run did not write settings that came later: these are filled in with their defaults.
    """
    flat = dict(flatten({key: value for key, value in run.config.items() if key not in _APART}))
    if _FORMER in flat.items():
        del flat[_FORMER[0]]
    tables = {key[:place] for key in flat for place, letter in enumerate(key) if letter == "."}
    defaults = {key: value for key, value in _defaults().items() if key not in tables}
    whole = defaults | flat
    dropped = _OF_PULLING if whole.get("pull.rule") == "all" else ()
    return {key: value for key, value in whole.items() if key not in dropped}


@cache
def _defaults() -> dict[str, Any]:
    """Return the default of every setting in a section, but of those that are left out by default."""
    from pydantic import BaseModel

    from fednlp.config import Experiment

    found: dict[str, Any] = {}
    for section, field in Experiment.model_fields.items():
        kind = field.annotation
        if section not in _APART and isinstance(kind, type) and issubclass(kind, BaseModel):
            given = {key: one.default for key, one in kind.model_fields.items() if not one.is_required()}
            found |= dict(flatten(given, f"{section}."))
    return {key: value for key, value in found.items() if value is not None}


def without_seeds(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out every setting that is a seed."""
    return {key: value for key, value in flat.items() if key.split(".")[-1] != "seed"}


def differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys on which flat tables disagree, in the order they come."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if len({_key(table.get(key)) for table in tables}) > 1]


def _labels(heads: Sequence[Run]) -> list[str]:
    """Name each group by its method, and by the settings that tell it from the others where needed.

    The name of a variant says what is different about it: settings are added only where two groups have that name.
    """
    flats = [without_seeds(settings(run)) for run in heads]
    unnamed = [flat for run, flat in zip(heads, flats, strict=True) if not run.config.get("variant")]
    shared = [key for key in differing(unnamed) if key.split(".")[0] in _EXPERIMENT]
    labels = []
    for run, flat in zip(heads, flats, strict=True):
        peers = [
            other
            for head, other in zip(heads, flats, strict=True)
            if _method_title(head) == _method_title(run)
        ]
        keys = dict.fromkeys([*([] if run.config.get("variant") else shared), *differing(peers)])
        different = ", ".join(
            f"{name} {clean(named(flat[key]))}" for key, name in _short(keys).items() if key in flat
        )
        labels.append(_method_title(run) + (f" ({different})" if different else ""))
    return [
        label if labels.count(label) == 1 else f"{label} [{labels[:i].count(label) + 1}]"
        for i, label in enumerate(labels)
    ]


def _short(keys: Iterable[str]) -> dict[str, str]:
    """Return a short name for each setting: its last part, unless another one has the same; a name's section.

    >>> list(_short(["aggregator.name", "aggregator.fraction", "attack.fraction", "seed"]).values())
    ['aggregator', 'aggregator.fraction', 'attack.fraction', 'seed']
    """
    parts = {key: key.split(".") for key in keys}
    ends = [part[-1] for part in parts.values()]
    return {
        key: part[-2] if part[-1] == "name" and part[:-1] else part[-1] if ends.count(part[-1]) == 1 else key
        for key, part in parts.items()
    }


def _progress(run: Run) -> tuple[bool, int]:
    return run.finished, len(run.rounds)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
