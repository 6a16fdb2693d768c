"""Try the global model on the whole test set and for each client on its own; or each client's own model.

Metrics are computed once over the whole set, never averaged over batches. Every test example belongs to
at most one client, so the clients' own scores come from the same predictions at no further cost, unless
clients have models of their own: then each of these is tried on its client's examples.

What comes once, after the last round, is in :mod:`fednlp.simulation.final`.
"""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fednlp.disk import atomic
from fednlp.formatting.safe_text import csv_text
from fednlp.seeds import generator
from fednlp.simulation.run_dir import remedy
from fednlp.tasks.base import Outcome
from fednlp.training.scores import mean_scores, scores_by_owner

if TYPE_CHECKING:
    from fednlp.simulation.context import Course


def evaluate(course: "Course", last: bool = False) -> dict[str, dict[str, Any]]:
    """Evaluate after a round.

    Returns:
        ``global``: metrics of the common model on the whole test set; where clients have models of their own,
        the mean over ``evaluation.local_models`` of these, at the end alone, since each costs a whole test.
        ``personal``: a summary of the clients' scores on their own tests, if wanted.
    """
    options = course.experiment.evaluation
    scores: dict[str, dict[str, Any]] = {}
    if course.side.personalised:
        tried = drawn_clients(course) if last else []
        own = clients_with_tests(course) if options.personal else []
        results = try_clients(course, own, tried)
        if tried:
            scores["global"] = mean_scores([r["global"] for r in results if r["global"]])
        course.client_scores = own_scores(course, results)
    else:
        outcomes = predict_globally(course)
        scores["global"] = course.side.scored(outcomes) or {}
        if last:
            course.by_label = course.side.by_label(outcomes)
        course.client_scores = scores_of_clients(course, outcomes)
    if options.personal:
        scores["personal"] = personal_scores(course, course.client_scores)
    return scores


def drawn_clients(course: "Course") -> list[int]:
    """Draw the clients whose own models are tried on the whole test set."""
    clients, wanted = course.partition.num_clients, course.experiment.evaluation.local_models
    rng = generator(course.experiment.seed, "local models")
    return sorted(int(c) for c in rng.choice(clients, size=min(wanted, clients), replace=False))


def predict_globally(course: "Course") -> list[Outcome]:
    """Predict the whole test set with the common model."""
    side, state = course.side, course.state
    pieces = len(side.test_batches())
    job = {"kind": "evaluate", "key": state.round}
    results = course.pool.do(
        job, pieces, state.x, lambda done: course.on_progress(done, pieces, "test batches")
    )
    return [Outcome(**result) for result in results]


def try_clients(
    course: "Course", own: list[int], everyone: list[int], final: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Try clients' own models.

    Args:
        course: The run.
        own: Clients whose models are tried on their own tests.
        everyone: Clients whose models are tried on the whole test set.
        final: What the job says of steps that the clients take first by themselves; None for no steps. With
            ``labelled``, it has the examples and labels of each of the clients in rising order.
    """
    clients = sorted({*own, *everyone})
    job = {
        "kind": "engine",
        "clients": clients,
        "round": course.state.round,
        "everyone": everyone,
        "own": bool(own),
        **(final or {"final_steps": 0}),
    }
    found: list[dict[str, Any]] = course.pool.do(
        job,
        len(clients),
        course.state.x,
        lambda done: course.on_progress(done, len(clients), "clients' models"),
    )
    return found


def scores_of_clients(course: "Course", outcomes: list[Outcome]) -> np.ndarray:
    """Return each client's score on its own test examples by predictions of the whole test set; NaN without any."""
    side = course.side
    return scores_by_owner(side.task, side.test_features, course.partition, outcomes)


def clients_with_tests(course: "Course") -> list[int]:
    """Return the clients that have test examples of their own."""
    found: list[int] = np.flatnonzero(np.diff(course.partition.test_offsets)).tolist()
    return found


def own_scores(course: "Course", results: list[dict[str, Any]]) -> np.ndarray:
    """Return each client's score on its own test examples; NaN where it has none."""
    scores = np.full(course.partition.num_clients, np.nan)
    for result in results:
        if result["own"] is not None:
            scores[result["client"]] = result["own"]
    return scores


def personal_scores(course: "Course", own: np.ndarray) -> dict[str, Any]:
    """Summarise the clients' own scores in the metric that stands for the task, ``accuracy`` for example.

    Args:
        course: The run.
        own: A score a client, NaN where its test examples do not define one: it is left out of all figures.

    Returns:
        ``accuracy``: mean weighted by test examples; ``accuracy_worst_decile``: mean over the worst tenth
        of the clients; ``accuracy_std``: spread over the clients; ``clients``: how many have a score.
    """
    metric = course.side.task.metric
    keys = (metric, f"{metric}_worst_decile", f"{metric}_std")
    clients = np.flatnonzero(~np.isnan(own))
    if not len(clients):
        return {**dict.fromkeys(keys), "clients": 0}
    scores = own[clients]
    weights = np.diff(course.partition.test_offsets)[clients]
    worst = np.sort(scores)[: max(1, len(scores) // 10)]
    values = (float(np.average(scores, weights=weights)), float(worst.mean()), float(scores.std()))
    return {**dict(zip(keys, values, strict=True)), "clients": len(clients)}


def write_clients(path: Path, course: "Course") -> None:
    """Write clients.csv: name, sizes and last own score of every client."""
    train, test = np.diff(course.partition.train_offsets), np.diff(course.partition.test_offsets)
    names = course.partition.client_names
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["client", "name", "train_examples", "test_examples", course.side.task.metric])
    for client in range(course.partition.num_clients):
        score, name = course.client_scores[client], csv_text(names[client]) if names else ""
        shown = "" if np.isnan(score) else f"{score:.6f}"
        writer.writerow([client, name, train[client], test[client], shown])
    with atomic(path, remedy(path.parent)) as file:
        file.write(text.getvalue().encode())
