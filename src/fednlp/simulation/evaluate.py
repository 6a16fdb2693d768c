"""Evaluate the global model on the whole test set and on each client's tests, or the clients' own models.

Metrics are computed once over the whole set, never averaged over batches. Every test example belongs to
at most one client, so the clients' own scores come from the same predictions at no further cost, unless
clients have models of their own, or the examples are at the sites of a deployment: then each client evaluates.

What comes once after the last round is saved, fine-tuning by each client and the cross-client evaluation
(:func:`evaluate_final`), changes nothing of the state of the run. A failure there costs no round: a resumed run
repeats it, with the same result.
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
from fednlp.federated.runtime import MODEL
from fednlp.federated.store import ClientStore
from fednlp.formatting.safe_text import csv_text
from fednlp.formatting.units import HIDDEN, human_bytes, plural
from fednlp.seeds import generator
from fednlp.simulation.context import RunContext
from fednlp.simulation.federated_evaluation import clients_with_tests, evaluate_by_sums
from fednlp.simulation.run_dir import RunDir, remedy
from fednlp.tasks.base import Predictions
from fednlp.training.requests.predict import (
    BatchPredictions,
    ClientModelRequest,
    ClientModelResult,
    EvaluateRequest,
)
from fednlp.training.scores import mean_scores, scores_by_owner
from fednlp.training.worker_spec import model_fields

_WARNINGS = 10
"""Maximum number of failed clients that are named; the last line of ``rounds.jsonl`` has all of them."""
_LEAVE_FREE = 2**30
"""Bytes of the disk that kept models leave free."""


@timed(EVALUATION)
def _evaluate(context: RunContext, last: bool = False) -> dict[str, dict[str, Any]]:
    """Evaluate after a round.

    Args:
        last: Evaluate as after the last round: by label, and with the clients' own models on the whole test set.

    Returns:
        ``global``: metrics of the global model on the whole test set; where there are only clients' own models,
        the mean over ``evaluation.local_models`` of these, only at the end, since each costs a whole test, unless
        ``evaluation.server_model`` asks for the server's.
        ``federated``: metrics of the global model from sums over the clients' own tests, if configured.
        ``personal``: a summary of the clients' scores on their own tests by the models that they use, if configured.
    """
    options, worker, at_sites = (
        context.experiment.evaluation,
        context.worker,
        context.experiment.data.at_sites,
    )
    scores: dict[str, dict[str, Any]] = {}
    if _tries_server(context):
        outcomes = _predict_globally(context)
        scores["global"] = worker.evaluator.scored(outcomes) or {}
        context.by_label = worker.evaluator.by_label(outcomes) if last else None
        context.interval = worker.evaluator.interval(outcomes) if last else None
        if not at_sites:
            context.client_scores = scores_of_clients(context, outcomes)
    if worker.personalised or at_sites:
        drawn = drawn_clients(context) if last and not _tries_server(context) and not at_sites else []
        own = clients_with_tests(context.partition.test_offsets) if options.personal else []
        results = _evaluate_clients(context, own, drawn)
        if drawn:
            scores["global"] = mean_scores([r.everyone for r in results if r.everyone])
        context.client_scores = _own_scores(context, results)
    if options.federated:
        scores["federated"] = evaluate_by_sums(context)
    if options.personal:
        scores["personal"] = personal_scores(context, context.client_scores)
    return scores


def evaluated(context: RunContext, line: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Return a round's line, with an evaluation if one is due.

    Args:
        context: The run, after the round.
        line: The line so far; it is changed in place.
        rounds: Number of rounds of the run.
    """
    if context.due(rounds):
        line["evaluation"] = _evaluate(context, last=context.state.round == rounds)
        if context.interval is not None:
            line["interval"] = context.interval
    return line


def _tries_server(context: RunContext) -> bool:
    """Return whether the server's model is evaluated: clients use it as it is, or the experiment asks for it."""
    return context.worker.has_global_model or (
        context.experiment.evaluation.server_model and context.worker.layout.numel > 0
    )


def drawn_clients(context: RunContext) -> list[int]:
    """Draw the clients whose own models are evaluated on the whole test set."""
    clients, configured = context.partition.num_clients, context.experiment.evaluation.local_models
    rng = generator(context.experiment.seed, "local models")
    return sorted(int(c) for c in rng.choice(clients, size=min(configured, clients), replace=False))


def _predict_globally(context: RunContext) -> list[Predictions]:
    """Predict the whole test set with the common model."""
    worker, state = context.worker, context.state
    batches = len(worker.evaluator.test_batches())
    context.pool.publish(MODEL, state.params)
    requests = [EvaluateRequest(batch, state.round) for batch in range(batches)]
    found: list[BatchPredictions] = context.pool.do(
        requests, lambda done: context.on_progress(done, batches, "test batches")
    )
    return [Predictions(**vars(one)) for one in found]


