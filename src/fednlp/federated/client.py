"""The client's part of a round: what it is told, what it computes with, and what it returns.

A method's client is a function over one primitive, the local steps::

    def fedprox_client(local, x, server, own):                   # Li et al. 2020
        y = local.steps(x, lambda g, y, x: g.add_(y - x, alpha=mu), x)
        return Result(update={"model": y - x})

``x`` is the global model as it arrived, ``server`` holds the server's named vectors that travel with it, and ``own``
what this client kept after its last round. All are flat float32 tensors of the layout's length.

Nothing here needs torch until a round begins, so that an experiment is checked before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from fednlp.errors import ConfigError
from fednlp.federated.sent import Sent
from fednlp.plugins import described, kind_of, raised

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.params import Layout
    from fednlp.federated.update import Update

Gradient = Callable[..., "Tensor"]
"""(g, y, *vectors) -> the gradient that the optimiser gets, elementwise.

``g`` is the loss's gradient at ``y``; both, and the vectors, are the same stretch of the model, one-dimensional or
(rows, width). ``g`` may be changed in place and returned.
"""

Objective = Callable[["Tensor", "Outputs", Mapping[str, "Tensor"], Callable[["Tensor"], "Outputs"]], "Tensor"]
"""(loss, out, batch, at) -> the loss that is minimised.

``loss`` is the task's mean loss of a batch, ``out`` what the model computed of it, ``batch`` what it read, labels
included. ``at(vector)`` returns what the same model computes of the same batch with other weights, flat, without
gradients and without dropout.
"""


class Outputs(Protocol):
    """What a model computed of a batch."""

    loss: Tensor

    @property
    def logits(self) -> Tensor:
        """What the model's head returned: (texts, labels) for classification."""

    @property
    def features(self) -> Tensor:
        """The mean of the last hidden states over a text's tokens, (texts, width); of an encoder, if there is one."""


@runtime_checkable
class Change(Protocol):
    """``y - x``: what local steps changed. It is computed when it is sent, in place where that is possible."""

    def take(self) -> Update:
        """Return the update. The trained weights are used up: nothing else may ask for them afterwards."""

    def flat(self) -> Tensor:
        """Return the update as a flat vector of its own."""

    def __truediv__(self, number: float) -> Change:
        """Return the change divided by a number."""


class Weights(Protocol):
    """The weights that local steps ended with. ``y - x`` and ``x - y`` work; ``flat()`` gives a tensor."""

    def flat(self) -> Tensor:
        """Return the weights as a flat vector of their own."""

    def __sub__(self, other: Tensor) -> Change:
        """Return the change from the global model."""

    def __rsub__(self, other: Tensor) -> Tensor:
        """Return ``other`` minus the weights, flat."""


class Another(Protocol):
    """A model of a client beside the one that takes its local steps."""

    def step(self, gradient: Tensor) -> None:
        """Take a step of its optimiser with a gradient, flat."""

    def flat(self) -> Tensor:
        """Return the weights as they stand, as a flat vector of their own."""


