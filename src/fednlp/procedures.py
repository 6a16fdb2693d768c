"""What one round is under each algorithm: federated, centralised on the union, or each client alone.

The two references get the federation's budget, so that a comparison compares methods, not effort:
centralised training sees as many examples a round as an average cohort does, and a client alone trains
as many epochs as it would have trained, on average, in the federation.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from fednlp.assembly import algorithm_of, cohort_examples, local_training
from fednlp.config import Experiment
from fednlp.errors import RunError, TooFewClients
from fednlp.evaluation import evaluate, personal_scores
from fednlp.federated.round import Reply, run_round
from fednlp.federated.state import State
from fednlp.federated.sums import BURST, ExactSum, count_bad
from fednlp.partition import Partition
from fednlp.runtime.pool import Pool
from fednlp.seeds import generator, torch_stream
from fednlp.training.batches import epoch_batches
from fednlp.training.optimizers import make_optimizer, make_schedule, set_rate
from fednlp.training.side import LocalSide


@dataclass
class Course:
    """One run under way."""

    experiment: Experiment
    partition: Partition
    pool: Pool
    side: LocalSide
    state: State
    step: Callable[[int, int, str], None]
    lines: list[dict[str, Any]] = field(default_factory=list)
    note: str | None = None

    def __post_init__(self) -> None:
        self.client_scores = np.full(self.partition.num_clients, np.nan)

    def due(self, rounds: int) -> bool:
        """Whether the round just done is to be evaluated."""
        return self.state.round % self.experiment.evaluation.every == 0 or self.state.round == rounds


class Procedure(Protocol):
    """A way to do rounds."""

    rounds: int

    def round(self) -> dict[str, Any]:
        """Do the next round, and return its line for rounds.jsonl, less the seconds."""


class Federated:
    """Rounds of a federated algorithm."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.rounds = course.experiment.num_rounds
        self.algorithm = algorithm_of(course.experiment)
        self.sizes = np.diff(course.partition.train_offsets)
        state = course.state
        self.bad = count_bad(state.x)
        state.slots = state.slots or self.algorithm.server.init(state.layout)

    def train(
        self, round_number: int, state: State, factors: dict[int, float], done: Callable[[int], None]
    ) -> tuple[ExactSum, list[Reply]]:
        """Train the cohort on the pool, the clients with most to do first."""
        course = self.course
        order = sorted(
            factors, key=lambda client: (-course.side.options.steps(int(self.sizes[client])), client)
        )
        job = {
            "kind": "train",
            "round": round_number,
            "clients": order,
            "factors": [factors[c] for c in order],
        }
        replies = course.pool.do(job, len(order), state.x, done)
        return course.pool.total, [Reply(**reply) for reply in replies]

    def round(self) -> dict[str, Any]:
        """Do one federated round."""
        course = self.course
        size = min(course.experiment.clients_per_round, len(self.sizes))
        report = run_round(
            self.algorithm,
            course.state,
            self.sizes,
            self,
            course.experiment.seed,
            lambda done: course.step(done, size, "clients"),
        )
        _require_whole(course.state.x, self.bad, report.round)
        line: dict[str, Any] = {
            "round": report.round,
            "cohort": report.cohort,
            "train_loss": report.train_loss,
            "steps": report.steps,
            "examples": report.examples,
            "bytes_up": report.bytes_up,
            "bytes_down": report.bytes_down,
        }
        if report.dropped:
            line["dropped"] = [{"client": reply.client, "reason": reply.error} for reply in report.dropped]
        if course.due(self.rounds):
            line["evaluation"] = evaluate(course)
        return line


class Centralised:
    """One model trained on the union of the clients' examples, its optimiser's memory kept throughout."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.rounds = course.experiment.num_rounds
        self.options = local_training(course.experiment)
        self.examples = np.sort(course.partition.train_indices)
        budget = cohort_examples(course.experiment, course.partition)
        self.steps = max(1, round(budget / self.options.batch_size))
        self.epoch_steps = -(-len(self.examples) // self.options.batch_size)
        self._epoch: tuple[int, list[np.ndarray]] = (-1, [])
        self.bad = count_bad(course.state.x)

    def _batch(self, step: int) -> np.ndarray:
        """Return the batch of a step, counted from the start of the run."""
        epoch, place = divmod(step, self.epoch_steps)
        if self._epoch[0] != epoch:
            rng = generator(self.course.experiment.seed, "centralised", epoch)
            lengths = self.course.side.train_features.lengths(self.examples)
            batches = epoch_batches(
                self.examples, lengths, self.options.batch_size, rng, self.options.by_length
            )
            self._epoch = (epoch, batches)
        return self._epoch[1][place]

    def round(self) -> dict[str, Any]:
        """Take one round's share of steps."""
        course, side, state = self.course, self.course.side, self.course.state
        side.forget()
        side.replica.load(state.x)
        optimizer = make_optimizer(self.options, side.replica.groups)
        _restore(optimizer, state)
        rate = make_schedule(self.options, self.steps * self.rounds)
        loss_sum, seen = torch.zeros((), dtype=torch.float64), 0
        first = state.round * self.steps
        side.replica.train(True)
        with torch_stream(course.experiment.seed, "centralised dropout", state.round + 1):
            for step in range(first, first + self.steps):
                numbers = self._batch(step)
                batch = side.task.collate(side.train_features, numbers, side.replica.device, training=True)
                loss = side.task.loss(side.replica.model, batch)
                side.replica.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                if self.options.max_grad_norm:
                    parameters = [group.parameter for group in side.replica.groups]
                    torch.nn.utils.clip_grad_norm_(parameters, self.options.max_grad_norm)
                if rate is not None:
                    set_rate(optimizer, rate(step))
                optimizer.step()
                loss_sum += loss.detach().cpu() * len(numbers)
                seen += len(numbers)
                course.step(step - first + 1, self.steps, "steps")
        side.replica.store(state.x)
        _require_whole(state.x, self.bad, state.round + 1)
        _remember(optimizer, state)
        state.round += 1
        line: dict[str, Any] = {
            "round": state.round,
            "cohort": [],
            "train_loss": float(loss_sum) / seen,
            "steps": self.steps,
            "examples": seen,
            "bytes_up": 0,
            "bytes_down": 0,
        }
        if course.due(self.rounds):
            line["evaluation"] = evaluate(course)
        return line


