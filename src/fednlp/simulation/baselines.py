"""Baselines: centralised training, sequential fine-tuning, local-only training, and the most frequent label.

Those that train have the same budget as the federation. Centralised training sees as many examples a round as a mean
cohort. In sequential fine-tuning and local-only training, a client trains as many epochs as on average in the
federation.
"""

from collections.abc import Callable, Iterator, Sequence
from math import factorial
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fednlp.clock import EVALUATION, STEPS, timed
from fednlp.config import Experiment
from fednlp.config.values import rate_schedule
from fednlp.errors import ConfigError, TooFewClients
from fednlp.federated.runtime import MODEL
from fednlp.federated.sums import count_nonfinite
from fednlp.formatting.units import plural
from fednlp.formulations import TASKS
from fednlp.partition import Partition
from fednlp.seeds import generator
from fednlp.simulation.context import RunContext, require_finite
from fednlp.simulation.evaluate import drawn_clients, evaluated, personal_scores, scores_of_clients
from fednlp.tasks.base import Predictions, Task
from fednlp.training.batches import epoch_batches, evaluation_batches
from fednlp.training.client_record import ClientInit
from fednlp.training.evaluator import Evaluator
from fednlp.training.local import GivenSteps, LocalTrainer
from fednlp.training.requests.predict import LocalOnlyRequest, LocalOnlyResult
from fednlp.training.scores import mean_scores

_Model = TypeVar("_Model")

_MOST_SHOWN = 20
_MOST_EXHAUSTIVE = 4
"""Clients whose orders are all tried: their number is a factorial."""
_VALIDATION_SHARE, _MOST_VALIDATION = 0.1, 200


