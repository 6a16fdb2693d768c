"""One federated round, as Algorithm 1 of the FedNLP benchmark paper states it.

    sample a cohort S; every client i of S starts from x_t and takes its local steps
    delta  = sum p_i (x_i - x_t) / sum p_i          over the clients that came through
    x_t+1  = ServerOpt(x_t, -delta)

Nothing here knows of text, tasks, models or transports: those stand behind :class:`Runtime`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fednlp.errors import ConfigError, RunError, TooFewClients
from fednlp.federated.aggregators.base import AggregatedUpdate, Mean, Outcome, Reported
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import ClientLoss, ClientResult, LossRequest, TrainRequest
from fednlp.federated.cohort import LATE, Ask, Cohort, Population, RoundPlan, Selection, is_drawn_from
from fednlp.federated.communication import broadcast, bytes_down
from fednlp.federated.params import Layout
from fednlp.federated.runtime import MODEL, Runtime
from fednlp.federated.state import State
from fednlp.federated.sums import LARGEST, count_nonfinite, weight_unit
from fednlp.federated.transforms import RngKey
from fednlp.plugins import described, is_shipped, kind_of

_CLIENTS = "clients."
"""Before the names of vectors that hold what the server remembers of each client."""


@dataclass(frozen=True)
class RoundReport:
    """The numbers of one round; ``train_loss``, and ``metrics`` of the method's own, are means over the examples seen.

    Bytes are summed over the clients; one that was dropped has cost the way down. ``staleness`` is that of the cohort,
    in its order; empty for synchronous rounds. ``asked`` are the answers of those who were asked for their loss before
    the cohort was drawn, which has cost them the way down.
    """

    round: int
    cohort: list[int]
    results: list[ClientResult]
    train_loss: float
    steps: int
    examples: int
    bytes_up: int
    bytes_down: int
    dropped: list[ClientResult]
    aborted: str | None = None
    seconds: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    staleness: Sequence[int] = ()
    asked: Sequence[ClientLoss] = ()


def run_round(
    algorithm: Algorithm,
    state: State,
    population: Population,
    runtime: Runtime,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> RoundReport:
    """Run round ``state.round + 1``: move the state, return the round's numbers.

    Args:
        state: The server; moved in place, so that memory stays O(model).
        runtime: Where they are.
        on_progress: Told how many clients of the cohort are through, and of how many that the round waits for.

    Raises:
        TooFewClients: Fewer than ``algorithm.min_clients`` clients came through; the state is untouched.
        ConfigError: A function of the user's own draws or returns what it may not; the state is untouched.
        RunError: A rule of the user's own made numbers of the updates that are none; the state is untouched.
    """
    number, asking = state.round + 1, _Asking(algorithm, state.round + 1, len(population), runtime)
    first = algorithm.aggregator.binds_model or algorithm.selection is not None
    if first:
        publish(algorithm, state, runtime, RngKey(population.seed, number, -1))
    plan = plan_round(algorithm, number, population, draw_cohort(algorithm, state, population, asking))
    collection = algorithm.aggregator.open(plan, state.layout)
    requests, missed = _in_time(algorithm, state.layout, plan, list(collection.requests()))
    results: list[ClientResult] = []
    awaited = len(plan.cohort.clients) - len(plan.cohort.late)
    by_model = [requests] if first else _by_model(algorithm, state, runtime, plan, requests)
    for wanted in by_model:
        results += runtime.do(wanted, partial(_after, len(results), awaited, on_progress))
    outcome = collection.finish(runtime, sorted(missed + results, key=lambda result: result.client))
    _require_enough(plan, outcome)
    if outcome.update is not None:
        _require_update(algorithm, state.layout, plan.number, outcome.update)
        told = algorithm.server.step(state, outcome.update)
        outcome = replace(outcome, facts=outcome.facts | (dict(told) if isinstance(told, Mapping) else {}))
    _remember(state, plan, outcome.results)
    algorithm.aggregator.clear(runtime.total)
    state.round = plan.number
    return replace(_report(plan, outcome, state.layout), asked=asking.answers)


def plan_round(algorithm: Algorithm, number: int, population: Population, cohort: Cohort) -> RoundPlan:
    """Weigh the clients of a cohort.

    Args:
        number: From 1.

    Raises:
        ConfigError: A weight is no finite number from 0.
    """
    weights = {client: float(algorithm.weight(int(population.counted[client]))) for client in cohort.clients}
    for client, scale in zip(cohort.clients, cohort.scale, strict=False):
        weights[client] *= scale
    for client, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ConfigError(
                f"{algorithm.name}: the weight of client {client} is {weight}: give a finite number from 0"
            )
    return RoundPlan(
        number,
        cohort,
        weights,
        weight_unit(sum(weights.values())),
        population,
        algorithm.weight,
        algorithm.client_rate,
        algorithm.min_clients,
    )


def draw_cohort(algorithm: Algorithm, state: State, population: Population, ask: Ask) -> Cohort:
    """Draw the cohort of the next round, and check it: ``sample`` may be of the user's own.

    Args:
        ask: Puts a question to clients, for a selection.

    Raises:
        ConfigError: ``sample``, or the selection, returned no cohort of distinct clients of the population, or the
            selection changed the server's state.
    """
    cohort: Any = (
        algorithm.sample(population, state.round + 1)
        if algorithm.selection is None
        else _selected(algorithm.name, algorithm.selection, state, population, ask)
    )
    if not isinstance(cohort, Cohort):
        raise ConfigError(f"{algorithm.name}: sample returned {kind_of(cohort)}: return a Cohort")
    drawn = list(cohort.clients)
    if not is_drawn_from(cohort, population):
        raise ConfigError(
            f"{algorithm.name}: sample drew {str(drawn)[:80]}: draw distinct ids from 0 to {len(population) - 1}"
        )
    if algorithm.selection is not None and any(cohort.staleness):
        raise ConfigError(
            f"{algorithm.name}: selected clients start from the newest model: leave staleness out"
        )
    return replace(cohort, clients=[int(client) for client in drawn])


def _selected(name: str, selection: Selection, state: State, population: Population, ask: Ask) -> Any:
    """Return what a selection draws, which may look at the server's state and not change it."""
    before = _versions(state)
    cohort = selection.draw(population, state, ask)
    changed = [place for place, now in _versions(state).items() if now != before.get(place)]
    if changed:
        raise ConfigError(
            f"{name}: draw, your own {described(selection.draw)}, changed {', '.join(changed)}: let it draw alone, and "
            "work on a copy (clone())"
        )
    return cohort


