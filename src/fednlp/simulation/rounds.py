"""The training loop of a federated algorithm on a runtime, with its costs."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fednlp.costs import ClientCost, merge, round_line
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import ClientLoss, ClientResult
from fednlp.federated.cohort import Population
from fednlp.federated.params import Layout
from fednlp.federated.round import RoundReport, new_vectors, run_round
from fednlp.federated.runtime import Runtime
from fednlp.federated.sent import Sent
from fednlp.federated.sums import count_nonfinite
from fednlp.simulation.clients_at_once import ClientsAtOnce
from fednlp.simulation.context import RunContext, require_finite
from fednlp.simulation.evaluate import evaluated
from fednlp.simulation.first_passes import FirstPasses
from fednlp.simulation.resource_estimation import (
    examples_of_round,
    fleet_of,
    length_down,
    memory_of_run,
    seconds_of_round,
)

if TYPE_CHECKING:
    from fednlp.fewshot.simulation.pseudo_labels import PseudoLabels


class FederatedTraining:
    """The training loop of a federated algorithm.

    Args:
        algorithm: The method, with compression, privacy and secure aggregation.
        labels: The pseudo labels; None where all examples have labels.
    """

    def __init__(
        self, context: RunContext, algorithm: Algorithm, labels: "PseudoLabels | None" = None
    ) -> None:
        self.context, self.algorithm, self.labels = context, algorithm, labels
        self.rounds = context.experiment.num_rounds
        self.runtime: Runtime = _training_runtime(context) if labels is None else labels
        self._sizes = np.diff(context.partition.train_offsets)
        self.fleet = fleet_of(context.experiment, context.worker.replica.model, context.partition.num_clients)
        self.first = FirstPasses(context)
        self._seconds = self._clock() if labels is None else None
        state = context.state
        self._bad = count_nonfinite(state.params)
        clients, seed = context.partition.num_clients, context.experiment.seed
        for name, vector in new_vectors(algorithm, state, clients, seed).items():
            state.vectors.setdefault(name, vector)
        memory = memory_of_run(context.experiment, context.worker)
        if memory is not None:
            context.facts["client_memory_bytes"] = memory

    @property
    def population(self) -> Population:
        """The population of all clients, each with its number of labelled examples."""
        sizes: NDArray[np.int64] = self._sizes if self.labels is None else self.labels.sizes
        return Population(sizes, self.context.experiment.seed, self._seconds, self.context.tokens)

    def prepare(self) -> Callable[[], RoundReport]:
        """Prepare the next round, and return the function that runs it."""
        on_progress = partial(_progress, self.context)
        if self.labels is not None:
            self.labels.prepare()
            return partial(self.labels.run_round, on_progress)
        state, population = self.context.state, self.population
        return partial(run_round, self.algorithm, state, population, self.runtime, on_progress)

    def line(self, done: RoundReport) -> dict[str, Any]:
        """Return the round's line for rounds.jsonl."""
        context = self.context
        require_finite(context.state.params, self._bad, done.round)
        also = {} if self.labels is None else self.labels.finish(done)
        line: dict[str, Any] = {
            "round": done.round,
            "cohort": done.cohort,
            "train_loss": done.train_loss if done.examples else None,
            "steps": done.steps,
            "examples": done.examples,
            **round_line(self._spent(done), self.fleet),
        }
        if done.asked:
            line["asked"] = [one.client for one in done.asked]
            line["asked_examples"] = sum(one.examples for one in done.asked)
            unanswered = [{"client": one.client, "reason": one.error} for one in done.asked if one.error]
            line |= {"asked_dropped": unanswered} if unanswered else {}
        if done.metrics:
            line["client_metrics"] = done.metrics
        if done.seconds is not None:
            line["simulated_seconds"] = round(done.seconds, 6)
        if done.staleness:
            mean = sum(done.staleness) / len(done.staleness)
            line["staleness"] = {"mean": round(mean, 6), "largest": max(done.staleness)}
        norms = {r.client: r.facts["update_norms"] for r in done.results if "update_norms" in r.facts}
        if norms:
            line["update_norms"] = norms
            chose = [result for result in done.results if result.client in norms]
            line["sent"] = {result.client: result.entries for result in chose}
            if any(result.slices for result in chose):
                line["sent_slices"] = {result.client: result.slices or [] for result in chose}
        if self.algorithm.models:
            line["models"] = {one.client: one.model for one in done.results if one.error is None}
        line |= done.facts
        if done.aborted is not None:
            line["aborted"] = done.aborted
        if done.dropped:
            line["dropped"] = [{"client": one.client, "reason": one.error} for one in done.dropped]
        line = evaluated(context, line | also, self.rounds)
        return line if self.labels is None else line | self.labels.tell(line)

    def _clock(self) -> NDArray[np.float64] | None:
        """Return each client's simulated seconds of a round; None where ``[costs]`` has no figures.

        Not where the number of labelled examples changes with the rounds.
        """
        if self.fleet is None:
            return None
        examples = examples_of_round(self.context.experiment, self.algorithm, self._sizes)
        return seconds_of_round(self.fleet, self.algorithm, self.context.state.layout, examples)

    def _spent(self, done: RoundReport) -> dict[int, ClientCost]:
        """Return the cost of each client of a round, merged over training, labelling and answers with losses."""
        layout, labels, results = self.context.state.layout, self.labels, done.results
        costs = {r.client: spent(layout, self.algorithm, self._with_factors(r), done.round) for r in results}
        if self.fleet is not None and any(model.first_pass for model in self.fleet.models):
            first = self.first.of_training([r for r in results if r.error is None])
            costs = {c: replace(cost, first_trained=first.get(c, 0)) for c, cost in costs.items()}
        for one in done.asked:
            cost = self._asked(one)
            costs[one.client] = merge(costs[one.client], cost) if one.client in costs else cost
        if labels is None:
            return costs
        first = self.first.of_labelling(labels.labelled_by)
        embedded = labels.embedded(first)
        judge = labels.judge
        for client, labelled in judge.texts_seen.items():
            whole, tensors = self._length(0), len(layout.entries)
            got = ClientResult(client, 0.0, bytes_up=0, entries=[], bytes_down=whole, tensors_down=tensors)
            message = spent(layout, self.algorithm, self._with_factors(got))
            more = replace(
                message if client in judge.received else ClientCost(),
                labelled=labelled,
                first_labelled=first.get(client, 0),
                embedded=embedded.get(client, 0),
            )
            judged = judge.models.get(client, 0) * message.bytes_down
            if client in costs:
                both = merge(costs[client], more)
                alone = judged
            else:
                both, alone = more, judged + more.bytes_down
            costs[client] = replace(both, bytes_down=both.bytes_down + judged, bytes_labelling=alone)
        return costs

    def _asked(self, answer: ClientLoss) -> ClientCost:
        """Return what it has cost a client to be asked for its loss; the answer itself is not counted."""
        down, tensors = answer.bytes_down, answer.tensors_down
        got = ClientResult(answer.client, 0.0, bytes_up=0, entries=[], bytes_down=down, tensors_down=tensors)
        message = spent(self.context.state.layout, self.algorithm, self._with_factors(got))
        return replace(message, tensors_up=0, parameters_up=0, asked=answer.examples)

    def _length(self, rank: int, client: int = -1) -> int:
        """Return the bytes that a client receives at the start of a round."""
        return length_down(self.algorithm, self.context.state.layout, rank, client)

    def _with_factors(self, result: ClientResult) -> ClientResult:
        """Return a result with the bytes of the base weights' changes, sent as factors where these are shorter."""
        context, layout = self.context, self.context.state.layout
        adapters = self.algorithm.uplink.adapters
        if not adapters.pairs:
            return result
        seen = [
            line["round"]
            for line in context.lines
            if result.client in line["cohort"]
            or result.client in line.get("labelling", [])
            or result.client in line.get("asked", [])
        ]
        missed, lossy = context.lines[max(seen, default=1) - 1 :], not self.algorithm.downlink.plain
        rank = sum(adapters.change_rank(_averaged(line), lossy) for line in missed)
        length = self._length(rank, result.client)
        tensors = len(layout.entries) - (0 if adapters.rule.moves_base else len(layout.derived))
        return replace(result, bytes_down=length, tensors_down=tensors)