class Centralised:
    """One model trained on the union of clients' examples; the optimiser state is kept between rounds."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.rounds = context.experiment.num_rounds
        self.options = context.experiment.client
        self.rate = rate_schedule(context.experiment.client, self.rounds)
        self.examples, clients = _examples_of_clients(context)
        budget = _cohort_examples(context.experiment, len(self.examples), clients)
        self.steps = max(1, round(budget / self.options.examples_per_step))
        self._epoch: tuple[int, list[np.ndarray]] = (-1, [])
        self.bad = count_nonfinite(context.state.params)

    def _span(self) -> tuple[int, int]:
        """Return the number of the round's first step, and the total number of steps of the schedule."""
        return self.context.state.round * self.steps, self.steps * self.rounds

    def _order(self, epoch: int) -> np.random.Generator:
        return generator(self.context.experiment.seed, "centralised", epoch)

    def _batch(self, step: int) -> np.ndarray:
        """Return the batch of a step, counted from the start of the run."""
        epoch, place = divmod(step, -(-len(self.examples) // self.options.examples_per_step))
        if self._epoch[0] != epoch:
            rng = self._order(epoch)
            lengths = self.context.worker.train_features.lengths(self.examples)
            batches = epoch_batches(
                self.examples, lengths, self.options.examples_per_step, rng, self.options.group_by_length
            )
            self._epoch = (epoch, batches)
        return self._epoch[1][place]

    def prepare(self) -> Callable[[], LocalTrainer]:
        """Prepare the next round, and return the function that runs it."""
        return self._train

    @timed(STEPS)
    def _train(self) -> LocalTrainer:
        """Take one round's share of steps."""
        context, worker, state = self.context, self.context.worker, self.context.state
        worker.forget()
        first, last = self._span()
        local = worker.trainer.local(
            -1,
            self.examples,
            state.round + 1,
            state.params,
            ClientInit(optimizer=state.vectors),
            rate=self.rate.factor(state.round + 1),
            all_words=True,
            given=GivenSteps(
                [self._batch(step) for step in range(first, first + self.steps)],
                first,
                last,
                ("centralised dropout", (state.round + 1,)),
            ),
        )
        local.steps(state.params, on_step=lambda done: context.on_progress(done, self.steps, "steps"))
        worker.replica.store(state.params)
        return local

    def line(self, done: LocalTrainer) -> dict[str, Any]:
        """Return the round's line for rounds.jsonl."""
        state = self.context.state
        require_finite(state.params, self.bad, state.round + 1)
        state.vectors |= done.memory
        state.round += 1
        line: dict[str, Any] = {
            "round": state.round,
            "cohort": [],
            "train_loss": done.total_loss / done.total_examples,
            "steps": self.steps,
            "examples": done.total_examples,
            "bytes_up": 0,
            "bytes_down": 0,
        }
        return evaluated(self.context, line, self.rounds)


def _examples_of_clients(context: RunContext) -> tuple[np.ndarray, int]:
    """Return the examples that centralised training has, and of how many clients they are."""
    partition, named = context.partition, context.experiment.algorithm.clients
    if named is None:
        return np.sort(partition.train_indices), partition.num_clients
    examples = np.concatenate([partition.train(client) for client in _clients_named(partition, named)])
    context.note = f"the examples of {', '.join(named[:20])}"
    return np.sort(examples), len(named)


def _cohort_examples(experiment: Experiment, examples: int, clients: int) -> float:
    """Return the mean number of examples of a federated round, with repetitions: the budget of a baseline's round.

    Args:
        experiment: Resolved.
    """
    cohort = min(experiment.clients_per_round, clients)
    options = experiment.client
    if options.max_steps > 0:
        return cohort * options.max_steps * options.examples_per_step
    return examples / clients * cohort * options.num_train_epochs


class SequentialFineTuning(Centralised):
    """One model fine-tuned on the examples of one client after the other; a round is a client."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.rounds = context.partition.num_clients
        self.visits = _mean_visits(context.experiment, self.rounds)
        context.note = f"one model, client after client, {_effort_of(context.experiment, self.visits)} each"
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
        return _clients_named(self.context.partition, order)

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
    begin: _Model,
    clients: list[int],
    trained: Callable[[_Model, int], _Model],
    score: Callable[[_Model], float],
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
    begin: _Model,
    clients: list[int],
    trained: Callable[[_Model, int], _Model],
    score: Callable[[_Model], float],
) -> tuple[list[int], float]:
    """Return the order in which every next client is the one after which the model is best, and the last score.

    Args:
        begin: As for :func:`best_of_all`.
        clients: As there; one at least.
    """
    order: list[int] = []
    model, value = begin, -np.inf
    while len(order) < len(clients):
        best: tuple[int, _Model, float] | None = None
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


def _mean_visits(experiment: Experiment, clients: int) -> int:
    """Return the mean number of rounds in which a client takes part in the federation, rounded, at least 1.

    Args:
        experiment: Resolved.
    """
    size = min(experiment.clients_per_round, clients)
    return max(1, round(experiment.num_rounds * size / clients))


def _effort_of(experiment: Experiment, visits: int) -> str:
    """Return in words how long a client trains, for so many rounds at once."""
    options = experiment.client
    if options.max_steps > 0:
        return plural(visits * options.max_steps, "step")
    return plural(visits * options.num_train_epochs, "epoch")


class LocalOnly:
    """Training of each client by itself from the common starting model; a round is one group of clients."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        experiment, clients = context.experiment, context.partition.num_clients
        self.size = min(experiment.clients_per_round, clients)
        self.rounds = -(-clients // self.size)
        visits = _mean_visits(experiment, clients)
        self.epochs = visits * experiment.client.num_train_epochs
        self.max_steps = visits * experiment.client.max_steps
        effort = _effort_of(experiment, visits)
        self.evaluated = set(drawn_clients(context))
        context.note = (
            f"each client alone, {effort}; the global test is the mean of the models of "
            f"{plural(len(self.evaluated), 'client')}"
        )

    def prepare(self) -> Callable[[], list[LocalOnlyResult]]:
        """Prepare the next group of clients, and return the function that trains and evaluates it."""
        start = self.context.state.round * self.size
        self.group = list(range(start, min(start + self.size, self.context.partition.num_clients)))
        return self._train

    def _train(self) -> list[LocalOnlyResult]:
        context, on_own = self.context, self.context.experiment.evaluation.personal
        context.pool.publish(MODEL, context.state.params)
        requests = [
            LocalOnlyRequest(client, self.epochs, self.max_steps, on_own, client in self.evaluated)
            for client in self.group
        ]
        clients = len(self.group)
        return context.pool.do(requests, lambda done: context.on_progress(done, clients, "clients"))

    def line(self, done: list[LocalOnlyResult]) -> dict[str, Any]:
        """Return the group's line for rounds.jsonl.

        Raises:
            TooFewClients: All clients of the group failed.
        """
        context = self.context
        dropped = [{"client": r.client, "reason": r.error} for r in done if r.error]
        results = [r for r in done if not r.error]
        if not results:
            first = f"client {dropped[0]['client']}: {dropped[0]['reason']}"
            raise TooFewClients(f"group {context.state.round + 1}: no client came through ({first})")
        context.state.round += 1
        line: dict[str, Any] = {
            "round": context.state.round,
            "cohort": self.group,
            "train_loss": sum(r.loss for r in results) / sum(r.examples for r in results),
            "steps": sum(r.steps for r in results),
            "examples": sum(r.examples for r in results),
            "bytes_up": 0,
            "bytes_down": 0,
            "alone": [{"client": r.client, "own": r.own, "global": r.everyone} for r in results],
        }
        if dropped:
            line["dropped"] = dropped
        everyone = [one for earlier in [*context.lines, line] for one in earlier["alone"]]
        for one in everyone:
            if one["own"]:
                score = one["own"][context.worker.task.metric]
                context.client_scores[one["client"]] = np.nan if score is None else score
        scored = [one["global"] for one in everyone if one["global"]]
        line["evaluation"] = (
            {"personal": personal_scores(context, context.client_scores)}
            if context.experiment.evaluation.personal
            else {}
        )
        if scored:
            line["evaluation"]["global"] = mean_scores(scored)
        return line


class MostFrequentLabel:
    """Prediction of the most frequent label: a client's own on its tests, that of all clients on the whole test set.

    Under label shift it says how much of a personal score the clients' label shares give by themselves. A run has one
    round. Of labels that are equally frequent, the task takes the one of the lowest number.
    """

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.rounds = 1
        context.note = (
            "nothing is trained: the most frequent training label, of each client on its own tests and of all "
            "clients on the global test"
        )

    def prepare(self) -> Callable[[], dict[str, dict[str, Any]]]:
        """Return the function that predicts and scores."""
        return self._evaluate

    @timed(EVALUATION)
    def _evaluate(self) -> dict[str, dict[str, Any]]:
        context, worker = self.context, self.context.worker
        examples, numbers = context.partition.train_indices, np.load(worker.spec.test_numbers)
        scores = {"global": worker.evaluator.scored([self._predicted(examples, numbers)]) or {}}
        if context.experiment.evaluation.personal:
            context.client_scores = scores_of_clients(context, list(self._own()))
            scores["personal"] = personal_scores(context, context.client_scores)
        return scores

    def _own(self) -> Iterator[Predictions]:
        """Yield each client's predictions on its own tests."""
        partition = self.context.partition
        for client in range(partition.num_clients):
            yield self._predicted(partition.train(client), partition.test(client))

    def _predicted(self, examples: np.ndarray, numbers: np.ndarray) -> Predictions:
        """Return the most frequent label of some training examples for each of some test examples."""
        worker = self.context.worker
        _, predictions = worker.task.baseline(worker.train_features, examples, worker.test_features, numbers)
        return Predictions(numbers.tolist(), predictions, 0.0, 0.0)

    def line(self, done: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Return the line for rounds.jsonl."""
        self.context.state.round += 1
        return {
            "round": self.context.state.round,
            "cohort": [],
            "train_loss": None,
            "steps": 0,
            "examples": 0,
            "bytes_up": 0,
            "bytes_down": 0,
            "evaluation": done,
        }


def require_baseline(experiment: Experiment, partition: Partition, task: Task) -> None:
    """Check that the run of a baseline has the clients that it names, and the labels that it predicts.

    Args:
        experiment: Resolved, of any method.

    Raises:
        ConfigError: A client's name is no client's or is there twice, or ``algorithm.order`` leaves a client out or
            asks for too many orders; or the most frequent label is asked for, and the task's targets are numbers, tags,
            answers or texts, or it is no task that comes with fednlp.
    """
    _require_named_clients(experiment, partition)
    _require_class_labels(experiment, task)


def _names_of_clients(partition: Partition) -> list[str]:
    """Return the names of the clients; their numbers as text where they have none."""
    return list(partition.client_names or map(str, range(partition.num_clients)))


def _clients_named(partition: Partition, named: Sequence[str]) -> list[int]:
    """Return the numbers of clients by their names."""
    number_of = {name: number for number, name in enumerate(_names_of_clients(partition))}
    return [number_of[name] for name in named]


def _require_named_clients(experiment: Experiment, partition: Partition) -> None:
    """Check ``algorithm.clients`` and ``algorithm.order``."""
    names = _names_of_clients(partition)
    clients, order = experiment.algorithm.clients, experiment.algorithm.order
    _require_clients("algorithm.clients", clients or (), names)
    if order == "exhaustive" and len(names) > _MOST_EXHAUSTIVE:
        raise ConfigError(
            f'algorithm.order = "exhaustive": {len(names)} clients have {factorial(len(names)):,} orders, and at '
            f'most {_MOST_EXHAUSTIVE} clients are tried in all of theirs; say "greedy"'
        )
    if order is None or isinstance(order, str):
        return
    _require_clients("algorithm.order", order, names)
    missing = next((name for name in names if name not in order), None)
    if missing is not None:
        raise ConfigError(f"algorithm.order: {missing!r} is not there: name every client: {_shown(names)}")


def _require_clients(key: str, named: Sequence[str], names: Sequence[str]) -> None:
    """Check that names are of clients, and each there once."""
    for place, name in enumerate(named):
        if name not in names or name in named[:place]:
            what = "there twice" if name in names else "no client"
            raise ConfigError(f"{key}: {name!r} is {what}: name clients, each once: {_shown(names)}")


def _shown(names: Sequence[str]) -> str:
    """Return clients' names for a message: the first of them."""
    return ", ".join(names[:_MOST_SHOWN]) + (", ..." if len(names) > _MOST_SHOWN else "")


def _require_class_labels(experiment: Experiment, task: Task) -> None:
    """Check that a run of :class:`MostFrequentLabel` has a task whose targets are single labels."""
    if experiment.algorithm.name != "majority":
        return
    labelled = [name for name, known in TASKS.items() if known.schema.kind == "class"]
    if task.name not in labelled:
        raise ConfigError(
            f"majority predicts one label for each text, as in {' and '.join(labelled)}, and the task is {task.name}: "
            "choose another baseline"
        )