def _versions(state: State) -> dict[str, tuple[int, int]]:
    """Return for each of the server's tensors which one it is, and how often it was changed in place."""
    vectors = {f'state.vectors["{name}"]': vector for name, vector in state.vectors.items()}
    return {
        place: (id(tensor), 0 if tensor.is_inference() else tensor._version)
        for place, tensor in {"state.params": state.params, **vectors}.items()
    }


@dataclass
class _Asking:
    """Asks clients for their losses, each once in a round (:data:`fednlp.federated.cohort.Ask`)."""

    algorithm: Algorithm
    number: int
    clients: int
    runtime: Runtime
    answers: list[ClientLoss] = field(default_factory=list)

    def __call__(self, clients: Iterable[int]) -> dict[int, float]:
        """Return the loss of each client that answers."""
        name, wanted = self.algorithm.name, [int(client) for client in clients]
        if self.algorithm.selection is None or not self.algorithm.selection.asks:
            raise ConfigError(f"{name}: its selection asks for losses: say Selection(asks=True)")
        if not all(0 <= client < self.clients for client in wanted):
            raise ConfigError(
                f"{name}: its selection asks {str(wanted)[:80]}: ask ids from 0 to {self.clients - 1}"
            )
        new = sorted({*wanted} - {answer.client for answer in self.answers})
        self.answers += self.runtime.do([LossRequest(client, self.number) for client in new])
        return {one.client: one.loss for one in self.answers if one.error is None and one.client in wanted}


