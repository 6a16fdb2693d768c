"""The references of a comparison: centralised training, one client after the other, and each client alone.

They get the federation's budget, so that a comparison compares methods, not effort: centralised
training sees as many examples a round as an average cohort does, and one client's share of chained training,
or a client alone, as many epochs as it would have trained, on average, in the federation.
"""

from typing import Any

import numpy as np
import torch

from fednlp.config import Experiment
from fednlp.errors import TooFewClients
from fednlp.federated.sums import count_bad
from fednlp.formatting.units import plural
from fednlp.seeds import generator, torch_stream
from fednlp.simulation.build import cohort_examples, local_training
from fednlp.simulation.context import Course, evaluated, require_whole
from fednlp.simulation.evaluate import drawn_clients, personal_scores
from fednlp.training.batches import epoch_batches
from fednlp.training.optimizers import make_optimizer, make_schedule, remember, restore, set_rate
from fednlp.training.scores import mean_scores


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
                side.replica.step(optimizer)
                loss_sum += loss.detach().cpu() * len(numbers)
                seen += len(numbers)
                course.on_progress(step - first + 1, self.steps, "steps")
        side.replica.store(state.x)
        require_whole(state.x, self.bad, state.round + 1)
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
    if options.max_steps > 0:
        return plural(visits * options.max_steps, "step")
    return plural(visits * options.num_train_epochs, "epoch")


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
            f"each client alone, {effort}; the global test is the mean of the models of "
            f"{plural(len(self.tried), 'client')}"
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
            job, len(clients), course.state.x, lambda done: course.on_progress(done, len(clients), "clients")
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
                score = one["own"][course.side.task.metric]
                course.client_scores[one["client"]] = np.nan if score is None else score
        tried = [one["global"] for one in everyone if one["global"]]
        line["evaluation"] = (
            {"personal": personal_scores(course, course.client_scores)} if job["try_own"] else {}
        )
        if tried:
            line["evaluation"]["global"] = mean_scores(tried)
        return line
