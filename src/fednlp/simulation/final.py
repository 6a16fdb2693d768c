"""Final evaluation after the last round is saved: fine-tuning by each client, and the cross-client evaluation.

Neither changes the state of the run. A failure here costs no round: a resumed run repeats this part, with the same
result.
"""

import csv
import io
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from fednlp.clock import EVALUATION, timed
from fednlp.config.sections import WITHOUT_MODEL
from fednlp.disk import atomic
from fednlp.federated.store import ClientStore
from fednlp.formatting.units import human_bytes, plural
from fednlp.simulation.context import RunContext
from fednlp.simulation.evaluate import (
    clients_with_tests,
    evaluate_clients,
    own_scores,
    personal_scores,
    predict_globally,
    scores_of_clients,
    tries_server,
)
from fednlp.simulation.run_dir import RunDir, remedy
from fednlp.training.requests.predict import ClientModelResult
from fednlp.training.worker_spec import model_fields

_WARNINGS = 10
"""Maximum number of failed clients that are named; the last line of ``rounds.jsonl`` has all of them."""
_LEAVE_FREE = 2**30
"""Bytes of the disk that kept models leave free."""


def is_due(context: RunContext) -> bool:
    """Return whether fine-tuning or the cross-client evaluation is configured, and not in the last line yet."""
    experiment, line = context.experiment, context.lines[-1]
    if experiment.algorithm.name in WITHOUT_MODEL:  # a client's is evaluated in its round, and not kept
        return False
    finetuning = experiment.client.finetune_steps > 0 and "finetuned" not in line["evaluation"]
    return finetuning or (
        experiment.evaluation.cross_client_evaluation and "cross_client_evaluation" not in line
    )


@timed(EVALUATION)
def evaluate_final(context: RunContext, run: RunDir) -> dict[str, Any]:
    """Have clients fine-tune their models, and evaluate all models on all clients' tests, each if configured.

    Args:
        context: The run, after its last round.
        run: The run directory, which gets the clients' models after their fine-tuning steps, and their scores in
            ``clients.csv``.

    Returns:
        Entries of the last round's line: ``finetuned``, a summary of the clients' scores after fine-tuning, for its
        ``evaluation``; ``cross_client_evaluation``; ``finetune_failed``, the clients that failed in fine-tuning,
        each with a reason; ``finetune_untrained``, the number of clients without training examples. Entries
        without content are left out.
    """
    steps, clients = context.experiment.client.finetune_steps, context.partition.num_clients
    everyone = list(range(clients)) if context.experiment.evaluation.cross_client_evaluation else []
    found: dict[str, Any] = {}
    results: list[ClientModelResult] = []
    if steps:
        results = _finetune(context, run, everyone, found)
    elif context.worker.personalised:
        results = evaluate_clients(context, [], everyone)
    if everyone:
        found["cross_client_evaluation"] = cross_client_evaluation(context, results)
    return found


def _finetune(
    context: RunContext, run: RunDir, everyone: list[int], found: dict[str, Any]
) -> list[ClientModelResult]:
    """Have clients take their fine-tuning steps, and add the outcome to ``found``; return their results."""
    keep = _keeps_models(context, run)
    held = context.labels
    sizes = np.diff(context.partition.train_offsets) if held is None else held.gold + held.pseudo
    able = np.flatnonzero(sizes).tolist()
    trained = [client for client in everyone if sizes[client]]
    at_sites = context.experiment.data.at_sites  # each keeps its own there
    own = able if keep or at_sites else [client for client in clients_with_tests(context) if sizes[client]]
    save_to = str(run.client_models.resolve()) if keep else None
    results = evaluate_clients(context, own, trained, context.experiment.client.finetune_steps, save_to)
    if keep:
        with closing(ClientStore(run.client_models, model_fields(context.worker.replica))) as store:
            store.sync()
    scores = own_scores(context, results)
    found["finetuned"] = personal_scores(context, scores)
    failed = [{"client": r.client, "reason": r.error} for r in results if r.error is not None]
    untrained = context.partition.num_clients - len(able)
    found |= {"finetune_failed": failed} if failed else {}
    found |= {"finetune_untrained": untrained} if untrained else {}
    _warn(context, failed, untrained)
    _add_scores(run.folder / "clients.csv", f"{context.worker.task.metric}_finetuned", scores)
    return results


def _keeps_models(context: RunContext, run: RunDir) -> bool:
    """Make the file of the clients' models, and return whether they are kept: configured, and with enough space.

    The models of sites stay there.
    """
    clients, most = context.partition.num_clients, context.experiment.evaluation.keep_client_models
    if clients > most or context.experiment.data.at_sites:
        return False
    fields = model_fields(context.worker.replica)
    needed, free = 4 * sum(fields.values()) * clients, shutil.disk_usage(run.folder).free
    run.client_models.unlink(missing_ok=True)
    if needed + _LEAVE_FREE > free:
        context.log(
            f"warning: the models of {plural(clients, 'client')} are not kept: they need {human_bytes(needed)}, and "
            f"the disk of {run.folder} has {human_bytes(free)} left"
        )
        return False
    ClientStore(run.client_models, fields).close()
    return True


def _warn(context: RunContext, failed: list[dict[str, Any]], untrained: int) -> None:
    for one in failed[:_WARNINGS]:
        context.log(f"warning: client {one['client']} failed in its fine-tuning steps: {one['reason']}")
    if len(failed) > _WARNINGS:
        context.log(
            f"warning: {plural(len(failed) - _WARNINGS, 'more client')} failed in their fine-tuning steps"
        )
    if untrained:
        context.log(f"no fine-tuning steps for {plural(untrained, 'client')} without training examples")


def cross_client_evaluation(context: RunContext, results: list[ClientModelResult]) -> dict[str, Any]:
    """Return the scores of models (rows) on the clients' tests (columns): the server's first, where there is one.

    Args:
        results: Results of clients with models of their own; the row of a client that failed has no scores.
    """
    clients = context.partition.num_clients
    names = context.partition.client_names or [str(c) for c in range(clients)]
    scores = {result.client: result.by_owner for result in results}
    rows = []
    if tries_server(context):
        server = scores_of_clients(context, predict_globally(context))
        rows.append({"model": "server", "scores": [None if np.isnan(s) else float(s) for s in server]})
    if results:
        rows += [
            {"model": name, "scores": scores.get(client) or [None] * clients}
            for client, name in enumerate(names)
        ]
    return {"metric": context.worker.task.metric, "tests": list(names), "rows": rows}


def _add_scores(path: Path, column: str, scores: np.ndarray) -> None:
    """Add a column of scores to clients.csv if the file exists, with empty cells for NaN."""
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
