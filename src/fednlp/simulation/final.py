"""What is done once, after the last round is saved: final steps of each client, and the matrix of models and tests.

Neither changes the state of the run. A failure here costs no round: a resumed run repeats this part, with the same
result.
"""

import csv
import io
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fednlp.disk import atomic
from fednlp.federated.store import ClientStore
from fednlp.formatting.units import human_bytes
from fednlp.simulation.evaluate import (
    clients_with_tests,
    own_scores,
    personal_scores,
    predict_globally,
    scores_of_clients,
    try_clients,
)
from fednlp.simulation.run_dir import RunDir, remedy
from fednlp.training.side import model_fields

if TYPE_CHECKING:
    from fednlp.simulation.context import Course

_WARNINGS = 10
"""How many failed clients are named; the last line of ``rounds.jsonl`` has them all."""
_LEAVE_FREE = 2**30
"""Bytes of the disk that kept models leave free."""


def is_due(course: "Course") -> bool:
    """Whether final steps or the matrix are configured, and the last round's line does not have them yet."""
    experiment, line = course.experiment, course.lines[-1]
    if experiment.algorithm.name == "local":  # its models are tried round by round, and not kept
        return False
    final = experiment.client.final_steps > 0 and "final" not in line["evaluation"]
    return final or (experiment.evaluation.matrix and "matrix" not in line)


def evaluate_final(course: "Course", run: RunDir) -> dict[str, Any]:
    """Let clients train on by themselves, if configured, and try all their models on all tests, if configured.

    Args:
        course: The run, after its last round.
        run: Gets the clients' models after their own steps, and their scores in ``clients.csv``.

    Returns:
        What the last round's line is to hold: ``final``, a summary of the clients' scores after their own steps, for
        its ``evaluation``; ``matrix``; ``final_failed``, the clients that failed in these steps, each with a reason;
        ``final_untrained``, how many have nothing to train on. Each only where there is any.
    """
    steps, clients = course.experiment.client.final_steps, course.partition.num_clients
    everyone = list(range(clients)) if course.experiment.evaluation.matrix else []
    found: dict[str, Any] = {}
    results: list[dict[str, Any]] = []
    if steps:
        results = _final_steps(course, run, everyone, found)
    elif course.side.personalised:
        results = try_clients(course, [], everyone)
    if everyone:
        found["matrix"] = matrix(course, results)
    return found


def _final_steps(
    course: "Course", run: RunDir, everyone: list[int], found: dict[str, Any]
) -> list[dict[str, Any]]:
    """Let clients take their final steps, and add to what is found; return what came of each."""
    labelled, keep = _labelled(course), _keeps_models(course, run)
    sizes = np.diff(course.partition.train_offsets) if labelled is None else [len(one[0]) for one in labelled]
    able = np.flatnonzero(sizes).tolist()
    trained = [client for client in everyone if sizes[client]]
    own = able if keep else [client for client in clients_with_tests(course) if sizes[client]]
    final: dict[str, Any] = {"final_steps": course.experiment.client.final_steps, "models": None}
    if labelled is not None:
        final["labelled"] = [labelled[client] for client in sorted({*own, *trained})]
    if keep:
        final["models"] = str(run.client_models.resolve())
    results = try_clients(course, own, trained, final)
    if keep:
        with closing(ClientStore(run.client_models, model_fields(course.side.replica))) as store:
            store.sync()
    scores = own_scores(course, results)
    found["final"] = personal_scores(course, scores)
    failed = [{"client": r["client"], "reason": r["error"]} for r in results if r["error"] is not None]
    untrained = course.partition.num_clients - len(able)
    found |= {"final_failed": failed} if failed else {}
    found |= {"final_untrained": untrained} if untrained else {}
    _warn(course, failed, untrained)
    _add_scores(run.folder / "clients.csv", f"{course.side.task.metric}_final", scores)
    return results


def _labelled(course: "Course") -> list[list[list[int]]] | None:
    """Return each client's examples that have a label, and their labels; None where all have one."""
    if course.labelled is None:
        return None
    clients = range(course.partition.num_clients)
    return [[part.tolist() for part in course.labelled(client)] for client in clients]


def _keeps_models(course: "Course", run: RunDir) -> bool:
    """Make the file for the clients' models, if these are to be kept and the disk has room for them."""
    clients, most = course.partition.num_clients, course.experiment.evaluation.keep_client_models
    if clients > most:
        return False
    fields = model_fields(course.side.replica)
    needed, free = 4 * sum(fields.values()) * clients, shutil.disk_usage(run.folder).free
    run.client_models.unlink(missing_ok=True)
    if needed + _LEAVE_FREE > free:
        course.log(
            f"warning: the models of {clients} clients are not kept: they need {human_bytes(needed)}, and the disk of "
            f"{run.folder} has {human_bytes(free)} left"
        )
        return False
    ClientStore(run.client_models, fields).close()
    return True


def _warn(course: "Course", failed: list[dict[str, Any]], untrained: int) -> None:
    for one in failed[:_WARNINGS]:
        course.log(f"warning: client {one['client']} failed in its final steps: {one['reason']}")
    if len(failed) > _WARNINGS:
        course.log(f"warning: {len(failed) - _WARNINGS:,} more clients failed in their final steps")
    if untrained:
        course.log(f"{untrained:,} clients have nothing to train on and take no final steps")


def matrix(course: "Course", results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the scores of models (rows) on the clients' tests (columns): the server's first, if it is used.

    Args:
        course: The run.
        results: Of clients that have models of their own; the row of one that failed has no scores.
    """
    clients = course.partition.num_clients
    names = course.partition.client_names or [str(c) for c in range(clients)]
    scores = {result["client"]: result["by_owner"] for result in results}
    rows = []
    if not course.side.personalised:
        server = scores_of_clients(course, predict_globally(course))
        rows.append({"model": "server", "scores": [None if np.isnan(s) else float(s) for s in server]})
    if results:
        rows += [
            {"model": name, "scores": scores.get(client) or [None] * clients}
            for client, name in enumerate(names)
        ]
    return {"metric": course.side.task.metric, "tests": list(names), "rows": rows}


def _add_scores(path: Path, column: str, scores: np.ndarray) -> None:
    """Add each client's score to clients.csv, if that was written; an empty cell where it has none."""
    if not path.is_file():
        return
    text = io.StringIO()
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        kept = [name for name in reader.fieldnames or () if name != column]
        writer = csv.DictWriter(text, [*kept, column], lineterminator="\n")
        writer.writeheader()
        for row, score in zip(reader, scores, strict=True):
            writer.writerow(row | {column: "" if np.isnan(score) else f"{score:.6f}"})
    with atomic(path, remedy(path.parent)) as whole:
        whole.write(text.getvalue().encode())