def new_vectors(algorithm: Algorithm, state: State, clients: int, seed: int) -> dict[str, Tensor]:
    """Return the server's vectors before the first round: the method's, its models, and what it remembers of clients.

    Args:
        state: The server, with the model that the run starts from.
    """
    names = () if algorithm.selection is None else algorithm.selection.remembers
    models = algorithm.server.first_models(state.layout, state.params, seed) if algorithm.models else {}
    memory = {f"{_CLIENTS}{name}": torch.zeros(clients) for name in names}
    return algorithm.server.init(state.layout) | models | memory


def _remember(state: State, plan: RoundPlan, results: Sequence[ClientResult]) -> None:
    """Take note of what the server saw of the clients that came through, as far as the method wants it.

    A client that keeps its loss to itself, or has taken no steps, is remembered with none.
    """
    for result in results:
        if result.error is None:
            seen = result.metrics | {
                "round": plan.number,
                "examples": int(plan.population.sizes[result.client]),
                "loss": result.loss / result.examples if result.examples else 0.0,
            }
            for name, value in seen.items():
                if f"{_CLIENTS}{name}" in state.vectors:
                    state.vectors[f"{_CLIENTS}{name}"][result.client] = value


def publish(algorithm: Algorithm, state: State, runtime: Runtime, key: RngKey, staleness: int = 0) -> None:
    """Send the global model, and the server's vectors that travel with it, to the clients.

    Args:
        runtime: Where the clients are.
        key: Seed, round and -1, since it is one message for all: what stochastic rounding draws from.
        staleness: Of how many rounds ago the model is.
    """
    sent = broadcast(algorithm.downlink, state.layout, algorithm.server.model(state, staleness), key)
    if algorithm.uplink.weights and not staleness and sent.model is not state.params:
        state.params.copy_(sent.model)  # the server goes on from what it sent
    runtime.publish(MODEL, sent.model, sent.message)
    for name in algorithm.receives:
        if name not in state.vectors or state.vectors[name].numel() != state.layout.numel:
            raise ConfigError(
                f"{algorithm.name}: receives says {name}, and the server has no vector of that name, as long as the "
                "model: let the init of its server return it"
            )
        runtime.publish(name, state.vectors[name])


def late(algorithm: Algorithm, layout: Layout, request: TrainRequest, before: int) -> ClientResult:
    """Return the result of a client that was drawn beyond what the round needs, and was too slow to count.

    It has cost the way down: the whole model is counted, whatever it would have chosen of it.

    Args:
        before: How many clients had delivered before it.
    """
    down = bytes_down(
        algorithm.downlink,
        layout,
        vectors=len(algorithm.receives),
        adapters=algorithm.uplink.adapters,
        client=request.client,
    )
    reason = f"{LATE}: {before} clients had delivered before it (rounds.over_selection)"
    return ClientResult(request.client, request.weight, error=reason, bytes_down=down)


def _in_time(
    algorithm: Algorithm, layout: Layout, plan: RoundPlan, requests: Sequence[TrainRequest]
) -> tuple[list[TrainRequest], list[ClientResult]]:
    """Return the requests to clients whose updates count, and the results of those who are too slow to count."""
    slow = {*plan.cohort.late}
    before = len(plan.cohort.clients) - len(slow)
    missed = [late(algorithm, layout, request, before) for request in requests if request.client in slow]
    return [request for request in requests if request.client not in slow], missed


def _by_model(
    algorithm: Algorithm, state: State, runtime: Runtime, plan: RoundPlan, requests: Sequence[TrainRequest]
) -> Iterator[list[TrainRequest]]:
    """Publish each model that clients of the round start from, the newest first, and yield the requests to them."""
    if any(request.staleness for request in requests):
        state.params = state.params.clone()  # older models are published where a runtime may hold it
    for staleness in sorted({request.staleness for request in requests}):
        publish(algorithm, state, runtime, RngKey(plan.population.seed, plan.number, -1), staleness)
        yield [request for request in requests if request.staleness == staleness]


def _after(before: int, of: int, on_progress: Callable[[int, int], None], done: int) -> None:
    on_progress(before + done, of)


