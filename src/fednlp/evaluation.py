"""Try the global model on the whole test set and for each client on its own; or each client's own model.

Metrics are computed once over the whole set, never averaged over batches. Every test example belongs to
at most one client, so the clients' own scores come from the same predictions at no further cost, unless
clients have models of their own: then each of these is tried on its client's examples.
"""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fednlp.disk import atomic
from fednlp.plaintext import csv_text
from fednlp.rundir import remedy
from fednlp.seeds import generator
from fednlp.tasks.base import Outcome
from fednlp.training.scores import mean_scores, scores_by_owner

if TYPE_CHECKING:
    from fednlp.procedures import Course


def evaluate(course: "Course", last: bool = False) -> dict[str, dict[str, Any]]:
    """Evaluate after a round.

    Returns:
        ``global``: metrics of the common model on the whole test set; where clients have models of their own,
        the mean over ``evaluation.local_models`` of these, at the end alone, since each costs a whole test.
        ``personal``: a summary of the clients' scores on their own tests, if wanted. ``final``: the same after
        ``client.final_steps`` more steps of each client by itself, at the end.
    """
    options = course.experiment.evaluation
    scores: dict[str, dict[str, Any]] = {}
    if course.side.personalised:
        tried = drawn_clients(course) if last else []
        results = _engines(course, tried, own=options.personal)
        if tried:
            scores["global"] = mean_scores([r["global"] for r in results if r["global"]])
        course.client_scores = _own(course, results)
    else:
        outcomes = _global(course)
        scores["global"] = course.side.scored(outcomes) or {}
        if last:
            course.by_label = course.side.by_label(outcomes)
        side = course.side
        course.client_scores = scores_by_owner(side.task, side.test_features, course.partition, outcomes)
    if options.personal:
        scores["personal"] = personal_scores(course, course.client_scores)
    if last:
        scores |= _at_the_end(course)
    return scores


def _at_the_end(course: "Course") -> dict[str, dict[str, Any]]:
    """Let clients train on by themselves, if wanted, and try all their models on all their tests, if wanted."""
    options, steps = course.experiment.evaluation, course.experiment.client.final_steps
    everyone = list(range(course.partition.num_clients)) if options.matrix else []
    if not steps and not everyone:
        return {}
    if steps or course.side.personalised:
        results = _engines(course, everyone, own=bool(steps), steps=steps)
        if everyone:
            course.matrix = matrix(course, [r["by_owner"] for r in results])
    else:
        course.matrix = matrix(course, [])  # all clients have the server's model
    if not steps:
        return {}
    course.final_scores = _own(course, results)
    return {"final": personal_scores(course, course.final_scores)}


def matrix(course: "Course", engines: list[list[float | None]]) -> dict[str, Any]:
    """Return the scores of models (rows) on the clients' tests (columns): the server's first, if it is used."""
    names = course.partition.client_names or [str(c) for c in range(course.partition.num_clients)]
    rows = [{"model": name, "scores": row} for name, row in zip(names, engines, strict=False)]
    if not course.side.personalised:
        server = [None if np.isnan(score) else float(score) for score in course.client_scores]
        rows.insert(0, {"model": "server", "scores": server})
    return {"metric": course.side.task.metric, "tests": list(names), "rows": rows}


def drawn_clients(course: "Course") -> list[int]:
    """Draw the clients whose own models are tried on the whole test set."""
    clients, wanted = course.partition.num_clients, course.experiment.evaluation.local_models
    rng = generator(course.experiment.seed, "local models")
    return sorted(int(c) for c in rng.choice(clients, size=min(wanted, clients), replace=False))


def _global(course: "Course") -> list[Outcome]:
    """Predict the whole test set with the common model."""
    side, state = course.side, course.state
    pieces = len(side.test_batches())
    job = {"kind": "evaluate", "key": state.round}
    results = course.pool.do(job, pieces, state.x, lambda done: course.step(done, pieces, "test batches"))
    return [Outcome(**result) for result in results]


def _engines(course: "Course", everyone: list[int], own: bool, steps: int = 0) -> list[dict[str, Any]]:
    """Try clients' own models: those of ``everyone`` on the whole test set, all others on their own tests."""
    has_tests = np.flatnonzero(np.diff(course.partition.test_offsets))
    clients = sorted({*everyone, *(has_tests.tolist() if own else [])})
    job = {
        "kind": "engine",
        "clients": clients,
        "round": course.state.round,
        "final_steps": steps,
        "everyone": everyone,
        "own": own,
    }
    found: list[dict[str, Any]] = course.pool.do(
        job, len(clients), course.state.x, lambda done: course.step(done, len(clients), "clients' models")
    )
    return found


def _own(course: "Course", results: list[dict[str, Any]]) -> np.ndarray:
    """Return each client's score on its own test examples; NaN where these do not define one."""
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
    """Write clients.csv: sizes and last own score of every client, and that after its own final steps."""
    train, test = np.diff(course.partition.train_offsets), np.diff(course.partition.test_offsets)
    names, metric = course.partition.client_names, course.side.task.metric
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["client", "name", "train_examples", "test_examples", metric, f"{metric}_final"])
    for client in range(course.partition.num_clients):
        scores = (course.client_scores[client], course.final_scores[client])
        shown = ("" if np.isnan(score) else f"{score:.6f}" for score in scores)
        writer.writerow(
            [client, csv_text(names[client]) if names else "", train[client], test[client], *shown]
        )
    with atomic(path, remedy(path.parent)) as file:
        file.write(text.getvalue().encode())
