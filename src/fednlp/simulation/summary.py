"""``summary.json``: the results of a run, its costs, and the scores of a prediction without a model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fednlp.config import Experiment
from fednlp.config.sections import BASELINES
from fednlp.costs import totals
from fednlp.simulation.context import RunContext
from fednlp.training.scores import defined


def summary_of(context: RunContext, data: dict[str, Any], stopped: str | None) -> dict[str, Any]:
    """Return the results and the costs of a run.

    Args:
        context: The run, at its end.
        data: Name, source, fingerprint and sizes of the data.
        stopped: The reason why the run ended before its last round; None if it did not.
    """
    experiment, lines, worker = context.experiment, context.lines, context.worker
    task = worker.task
    evaluated = [line for line in lines if "evaluation" in line]
    parts = ("personal",) if context.worker.personalised else ("global", "federated")
    return {
        "name": experiment.name,
        "algorithm": experiment.algorithm.name,
        "seed": experiment.seed,
        "rounds": context.state.round,
        "finished": stopped is None,
        "data": data,
        "clients": context.partition.num_clients,
        "personalised": context.worker.personalised,
        "model": experiment.model.name_or_path,
        "parameters": context.state.layout.numel,
        "evaluation": evaluated[-1]["evaluation"] if evaluated else {},
        "task": task.name,
        "model_class": task.model_class,
        "model_type": getattr(getattr(worker.replica.model, "config", None), "model_type", None),
        "metric": task.metric,
        "best": _best(evaluated, parts, task.metric),
        "bytes_up": 0,
        "bytes_down": 0,
        **totals(lines),
        "seconds": round(sum(line["seconds"] for line in lines), 3),
        "dropped": sum(len(line.get("dropped", [])) for line in lines),
        "stopped": stopped,
        "reference": experiment.algorithm.name if experiment.algorithm.name in BASELINES else None,
        "trivial_baseline": _trivial_baseline(context),
        "note": context.note,
        **{
            key: lines[-1][key]
            for key in ("interval", "finetune_failed", "finetune_untrained")
            if lines and key in lines[-1]
        },
        **context.facts,
        **_secure_total(experiment, lines),
        **_staleness(lines),
    }


def _best(evaluated: list[dict[str, Any]], parts: Sequence[str], metric: str) -> dict[str, Any] | None:
    """Return the first round of the highest score, in the first part that has any; None if nothing was scored."""
    scores = [
        [
            (line["evaluation"][part][metric], -line["round"])
            for line in evaluated
            if line["evaluation"].get(part, {}).get(metric) is not None
        ]
        for part in parts
    ]
    scored = next(filter(None, scores), None)
    if scored is None:
        return None
    score, earliest = max(scored)
    return {"round": -earliest, metric: score}


def _staleness(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many flushes late updates were, on average over all of them and at most; nothing for rounds."""
    late = [(line["staleness"], len(line["cohort"])) for line in lines if "staleness" in line]
    if not late:
        return {}
    mean = sum(one["mean"] * updates for one, updates in late) / sum(updates for _, updates in late)
    return {"staleness": {"mean": round(mean, 6), "largest": max(one["largest"] for one, _ in late)}}


def _secure_total(experiment: Experiment, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what secure aggregation added over all rounds; nothing without it."""
    added = [line["secure"] for line in lines if "secure" in line]
    if not added:
        return {}
    return {
        "secure": {
            "protocol": experiment.secure.protocol,
            "bytes": sum(one["bytes"] for one in added),
            "seconds": round(sum(one["seconds"] for one in added), 3),
            "aborted": sum("aborted" in line for line in lines),
        }
    }


def _trivial_baseline(context: RunContext) -> dict[str, Any] | None:
    """Return the task's metrics of a prediction without a model on the whole test set; None where none can be made.

    Where the texts are at sites, it is that of the label which most of their tests have, if their sums tell it.
    """
    if context.experiment.data.at_sites:
        told = [
            line["evaluation"].get("federated", {}).get("baseline")
            for line in context.lines
            if "evaluation" in line
        ]
        if not told or told[-1] is None:
            return None
        return {"name": "the most frequent label of the sites' tests", context.worker.task.metric: told[-1]}
    worker, examples, train = context.worker, context.partition.train_indices, context.worker.train_features
    if context.labels is not None:
        known = context.labels.known
        examples, train = known.examples, train.with_values("label", known.examples, known.labels)
    numbers = np.load(worker.spec.test_numbers)
    name, predictions = worker.task.baseline(train, examples, worker.test_features, numbers)
    return {"name": name, **defined(worker.task.metrics(predictions, worker.test_features, numbers))}
