"""Sequential fine-tuning, one client after the other, and the order of the clients: given, or searched for."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from torch import Tensor

from fednlp.formatting.units import plural
from fednlp.seeds import generator
from fednlp.simulation.baselines import Centralised, effort_of, mean_visits
from fednlp.simulation.context import RunContext
from fednlp.simulation.named_clients import clients_named
from fednlp.training.batches import evaluation_batches
from fednlp.training.evaluator import Evaluator
from fednlp.training.local import LocalTrainer

M = TypeVar("M")

_VALIDATION_SHARE, _MOST_VALIDATION = 0.1, 200


class SequentialFineTuning(Centralised):
    """One model fine-tuned on the examples of one client after the other; a round is a client."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.rounds = context.partition.num_clients
        self.visits = mean_visits(context.experiment, self.rounds)
        context.note = f"one model, client after client, {effort_of(context.experiment, self.visits)} each"
        self.order = context.state.memory.get("order") or self._given_order()
        self._report_order()

    def _report_order(self) -> None:
        """Put what a search has found into the summary, also that of a resumed run."""
        found = self.context.state.memory.get("order_found")
        if found is not None:
            self.context.facts["order"] = found
            tried = plural(found["trials"], "trial")
            self.context.note = f"{self.context.note}; order found by {tried}: {', '.join(found['clients'])}"

    def _given_order(self) -> list[int] | None:
        """Return the clients in the configured order; None where it is searched for."""
        order, clients = self.context.experiment.algorithm.order, range(self.rounds)
        if order is None:
            return list(clients)
        if isinstance(order, str):
            return None
        return clients_named(self.context.partition, order)

    def _span(self) -> tuple[int, int]:
        return 0, self.steps

    def _order(self, epoch: int) -> np.random.Generator:
        return generator(self.context.experiment.seed, "chained", self.context.state.round, epoch)

    def prepare(self) -> Callable[[], LocalTrainer]:
        """Prepare the next client's examples and a new optimiser, and return the function that runs the round."""
        if self.order is None:
            self.order = self._searched()
            self._report_order()
        self._take(self.context.partition.train(self.order[self.context.state.round]))
        return self._train

    def _take(self, examples: np.ndarray) -> None:
        """Make ready to train on some examples, with a new optimiser."""
        self.examples = examples
        self.steps = max(1, self.visits * self.options.steps(len(examples)))
        self._epoch = (-1, [])
        self.context.state.vectors.clear()

    def _searched(self) -> list[int]:
        """Return the order whose model is best on examples held out of the clients' training examples.

        Greedy: at each place, the client after which the model is best. Both start from the run's starting model,
        which is left as it was.
        """
        context, clients = self.context, list(range(self.rounds))
        held_out = [_held_out(context, client) for client in clients]
        begin, trials = context.state.params.clone(), 0

        def trained(start: Tensor, client: int) -> Tensor:
            nonlocal trials
            trials += 1
            context.log(f"order of the clients: trial {trials}, of client {client}")
            context.state.params.copy_(start)
            self._take(np.setdiff1d(context.partition.train(client), held_out[client]))
            self._train()
            return context.state.params.clone()

        def score(params: Tensor) -> float:
            return _mean_score(context, params, held_out)

        exhaustive = context.experiment.algorithm.order == "exhaustive"
        search = best_of_all if exhaustive else best_greedily
        order, best = search(begin, clients, trained, score)
        context.state.params.copy_(begin)
        names = context.partition.client_names or clients
        metric = context.worker.task.metric
        shown = [str(names[client]) for client in order]
        context.state.memory["order"] = order
        reached = best if np.isfinite(best) else None  # no client had an example to spare, or all diverged
        context.state.memory["order_found"] = {"clients": shown, "trials": trials, metric: reached}
        return order


def best_of_all(
    begin: M, clients: list[int], trained: Callable[[M, int], M], score: Callable[[M], float]
) -> tuple[list[int], float]:
    """Return the best of all orders, and its score; of equal orders the first.

    Args:
        begin: The model to begin with.
        clients: To be put in order.
        trained: Returns the model after it was trained on a client's examples.
        score: Of a model, to be as high as possible.
    """
    if not clients:
        return [], score(begin)
    best: tuple[list[int], float] | None = None
    for client in clients:
        rest = [other for other in clients if other != client]
        order, value = best_of_all(trained(begin, client), rest, trained, score)
        if best is None or value > best[1]:
            best = [client, *order], value
    assert best is not None
    return best


def best_greedily(
    begin: M, clients: list[int], trained: Callable[[M, int], M], score: Callable[[M], float]
) -> tuple[list[int], float]:
    """Return the order in which every next client is the one after which the model is best, and the last score.

    Args:
        begin: As for :func:`best_of_all`.
        clients: As there; one at least.
    """
    order: list[int] = []
    model, value = begin, -np.inf
    while len(order) < len(clients):
        best: tuple[int, M, float] | None = None
        for client in clients:
            if client in order:
                continue
            after = trained(model, client)
            reached = score(after)
            if best is None or reached > best[2]:
                best = client, after, reached
        assert best is not None
        order.append(best[0])
        model, value = best[1:]
    return order, value


def _held_out(context: RunContext, client: int) -> np.ndarray:
    """Draw the training examples of a client that orders are compared on; none where it has one example."""
    own = np.sort(context.partition.train(client))
    number = min(max(1, round(len(own) * _VALIDATION_SHARE)), _MOST_VALIDATION, len(own) - 1)
    rng = generator(context.experiment.seed, "chained validation", client)
    return rng.choice(own, size=number, replace=False)


def _mean_score(context: RunContext, params: Tensor, held_out: list[np.ndarray]) -> float:
    """Return the mean of the task's metric over the clients, each on its held-out examples; least if it diverged."""
    worker, options = context.worker, context.experiment.evaluation
    worker.replica.load_for_evaluation(params)
    features, task = worker.train_features, worker.task
    evaluator = Evaluator(worker.replica, task, features, worker.partition, "", options.batch_size)
    scores = []
    for numbers in held_out:
        batches = evaluation_batches(numbers, features.lengths(numbers), options.batch_size)
        found = evaluator.scored([evaluator.predict(batch) for batch in batches]) or {}
        scores.append(found.get(task.metric))
    known = [score for score in scores if score is not None and not np.isnan(score)]
    return float(np.mean(known)) if known else -np.inf
