"""Baselines: centralised training and local-only training; sequential fine-tuning is in :mod:`.chained`.

They have the same budget as the federation. Centralised training sees as many examples a round as a mean cohort. In
sequential fine-tuning and local-only training, a client trains as many epochs as on average in the federation.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fednlp.clock import STEPS, timed
from fednlp.config import Experiment
from fednlp.config.values import rate_schedule
from fednlp.errors import TooFewClients
from fednlp.federated.runtime import MODEL
from fednlp.federated.sums import count_nonfinite
from fednlp.formatting.units import plural
from fednlp.seeds import generator
from fednlp.simulation.context import RunContext, require_finite
from fednlp.simulation.evaluate import drawn_clients, evaluated, personal_scores
from fednlp.simulation.named_clients import clients_named
from fednlp.training.batches import epoch_batches
from fednlp.training.client_record import ClientInit
from fednlp.training.local import GivenSteps, LocalTrainer
from fednlp.training.requests.predict import LocalOnlyRequest, LocalOnlyResult
from fednlp.training.scores import mean_scores


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
    examples = np.concatenate([partition.train(client) for client in clients_named(partition, named)])
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


def mean_visits(experiment: Experiment, clients: int) -> int:
    """Return the mean number of rounds in which a client takes part in the federation, rounded, at least 1.

    Args:
        experiment: Resolved.
    """
    size = min(experiment.clients_per_round, clients)
    return max(1, round(experiment.num_rounds * size / clients))


def effort_of(experiment: Experiment, visits: int) -> str:
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
        visits = mean_visits(experiment, clients)
        self.epochs = visits * experiment.client.num_train_epochs
        self.max_steps = visits * experiment.client.max_steps
        effort = effort_of(experiment, visits)
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
