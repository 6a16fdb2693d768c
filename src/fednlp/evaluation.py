"""Try the global model: on the whole test set, and for each client on its own.

Metrics are computed once over the whole set, never averaged over batches. Every test example belongs to
at most one client, so the clients' own scores come from the same predictions at no further cost.
"""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fednlp.disk import atomic
from fednlp.rundir import remedy
from fednlp.tasks.base import Outcome

if TYPE_CHECKING:
    from fednlp.procedures import Course


def evaluate(course: "Course") -> dict[str, dict[str, Any]]:
    """Evaluate the global model; return ``global`` metrics and, if wanted, ``personal`` ones."""
    side, state = course.side, course.state
    pieces = len(side.test_batches())
    job = {"kind": "evaluate", "key": state.round}
    results = course.pool.do(job, pieces, state.x, lambda done: course.step(done, pieces, "test batches"))
    outcomes = [Outcome(**result) for result in results]
    scores: dict[str, dict[str, Any]] = {"global": side.scored(outcomes) or {}}
    if course.experiment.evaluation.personal:
        course.client_scores = _own_scores(course, outcomes)
        scores["personal"] = personal_scores(course)
    return scores


def _own_scores(course: "Course", outcomes: list[Outcome]) -> np.ndarray:
    """Return each client's score on its own test examples; NaN where it has none."""
    numbers = np.array([n for outcome in outcomes for n in outcome.numbers], dtype=np.int64)
    predictions = [p for outcome in outcomes for p in outcome.predictions]
    task = course.side.task
    statistics = task.statistics(predictions, course.side.test_features, numbers)
    places = np.empty(len(course.side.test_features), dtype=np.int64)
    places[numbers] = np.arange(len(numbers))
    own = statistics[places[course.partition.test_indices]]
    sizes = np.diff(course.partition.test_offsets)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    columns = [np.bincount(owners, weights=column, minlength=len(sizes)) for column in own.T]
    return np.where(sizes > 0, task.score(np.stack(columns, axis=-1)), np.nan)


def personal_scores(course: "Course") -> dict[str, Any]:
    """Summarise the clients' own scores in the metric that stands for the task, ``accuracy`` for example.

    Returns:
        ``accuracy``: mean weighted by test examples; ``accuracy_worst_decile``: mean over the worst tenth
        of the clients; ``accuracy_std``: spread over the clients; ``clients``: how many have test examples.
    """
    metric = course.side.task.metric
    keys = (metric, f"{metric}_worst_decile", f"{metric}_std")
    clients = np.flatnonzero(~np.isnan(course.client_scores))
    if not len(clients):
        return {**dict.fromkeys(keys), "clients": 0}
    scores = course.client_scores[clients]
    weights = np.diff(course.partition.test_offsets)[clients]
    worst = np.sort(scores)[: max(1, len(scores) // 10)]
    values = (float(np.average(scores, weights=weights)), float(worst.mean()), float(scores.std()))
    return {**dict(zip(keys, values, strict=True)), "clients": len(clients)}


def write_clients(path: Path, course: "Course") -> None:
    """Write clients.csv: sizes and last own score of every client."""
    train, test = np.diff(course.partition.train_offsets), np.diff(course.partition.test_offsets)
    names = course.partition.client_names
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["client", "name", "train_examples", "test_examples", course.side.task.metric])
    for client in range(course.partition.num_clients):
        score = course.client_scores[client]
        name = names[client] if names else ""
        writer.writerow(
            [client, name, train[client], test[client], "" if np.isnan(score) else f"{score:.6f}"]
        )
    with atomic(path, remedy(path.parent)) as file:
        file.write(text.getvalue().encode())