def _evaluate_clients(
    context: RunContext,
    own: list[int],
    everyone: list[int],
    finetune_steps: int = 0,
    save_to: str | None = None,
) -> list[ClientModelResult]:
    """Evaluate clients' own models.

    Args:
        own: Clients whose models are evaluated on their own tests.
        everyone: Clients whose models are evaluated on the whole test set.
        finetune_steps: Number of fine-tuning steps of each client before the evaluation.
        save_to: File for the models after these steps; None for no file.
    """
    clients, on_all = sorted({*own, *everyone}), set(everyone)
    labels = context.labels if finetune_steps else None
    context.pool.publish(MODEL, context.state.params)
    for name in context.worker.algorithm.models:
        context.pool.publish(name, context.state.vectors[name])
    requests = []
    for client in clients:
        number, all_tests = context.state.round, client in on_all
        request = ClientModelRequest(client, number, bool(own), all_tests, finetune_steps, save_to)
        requests.append(request if labels is None else labels.with_labels(request))
    found: list[ClientModelResult] = context.pool.do(
        requests, lambda done: context.on_progress(done, len(clients), "clients' models")
    )
    return found


def scores_of_clients(context: RunContext, outcomes: list[Predictions]) -> np.ndarray:
    """Return each client's score on its own test examples, from predictions of the whole test set; NaN without any."""
    worker = context.worker
    return scores_by_owner(worker.task, worker.test_features, context.partition, outcomes)


def _own_scores(context: RunContext, results: list[ClientModelResult]) -> np.ndarray:
    """Return each client's score on its own test examples; NaN where it has none."""
    scores = np.full(context.partition.num_clients, np.nan)
    for result in results:
        if result.own is not None:
            scores[result.client] = result.own
    return scores


def personal_scores(context: RunContext, own: np.ndarray) -> dict[str, Any]:
    """Summarise the clients' own scores in the task's main metric, ``accuracy`` for example.

    Args:
        own: float64 (clients,), a score a client; NaN, where its test examples do not define one, is left out of all
            figures.

    Returns:
        ``accuracy``: mean weighted by test examples; ``accuracy_client_mean``: plain mean, in which every client
        counts the same; ``accuracy_worst_decile``: mean over the worst decile of the clients; ``accuracy_std``:
        standard deviation over the clients; ``clients``: number of scores.
    """
    metric = context.worker.task.metric
    keys = (metric, f"{metric}_client_mean", f"{metric}_worst_decile", f"{metric}_std")
    clients = np.flatnonzero(~np.isnan(own))
    if not len(clients):
        return {**dict.fromkeys(keys), "clients": 0}
    scores = own[clients]
    weights = np.diff(context.partition.test_offsets)[clients]
    worst = np.sort(scores)[: max(1, len(scores) // 10)]
    values = (np.average(scores, weights=weights), scores.mean(), worst.mean(), scores.std())
    return {**dict(zip(keys, map(float, values), strict=True)), "clients": len(clients)}


def write_clients(path: Path, context: RunContext) -> None:
    """Write clients.csv: name, sizes, as far as they are told, and last score on its own tests of every client."""
    partition, names = context.partition, context.partition.client_names
    sizes = np.diff([partition.train_offsets, partition.test_offsets]).T
    hidden = np.zeros(sizes.shape, bool) if partition.hidden is None else partition.hidden
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["client", "name", "train_examples", "test_examples", context.worker.task.metric])
    for client in range(partition.num_clients):
        score, name = context.client_scores[client], csv_text(names[client]) if names else ""
        shown = "" if np.isnan(score) else f"{score:.6f}"
        both = zip(hidden[client].tolist(), sizes[client].tolist(), strict=True)
        told = [HIDDEN if is_hidden else size for is_hidden, size in both]
        writer.writerow([client, name, *told, shown])
    with atomic(path, remedy(path.parent)) as file:
        file.write(text.getvalue().encode())


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
        results = _evaluate_clients(context, [], everyone)
    if everyone:
        found["cross_client_evaluation"] = _cross_client_evaluation(context, results)
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
    own = (
        able
        if keep or at_sites
        else [client for client in clients_with_tests(context.partition.test_offsets) if sizes[client]]
    )
    save_to = str(run.client_models.resolve()) if keep else None
    results = _evaluate_clients(context, own, trained, context.experiment.client.finetune_steps, save_to)
    if keep:
        with closing(ClientStore(run.client_models, model_fields(context.worker.replica))) as store:
            store.sync()
    scores = _own_scores(context, results)
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


def _cross_client_evaluation(context: RunContext, results: list[ClientModelResult]) -> dict[str, Any]:
    """Return the scores of models (rows) on the clients' tests (columns): the server's first, where there is one.

    Args:
        results: Results of clients with models of their own; the row of a client that failed has no scores.
    """
    clients = context.partition.num_clients
    names = context.partition.client_names or [str(c) for c in range(clients)]
    scores = {result.client: result.by_owner for result in results}
    rows = []
    if _tries_server(context):
        server = scores_of_clients(context, _predict_globally(context))
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