def _training_runtime(context: RunContext) -> Runtime:
    """Return where clients train: in the engine, one by one or several at once."""
    size, worker = context.experiment.runtime.clients_at_once, context.worker
    if size == 1:
        return context.pool
    size = min(size, context.experiment.clients_per_round)  # room for more would be taken and left empty
    worker.stack(size)  # what the model and the task do not allow is refused before the first round
    return ClientsAtOnce(context.pool, size, worker.work)


def _progress(context: RunContext, done: int, of: int) -> None:
    context.on_progress(done, of, "clients")


def _averaged(line: dict[str, Any]) -> list[int]:
    """Return the clients whose updates a round averaged; none without a step."""
    dropped = {one["client"] for one in line.get("dropped", [])}
    return [] if "aborted" in line else [client for client in line["cohort"] if client not in dropped]


def spent(layout: Layout, algorithm: Algorithm, result: ClientResult, number: int = 0) -> ClientCost:
    """Return the cost of one client in a round.

    Args:
        layout: The layout of the shared parameters.
        algorithm: The method, which says which vectors are sent.
        number: Of the round, from 1; 0 for one in which most is sent.
    """
    whole, entries = layout.message_bytes, len(layout.entries)
    got = whole if result.bytes_down is None else result.bytes_down
    tensors = entries if result.tensors_down is None else result.tensors_down
    tensors += len(algorithm.receives) * entries
    if result.error is not None:
        return ClientCost(bytes_up=result.bytes_up or 0, bytes_down=got, tensors_down=tensors)
    extra = len(algorithm.sends) - 1
    sent = result.sent or Sent.marked([number not in layout.derived for number in range(entries)])
    pieces = algorithm.uplink.adapters.pieces(sent.pieces(layout), layout, result.client, number)
    return ClientCost(
        bytes_up=whole if result.bytes_up is None else result.bytes_up,
        bytes_down=got,
        tensors_up=len(pieces) + extra * entries,
        tensors_down=tensors,
        parameters_up=sum(math.prod(piece.shape) for piece in pieces) + extra * layout.numel,
        examples=result.examples + result.gradient_examples,
    )
