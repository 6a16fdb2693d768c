"""What one round is under each algorithm: federated, centralised, client after client, or each client alone.

The references get the federation's budget, so that a comparison compares methods, not effort: centralised
training sees as many examples a round as an average cohort does, and one client's share of chained training,
or a client alone, as many epochs as it would have trained, on average, in the federation.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fednlp.assembly import algorithm_of, cohort_examples, local_training, prices_of
from fednlp.config import Experiment
from fednlp.costs import Spent, round_line
from fednlp.errors import RunError, TooFewClients
from fednlp.evaluation import drawn_clients, evaluate, personal_scores
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.exchange import broadcast
from fednlp.federated.lora import check_exact, exact_bytes, exact_step
from fednlp.federated.params import Layout
from fednlp.federated.round import Reply, run_round, sent_entries
from fednlp.federated.state import State
from fednlp.federated.sums import BURST, ExactSum, count_bad
from fednlp.federated.transforms import Key
from fednlp.models.peft_options import averaging_of
from fednlp.partition import Partition
from fednlp.runtime.pool import Pool
from fednlp.seeds import generator, torch_stream
from fednlp.training.batches import epoch_batches
from fednlp.training.optimizers import make_optimizer, make_schedule, remember, restore, set_rate
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
        self.matrix: dict[str, Any] | None = None

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
        self.algorithm = self._algorithm()
        self.sizes = np.diff(course.partition.train_offsets)
        self.prices = prices_of(
            course.experiment, sum(p.numel() for p in course.side.replica.model.parameters())
        )
        state = course.state
        self.bad = count_bad(state.x)
        state.slots = state.slots or self.algorithm.server.init(state.layout)

    def _algorithm(self) -> Algorithm:
        """Return the algorithm's value, with exact averaging of adapters where it is asked for."""
        algorithm, adapters = algorithm_of(self.course.experiment), self.course.side.exchange.adapters
        if averaging_of(self.course.experiment.model.peft) != "exact":
            return algorithm
        check_exact(self.course.state.layout, adapters, algorithm.server)
        return replace(algorithm, derive=lambda layout, x, mean: exact_step(layout, x, mean, adapters))

    def _with_factors(self, reply: Reply) -> Reply:
        """Count what a client gets of the changes of the base weights, as factors where these are shorter."""
        exchange, layout = self.course.side.exchange, self.course.state.layout
        if not exchange.adapters:
            return reply
        seen = [line["round"] for line in self.course.lines if reply.client in line["cohort"]]
        missed = self.course.lines[max(seen, default=1) - 1 :]
        answered = sum(len(line["cohort"]) - len(line.get("dropped", [])) - 1 for line in missed)
        _, down = exact_bytes(layout, exchange.adapters, answered + 1)
        return replace(reply, bytes_down=down, tensors_down=len(layout.entries))

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
        exchange = course.side.exchange
        key = Key(course.experiment.seed, round_number, -1)  # one message for all clients
        arrived = broadcast(exchange, state.layout, state.x, key)
        exact = None if arrived is state.x else state.x.clone()
        if exact is not None:
            state.x.copy_(arrived)
        try:
            replies = course.pool.do(job, len(order), state.x, done)
        finally:
            if exact is not None:
                state.x.copy_(exact)
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
            **round_line(
                [spent(course.state.layout, self._with_factors(r)) for r in report.replies], self.prices
            ),
        }
        moved = {reply.client: reply.moved for reply in report.replies if reply.moved is not None}
        if moved:
            line["moved"] = moved
            line["sent"] = {reply.client: reply.sent for reply in report.replies if reply.moved is not None}
        if report.dropped:
            line["dropped"] = [{"client": reply.client, "reason": reply.error} for reply in report.dropped]
        return evaluated(course, line, self.rounds)


