"""Rounds of a federated algorithm, on a pool of workers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fednlp.costs import Spent, both, round_line
from fednlp.errors import ConfigError, SecureAbort, TooFewClients
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.exchange import broadcast, bytes_down
from fednlp.federated.lora import change_ranks, check_exact, exact_step
from fednlp.federated.params import Layout
from fednlp.federated.round import Gathered, Reply, run_round, sent_entries
from fednlp.federated.state import State
from fednlp.federated.sums import count_bad
from fednlp.federated.transforms import Key
from fednlp.models.peft_options import averaging_of
from fednlp.privacy.noise import sum_distance
from fednlp.simulation.build import algorithm_of, prices_of
from fednlp.simulation.context import Course, evaluated, require_whole
from fednlp.simulation.dp import guard_of
from fednlp.simulation.resource_estimation import memory_of_run

if TYPE_CHECKING:
    from fednlp.simulation.secure_round import Terms


class Federated:
    """Rounds of a federated algorithm."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.rounds = course.experiment.num_rounds
        self.sizes = np.diff(course.partition.train_offsets)
        self.guard = guard_of(course.experiment, course.partition.num_clients)
        self.algorithm = self._algorithm()
        self.terms = self._terms()
        self.beside: dict[int, Spent] = {}  # what clients cost in a round beside training
        if self.terms is not None and self.guard is not None:
            apart = sum_distance(self.terms.noise, self.terms.honest, course.state.layout.numel)
            self.guard = replace(self.guard, distance=apart)
            wanted = course.experiment.privacy and course.experiment.privacy.epsilon
            if wanted and self.guard.epsilon() > wanted:
                raise ConfigError(
                    f"privacy.epsilon = {wanted} cannot be kept with so few steps of noise: raise secure.bits, or "
                    "leave it out"
                )
        self.prices = prices_of(course.experiment, course.side.replica.model)
        state = course.state
        self.bad = count_bad(state.x)
        state.slots = state.slots or self.algorithm.server.init(state.layout)
        for promise in (self.terms and str(self.terms.plan), self.guard and self.guard.statement):
            if promise:
                course.log(promise)
        if self.guard is not None:
            course.facts["privacy"] = self.guard.facts()
        memory = memory_of_run(course.experiment, course.side)
        if memory is not None:
            course.facts["client_memory_bytes"] = memory

    def _algorithm(self) -> Algorithm:
        """Return the algorithm's value, with the noise, and exact averaging of adapters, that are asked for."""
        experiment, adapters = self.course.experiment, self.course.side.exchange.adapters
        algorithm = algorithm_of(experiment)
        if self.guard is not None:
            algorithm = self.guard.over(algorithm)
        if averaging_of(experiment.model.peft) != "exact":
            return algorithm
        check_exact(self.course.state.layout, adapters, algorithm.server)
        return replace(algorithm, derive=lambda layout, x, mean: exact_step(layout, x, mean, adapters))

    def _terms(self) -> "Terms | None":
        """Return what secure aggregation needs to know beforehand; None where it is not asked for.

        The largest weight of all clients is known to everybody; no client's own is.
        """
        if self.course.experiment.secure.protocol == "none":
            return None
        from fednlp.simulation.secure_round import terms_of

        noise = 0.0 if self.guard is None else self.guard.multiplier
        largest = max(self.algorithm.weigh(int(size)) for size in self.sizes)
        parameters = self.course.state.layout.numel
        return terms_of(self.course.experiment, len(self.sizes), largest, noise, parameters)

    def _spent(self, replies: Sequence[Reply]) -> list[Spent]:
        """Return what each client of a round cost, once a client, whatever it did."""
        costs = {r.client: spent(self.course.state.layout, self.with_factors(r)) for r in replies}
        for client, more in self.beside.items():
            costs[client] = both(costs[client], more) if client in costs else more
        return list(costs.values())

    def with_factors(self, reply: Reply) -> Reply:
        """Count what a client gets of the changes of the base weights, as factors where these are shorter."""
        exchange, layout = self.course.side.exchange, self.course.state.layout
        if not exchange.adapters:
            return reply
        seen = [
            line["round"]
            for line in self.course.lines
            if reply.client in line["cohort"] or reply.client in line.get("labelling", [])
        ]
        missed, lossy = self.course.lines[max(seen, default=1) - 1 :], bool(exchange.down.steps)
        ranks = sum(change_ranks(_averaged(line), lossy) for line in missed)
        down = bytes_down(exchange, layout, ranks=ranks)
        return replace(reply, bytes_down=down, tensors_down=len(layout.entries))

    def train(
        self, round_number: int, state: State, factors: dict[int, float], done: Callable[[int], None]
    ) -> Gathered:
        """Train the cohort on the pool."""
        with self.arrived(round_number, state):
            if self.terms is None:
                replies = self._train(round_number, factors, done)
                return Gathered(self.course.pool.total, [Reply(**reply) for reply in replies])
            return self._train_hidden(self.terms, round_number, factors, done)

    @contextmanager
    def arrived(self, round_number: int, state: State) -> Iterator[None]:
        """Have the global model as it arrives at the clients, in place of the server's."""
        key = Key(self.course.experiment.seed, round_number, -1)  # one message for all clients
        arrived = broadcast(self.course.side.exchange, state.layout, state.x, key)
        exact = None if arrived is state.x else state.x.clone()
        if exact is not None:
            state.x.copy_(arrived)
        try:
            yield
        finally:
            if exact is not None:
                state.x.copy_(exact)

    def _train(
        self,
        round_number: int,
        factors: dict[int, float],
        done: Callable[[int], None],
        hiding: dict[int, dict[str, Any]] | None = None,
    ) -> list[dict[str, Any]]:
        """Train clients on the pool; return what they say."""
        job, order = self.job(round_number, factors, hiding)
        return self.course.pool.do(job, len(order), self.course.state.x, done)

    def job(
        self, round_number: int, factors: dict[int, float], hiding: dict[int, dict[str, Any]] | None
    ) -> tuple[dict[str, Any], list[int]]:
        """Return the job of a cohort, and its clients in the order of its pieces: those with most to do first."""
        steps = self.course.side.options.steps
        order = sorted(factors, key=lambda client: (-steps(int(self.sizes[client])), client))
        job = {
            "kind": "train",
            "round": round_number,
            "clients": order,
            "factors": [factors[c] for c in order],
        }
        if hiding is not None:
            job["hiding"] = [hiding[c] for c in order]
        return job, order

    def _train_hidden(
        self, terms: "Terms", round_number: int, factors: dict[int, float], done: Callable[[int], None]
    ) -> Gathered:
        """Train the cohort under secure aggregation: what is gathered is the sum, and the sum of the weights."""
        from fednlp.simulation.secure_round import SecureRound

        course = self.course
        if len(factors) < terms.plan.clients:
            few = (
                f"{len(factors)} clients were drawn, and the protocol's numbers are for {terms.plan.clients}"
            )
            none = [Reply(c, f, error=few, bytes_down=0, tensors_down=0) for c, f in factors.items()]
            return Gathered(course.pool.total, none, aborted=few)
        weights = {client: self.algorithm.weigh(int(self.sizes[client])) for client in factors}
        pool, secure = course.pool, SecureRound(terms, round_number, weights, course.state.layout.numel)
        replies: list[Reply] = []

        def unmask(pieces: int, stretch: int, seeds: list[list[Any]]) -> None:
            pool.do({"kind": "unmask", "stretch": stretch, "seeds": seeds}, pieces, course.state.x)

        try:
            hiding = secure.open()
            some = {client: factors[client] for client in hiding}
            said = self._train(round_number, some, done, hiding)
            masked = secure.take(said)
            replies = [Reply(**reply) for reply in said]
            if replies and not masked:
                first = replies[0]
                raise TooFewClients(
                    f"round {round_number}: no client came through (client {first.client}: {first.error}); the rounds "
                    "before are saved"
                )
            weighed, aborted = secure.close(pool.total, masked, unmask), None
        except SecureAbort as abort:
            weighed, aborted = None, str(abort)
        return Gathered(
            pool.total,
            secure.priced(replies, factors, course.state.layout.message_bytes),
            weighed,
            aborted,
            {"secure": secure.facts(len(pool))},
        )

    def pieces(self) -> int:
        """Return how many clients' work there is in the next round at most."""
        return min(self.course.experiment.clients_per_round, len(self.sizes))

    def round(self) -> dict[str, Any]:
        """Do one federated round."""
        course = self.course
        size = self.pieces()
        report = run_round(
            self.algorithm,
            course.state,
            self.sizes,
            self,
            course.experiment.seed,
            lambda done: course.on_progress(done, size, "clients"),
        )
        require_whole(course.state.x, self.bad, report.round)
        line: dict[str, Any] = {
            "round": report.round,
            "cohort": report.cohort,
            "train_loss": report.train_loss if report.examples else None,
            "steps": report.steps,
            "examples": report.examples,
            **round_line(self._spent(report.replies), self.prices),
        }
        moved = {reply.client: reply.moved for reply in report.replies if reply.moved is not None}
        if moved:
            line["moved"] = moved
            line["sent"] = {reply.client: reply.sent for reply in report.replies if reply.moved is not None}
        line |= report.extra
        if report.aborted is not None:
            line["aborted"] = report.aborted
        if report.dropped:
            line["dropped"] = [{"client": reply.client, "reason": reply.error} for reply in report.dropped]
        return evaluated(course, line, self.rounds)


def _averaged(line: dict[str, Any]) -> int:
    """Return how many clients' updates a round's step was made of; 0 where there was none."""
    return 0 if "aborted" in line else len(line["cohort"]) - len(line.get("dropped", []))


def spent(layout: Layout, reply: Reply) -> Spent:
    """Return what one client's part in a round cost."""
    whole, entries = layout.message_bytes, len(layout.entries)
    got = whole if reply.bytes_down is None else reply.bytes_down
    tensors = entries if reply.tensors_down is None else reply.tensors_down
    if reply.error is not None:
        return Spent(bytes_up=reply.bytes_up or 0, bytes_down=got, tensors_down=tensors)
    sent = sent_entries(layout, reply)
    return Spent(
        bytes_up=whole if reply.bytes_up is None else reply.bytes_up,
        bytes_down=got,
        tensors_up=len(sent),
        tensors_down=tensors,
        parameters_up=sum(layout.entries[number].numel for number in sent),
        examples=reply.examples,
    )
