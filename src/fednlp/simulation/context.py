"""A run under way, and what every training loop does at the end of a round."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from fednlp.config import Experiment
from fednlp.errors import RunError
from fednlp.federated.state import State
from fednlp.federated.sums import BURST, count_bad
from fednlp.partition import Partition
from fednlp.runtime.pool import Pool
from fednlp.tasks.label_scores import LabelScores
from fednlp.training.worker import ClientWorker


@dataclass
class RunContext:
    """One run under way.

    Attributes:
        experiment: Its configuration.
        partition: Who has which examples.
        pool: The workers.
        worker: The worker in this process.
        state: The server.
        on_progress: Told how a round gets on.
        log: Told what is worth knowing.
        texts: The texts of training examples, by number.
        lines: The rounds so far.
        note: Said at the end.
        facts: What the summary says beside the rest.
        gold: The examples that have a label, and these, where not all have one.
        labelled: Returns a client's examples that have a label by now, and their labels, where not all have one.
    """

    experiment: Experiment
    partition: Partition
    pool: Pool
    worker: ClientWorker
    state: State
    on_progress: Callable[[int, int, str], None]
    log: Callable[[str], None]
    texts: Callable[[np.ndarray], list[str]]
    lines: list[dict[str, Any]] = field(default_factory=list)
    note: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    gold: tuple[np.ndarray, np.ndarray] | None = None
    labelled: Callable[[int], tuple[np.ndarray, np.ndarray]] | None = None

    def __post_init__(self) -> None:
        self.client_scores = np.full(self.partition.num_clients, np.nan)
        self.by_label: LabelScores | None = None

    def due(self, rounds: int) -> bool:
        """Whether the round just done is to be evaluated."""
        return self.state.round % self.experiment.evaluation.every == 0 or self.state.round == rounds


class Training(Protocol):
    """A way to do rounds: of a federated algorithm, or of a baseline."""

    rounds: int

    def prepare(self) -> Callable[[], Any]:
        """Prepare the next round, and return what does it."""

    def line(self, done: Any) -> dict[str, Any]:
        """Return the line for rounds.jsonl of a round, less the seconds, from what did it returned."""


def require_finite(params: Tensor, before: int, round_number: int) -> None:
    """Stop a run whose model has diverged, before it is saved.

    Args:
        params: The global model, flat.
        before: How many of its values were no numbers at the start.
        round_number: Of the round just done.
    """
    if count_bad(params) > before:
        raise RunError(f"round {round_number}: {BURST}: lower the learning rate; the rounds before are saved")