def _require_whole(x: Tensor, before: int, round_number: int) -> None:
    """Stop a run whose model has burst, before it is saved."""
    if count_bad(x) > before:
        raise RunError(f"round {round_number}: {BURST}: lower the learning rate; the rounds before are saved")


def _remember(optimizer: Optimizer, state: State) -> None:
    """Keep an optimiser's memory in the state, by group and name."""
    for number, group in enumerate(optimizer.param_groups):
        for name, value in optimizer.state[group["params"][0]].items():
            state.slots[f"{number}.{name}"] = torch.as_tensor(value, dtype=torch.float32).cpu()


def _restore(optimizer: Optimizer, state: State) -> None:
    """Give an optimiser its memory back."""
    for number, group in enumerate(optimizer.param_groups):
        parameter = group["params"][0]
        for name, value in state.slots.items():
            owner, _, what = name.partition(".")
            if int(owner) == number:
                device = "cpu" if what == "step" and not parameter.is_cuda else parameter.device
                optimizer.state[parameter][what] = value.to(device)


class Alone:
    """Every client trains by itself from the common start; a round is one group of clients."""

    def __init__(self, course: Course) -> None:
        self.course = course
        experiment, clients = course.experiment, course.partition.num_clients
        self.size = min(experiment.clients_per_round, clients)
        self.rounds = -(-clients // self.size)
        visits = max(1, round(experiment.num_rounds * self.size / clients))
        self.epochs = visits * experiment.client.num_train_epochs
        self.max_steps = visits * experiment.client.max_steps
        effort = f"{self.max_steps} steps" if self.max_steps > 0 else f"{self.epochs} epochs"
        rng = generator(experiment.seed, "local models")
        tried = rng.choice(clients, size=min(experiment.evaluation.local_models, clients), replace=False)
        self.tried = {int(client) for client in tried}
        course.note = (
            f"each client alone, {effort}; the global test is the mean of {len(self.tried)} clients' models"
        )

    def round(self) -> dict[str, Any]:
        """Train and try the next group of clients."""
        course = self.course
        start = course.state.round * self.size
        clients = list(range(start, min(start + self.size, course.partition.num_clients)))
        job = {
            "kind": "alone",
            "clients": clients,
            "epochs": self.epochs,
            "max_steps": self.max_steps,
            "try_own": course.experiment.evaluation.personal,
            "try_global": sorted(self.tried),
        }
        results = course.pool.do(
            job, len(clients), course.state.x, lambda done: course.step(done, len(clients), "clients")
        )
        dropped = [{"client": r["client"], "reason": r["error"]} for r in results if r["error"]]
        results = [r for r in results if not r["error"]]
        if not results:
            first = f"client {dropped[0]['client']}: {dropped[0]['reason']}"
            raise TooFewClients(f"group {course.state.round + 1}: no client came through ({first})")
        course.state.round += 1
        line: dict[str, Any] = {
            "round": course.state.round,
            "cohort": clients,
            "train_loss": sum(r["loss"] for r in results) / sum(r["examples"] for r in results),
            "steps": sum(r["steps"] for r in results),
            "examples": sum(r["examples"] for r in results),
            "bytes_up": 0,
            "bytes_down": 0,
            "alone": [{"client": r["client"], "own": r["own"], "global": r["global"]} for r in results],
        }
        if dropped:
            line["dropped"] = dropped
        everyone = [one for earlier in [*course.lines, line] for one in earlier["alone"]]
        for one in everyone:
            if one["own"]:
                course.client_scores[one["client"]] = one["own"][course.side.task.metric]
        tried = [one["global"] for one in everyone if one["global"]]
        line["evaluation"] = {"personal": personal_scores(course)} if job["try_own"] else {}
        if tried:
            line["evaluation"]["global"] = {key: float(np.mean([t[key] for t in tried])) for key in tried[0]}
        return line


PROCEDURES: dict[str, Callable[[Course], Procedure]] = {
    "fedavg": Federated,
    "fedprox": Federated,
    "fedopt": Federated,
    "fedadagrad": Federated,
    "fedadam": Federated,
    "fedyogi": Federated,
    "centralised": Centralised,
    "local": Alone,
}
"""How rounds are done, by the algorithm's name."""