def _require_enough(plan: RoundPlan, outcome: Outcome) -> None:
    """Stop where too few clients came through for the round to count."""
    kept = sum(result.error is None for result in outcome.results)
    clients, least = len(plan.cohort.clients), plan.min_clients
    if outcome.aborted is None and kept < max(least, min(1, clients)):
        what = (
            f"{kept} of {clients} clients answered, min_clients is {least} ({_reasons(outcome.results)})"
            if clients
            else f"the cohort's rule drew nobody, and min_clients is {least}: draw clients, or say min_clients = 0"
        )
        raise TooFewClients(f"round {plan.number}: {what}; the rounds before are saved")


def _reasons(results: Sequence[ClientResult]) -> str:
    """Return why clients were dropped: three reasons at most, each once, with three clients of it at most."""
    by_reason: dict[str, list[int]] = {}
    for result in results:
        if result.error is not None:
            by_reason.setdefault(result.error, []).append(result.client)
    if len(by_reason) == 1 and len(results) > 1 and all(result.error for result in results):
        return f"all of them: {next(iter(by_reason))}"
    said = []
    for reason, clients in [*by_reason.items()][:3]:
        more = f" and {len(clients) - 3} more" if len(clients) > 3 else ""
        noun = "client" if len(clients) == 1 else "clients"
        said.append(f"{noun} {', '.join(map(str, clients[:3]))}{more}: {reason}")
    return "; ".join(said)


def _require_update(algorithm: Algorithm, layout: Layout, number: int, update: Any) -> None:
    """Check what a rule of the user's own made of a round's updates.

    Args:
        number: Of the round.
    """
    rule = algorithm.aggregator
    if is_shipped(rule):
        return
    name = f"the aggregator {type(rule).__name__}, your own {described(rule.finish)},"
    if not isinstance(update, AggregatedUpdate):
        raise ConfigError(f"{name} returned {kind_of(update)}: return an AggregatedUpdate")
    missing = [one for one in algorithm.sends if one not in update.vectors and not algorithm.models]
    if missing:
        raise ConfigError(f"{name} returned no {', '.join(missing)}: return a Mean for each vector")
    for one, mean in update.vectors.items():
        delta = mean.delta if isinstance(mean, Mean) else mean
        if not isinstance(delta, Tensor) or delta.shape != (layout.numel,) or delta.dtype != torch.float32:
            raise ConfigError(
                f"{name} returned {kind_of(delta)} for {one}: return a Mean of a tensor of float32, shape "
                f"({layout.numel},)"
            )
        if count_nonfinite(delta):
            raise RunError(
                f"round {number}: the aggregator {type(rule).__name__} returned NaN, infinity or a number beyond "
                f"{LARGEST:,.0f} for {one}, of finite updates; the rounds before are saved"
            )


def _report(plan: RoundPlan, outcome: Outcome, layout: Layout) -> RoundReport:
    kept, whole = [result for result in outcome.results if result.error is None], layout.message_bytes
    reported = outcome.reported or Reported(
        sum(result.loss for result in kept),
        sum(result.examples for result in kept),
        sum(result.steps for result in kept),
    )
    return RoundReport(
        round=plan.number,
        cohort=list(plan.cohort.clients),
        results=list(outcome.results),
        train_loss=reported.loss / reported.examples if reported.examples else float("nan"),
        steps=reported.steps,
        examples=reported.examples,
        bytes_up=sum(whole if r.bytes_up is None else r.bytes_up for r in kept),
        bytes_down=sum(whole if r.bytes_down is None else r.bytes_down for r in outcome.results),
        dropped=[result for result in outcome.results if result.error is not None],
        aborted=outcome.aborted,
        seconds=plan.cohort.seconds,
        facts=outcome.facts,
        metrics=mean_over_examples(kept),
        staleness=plan.cohort.staleness,
    )


def mean_over_examples(results: Sequence[ClientResult]) -> dict[str, float]:
    """Return the means of what clients report, weighted by the examples that each has seen; nothing without any.

    >>> one, other = (ClientResult(i, 0.5, examples=n, metrics={"tau": 4.0 * (i + 1)}) for i, n in enumerate((1, 3)))
    >>> mean_over_examples([one, other])
    {'tau': 7.0}
    """
    examples = sum(result.examples for result in results)
    names = results[0].metrics if examples else {}
    return {name: sum(one.examples * one.metrics[name] for one in results) / examples for name in names}
