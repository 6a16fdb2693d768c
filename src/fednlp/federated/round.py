"""One federated round, as Algorithm 1 of the FedNLP benchmark paper states it.

    sample a cohort S; every client i of S starts from x_t and takes its local steps
    delta  = sum p_i (x_i - x_t) / sum p_i          over the clients that answered
    x_t+1  = ServerOpt(x_t, -delta)

Nothing here knows of text, tasks, models or transports: those stand behind :class:`Runtime`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import TooFewClients
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.params import Layout
from fednlp.federated.server import server_step
from fednlp.federated.state import State
from fednlp.federated.sums import ExactSum, weight_unit


@dataclass(frozen=True)
class Reply:
    """What a client says beside its update; ``error`` names why it was dropped.

    Attributes:
        client: Its id.
        factor: Its weight over the cohort's :func:`weight_unit`.
        examples: Examples seen in local training, once per epoch.
        steps: Local steps taken.
        loss: Sum over the steps of the mean training loss of the step's examples, times their number.
        bytes_down: Length of the message it got; None for the whole model, untransformed.
        tensors_down: Tensors in that message; None for all.
        bytes_up: Length of its own message; None likewise.
        sent: Numbers of the layout's entries that it sent; None for all.
        moved: How far each entry moved since its last round, where a choice was made by that.
    """

    client: int
    factor: float
    examples: int = 0
    steps: int = 0
    loss: float = 0.0
    error: str | None = None
    bytes_down: int | None = None
    tensors_down: int | None = None
    bytes_up: int | None = None
    sent: list[int] | None = None
    moved: list[float] | None = None


def failed(
    client: int,
    factor: float,
    error: Exception,
    bytes_down: int | None = None,
    tensors_down: int | None = None,
) -> Reply:
    """Return the reply of a client that is dropped because of an exception."""
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
    return Reply(client, factor, error=reason, bytes_down=bytes_down, tensors_down=tensors_down)


@dataclass(frozen=True)
class RoundReport:
    """The numbers of one round; ``train_loss`` is the mean over the examples seen.

    Bytes are summed over the clients; one that was dropped has cost the way down.
    """

    round: int
    cohort: list[int]
    replies: list[Reply]
    train_loss: float
    steps: int
    examples: int
    bytes_up: int
    bytes_down: int
    dropped: list[Reply]
    aborted: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Gathered:
    """What came back of a cohort.

    Attributes:
        total: The sum of factor * update.
        replies: One a client.
        weighed: Where the sum holds the weights too, as a secure one does, of whom nobody shall know them: the
            unit that they were divided by there, and the sum of these factors.
        aborted: Why there is no sum, where a protocol gave up: the round changes nothing.
        extra: What the round's line is to say beside the rest.
    """

    total: ExactSum
    replies: list[Reply]
    weighed: tuple[float, float] | None = None
    aborted: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class Runtime(Protocol):
    """Where clients train: in this process, in several, or across a network."""

    def train(
        self, round_number: int, state: State, factors: dict[int, float], done: Callable[[int], None]
    ) -> Gathered:
        """Train the clients from ``state.x``.

        A client that fails is no exception: its reply says why, and its update is not in the sum.
        ``done`` is told how many clients are through.
        """


def run_round(
    algorithm: Algorithm,
    state: State,
    sizes: Sequence[int] | NDArray[np.int64],
    runtime: Runtime,
    seed: int,
    done: Callable[[int], None] = lambda count: None,
) -> RoundReport:
    """Run round ``state.round + 1``: move the state, return the round's numbers.

    Args:
        algorithm: What this method does differently.
        state: The server; moved in place, so that memory stays O(model).
        sizes: Training examples of each client, by id.
        runtime: Where the clients train.
        seed: The experiment's seed.
        done: Told how many clients of the cohort are through, for a progress line.

    Raises:
        TooFewClients: Fewer than ``algorithm.min_clients`` clients answered; the state is untouched.
    """
    number = state.round + 1
    cohort = algorithm.sample(seed, number, len(sizes))
    weights = {client: algorithm.weigh(int(sizes[client])) for client in cohort}
    unit = weight_unit(sum(weights.values()))
    factors = {client: weight / unit for client, weight in weights.items()}

    gathered = runtime.train(number, state, factors, done)

    replies = sorted(gathered.replies, key=lambda reply: reply.client)
    kept = [reply for reply in replies if reply.error is None]
    dropped = [reply for reply in replies if reply.error is not None]
    if gathered.aborted is None and len(kept) < max(algorithm.min_clients, min(1, len(cohort))):
        reasons = "; ".join(f"client {reply.client}: {reply.error}" for reply in dropped[:3])
        raise TooFewClients(
            f"round {number}: {len(kept)} of {len(cohort)} clients answered, min_clients is "
            f"{algorithm.min_clients} ({reasons}); the rounds before are saved"
        )
    if gathered.aborted is None:
        _step(algorithm, state, gathered, kept, unit)
    gathered.total.clear()
    state.round = number

    examples = sum(reply.examples for reply in kept)
    whole = state.layout.message_bytes
    return RoundReport(
        round=number,
        cohort=cohort,
        replies=replies,
        train_loss=sum(reply.loss for reply in kept) / examples if examples else float("nan"),
        steps=sum(reply.steps for reply in kept),
        examples=examples,
        bytes_up=sum(whole if reply.bytes_up is None else reply.bytes_up for reply in kept),
        bytes_down=sum(whole if reply.bytes_down is None else reply.bytes_down for reply in replies),
        dropped=dropped,
        aborted=gathered.aborted,
        extra=gathered.extra,
    )


def _step(algorithm: Algorithm, state: State, gathered: Gathered, kept: Sequence[Reply], unit: float) -> None:
    """Move the global model by the mean of what was gathered."""
    layout, number = state.layout, state.round + 1
    share: float | list[float] = _shares(layout, kept)
    if gathered.weighed is not None:
        unit, share = gathered.weighed
    if algorithm.fixed_denominator is not None:
        share = algorithm.fixed_denominator / unit
    if algorithm.noise is None:
        delta, rows = gathered.total.mean(share)
        unsent = _unsent(layout, kept)
    else:
        gathered.total.touched.fill_(True)
        delta, rows = gathered.total.mean(share)
        algorithm.noise(delta, number)
        unsent = []
    server_step(algorithm.server, layout, state.x, delta, state.slots, rows, unsent)
    if algorithm.derive is not None:
        algorithm.derive(layout, state.x, delta)


def sent_entries(layout: Layout, reply: Reply) -> Sequence[int]:
    """Return the numbers of the entries that a client sent."""
    if reply.sent is not None:
        return reply.sent
    return [number for number in range(len(layout.entries)) if number not in layout.derived]


def _shares(layout: Layout, kept: Sequence[Reply]) -> float | list[float]:
    """Return the sum of the factors of those who sent, for each entry where not all sent everything."""
    everyone = sum(reply.factor for reply in kept)
    if all(reply.sent is None for reply in kept):
        return everyone
    shares = [everyone if number in layout.derived else 0.0 for number in range(len(layout.entries))]
    for reply in kept:
        for number in sent_entries(layout, reply):
            shares[number] += reply.factor
    return shares


def _unsent(layout: Layout, kept: Sequence[Reply]) -> list[slice]:
    """Return the places of the entries that nobody sent, or that are not for the server's optimiser to move."""
    if not layout.derived and any(reply.sent is None for reply in kept):
        return []
    sent = {number for reply in kept for number in sent_entries(layout, reply)} - layout.derived
    return [slice(e.start, e.stop) for number, e in enumerate(layout.entries) if number not in sent]
