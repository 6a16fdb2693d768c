"""The context of a run, and the protocol of training loops."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fednlp.config import Experiment
from fednlp.errors import DIVERGED, RunError
from fednlp.federated.state import State
from fednlp.federated.sums import count_nonfinite
from fednlp.partition import Partition
from fednlp.runtime.engine import Engine
from fednlp.tasks.label_scores import LabelScores
from fednlp.training.worker import ClientWorker

if TYPE_CHECKING:
    from fednlp.fewshot.simulation.label_holder import LabelHolder
    from fednlp.secure.session import SessionFactory


@dataclass
class RunContext:
    """The objects of a run in progress.

    Attributes:
        experiment: The run's configuration, resolved.
        partition: The examples of each client.
        pool: Where the clients are.
        worker: The worker in this process.
        on_progress: Called with clients (or batches) done, of how many, and their name.
        log: Called with messages for the user.
        texts: Returns the texts of training examples by their numbers.
        lines: The lines of ``rounds.jsonl`` so far.
        note: A remark for the end of the run and its summary.
        facts: Further entries of ``summary.json``.
        labels: Who holds the labels; None where all examples have labels.
        sum_sessions: Opens the sessions of secure sums over the clients' tests; None for sessions in this process.
        tokens: int64 (clients,), tokens that each client learns, where these give its weight.
        client_scores: float64 (clients,), last score of each client; NaN where it has none.
        by_label: Scores by label of the last evaluation.
        interval: Of the last global score, by the test examples.
    """

    experiment: Experiment
    partition: Partition
    pool: Engine
    worker: ClientWorker
    state: State
    on_progress: Callable[[int, int, str], None]
    log: Callable[[str], None]
    texts: Callable[[np.ndarray], list[str]]
    lines: list[dict[str, Any]] = field(default_factory=list)
    note: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    labels: "LabelHolder | None" = None
    sum_sessions: "SessionFactory | None" = None
    tokens: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        self.client_scores = np.full(self.partition.num_clients, np.nan)
        self.by_label: LabelScores | None = None
        self.interval: dict[str, Any] | None = None

    def due(self, rounds: int) -> bool:
        """Return whether the last finished round is to be evaluated."""
        return self.state.round % self.experiment.evaluation.every == 0 or self.state.round == rounds


class Training(Protocol):
    """A training loop: the rounds of a federated algorithm, or of a baseline."""

    rounds: int

    def prepare(self) -> Callable[[], Any]:
        """Prepare the next round, and return the function that runs it."""

    def line(self, done: Any) -> dict[str, Any]:
        """Return the round's line for rounds.jsonl, without ``seconds``, from the result of its function."""


def require_finite(params: Tensor, before: int, round_number: int) -> None:
    """Stop a run whose model has diverged, before it is saved.

    Args:
        params: The global model, flat float32.
        before: Number of its values that were not finite at the start of the run.
        round_number: Number of the last round.

    Raises:
        RunError: More values are not finite.
    """
    if count_nonfinite(params) > before:
        raise RunError(
            f"round {round_number}: {DIVERGED}: lower the learning rate; the rounds before are saved"
        )
