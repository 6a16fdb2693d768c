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
from fednlp.tasks import Outcome

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
    by_number = np.full(len(course.side.test_features), np.nan)
    by_number[numbers] = course.side.task.correct(predictions, course.side.test_features, numbers)
    offsets = course.partition.test_offsets
    sizes = np.diff(offsets)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    sums = np.bincount(owners, weights=by_number[course.partition.test_indices], minlength=len(sizes))
    scores = np.full(len(sizes), np.nan)
    np.divide(sums, sizes, out=scores, where=sizes > 0)
    return scores


def personal_scores(course: "Course") -> dict[str, Any]:
    """Summarise the clients' own scores.

    Returns:
        ``accuracy``: mean weighted by test examples; ``accuracy_worst_decile``: mean over the worst tenth
        of the clients; ``accuracy_std``: spread over the clients; ``clients``: how many have test examples.
    """
    clients = np.flatnonzero(~np.isnan(course.client_scores))
    if not len(clients):
        return {"accuracy": None, "accuracy_worst_decile": None, "accuracy_std": None, "clients": 0}
    scores = course.client_scores[clients]
    weights = np.diff(course.partition.test_offsets)[clients]
    worst = np.sort(scores)[: max(1, len(scores) // 10)]
    return {
        "accuracy": float(np.average(scores, weights=weights)),
        "accuracy_worst_decile": float(worst.mean()),
        "accuracy_std": float(scores.std()),
        "clients": len(clients),
    }


def write_clients(path: Path, course: "Course") -> None:
    """Write clients.csv: sizes and last own score of every client."""
    train, test = np.diff(course.partition.train_offsets), np.diff(course.partition.test_offsets)
    names = course.partition.client_names
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["client", "name", "train_examples", "test_examples", "accuracy"])
    for client in range(course.partition.num_clients):
        score = course.client_scores[client]
        name = names[client] if names else ""
        writer.writerow(
            [client, name, train[client], test[client], "" if np.isnan(score) else f"{score:.6f}"]
        )
    with atomic(path, remedy(path.parent)) as file:
        file.write(text.getvalue().encode())