def evaluated(course: Course, line: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Add to a round's line how the model fares, if it is due; the matrix too, so that it outlives a stop."""
    if course.due(rounds):
        line["evaluation"] = evaluate(course, last=course.state.round == rounds)
    if course.matrix is not None:
        line["matrix"] = course.matrix
    return line


def spent(layout: Layout, reply: Reply) -> Spent:
    """Return what one client's part in a round cost."""
    whole, entries = layout.message_bytes, len(layout.entries)
    got = whole if reply.bytes_down is None else reply.bytes_down
    tensors = entries if reply.tensors_down is None else reply.tensors_down
    if reply.error is not None:
        return Spent(bytes_down=got, tensors_down=tensors)
    sent = sent_entries(layout, reply)
    return Spent(
        bytes_up=whole if reply.bytes_up is None else reply.bytes_up,
        bytes_down=got,
        tensors_up=len(sent),
        tensors_down=tensors,
        parameters_up=sum(layout.entries[number].numel for number in sent),
        examples=reply.examples,
    )


class Centralised:
    """One model trained on the union of the clients' examples, its optimiser's memory kept throughout."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.rounds = course.experiment.num_rounds
        self.options = local_training(course.experiment)
        self.examples = np.sort(course.partition.train_indices)
        budget = cohort_examples(course.experiment, course.partition)
        self.steps = max(1, round(budget / self.options.batch_size))
        self._epoch: tuple[int, list[np.ndarray]] = (-1, [])
        self.bad = count_bad(course.state.x)

    def _span(self) -> tuple[int, int]:
        """Return the number of the round's first step, and how many steps the schedule is made for."""
        return self.course.state.round * self.steps, self.steps * self.rounds

    def _order(self, epoch: int) -> np.random.Generator:
        return generator(self.course.experiment.seed, "centralised", epoch)

    def _batch(self, step: int) -> np.ndarray:
        """Return the batch of a step, counted from the start of the run."""
        epoch, place = divmod(step, -(-len(self.examples) // self.options.batch_size))
        if self._epoch[0] != epoch:
            rng = self._order(epoch)
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
        restore(optimizer, state.slots)
        first, last = self._span()
        rate = make_schedule(self.options, last)
        loss_sum, seen = torch.zeros((), dtype=torch.float64), 0
        side.replica.train(True)
        stream = torch_stream(course.experiment.seed, "centralised dropout", state.round + 1)
        with side.replica.recalling(), stream:
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
        state.slots |= remember(optimizer)
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
        return evaluated(course, line, self.rounds)


class Chained(Centralised):
    """One model fine-tuned on one client's examples after the other, in their order; a round is a client."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        self.rounds = course.partition.num_clients
        self.visits = _visits(course.experiment, self.rounds)
        course.note = f"one model, client after client, {_effort(course.experiment, self.visits)} each"

    def _span(self) -> tuple[int, int]:
        return 0, self.steps

    def _order(self, epoch: int) -> np.random.Generator:
        return generator(self.course.experiment.seed, "chained", self.course.state.round, epoch)

    def round(self) -> dict[str, Any]:
        """Train on the next client's examples, with a fresh optimiser."""
        self.examples = self.course.partition.train(self.course.state.round)
        self.steps = max(1, self.visits * self.options.steps(len(self.examples)))
        self._epoch = (-1, [])
        self.course.state.slots.clear()
        return super().round()


def _visits(experiment: Experiment, clients: int) -> int:
    """Return in how many rounds of the federation a client takes part on average, at least one."""
    size = min(experiment.clients_per_round, clients)
    return max(1, round(experiment.num_rounds * size / clients))


def _effort(experiment: Experiment, visits: int) -> str:
    options = experiment.client
    return (
        f"{visits * options.max_steps} steps"
        if options.max_steps > 0
        else f"{visits * options.num_train_epochs} epochs"
    )


def _require_whole(x: Tensor, before: int, round_number: int) -> None:
    """Stop a run whose model has burst, before it is saved."""
    if count_bad(x) > before:
        raise RunError(f"round {round_number}: {BURST}: lower the learning rate; the rounds before are saved")


class Alone:
    """Every client trains by itself from the common start; a round is one group of clients."""

    def __init__(self, course: Course) -> None:
        self.course = course
        experiment, clients = course.experiment, course.partition.num_clients
        self.size = min(experiment.clients_per_round, clients)
        self.rounds = -(-clients // self.size)
        visits = _visits(experiment, clients)
        self.epochs = visits * experiment.client.num_train_epochs
        self.max_steps = visits * experiment.client.max_steps
        effort = _effort(experiment, visits)
        self.tried = set(drawn_clients(course))
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
        line["evaluation"] = (
            {"personal": personal_scores(course, course.client_scores)} if job["try_own"] else {}
        )
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
    "chained": Chained,
    "local": Alone,
}
"""How rounds are done, by the algorithm's name."""