class Local(Protocol):
    """One client's data, model and optimiser, for the time of a round.

    Attributes:
        round: The number of the round in which it began, from 1.
        staleness: How many rounds ago the server had the model that this client starts from; 0 in synchronous rounds.
        momentum: Of the client's SGD; 0 for none.
        num_steps: Optimiser steps of the last call of :meth:`steps`.
        rate_sum: The sum of the learning rates of these steps: ``num_steps * learning_rate`` where it is constant.
    """

    client: int
    round: int
    staleness: int

    @property
    def momentum(self) -> float: ...

    @property
    def num_steps(self) -> int: ...

    @property
    def rate_sum(self) -> float: ...

    @property
    def layout(self) -> Layout:
        """What lies where in flat vectors: ``layout.views(vector)`` gives the named tensors, as views of it."""

    def steps(
        self,
        start: Tensor,
        gradient: Gradient | None = None,
        *vectors: Tensor,
        sparse: bool = False,
        objective: Objective | None = None,
        before_step: Callable[[Any, Tensor], None] | None = None,
    ) -> Weights:
        """Take the client's local steps.

        The first call in a round takes the steps of the client's own: what it keeps besides the method's vectors, its
        personal layers and with ``client.keep_optimizer`` its optimiser's state, comes from these steps. It begins
        with those that the client kept. A later call trains another model: it begins with the same personal layers as
        the first, and with a fresh optimiser, and what becomes of them is not kept.

        Args:
            start: Where they start, flat.
            gradient: Changes the loss's gradient before each step; None leaves it.
            vectors: Flat vectors that ``gradient`` needs: it gets the stretch of each that it looks at.
            sparse: Whether ``gradient`` is zero where the loss's gradient is zero and the weights are as at the start.
                Rows of the word embedding that the client does not use are then not loaded.
            objective: Makes of each batch's loss the one that is minimised; None leaves it. The loss that is reported
                stays the task's.
            before_step: Called before each step with the step's batch, for :meth:`gradient`, and with the weights that
                the step starts from, flat. What it does is not seen by the steps.
        """

    def gradient(self, at: Tensor, batch: Any = None) -> Tensor:
        """Return the gradient of the client's mean loss over all labels of its examples, flat, without dropout.

        Args:
            at: Where, flat.
            batch: What ``before_step`` got, to be used there; None for all examples.
        """

    def loss(self, at: Tensor) -> float:
        """Return the client's mean loss over all labels of its examples, without dropout."""

    def another(self, start: Tensor) -> Another:
        """Return another model of the client, with an optimiser like that of its steps, that starts from ``start``."""


@dataclass(frozen=True)
class Result:
    """What a client computed.

    Attributes:
        update: The vectors that it sends, by the names in :attr:`Algorithm.sends`.
        keep: The vectors that it keeps until its next round, by the names in :attr:`Algorithm.keeps`.
        metrics: Numbers that it reports; the server gets their weighted means.
        model: Which of the server's models the update belongs to: ``"model"``, or one of :attr:`Algorithm.models`.
    """

    update: Mapping[str, Change | Tensor]
    keep: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    model: str = "model"


ClientFunction = Callable[["Local", "Tensor", Mapping[str, "Tensor"], Mapping[str, "Tensor"]], Result]
"""(local, x, server, own) -> Result."""


def checked_result(result: Any, function: ClientFunction) -> Result:
    """Return what a client's function returned, which may be the user's own; other floats that it sends as float32.

    Raises:
        ConfigError: It returned something else than a result of changes and tensors.
    """
    import torch

    name = f"the client's function {described(function)}"
    if not isinstance(result, Result):
        raise ConfigError(f"{name} returned {kind_of(result)}: return a fednlp.Result")
    for part, vectors in (("update", result.update), ("keep", result.keep), ("metrics", result.metrics)):
        if not isinstance(vectors, Mapping):
            raise ConfigError(f"{name} returned Result({part}={kind_of(vectors)}): give a dict by names")
    update: dict[str, Any] = {}
    vector: Any
    for sent, vector in result.update.items():
        tensor = isinstance(vector, torch.Tensor)
        # A NumPy array has all the names that a change has.
        change = isinstance(vector, Change) and not hasattr(vector, "dtype")
        if not (vector.is_floating_point() if tensor else change):
            raise ConfigError(
                f'{name} returned update["{sent}"] as {kind_of(vector)}: give the change y - x, or a flat torch tensor '
                "of float32"
            )
        update[sent] = vector.float() if tensor else vector
    return replace(result, update=update)


