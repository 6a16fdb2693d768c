"""What the server asks of clients and workers, and what they answer: typed, and plain JSON on the way.

:mod:`fednlp.runtime.message_json` writes and checks the JSON. Tensors are not in these messages. In one machine they
lie in memory that all workers share; a transport sends them as :mod:`fednlp.federated.message` packs them.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.federated.client import ClientLoss, ClientResult, LossRequest, TrainRequest

Seeds = list[list[Any]]
"""Masks: a seed in hexadecimal digits and a sign each."""


@dataclass(frozen=True)
class LabelRequest:
    """Have a client label texts with the model that it has after a broadcast.

    Attributes:
        client: Its id.
        round: The number of the round.
        texts: Numbers of its training examples.
    """

    client: int
    round: int
    texts: list[int]


@dataclass(frozen=True)
class Labels:
    """The likeliest label of each text, and its probability."""

    labels: list[int]
    confidences: list[float]


@dataclass(frozen=True)
class KeepLabelsRequest:
    """Have a client give texts of its own pseudo labels by the model that it has after a broadcast, and keep these.

    Attributes:
        client: Its id.
        round: The number of the round.
        percentage: Percentage of the texts that may get a label, above 0 and at most 100.
        most: Maximum number of labels; None for no maximum.
    """

    client: int
    round: int
    percentage: float
    most: int | None = None


@dataclass(frozen=True)
class LabelsKept:
    """How many pseudo labels a client has since a labelling.

    Attributes:
        client: Its id.
        labels: Their number.
        error: Why it failed; None if it did not.
    """

    client: int
    labels: int = 0
    error: str | None = None


@dataclass(frozen=True)
class ProbabilitiesRequest:
    """Have one batch of training texts classified by the model that is published."""

    texts: list[int]


@dataclass(frozen=True)
class Probabilities:
    """A row of label probabilities for each text."""

    rows: list[list[float]]


@dataclass(frozen=True)
class UnmaskRequest:
    """Have masks added to a stretch of the sum of masked updates: work of the server's own."""

    start: int
    stop: int
    seeds: Seeds


@dataclass(frozen=True)
class MaskValues:
    """The sum of masks, uint32, one for each element of the stretch; it is added where it is made."""

    values: NDArray[np.uint32]


@dataclass(frozen=True)
class EvaluateRequest:
    """Have one batch of the global test set predicted.

    Attributes:
        batch: Its number.
        key: Changes when the published model does: a worker loads it once for each key.
    """

    batch: int
    key: int


@dataclass(frozen=True)
class BatchPredictions:
    """Predictions of some test examples.

    Attributes:
        indices: The examples.
        predictions: One each, as JSON.
        loss: Summed over what is predicted.
        weight: How much that is.
    """

    indices: list[int]
    predictions: list[Any]
    loss: float
    weight: float


@dataclass(frozen=True)
class ClientModelRequest:
    """Have a client's own model evaluated, after some more steps of its own where ``finetune_steps`` is positive.

    Attributes:
        client: Its id.
        round: The last round that is saved: whose record counts.
        on_own: Whether its own test examples are predicted.
        on_all: Whether the whole test set is.
        finetune_steps: Local steps before that.
        save_to: File of client models that the model is written to; None for nowhere.
        examples: The training examples for these steps; None for all that the client has.
        labels: The labels of ``examples``; None for those of the data set.
        labelling: As in :class:`fednlp.federated.client.TrainRequest`.
    """

    client: int
    round: int
    on_own: bool
    on_all: bool
    finetune_steps: int = 0
    save_to: str | None = None
    examples: list[int] | None = None
    labels: list[int] | None = None
    labelling: int | None = None


@dataclass(frozen=True)
class ClientModelResult:
    """How a client's own model did.

    Attributes:
        client: Its id.
        error: Why it failed; None if it did not.
        own: The task's metric on its own test examples.
        everyone: All metrics on the whole test set.
        by_owner: The task's metric on each client's test examples.
    """

    client: int
    error: str | None = None
    own: float | None = None
    everyone: dict[str, float | None] | None = None
    by_owner: list[float | None] | None = None


@dataclass(frozen=True)
class ClientSumsRequest:
    """Have a client evaluate the published model on its own test examples, and return sums over them.

    Attributes:
        client: Its id.
        round: The last round that is saved, or about to be: whose record counts.
        masking: How it masks the sums for secure aggregation; None without.
    """

    client: int
    round: int
    masking: dict[str, Any] | None = None


@dataclass(frozen=True)
class ClientSums:
    """Whole numbers that a client sums over its test examples, or what it sends of them under masks.

    Attributes:
        client: Its id.
        error: Why it failed; None if it did not.
        sums: The numbers (:func:`fednlp.training.scores.sums_of`), or masked residues.
    """

    client: int
    error: str | None = None
    sums: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class LocalOnlyRequest:
    """Have a client train by itself from the start, and its model evaluated.

    Attributes:
        client: Its id.
        epochs: Passes over its examples.
        max_steps: Local steps in place of epochs, if positive.
        on_own: Whether its own test examples are predicted.
        on_all: Whether the whole test set is.
    """

    client: int
    epochs: int
    max_steps: int
    on_own: bool
    on_all: bool


@dataclass(frozen=True)
class LocalOnlyResult:
    """How a client did by itself; ``loss`` is summed over the examples seen.

    Attributes:
        client: Its id.
        error: Why it failed; None if it did not.
        examples: Seen in training, once per epoch.
        steps: Taken.
        loss: Of training.
        own: All metrics on its own test examples.
        everyone: All metrics on the whole test set.
    """

    client: int
    error: str | None = None
    examples: int = 0
    steps: int = 0
    loss: float = 0.0
    own: dict[str, float | None] | None = None
    everyone: dict[str, float | None] | None = None


@dataclass(frozen=True)
class TrainTogetherRequest:
    """Have several clients of a round train at once.

    Attributes:
        clients: Their requests, as :func:`fednlp.runtime.message_json.to_json` gives them.
    """

    clients: list[Any]


@dataclass(frozen=True)
class TrainedTogether:
    """What several clients report.

    Attributes:
        clients: Their results in the order of the requests, as :func:`fednlp.runtime.message_json.to_json` gives them.
    """

    clients: list[Any]


Request = (
    TrainRequest
    | TrainTogetherRequest
    | LossRequest
    | LabelRequest
    | KeepLabelsRequest
    | ProbabilitiesRequest
    | UnmaskRequest
    | EvaluateRequest
    | ClientModelRequest
    | ClientSumsRequest
    | LocalOnlyRequest
)
Answer = (
    ClientResult
    | TrainedTogether
    | ClientLoss
    | Labels
    | LabelsKept
    | Probabilities
    | BatchPredictions
    | ClientModelResult
    | ClientSums
    | LocalOnlyResult
    | None
)
