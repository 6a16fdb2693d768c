"""Evaluate the global model on the whole test set and on each client's tests, or the clients' own models.

Metrics are computed once over the whole set, never averaged over batches. Every test example belongs to
at most one client, so the clients' own scores come from the same predictions at no further cost, unless
clients have models of their own, or the examples are at the sites of a deployment: then each client evaluates.

The evaluation after the last round is in :mod:`fednlp.simulation.final`.
"""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from fednlp.clock import EVALUATION, timed
from fednlp.disk import atomic
from fednlp.federated.runtime import MODEL
from fednlp.formatting.safe_text import csv_text
from fednlp.formatting.units import HIDDEN
from fednlp.seeds import generator
from fednlp.simulation.context import RunContext
from fednlp.simulation.federated_evaluation import evaluate_by_sums
from fednlp.simulation.run_dir import remedy
from fednlp.tasks.base import Predictions
from fednlp.training.requests.predict import (
    BatchPredictions,
    ClientModelRequest,
    ClientModelResult,
    EvaluateRequest,
)
from fednlp.training.scores import mean_scores, scores_by_owner


@timed(EVALUATION)
def evaluate(context: RunContext, last: bool = False) -> dict[str, dict[str, Any]]:
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
    if tries_server(context):
        outcomes = predict_globally(context)
        scores["global"] = worker.evaluator.scored(outcomes) or {}
        context.by_label = worker.evaluator.by_label(outcomes) if last else None
        context.interval = worker.evaluator.interval(outcomes) if last else None
        if not at_sites:
            context.client_scores = scores_of_clients(context, outcomes)
    if worker.personalised or at_sites:
        drawn = drawn_clients(context) if last and not tries_server(context) and not at_sites else []
        own = clients_with_tests(context) if options.personal else []
        results = evaluate_clients(context, own, drawn)
        if drawn:
            scores["global"] = mean_scores([r.everyone for r in results if r.everyone])
        context.client_scores = own_scores(context, results)
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
        line["evaluation"] = evaluate(context, last=context.state.round == rounds)
        if context.interval is not None:
            line["interval"] = context.interval
    return line


def tries_server(context: RunContext) -> bool:
    """Return whether the server's model is evaluated: clients use it as it is, or the experiment asks for it."""
    return context.worker.has_global_model or (
        context.experiment.evaluation.server_model and context.worker.layout.numel > 0
    )


def drawn_clients(context: RunContext) -> list[int]:
    """Draw the clients whose own models are evaluated on the whole test set."""
    clients, configured = context.partition.num_clients, context.experiment.evaluation.local_models
    rng = generator(context.experiment.seed, "local models")
    return sorted(int(c) for c in rng.choice(clients, size=min(configured, clients), replace=False))


def predict_globally(context: RunContext) -> list[Predictions]:
    """Predict the whole test set with the common model."""
    worker, state = context.worker, context.state
    batches = len(worker.evaluator.test_batches())
    context.pool.publish(MODEL, state.params)
    requests = [EvaluateRequest(batch, state.round) for batch in range(batches)]
    found: list[BatchPredictions] = context.pool.do(
        requests, lambda done: context.on_progress(done, batches, "test batches")
    )
    return [Predictions(**vars(one)) for one in found]


def evaluate_clients(
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


def clients_with_tests(context: RunContext) -> list[int]:
    """Return the clients that have test examples of their own."""
    found: list[int] = np.flatnonzero(np.diff(context.partition.test_offsets)).tolist()
    return found


def own_scores(context: RunContext, results: list[ClientModelResult]) -> np.ndarray:
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