def average_model(local: Local, x: Tensor, server: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Result:
    """Take the local steps and send what they changed: the client of FedAvg (McMahan et al. 2017)."""
    y = local.steps(x)
    return Result(update={"model": y - x})


def nearest_model(local: Local, x: Tensor, server: Mapping[str, Tensor], models: tuple[str, ...]) -> str:
    """Return which of the server's models has the least loss on a client's data; the first of equal ones.

    Args:
        x: The first model, flat.
        server: The others, by their names.
    """
    if not models:
        return "model"
    losses = {"model": local.loss(x)} | {name: local.loss(server[name]) for name in models}
    return min(losses, key=lambda name: losses[name])


@dataclass(frozen=True)
class TrainRequest:
    """The server tells a client to train.

    Attributes:
        round: From 1.
        weight: Its weight in the sum, over the cohort's :func:`fednlp.federated.sums.weight_unit`; in [0, 1].
        staleness: How many rounds ago the server had the model that is sent.
        rate: The client's learning rate is multiplied by this in the round.
        masking: How the client masks its update for secure aggregation; None without.
        examples: The training examples to use; None for all that the client has.
        labels: The labels of ``examples``; None for those of the data set.
        labelling: Round of the labelling whose pseudo labels the client, which keeps them, trains on beside its gold
            labels; 0 for gold labels alone; None where a client keeps no labels.
    """

    client: int
    round: int
    weight: float
    staleness: int = 0
    rate: float = 1.0
    masking: dict[str, Any] | None = None
    examples: list[int] | None = None
    labels: list[int] | None = None
    labelling: int | None = None

    @property
    def began(self) -> int:
        """The round that came next when the client began, which its random draws and its learning rate go by.

        It is the round itself but for clients that train across rounds, which do not know whose round they end in.
        """
        return self.round - self.staleness


@dataclass(frozen=True)
class ClientResult:
    """What a client reports along with its update; ``error`` says why it was dropped.

    Attributes:
        examples: Examples seen in local training, once per epoch.
        loss: Sum over the steps of the mean training loss of the step's examples, times their number.
        error: None for a client that came through.
        bytes_down: Length of the message it got; None for the whole model, uncompressed.
        tensors_down: Tensors in that message; None for all.
        bytes_up: Length of its own message; None for the whole model, uncompressed.
        entries: Numbers of the layout's entries that it sent whole; None for all.
        slices: Entry, first and last element of each entry that it sent in part
            (:class:`fednlp.federated.sent.Sent`); None for none.
        metrics: Numbers of the method's own, for weighted means.
        facts: What the round's line says of this client: JSON values.
        gradient_examples: Examples whose gradient it computed besides local training; a loss alone counts a third.
    """

    client: int
    weight: float
    examples: int = 0
    steps: int = 0
    loss: float = 0.0
    error: str | None = None
    bytes_down: int | None = None
    tensors_down: int | None = None
    bytes_up: int | None = None
    entries: list[int] | None = None
    slices: list[list[int]] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    gradient_examples: int = 0

    @property
    def model(self) -> str:
        """Which of the server's models its update belongs to."""
        return str(self.facts.get("model", "model"))

    @property
    def sent(self) -> Sent | None:
        """What of the model's update it sent; None for all."""
        return Sent.reported(self.entries, self.slices)


@dataclass(frozen=True)
class LossRequest:
    """The server asks a client for its loss before it draws the cohort.

    Attributes:
        round: From 1.
    """

    client: int
    round: int


@dataclass(frozen=True)
class ClientLoss:
    """A client's mean loss by the global model as it gets it, over all labels of its training examples.

    Attributes:
        error: Why it did not answer; None if it did.
        loss: Without dropout.
        bytes_down: Length of the message it got; None for the whole model, uncompressed.
        tensors_down: Tensors in that message; None for all.
    """

    client: int
    error: str | None = None
    loss: float = 0.0
    examples: int = 0
    bytes_down: int | None = None
    tensors_down: int | None = None


def failed(
    request: TrainRequest, error: Exception, bytes_down: int | None = None, tensors_down: int | None = None
) -> ClientResult:
    """Return the result of a client that is dropped because of an exception.

    Args:
        bytes_down: Length of the message it got.
        tensors_down: Tensors in that message.
    """
    return ClientResult(
        request.client,
        request.weight,
        error=raised(error),
        bytes_down=bytes_down,
        tensors_down=tensors_down,
    )
